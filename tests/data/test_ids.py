"""What samples and classes are called, through parts and files: also names that are no text, or that look alike."""

import csv
import io
import json
import unicodedata
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from photos import encoded, shaded, write_tar
from PIL import Image
from pyarrow import parquet

from likewise.cli import main
from likewise.data import Arrays, ByClass, Folder, Fraction, FromList, Ids, Samples, Shards, Stratified, Table, Text
from likewise.data.lazy_inputs import distinct
from likewise.evaluation import FeatureParts, Features, load_features, save_features
from likewise.evaluation.encoding import features_of
from likewise.evaluation.feature_files import features_of_file
from likewise.models import ConvNet

ODD = "na\udcefve.png"  # how Python has a name in Latin-1
CAFE = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
DECOMPOSED = unicodedata.normalize("NFD", CAFE)
PNG = encoded(np.zeros((8, 8), dtype=np.uint8))


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


# Names that are no text, or that look alike


@pytest.mark.parametrize("memory", [0, 1])
def test_a_file_whose_name_is_no_text_is_read_like_its_neighbours(tmp_path, memory):
    shaded(folder := tmp_path / "photos", {"cat": 3, "dog": 2, "\udce9lm": 2})
    (folder / "cat/0.png").rename(folder / "cat" / ODD)
    samples = Folder(str(folder), size=8, memory=memory).load()
    assert list(samples.ids)[:3] == ["cat/1.png", "cat/2.png", r"cat/na\udcefve.png"]
    assert samples.names == (r"\udce9lm", "cat", "dog")
    levels = samples.inputs[torch.arange(7)].amax(dim=(1, 2, 3)).tolist()
    assert dict(zip(samples.ids, levels, strict=True)) == {
        r"cat/na\udcefve.png": 0, "cat/1.png": 1, "cat/2.png": 2, "dog/0.png": 3, "dog/1.png": 4,
        r"\udce9lm/0.png": 5, r"\udce9lm/1.png": 6,
    }  # fmt: skip


def test_ids_and_classes_of_every_source_are_text(tmp_path):
    """So that whatever is written from them, by whatever library, can be."""
    write_tar(tmp_path / "odd.tar", [(f"\udce9/{ODD}", PNG), ("ash/1.png", PNG), ("ash/2.png", PNG)])
    np.savez(tmp_path / "odd.npz", vectors=np.eye(3), ids=["a\udce9", "b", "c"], labels=["\udce9", "ash", "ash"])
    rows = [{"id": "\ud83d", "text": "one", "label": "\ud83d"}, {"id": "b", "text": "two", "label": "ash"}]
    (tmp_path / "odd.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sources = Shards(str(tmp_path / "odd.tar"), size=8), Arrays(tmp_path / "odd.npz"), Text(tmp_path / "odd.jsonl")
    for samples in (source.load() for source in sources):
        assert "\\ud" in next(iter(samples.ids))
        assert any("\\ud" in name for name in samples.names)
        for name in [*samples.ids, *samples.names]:
            name.encode()  # raises where it is none


def test_classes_that_differ_in_how_an_accent_is_written_are_one(tmp_path):
    two = [CAFE, DECOMPOSED, "bar", DECOMPOSED]
    shaded(folder := tmp_path / "photos", {CAFE: 2, DECOMPOSED: 3, "bar": 2})
    np.savez(tmp_path / "a.npz", vectors=np.eye(4), labels=two)
    (tmp_path / "a.csv").write_text("x,label\n" + "".join(f"{n},{name}\n" for n, name in enumerate(two)), "utf-8")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"{name}", "label": [name]}) + "\n" for name in two))
    tar = [(f"{name}/{number}.png", PNG) for number, name in enumerate(two)]
    cls = [(f"{n}.{of}", got) for n, name in enumerate(two) for of, got in (("cls", name.encode()), ("png", PNG))]
    sources = {
        "folder": Folder(str(folder), size=8),
        "arrays": Arrays(tmp_path / "a.npz"),
        "table": Table(str(tmp_path / "a.csv")),
        "texts": Text(tmp_path / "a.jsonl"),
        "folders in a tar": Shards(str(write_tar(tmp_path / "a.tar", tar)), size=8),
        "classes in a tar": Shards(str(write_tar(tmp_path / "b.tar", cls)), size=8),
    }
    for where, source in sources.items():
        samples = source.load()
        assert samples.names == ("bar", CAFE), where
        assert samples.counts.tolist() == ([2, 5] if where == "folder" else [1, 3]), where


def test_lists_name_samples_and_classes_however_their_accents_are_written(tmp_path):
    ids = [f"{DECOMPOSED}/1.png", f"{DECOMPOSED}/2.png", "bar/1.png"]
    samples = Samples(torch.zeros(3, 1), torch.tensor([1, 1, 0]), ("bar", CAFE), ids=Ids.of(ids))
    (tmp_path / "list.txt").write_text(f"{CAFE}/1.png\nbar/1.png\n", "utf-8")
    assert FromList(tmp_path / "list.txt")(samples).tolist() == [0, 2]
    names = [DECOMPOSED, *"abcde"]
    lists = {"train": names[:2], "validation": names[2:4], "test": names[4:]}
    (tmp_path / "classes.json").write_text(json.dumps(lists))
    twelve = Samples(torch.zeros(12, 1), torch.arange(12) % 6, (*"abcde", CAFE))
    assert ByClass(file=tmp_path / "classes.json")(twelve).train.names == ("a", CAFE)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_a_run_writes_copes_with_every_name(tmp_path, monkeypatch):
    """Pages, tables and features of files and classes in Latin-1 and Japanese, on a console that has one of these."""
    monkeypatch.chdir(tmp_path)
    console = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr("sys.stdout", console)
    shaded(data := Path("photos\udce9"), {"\udce9lm": 12, "\u732b": 12})
    for file in data.glob("*/1.png"):
        file.rename(file.with_name(ODD))

    def likewise(*words: object) -> None:
        assert main([str(word) for word in words]) == 0, words

    likewise("train", data, "--data.size", 8, "--encoder", "ConvNet", "--encoder.width", 4, "--epochs", 1)
    (run,) = Path("runs").iterdir()
    assert run.suffix == ""
    assert r"\udcef" in (run / "report.html").read_text("utf-8")
    likewise("train", "--config", run / "config.yaml", "--report", "false", "--name", "again")
    likewise("embed", run, data, "--output", "features.npz")
    for ending in (".csv", ".parquet"):
        likewise("predict", run, data, "--output", f"labels{ending}")
    likewise("search", run, "--within", data, "--html", "near.html")
    ids = np.load("features.npz")["ids"].tolist()
    with Path("labels.csv").open(encoding="utf-8") as file:
        assert [row["id"] for row in csv.DictReader(file)] == ids
    assert parquet.read_table("labels.parquet")["id"].to_pylist() == ids
    assert r"\udce9lm" in console.buffer.getvalue().decode("cp1252")
