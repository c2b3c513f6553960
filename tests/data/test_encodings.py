"""Text that is not UTF-8 is refused with file, line and what it seems to be in, wherever text is read; or named."""

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photos import encoded, write_tar
from PIL import Image

from likewise.configuration.resolution import resolve
from likewise.data import Arrays, ByClass, Folder, FromList, Pairs, Samples, Shards, Table, Text
from likewise.data.ids import Ids
from likewise.evaluation.arrays import gather_samples
from likewise.evaluation.feature_files import features_of_file
from likewise.files.detection import source_for
from likewise.files.encodings import opened
from likewise.inference.search import open_features

WORDS = ["rosé", "rosà", "rosç", "rosä"]
"""Four classes, which one character in the place of what cannot be read makes one."""


def _file(folder: Path, name: str, text: str, encoding: str) -> Path:
    content = text.encode(encoding)
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder / name


def _lines(name: str, folder: Path, written: str, **given: Any) -> set[str]:
    return set(Text(_file(folder, name, "\n".join(WORDS), written), label="none", **given).load().inputs.strings)


def _column(folder: Path, written: str, **given: Any) -> set[str]:
    rows = ["text,label", *(f"some text,{word}" for word in WORDS)]
    return set(Text(_file(folder, "texts.csv", "\n".join(rows), written), **given).load().names)


def _json_lines(folder: Path, written: str, **given: Any) -> set[str]:
    rows = [json.dumps({"text": "some text", "label": word}, ensure_ascii=False) for word in WORDS]
    return set(Text(_file(folder, "texts.jsonl", "\n".join(rows), written), **given).load().names)


def _pairs(folder: Path, written: str, **given: Any) -> set[str]:
    files = [str(_file(folder, name, "\n".join(WORDS), written)) for name in ("train.en", "train.de")]
    return set(Pairs(first=files[0], second=files[1], **given).load().inputs.strings)


def _table(name: str, folder: Path, written: str, **given: Any) -> set[str]:
    rows = ["width,kind", *(f"{row}.5,{word}" for row, word in enumerate(WORDS))]
    if ".json" in name:
        rows = [json.dumps({"width": 1.5, "kind": word}, ensure_ascii=False) for word in WORDS]
        rows = [f"[{','.join(rows)}]"] if name.endswith(".json") else rows
    file = _file(folder, name, "\n".join(rows), written)
    return set(Table(str(file), label="kind", **given).load().names)


def _pairs_of_table(folder: Path, written: str, **given: Any) -> set[str]:
    file = _file(folder, "pairs.csv", "\n".join(["a,b", *(f"{word},{word} twice" for word in WORDS)]), written)
    return set(Pairs(str(file), first="a", second="b", **given).load().inputs.strings)


def _beside_images(folder: Path, written: str, **given: Any) -> set[str]:
    rows = ["file_name,kind", *(f"{place}.png,{word}" for place, word in enumerate(WORDS))]
    (folder / "photos").mkdir(exist_ok=True)
    for place in range(len(WORDS)):
        Image.new("L", (4, 4)).save(folder / "photos" / f"{place}.png")
    _file(folder / "photos", "metadata.csv", "\n".join(rows), written)
    return set(Folder(str(folder / "photos"), label="kind", **given).load().names)


def _names_of_shards(folder: Path, written: str, **given: Any) -> set[str]:
    names = _file(folder, "names.txt", "\n".join(WORDS), written)
    return set(Shards(str(_tar(folder, "cls", ["0", "1", "2", "3"], "ascii")), names=str(names), **given).load().names)


def _in_shards(kind: str, folder: Path, written: str, **given: Any) -> set[str]:
    words = [f'{{"label": "{word}"}}' for word in WORDS] if kind == "json" else WORDS
    label = "json.label" if kind == "json" else kind
    return set(Shards(str(_tar(folder, kind, words, written)), label=label, **given).load().names)


