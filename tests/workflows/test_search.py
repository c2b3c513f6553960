"""`likewise search`: files, folders, tables, ids and texts, against plain loops; its outputs, pages and refusals."""

import warnings

import numpy as np
import pyarrow as pa
import pytest
import torch
from in_use import encoder_run, rows_of
from PIL import Image
from pyarrow import parquet
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import cosine_similarity

import likewise.inference.search as module
from likewise.cli import main
from likewise.inference import load
from likewise.models import MLP, ConvNet

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run whose encoder is not trained, and photos in folders of classes: one twice, one in a wrong folder."""
    root = tmp_path_factory.mktemp("search")
    digits = load_digits()
    for number in range(40):
        file = root / f"photos/{digits.target[number]}/img_{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[number] * 15).astype(np.uint8)).resize((16, 16)).save(file)
    (root / "photos/1/twice.png").write_bytes((root / "photos/1/img_01.png").read_bytes())
    (root / "new").mkdir()
    Image.fromarray((digits.images[99] * 15).astype(np.uint8)).save(root / "new/one.png")
    torch.manual_seed(0)
    shape = {"channels": 1, "height": 16, "width": 16, "resize": "crop"}
    arguments = {"input_shape": [1, 16, 16], "width": 4}
    run = encoder_run(root, ConvNet((1, 16, 16), width=4), arguments, preprocessing=shape)
    return root, str(run.finalize().folder)


def files_in(root):
    files = sorted((root / "photos").glob("*/*.png"))
    return files, [str(file.relative_to(root / "photos")) for file in files]


def embedded(root, run, ending, dtype=np.float32):
    """A file of the photos' features, as `likewise embed` writes it."""
    files, ids = files_in(root)
    features = load(run).encode(files).astype(dtype)
    path = root / f"photos-{np.dtype(dtype).name}{ending}"
    labels = [one.partition("/")[0] for one in ids]
    if ending == ".npz":
        np.savez(path, features=features, ids=ids, labels=labels)
    else:
        column = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), features.shape[1])
        parquet.write_table(pa.table({"id": ids, "features": column, "label": labels}), path, row_group_size=7)
    return path


@pytest.mark.parametrize(("ending", "dtype"), [(".parquet", np.float32), (".npz", np.float16), ("", np.float32)])
def test_the_nearest_in_a_file_or_folder_are_those_of_a_loop(place, tmp_path, monkeypatch, ending, dtype):
    monkeypatch.setattr(module, "PIECE", 11)
    root, run = place
    path = embedded(root, run, ending, dtype) if ending else root / "photos"
    output = tmp_path / "nearest.csv"
    query = root / "new/one.png"
    assert main(["search", run, str(query), "--among", str(path), "--k", "6", "--output", str(output)]) == 0
    found = rows_of(output)
    files, ids = files_in(root)
    features = load(run).encode(files).astype(dtype).astype(np.float32)
    similarities = cosine_similarity(load(run).encode([query]), features)[0]
    wanted = sorted(similarities, reverse=True)[:6]
    assert [float(row["similarity"]) for row in found] == pytest.approx(wanted, abs=2e-6)
    for row in found:
        assert similarities[ids.index(row["id"])] == pytest.approx(float(row["similarity"]), abs=2e-6)
        assert row["label"] == row["id"].partition("/")[0]
        assert row["query"] == str(query)


def test_a_folder_of_queries_and_an_id_are_searched_for(place, tmp_path):
    root, run = place
    for query, first in ((str(root / "photos"), "0/img_00.png"), ("1/twice.png", "1/img_01.png")):
        words = [query, "--among", str(embedded(root, run, ".parquet")), "--output", str(tmp_path / "out.jsonl")]
        with warnings.catch_warnings(action="ignore"):  # the queries are rows of the gallery
            assert main(["search", run, *words, "--force"]) == 0
        assert rows_of(tmp_path / "out.jsonl")[0]["id"] == first


def test_duplicates_and_mistakes_and_neighbours_within_a_set(place, tmp_path, capsys):
    root, run = place
    words = ["search", run, "--within", str(embedded(root, run, ".npz"))]
    assert main([*words, "--duplicates", "0.999999"]) == 0
    told = capsys.readouterr().out
    assert "1/img_01.png" in told
    assert "1/twice.png" in told
    assert main([*words, "--k", "4", "--output", str(tmp_path / "all.csv")]) == 0
    assert main([*words, "--k", "4", "--mistakes", "--output", str(tmp_path / "doubts.csv")]) == 0
    rows, doubts = (rows_of(tmp_path / name) for name in ("all.csv", "doubts.csv"))
    assert len(rows) == 41 * 4
    assert all(row["query"] != row["id"] for row in rows)
    near = {row["query"]: [] for row in rows}
    for row in rows:
        near[row["query"]].append(row["label"])
    agreement = {one: labels.count(one.partition("/")[0]) / 4 for one, labels in near.items()}
    assert {row["id"]: float(row["agreement"]) for row in doubts} == {k: v for k, v in agreement.items() if v < 0.5}


