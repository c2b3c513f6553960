"""Text that is not UTF-8 is refused with file, line and what it seems to be in, wherever text is read; or named."""

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photos import encoded, write_tar

from likewise.configuration.resolution import resolve
from likewise.data import Arrays, ByClass, Folder, FromList, Pairs, Samples, Shards, Source, Table, Text
from likewise.data.lazy_inputs import Ids
from likewise.evaluation.arrays import gather_samples
from likewise.evaluation.feature_files import features_of_file
from likewise.files.detection import source_for
from likewise.files.formats import opened
from likewise.inference.search import open_features

WORDS = ["rosé", "rosà", "rosç", "rosä"]
"""Four classes, which one character in the place of what cannot be read makes one."""


LINES = "\n".join(WORDS)
IMAGE = encoded(np.zeros((4, 4), dtype=np.uint8))
LISTED = Samples(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]), ("a", "b"), ids=Ids.of(WORDS))
PARTS = {"train": WORDS[:2], "val": WORDS[2:], "test": ["é", "è"]}
CLASSES = Samples(torch.zeros(24, 2), torch.arange(24) % 6, (*WORDS, "é", "è"))


def _rows(head: str, form: str) -> str:
    return "\n".join([head, *(form.format(row=row, word=word) for row, word in enumerate(WORDS))])


def _written(folder: Path, texts: dict[str, str], encoding: str) -> Path:
    """Write texts into files, or into a tar beside images; what is ASCII stays so."""
    contents = {name: text.encode("ascii" if text.isascii() else encoding) for name, text in texts.items()}
    packed = [(name.removeprefix("some.tar/"), of) for name, of in contents.items() if name.startswith("some.tar/")]
    for name in contents.keys() - {f"some.tar/{name}" for name, _ in packed}:
        (folder / name).write_bytes(gzip.compress(contents[name]) if name.endswith(".gz") else contents[name])
    write_tar(folder / "some.tar", [*packed, *((f"{number}.png", IMAGE) for number in range(4))])
    return folder


def _in_tar(kind: str, form: str = "{}", words: Sequence[str] = tuple(WORDS)) -> dict[str, str]:
    return {f"some.tar/{number}.{kind}": form.replace("{}", word) for number, word in enumerate(words)}


def _listed(name: str, folder: Path, **given: Any) -> Iterable[str]:
    return LISTED[FromList(folder / name, **given)(LISTED)].ids


def _classes(name: str, folder: Path, **given: Any) -> Iterable[str]:
    parts = ByClass(file=folder / name, **given)(CLASSES)
    return [*parts.train.names, *parts.validation.names]


def _beside_images(folder: Path, **given: Any) -> Iterable[str]:
    for number in range(4):
        (folder / f"{number}.png").write_bytes(IMAGE)
    return Folder(str(folder), label="kind", **given).load().names


def _pairs(folder: Path, **given: Any) -> Iterable[str]:
    return Pairs(first=str(folder / "train.en"), second=str(folder / "train.de"), **given).load().inputs.strings


def _named(folder: Path, **given: Any) -> Iterable[str]:
    return Shards(str(folder / "some.tar"), names=str(folder / "names.txt"), **given).load().names


def _strings(source: Callable[..., Source], name: str, folder: Path, **given: Any) -> Iterable[str]:
    return source(str(folder / name), **given).load().inputs.strings


def _names(source: Callable[..., Source], name: str, folder: Path, **given: Any) -> Iterable[str]:
    return source(str(folder / name), **given).load().names