def _tar(folder: Path, kind: str, words: list[str], encoding: str) -> Path:
    files = [(f"{number}.{kind}", word.encode(encoding)) for number, word in enumerate(words)]
    image = encoded(np.zeros((4, 4), dtype=np.uint8))
    return write_tar(folder / "some.tar", [*files, *((f"{number}.png", image) for number in range(len(words)))])


def _samples(names: list[str]) -> Samples:
    return Samples(torch.zeros(4 * len(names), 2), torch.arange(4 * len(names)) % len(names), tuple(names))


def _listed(name: str, folder: Path, written: str, **given: Any) -> set[str]:
    samples = Samples(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]), ("a", "b"), ids=Ids.of(WORDS))
    text = "\n".join(["path", *WORDS] if name.endswith(".csv") else WORDS)
    return set(samples[FromList(_file(folder, name, text, written), **given)(samples)].ids)


def _classes(folder: Path, written: str, **given: Any) -> set[str]:
    samples = _samples([*WORDS, "a", "b"])
    for part, names in {"train": "\n".join(WORDS[:2]), "val": "\n".join(WORDS[2:]), "test": "a\nb"}.items():
        _file(folder, f"{part}.txt", names, written)
    parts = ByClass(file=folder / "train.txt", **given)(samples)
    return {*parts.train.names, *parts.validation.names}


def _classes_in_json(folder: Path, written: str, **given: Any) -> set[str]:
    lists = {"train": WORDS[:2], "validation": WORDS[2:], "test": ["a", "b"]}
    file = _file(folder, "split.json", json.dumps(lists, ensure_ascii=False), written)
    parts = ByClass(file=file, **given)(_samples([*WORDS, "a", "b"]))
    return {*parts.train.names, *parts.validation.names}


READERS: dict[str, tuple[Callable[..., set[str]], str, str]] = {
    "lines": (partial(_lines, "texts.txt"), "texts.txt", "data"),
    "lines, compressed": (partial(_lines, "texts.gz"), "texts.gz", "data"),
    "csv": (_column, "texts.csv", "data"),
    "json lines": (_json_lines, "texts.jsonl", "data"),
    "pairs": (_pairs, "train.en", "data"),
    "table": (partial(_table, "some.csv"), "some.csv", "data"),
    "json lines table": (partial(_table, "some.jsonl"), "some.jsonl", "data"),
    "json table": (partial(_table, "some.json"), "some.json", "data"),
    "pairs of a table": (_pairs_of_table, "pairs.csv", "data"),
    "metadata": (_beside_images, "metadata.csv", "data"),
    "names of shards": (_names_of_shards, "names.txt", "data"),
    "cls": (partial(_in_shards, "cls"), "some.tar/0.cls", "data"),
    "txt": (partial(_in_shards, "txt"), "some.tar/0.txt", "data"),
    "json": (partial(_in_shards, "json"), "some.tar/0.json", "data"),
    "list": (partial(_listed, "some.txt"), "some.txt", "subset"),
    "table of a list": (partial(_listed, "some.csv"), "some.csv", "subset"),
    "classes": (_classes, "train.txt", "split"),
    "classes in JSON": (_classes_in_json, "split.json", "split"),
}


