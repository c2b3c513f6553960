"""Names of files, samples and classes that are no text, that look alike, or that begin with a mark nobody sees."""

import csv
import io
import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from photos import encoded, write_tar
from PIL import Image
from pyarrow import parquet

from likewise.cli import main
from likewise.data import Arrays, ByClass, Folder, FromList, Samples, Shards, Table, Text
from likewise.data.lazy_inputs import Ids

ODD = "na\udcefve.png"  # how Python has a name in Latin-1
CAFE = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
DECOMPOSED = unicodedata.normalize("NFD", CAFE)
PNG = encoded(np.zeros((8, 8), dtype=np.uint8))


def folder_of(root: Path, names: dict[str, int]) -> Path:
    """Make a folder with so many images of each class, each of a grey level that tells it."""
    for shade, (name, count) in enumerate(names.items()):
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("L", (8, 8), 10 * shade + number).save(root / name / f"{number}.png")
    return root


@pytest.mark.parametrize("memory", [0, 1])
def test_a_file_whose_name_is_no_text_is_read_like_its_neighbours(tmp_path, memory):
    folder = folder_of(tmp_path / "photos", {"cat": 3, "dog": 2, "\udce9lm": 2})
    (folder / "cat/0.png").rename(folder / "cat" / ODD)
    samples = Folder(str(folder), size=8, memory=memory).load()
    assert list(samples.ids)[:3] == ["cat/1.png", "cat/2.png", r"cat/na\udcefve.png"]
    assert samples.names == (r"\udce9lm", "cat", "dog")
    levels = samples.inputs[torch.arange(7)].amax(dim=(1, 2, 3)).tolist()
    assert dict(zip(samples.ids, levels, strict=True)) == {
        r"cat/na\udcefve.png": 0, "cat/1.png": 1, "cat/2.png": 2, "dog/0.png": 10, "dog/1.png": 11,
        r"\udce9lm/0.png": 20, r"\udce9lm/1.png": 21,
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
    folder = folder_of(tmp_path / "photos", {CAFE: 2, DECOMPOSED: 3, "bar": 2})
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
    data = folder_of(Path("photos\udce9"), {"\udce9lm": 12, "\u732b": 12})
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