READERS: list[tuple[dict[str, str], Callable[..., Iterable[str]], str]] = [
    ({"texts.txt": LINES}, partial(_strings, Text, "texts.txt", label="none"), "data"),
    ({"texts.gz": LINES}, partial(_strings, Text, "texts.gz", label="none"), "data"),
    ({"texts.csv": _rows("text,label", "a,{word}")}, partial(_names, Text, "texts.csv"), "data"),
    ({"train.en": LINES, "train.de": LINES}, _pairs, "data"),
    ({"pairs.csv": _rows("a,b", "{word},{row}")}, partial(_strings, Pairs, "pairs.csv", first="a", second="b"), "data"),
    ({"some.csv": _rows("width,kind", "{row}.5,{word}")}, partial(_names, Table, "some.csv", label="kind"), "data"),
    ({"t.jsonl": _rows("", '{{"x": 1.5, "kind": "{word}"}}')}, partial(_names, Table, "t.jsonl", label="kind"), "data"),
    ({"metadata.csv": _rows("file_name,kind", "{row}.png,{word}")}, _beside_images, "data"),
    ({"names.txt": LINES, **_in_tar("cls", words="0123")}, _named, "data"),
    (_in_tar("cls"), partial(_names, Shards, "some.tar", label="cls"), "data"),
    (_in_tar("txt"), partial(_names, Shards, "some.tar", label="txt"), "data"),
    (_in_tar("json", '{"label": "{}"}'), partial(_names, Shards, "some.tar", label="json.label"), "data"),
    ({"some.txt": LINES}, partial(_listed, "some.txt"), "subset"),
    ({"some.csv": _rows("path", "{word}")}, partial(_listed, "some.csv"), "subset"),
    ({f"{part}.txt": "\n".join(names) for part, names in PARTS.items()}, partial(_classes, "train.txt"), "split"),
    ({"split.json": json.dumps(PARTS, ensure_ascii=False)}, partial(_classes, "split.json"), "split"),
]


@pytest.mark.parametrize(("texts", "reader", "part"), READERS)
def test_text_in_another_encoding_is_refused_or_named(texts, reader, part, tmp_path):
    def read(written: str, **given: Any) -> set[str]:
        return set(reader(_written(tmp_path, texts, written), **given))

    file = next(iter(texts))
    assert read("utf-8-sig") == set(WORDS)
    with pytest.raises(ValueError, match=rf"{file}, got the byte 0xE9, é in latin-1, .*--{part}\.encoding latin-1 if"):
        read("latin-1")
    assert read("latin-1", encoding="latin-1") == set(WORDS)
    if file.endswith(".cls"):
        return
    with pytest.raises(ValueError, match=rf"{file}, got what looks like utf-16 in line 1: give --{part}\.encoding utf"):
        read("utf-16")
    assert read("utf-16", encoding="utf-16") == set(WORDS)
    with pytest.raises(ValueError, match=rf"expected an encoding as --{part}.encoding, got 'latin-17': latin-1"):
        read("utf-8", encoding="latin-17")


@pytest.mark.parametrize(
    ("content", "encoding", "words"),
    [
        (b"fine\nfine\nros\xe9 \x93", None, "the byte 0xE9, é in cp1252, in line 3: give --data.encoding cp1252 if"),
        ("ok\n香り".encode("sjis"), None, "the byte 0x8D in line 2: name its encoding, as in --data.encoding shift_j"),
        ("ok".encode("utf-16-le"), None, "what looks like utf-16-le in line 1: give --data.encoding utf-16-le,"),
        ("ok".encode("utf-16-be"), None, "what looks like utf-16-be in line 1"),
        ("ok".encode("utf-32"), None, "what looks like utf-32 in line 1"),
        (b"ok", "utf-16", "expected utf-16 in names.txt, got the byte 0x6F, o in latin-1, in line 1: give"),
    ],
)
def test_what_text_may_be_in_is_said_with_the_line(content, encoding, words):
    with pytest.raises(ValueError, match=words), opened(content, encoding, called="names.txt") as text:
        text.read()


def test_lines_in_another_encoding_are_told_from_data(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"\x80\x04\x95\x00\xe9")
    with pytest.raises(ValueError, match=r"expected a file \(.*weights.bin: convert it"):
        source_for(tmp_path / "weights.bin")
    assert source_for(_written(tmp_path, {"texts.txt": "rosé"}, "latin-1") / "texts.txt")[0] == "Text"


def test_options_are_read_from_what_a_shell_of_windows_writes(tmp_path):
    _written(tmp_path, {"options.yaml": "seed: 7\nname: rosé\n"}, "utf-16")
    options = resolve({"config": str(tmp_path / "options.yaml")})
    assert (options.seed, options.name) == (7, "rosé")


def _bytes_of_features(file: Path) -> Samples:
    test = features_of_file(file).test
    return Samples(test.vectors, test.labels, test.names, ids=test.ids)


def _bytes_to_search(file: Path) -> Samples:
    found = open_features(file)
    assert found is not None
    return Samples(torch.zeros(len(found.ids), 1), found.labels, found.names, ids=Ids.of(found.ids))


@pytest.mark.parametrize("read", [lambda file: Arrays(file).load(), _bytes_of_features, _bytes_to_search])
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