@pytest.mark.parametrize(("read", "file", "part"), READERS.values(), ids=READERS)
def test_text_in_another_encoding_is_refused_or_named(read, file, part, tmp_path, monkeypatch):
    monkeypatch.setenv("LIKEWISE_CACHE", str(tmp_path / "cache"))
    assert read(tmp_path, "utf-8-sig") == set(WORDS)
    with pytest.raises(ValueError, match=rf"{file}, got the byte 0xE9, é in latin-1, .*--{part}\.encoding latin-1 if"):
        read(tmp_path, "latin-1")
    assert read(tmp_path, "latin-1", encoding="latin-1") == set(WORDS)
    if file.endswith(".cls"):
        return
    with pytest.raises(ValueError, match=rf"{file}, got what looks like utf-16 in line 1: give --{part}\.encoding utf"):
        read(tmp_path, "utf-16")
    assert read(tmp_path, "utf-16", encoding="utf-16") == set(WORDS)
    with pytest.raises(ValueError, match=rf"expected an encoding as --{part}.encoding, got 'latin-17': latin-1"):
        read(tmp_path, "utf-8", encoding="latin-17")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"fine\nfine\nros\xe9 \x93", "the byte 0xE9, é in cp1252, in line 3: give --data.encoding cp1252 if"),
        ("ok\n香り".encode("shift_jis"), "the byte 0x8D in line 2: name its encoding, as in --data.encoding shift_j"),
        ("ok".encode("utf-16-le"), "what looks like utf-16-le in line 1: give --data.encoding utf-16-le,"),
        ("ok".encode("utf-16-be"), "what looks like utf-16-be in line 1"),
        ("ok".encode("utf-32"), "what looks like utf-32 in line 1"),
    ],
)
def test_what_text_may_be_in_is_said_with_the_line(content, words):
    with pytest.raises(ValueError, match=words), opened(content, called="names.txt") as text:
        text.read()


def test_lines_in_another_encoding_are_told_from_data(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"\x80\x04\x95\x00\xe9")
    with pytest.raises(ValueError, match=r"expected a file \(.*weights.bin: convert it"):
        source_for(tmp_path / "weights.bin")
    assert source_for(_file(tmp_path, "texts.txt", "rosé", "latin-1"))[0] == "Text"


def test_options_are_read_from_what_a_shell_of_windows_writes(tmp_path):
    file = _file(tmp_path, "options.yaml", "seed: 7\nname: rosé\n", "utf-16")
    options = resolve({"config": str(file)})
    assert (options.seed, options.name) == (7, "rosé")


def _bytes_of_source(file: Path) -> Samples:
    return Arrays(file).load()


def _bytes_of_features(file: Path) -> Samples:
    test = features_of_file(file).test
    return Samples(test.vectors, test.labels, test.names, ids=test.ids)


def _bytes_to_search(file: Path) -> Samples:
    found = open_features(file)
    assert found is not None
    return Samples(torch.zeros(len(found.ids), 1), found.labels, found.names, ids=Ids.of(found.ids))


@pytest.mark.parametrize("read", [_bytes_of_source, _bytes_of_features, _bytes_to_search])
def test_bytes_in_arrays_are_words_in_utf_8_or_their_key_is_named(read, tmp_path):
    words, parts = np.array([word.encode() for word in WORDS] * 9), np.array([b"test"] * 36)
    inputs, file = {"features": np.zeros((36, 2), np.float32)}, tmp_path / "some.npz"
    np.savez(file, **inputs, labels=words, parts=parts)
    assert set(read(file).names) == set(WORDS)
    np.savez(file, **inputs, labels=np.arange(36) % 4, names=words[:4], ids=[b"\xc3\xa9%d" % row for row in range(36)])
    assert set(read(file).names) == set(WORDS)
    assert all(name.startswith("é") for name in read(file).ids)
    for key, others in (("labels", {}), ("ids", {"labels": words})):
        np.savez(file, **inputs, **others, **{key: [word.encode("latin-1") for word in WORDS * 9]})
        with pytest.raises(ValueError, match=rf"{key} of strings, or bytes in utf-8, got b'ros\\xe9': save np\.char"):
            read(file)
        np.savez(file, **inputs, **others, **{key: words.astype(object)})
        with pytest.raises(ValueError, match=rf"{key} of plain values, got Python objects: save np.array\({key}.tol"):
            read(file)


@pytest.mark.parametrize("kind", [bytes, object])
def test_bytes_as_labels_in_memory_are_words(kind):
    y = np.array([word.encode() for word in WORDS], dtype=None if kind is bytes else object)
    assert set(gather_samples({"train": ("x", np.zeros((4, 2)), "y", y)}).names) == set(WORDS)
    with pytest.raises(ValueError, match=r"expected y of strings, or bytes in utf-8, got b'ros\\xe9'"):
        gather_samples({"train": ("x", np.zeros((4, 2)), "y", np.array([word.encode("latin-1") for word in WORDS]))})