def test_a_page_has_pictures_and_escapes_names(place, tmp_path):
    root, run = place
    path, page = embedded(root, run, ".parquet"), tmp_path / "page.html"
    odd = root / "new" / "a<b>.png"
    odd.write_bytes((root / "new/one.png").read_bytes())
    (root / "photos-copy").symlink_to(root / "photos")
    assert main(["search", run, str(odd), "--among", str(root / "photos"), "--html", str(page)]) == 0
    text = page.read_text()
    assert "a&lt;b&gt;.png" in text
    assert "a<b>" not in text
    assert text.count("data-tile") >= 6
    assert "webp;base64" in text
    odd.unlink()
    assert main(["search", run, "--within", str(path), "--html", str(page), "--force"]) == 0  # no pictures at hand
    assert "1/twice.png" in page.read_text()


def test_what_cannot_be_searched_is_refused_in_one_line(place, tmp_path, capsys):
    root, run = place
    path = embedded(root, run, ".npz")
    other = tmp_path / "other.npz"
    np.savez(other, features=np.random.default_rng(0).random((4, 5), dtype=np.float32))
    bad = tmp_path / "bad.npz"
    np.savez(bad, features=np.full((4, load(run).feature_dim), np.nan, dtype=np.float32))
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 no more")
    there = tmp_path / "there.csv"
    there.write_text("mine")
    query = str(root / "new/one.png")
    for words, said in (
        ([query, "--among", str(other)], "got 5"),
        ([query, "--among", str(bad)], "NaN"),
        ([query, "--among", str(tmp_path / "cut.parquet")], "can't be read"),
        ([query, "--among", str(tmp_path / "none.parquet")], "does not exist"),
        ([str(broken), "--among", str(path)], "broken.png"),
        (["1/twise.png", "--among", str(path)], "1/twice.png"),
        ([query, "--among", str(path), "--k", "0"], "k of at least 1"),
        ([query, "--among", str(path), "--at-least", "7"], "from -1 to 1"),
        ([query, "--among", str(path), "--output", str(there)], "--force"),
        ([query, "--among", str(path), "--output", str(tmp_path / "a.txt")], ".jsonl"),
        ([query, "--among", run], f"which keeps no embeddings.npz: likewise evaluate {run} makes them"),
        ([query], "--among"),
        (["--among", str(path)], "QUERY"),
        ([query, "--within", str(path)], "--within"),
        ([query, "--among", str(path), "--duplicates", "0.9"], "--within"),
        (["--within", str(other), "--mistakes"], "got 5"),
    ):
        assert main(["search", run, *words]) == 2, words
        error = capsys.readouterr().err
        assert error.count("\n") == 1, error
        assert said in error, error
    assert there.read_text() == "mine"


def test_what_embed_writes_is_searched_by_its_own_encoder_alone(tmp_path, capsys):
    """And never written over its input."""
    file, vectors, runs = tmp_path / "vectors.npz", np.random.default_rng(0).normal(size=(20, 3)), []
    vectors[7] = vectors[3]
    np.savez(file, vectors=vectors.astype(np.float32))
    for seed in range(2):
        torch.manual_seed(seed)
        runs.append(str(encoder_run(tmp_path, MLP((3,), width=8), {"input_shape": [3], "width": 8}).folder))
    assert main(["embed", runs[0], str(file), "--output", str(tmp_path / "v.parquet")]) == 0
    words = ["--within", str(tmp_path / "v.parquet"), "--duplicates", "1"]
    capsys.readouterr()
    assert main(["search", runs[0], *words]) == 0  # equal ones have a cosine of 1 but for rounding
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]] == ["3", "7"]
    assert main(["search", runs[1], *words]) == 2
    assert "features of this run's encoder, got those of another" in capsys.readouterr().err
    before = file.read_bytes()
    assert main(["embed", runs[0], str(file), "--output", str(file), "--force"]) == 2
    assert "an output beside the input" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_features_of_two_encoders_are_not_compared(tmp_path, capsys):
    files = [str(tmp_path / f"{name}.parquet") for name in "abc"]
    for number, (file, encoder) in enumerate(zip(files, "xxy", strict=True)):
        numbers = np.random.default_rng(number).random(12, dtype=np.float32)
        table = pa.table({"features": pa.FixedSizeListArray.from_arrays(pa.array(numbers), 3)})
        parquet.write_table(table.replace_schema_metadata({"likewise": f'{{"encoder": "{encoder}"}}'}), file)
    assert [main(["search", files[0], other]) for other in files[1:]] == [0, 2]
    assert "got those of another" in capsys.readouterr().err
