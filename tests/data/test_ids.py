"""What samples are called stays with them: through parts, subsets, features and files, whatever is left out."""

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from likewise.data import Arrays, Folder, Fraction, Ids, Samples, Stratified, Table, Text
from likewise.data.lazy_inputs import distinct
from likewise.evaluation import FeatureParts, Features, load_features, save_features
from likewise.evaluation.encoding import features_of
from likewise.evaluation.feature_files import features_of_file
from likewise.models import ConvNet


def photos(root, unreadable=()):
    """Write photos whose brightness is their number, some unreadable, and return the paths."""
    names = [f"{kind}/IMG_{number:04}.png" for kind in ("cat", "dog") for number in range(12)]
    for place, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if place in unreadable:
            (root / name).write_bytes(b"no photo")
        else:
            Image.new("L", (8, 8), 10 * place).save(root / name)
    return names


@pytest.mark.filterwarnings("ignore:left out")
@pytest.mark.parametrize("memory", [0, 2])
@pytest.mark.parametrize("unreadable", [(), (0, 5, 13)])
def test_an_image_keeps_its_path_through_parts_subsets_and_files(tmp_path, memory, unreadable):
    names = photos(tmp_path / "photos", unreadable)
    samples = Folder(str(tmp_path / "photos"), memory=memory).load()
    assert list(samples.ids) == [name for place, name in enumerate(names) if place not in unreadable]
    parts = Stratified(test=0.25, validation=0.2)(samples, Fraction(0.7))
    features = []
    for part, name in ((parts.train, "train"), (parts.validation, "validation"), (parts.test, "test")):
        for called, image in zip(part.ids, part.inputs[torch.arange(len(part))], strict=True):
            assert names[int(image.max()) // 10] == called
        features.append(features_of(part, ConvNet((1, 8, 8), width=4), name))
    save_features(tmp_path / "embeddings.npz", FeatureParts(*features))
    for before, after in zip(features, load_features(tmp_path / "embeddings.npz"), strict=True):
        assert list(before.ids) == list(after.ids)
    together = features_of_file(tmp_path / "embeddings.npz")
    for before, after in zip(features, together, strict=True):
        assert list(before.ids) == list(after.ids)
        assert torch.equal(before.vectors, after.vectors)
    joined = parts.refitted().train
    assert list(joined.ids) == [*parts.train.ids, *parts.validation.ids]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_has_its_id_column_or_its_rows(tmp_path, suffix):
    def written(name, columns):
        table = datasets.Dataset.from_dict(columns)
        write = {".csv": table.to_csv, ".jsonl": table.to_json, ".parquet": table.to_parquet}[suffix]
        write(str(tmp_path / f"{name}{suffix}"), **({"index": False} if suffix == ".csv" else {}))
        return str(tmp_path / f"{name}{suffix}")

    numbers = {"x": [1.0, 2.0, None, 4.0], "label": ["a", "b", "a", "b"]}
    with pytest.warns(UserWarning, match="left out 1 of 4 rows"):
        read = Table(written("own", {"id": ["k1", "k2", "k3", "k4"], **numbers})).load()
    assert (list(read.ids), read.input_shape) == (["k1", "k2", "k4"], (1,))
    with pytest.warns(UserWarning, match="left out 1 of 4 rows"):
        assert list(Table(written("rows", numbers)).load().ids) == ["0", "1", "3"]
    with pytest.warns(UserWarning, match="left out 1 of 4 rows"):  # the same value twice is no name
        twice = Table(written("twice", {"id": [7, 7, 8, 9], **numbers})).load()
    assert (list(twice.ids), twice.input_shape) == (["0", "1", "3"], (1,))  # and no input either


def test_texts_are_called_by_their_lines_or_their_ids(tmp_path):
    (tmp_path / "t.csv").write_text('text,label\n"two\nlines",a\n,b\nlast,b\n')
    read = Text(tmp_path / "t.csv").load()
    assert dict(zip(read.ids, read.inputs.strings, strict=True))["t.csv:2"] == "two\nlines"
    assert dict(zip(read.ids, read.inputs.strings, strict=True))["t.csv:5"] == "last"
    (tmp_path / "t.jsonl").write_text('{"id": 7, "text": "a", "label": "x"}\n{"id": "q", "text": "b", "label": "y"}\n')
    assert list(Text(tmp_path / "t.jsonl").load().ids) == ["7", "q"]
    (tmp_path / "parts").mkdir()
    for part, labels in (("train", "aabb"), ("test", "ab")):
        rows = "".join(f"{k},{of}\n" for k, of in enumerate(labels))
        (tmp_path / "parts" / f"{part}.csv").write_text(f"x,label\n{rows}")
    ids = Table(str(tmp_path / "parts")).load().ids
    assert list(ids) == ["train/0", "train/1", "train/2", "train/3", "test/0", "test/1"]


def test_arrays_have_ids_or_places(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(8, 3))
    np.savez(tmp_path / "plain.npz", vectors=vectors)
    assert list(Arrays(tmp_path / "plain.npz").load().ids) == list("01234567")
    np.savez(tmp_path / "named.npz", vectors=vectors, ids=list("abcdefgh"))
    named = Arrays(tmp_path / "named.npz").load()
    assert list(named[torch.tensor([5, 1])].ids) == ["f", "b"]
    np.savez(tmp_path / "wrong.npz", vectors=vectors, ids=vectors)
    with pytest.raises(ValueError, match="expected ids of shape"):
        Arrays(tmp_path / "wrong.npz").load()


def test_names_are_made_different_without_taking_one_that_is_there():
    """Beside a loop that looks for every name in all of them."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        names = [rng.choice(["a", "b", "a (2)", "a (3)", "b (2)"]) for _ in range(rng.integers(0, 9))]
        found = list(distinct(names))
        assert len(set(found)) == len(found) == len(names)
        for place, (before, after) in enumerate(zip(names, found, strict=True)):
            if before not in names[:place]:
                assert after == before  # the first keeps its name
            else:
                assert after.startswith(f"{before} (")


def test_ids_are_taken_and_joined_without_their_samples():
    ids = Ids.of(["a", "b", "c"])
    assert list(ids[torch.tensor([True, False, True])]) == ["a", "c"]
    assert list(ids[torch.tensor([2])] + Ids.numbers(torch.tensor([5]))) == ["c", "5"]
    assert (Ids.numbers(torch.arange(2)) + Ids.numbers(torch.arange(3))).plain
    samples = Samples(torch.zeros(3, 2))
    assert list(samples[torch.tensor([2, 0])].ids) == ["2", "0"]
    assert list(Features(torch.zeros(2, 2), None, rows=torch.tensor([9, 4])).ids) == ["9", "4"]
