"""Which source is chosen for what is at a path: before torch is loaded, and such that it reads what is there."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from likewise import data
from likewise.files.detection import TORCHVISION, source_for

TEXTS = "text,label\na good day,b\nhello,c\n"


def image_in(folder, name="0.png"):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(folder / name)


def lines(*rows):
    return "\n".join(json.dumps(row) for row in rows)


TABLES = {
    "texts.csv": ("Text", TEXTS, {}),
    "texts.tsv": ("Text", TEXTS.replace(",", "\t"), {}),
    "marks.csv": ("Text", 'label,text\na,"two\nlines, and a comma"\n', {}),
    "other.csv": ("Text", "review,label\nlong and dull,b\nshort,c\n", {"text": "review"}),
    "texts.jsonl": ("Text", lines({"body": "a", "labels": ["b"]}), {}),
    "numbers.csv": ("Table", ",petal,sepal,class\n0,1.5,,lily\n", {}),
    "several.csv": ("Table", "colour,petal,class\nred,1.5,lily\n", {}),
    "paths.csv": ("Table", "file,text,label\ncat/1.JPG,a cat,cat\n", {}),
    "phones.csv": ("Table", "file,label\n1.heic,cat\n", {}),
    "texts.json": ("Table", lines({"text": "a"}), {}),
    "list.ndjson": ("Table", lines([1]), {}),
    "empty.csv": ("Table", "", {}),
    "x.parquet": ("Table", "", {}),
    "x.npz": ("Arrays", "", {}),
    "x.npy": ("Arrays", "", {}),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_file_is_told_by_its_suffix_and_its_columns(name, tmp_path):
    kind, content, options = TABLES[name]
    (tmp_path / name).write_text(content)
    assert source_for(tmp_path / name) == (kind, {"path": str(tmp_path / name), **options})


def test_a_folder_is_told_by_what_is_in_it(tmp_path):
    """Not by what is hidden, nor by links in a circle."""
    image_in(tmp_path / "photos" / "cat" / "2023")
    image_in(tmp_path / "texts" / ".thumbnails")
    (tmp_path / "texts" / "again").symlink_to(tmp_path / "texts")
    for file in ("photos/notes.csv", "texts/train.csv", "texts/test.csv", "tables/birds-train.csv", "saved/state.json"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(TEXTS)
    for name, kind in {"photos": "Folder", "texts": "Text", "tables": "Table", "saved": "Table"}.items():
        assert source_for(str(tmp_path / name)) == (kind, {"path": str(tmp_path / name)})


def test_a_name_is_told_whatever_its_case_and_hyphens_and_a_folder_wins_over_it(tmp_path, monkeypatch):
    assert source_for("cifar-10") == source_for("CIFAR10") == ("Torchvision", {"name": "CIFAR10"})
    assert source_for("Fashion-MNIST") == source_for("fashion mnist") == ("Torchvision", {"name": "FashionMNIST"})
    assert source_for("Digits") == ("Digits", {})
    assert source_for("uoft-cs/cifar100") == ("Hub", {"path": "uoft-cs/cifar100"})
    monkeypatch.chdir(tmp_path)
    image_in(tmp_path / "cifar10" / "cat")
    assert source_for("cifar10") == ("Folder", {"path": "cifar10"})


def test_the_names_are_those_of_torchvision_and_load_with_a_root_alone():
    from torchvision import datasets  # noqa: PLC0415 - this test alone needs it

    assert set(TORCHVISION) <= set(datasets.__all__)
    for name in TORCHVISION:
        assert data.Torchvision(name)._class  # noqa: SLF001 - raises for a set that is not for classification


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("CIFAR1", "did you mean CIFAR10"),
        ("phots", "did you mean .*photos"),
        ("photos/dog", r"which does not exist: check it; the nearest folder is .*photos"),
        ("empty", "expected images or tables in empty, got an empty folder: check the path"),
        ("arrays", r"got only files such as x.npz: give the file itself, arrays/x.npz"),
        ("photos/cat/0.png", "which is one: give the folder"),
        ("photos.zip", "unpack it, and give the folder"),
        ("model.h5", "convert it, or save it with numpy.savez"),
        ("~nobody-of-this-name/photos", "which does not exist"),
    ],
)
def test_what_no_source_reads_is_refused_with_what_to_do(place, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    image_in(tmp_path / "photos" / "cat")
    for folder in ("empty", "arrays"):
        (tmp_path / folder).mkdir()
    np.savez("arrays/x.npz", vectors=np.zeros((2, 2)))
    for file in ("photos.zip", "model.h5"):
        (tmp_path / file).touch()
    with pytest.raises(ValueError, match=words):
        source_for(place)


def test_a_file_of_lines_is_told_by_how_it_begins(tmp_path):
    given = {"path": "", "text": "text", "label": "none"}
    for name, content, kind in (
        ("notes.txt", "\ufeffone\r\n\n zwei\tä \n".encode(), given),
        ("train.de.gz", gzip.compress(b"one\n\n zwei\t\xc3\xa4 "), given),
        ("t.csv.gz", gzip.compress(b"text\nlong"), None),
        ("t.tar.gz", gzip.compress(b"a.txt" + bytes(507) + b"one"), None),
        ("x.bin", bytes(range(256)), None),
        ("cut.gz", gzip.compress(bytes(9))[:12], None),
        ("blank.txt", b"\n \n", None),
    ):
        (tmp_path / name).write_bytes(content)
        if kind is None:
            with pytest.raises(ValueError, match="expected a file"):
                source_for(tmp_path / name)
            continue
        path = str(tmp_path / name)
        assert source_for(path) == ("Text", {**given, "path": path})
        samples = data.Text(path, label="none").load()
        assert samples.inputs.strings == ["one", " zwei\tä "]
        assert list(samples.ids) == [f"{name}:1", f"{name}:3"]


@pytest.mark.process
def test_torch_is_not_loaded(tmp_path):
    (tmp_path / "texts.csv").write_text(TEXTS)
    image_in(tmp_path / "photos" / "cat")
    script = (
        "import sys; from likewise.files.detection import source_for; source_for('texts.csv'); source_for('photos')\n"
        "try: source_for('nowhere')\nexcept ValueError: pass\n"
        "print(*{'torch', 'numpy', 'datasets', 'torchvision'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not done.stdout.split()
