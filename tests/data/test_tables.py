"""Tables are what their text says: labels, ids and texts as written, numbers of inputs alone, and nothing unsaid."""

import datetime
import decimal
import json

import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet as pq

from likewise.data import Folder, Pairs, Table, Text

WORDS = ["NA", "null", "None", "nan", "N/A", "NaN", "#N/A", "<NA>", "n/a", "NULL", "-", "true"]
ALIKE = [
    "01",
    "1",
    "1.0",
    "1e3",
    "10e2",
    "1000",
    "+1",
    " 1",
    "9007199254740993",
    "9007199254740992",
    "0x1",
    "2020-01-01",
]


def table(path, rows, separator=","):
    """Write rows as CSV or, objects of them, as JSON lines; the first are the names of the columns."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(rows[0], row, strict=True))) + "\n" for row in rows[1:]))
    else:
        path.write_text("".join(separator.join(map(str, row)) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("names", [WORDS, ALIKE], ids=["missing", "numbers"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", "text", "metadata"])
def test_classes_and_ids_are_what_is_written(tmp_path, suffix, names):
    ids = [f"{row:03}" for row in range(len(names) - 1)] + [names[0]]
    separator = "\t" if suffix == ".tsv" else ","
    if suffix == "metadata":
        for row in range(len(names)):
            Image.new("L", (4, 4), row).save(tmp_path / f"{row}.png")
        rows = [(f"{row}.png", name) for row, name in enumerate(names)]
        table(tmp_path / "metadata.csv", [("file_name", "label"), *rows])
        samples, ids = Folder(str(tmp_path)).load(), [f"{row}.png" for row in range(len(names))]
    elif suffix == "text":
        rows = [("id", "text", "label"), *((i, "a", name) for i, name in zip(ids, names, strict=True))]
        samples = Text(table(tmp_path / "t.csv", rows)).load()
    else:
        numbers = [(i, row + 0.5, name) for row, (i, name) in enumerate(zip(ids, names, strict=True))]
        samples = Table(table(tmp_path / f"t{suffix}", [("id", "x", "label"), *numbers], separator)).load()
        assert samples.columns == ("x",)
    assert [samples.names[label] for label in samples.labels] == names
    assert list(samples.ids) == ids


def test_texts_and_sides_of_pairs_are_what_is_written(tmp_path):
    rows = [("q", "text", "label"), *((f"why {word}?", word, "ab"[row % 2]) for row, word in enumerate(WORDS))]
    samples = Table(table(tmp_path / "t.csv", rows), inputs=["text"]).load()
    assert samples.inputs.strings == WORDS
    pairs = Pairs(str(tmp_path / "t.csv"), first="q", second="text", label="label").load()
    assert pairs.counterparts.inputs.strings == WORDS
    numbers = [("q", "price", "n"), ("a", 1.5, 3), ("b", "", 4), ("c", "2.5", 5)]
    with pytest.warns(UserWarning, match=r"left out 1 of 3 pairs .*: rows 1$"):
        priced = Pairs(table(tmp_path / "p.csv", numbers), first="q", second="price", group="n").load()
    assert priced.counterparts.inputs.tolist() == [[1.5], [2.5]]


def test_an_empty_cell_alone_is_missing(tmp_path):
    path = table(
        tmp_path / "t.csv", [("x", "label"), (1, "9007199254740993"), (2, ""), (3, "9007199254740992"), (4, "NA")]
    )
    with pytest.raises(ValueError, match="got none for 1 of 4"):
        Table(path).load()
    source = Table(path)
    source.in_part = True
    assert source.load().names == ("9007199254740992", "9007199254740993", "NA")


def test_one_and_the_string_of_it_are_told(tmp_path):
    path = table(tmp_path / "t.jsonl", [("x", "text", "label"), (1.5, "a", 1), (2.5, "b", "1"), (3.5, "c", "a")])
    with pytest.warns(UserWarning, match=r"column 'label' of .* has 1 and \"1\", which are the same here"):
        Table(path, inputs=["x"]).load()
    with pytest.warns(UserWarning, match=r"labels have 1 and \"1\", which are the same here"):
        Text(path).load()
    large = [("x", "label"), *((k + 0.5, 2**65 + k % 2) for k in range(4))]
    assert Table(table(tmp_path / "large.jsonl", large)).load().names == (str(2**65), str(2**65 + 1))


@pytest.mark.parametrize("cells", [4, 2], ids=["longer", "shorter"])
@pytest.mark.parametrize("first", [True, False], ids=["all rows", "one row"])
def test_rows_that_are_not_as_long_as_the_header_are_refused(tmp_path, cells, first):
    rows = [("label", "a", "b"), *(("x", 1, 2) for _ in range(3 * (not first))), ("y", 1, 2, 3)[:cells]]
    words = rf"expected 3 cells in each row of .*, as in its header, got {cells}: .*\(line {len(rows)}\)"
    path = table(tmp_path / "t.csv", rows)
    for source in (Table(path), Pairs(path, first="a", second="b")):
        with pytest.raises(ValueError, match=words):
            source.load()


def test_headers_name_each_column_once_and_may_have_empty_cells(tmp_path):
    path = table(tmp_path / "t.csv", [("a", "a", "label"), (1, 2, "x")])
    for source in (Table(path), Text(path, text="a")):
        with pytest.raises(ValueError, match=r"columns of different names in .*, got 'a' twice: rename one"):
            source.load()
    unnamed = table(tmp_path / "u.csv", [("", "a", "label", "", ""), (0, 1.5, "x", "", ""), (1, 2.5, "y", "", "")])
    assert Table(unnamed).load().columns == ("a",)
    (tmp_path / "parts").mkdir()
    table(tmp_path / "parts" / "train-0.csv", [("a", "label"), (1.5, "x")])
    table(tmp_path / "parts" / "train-1.csv", [("a", "lable"), (1.5, "x")])
    with pytest.raises(ValueError, match="the same columns in all files of a part, .* got a, label and a, lable"):
        Table(str(tmp_path / "parts")).load()


def test_json_is_read_in_every_form_that_it_is_written_in(tmp_path):
    rows = [{"x": [k, 0.5], "label": "ab"[k % 2], "meta": {"k": k} if k % 3 else "none"} for k in range(4)]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    indexed = {name: {str(row): value for row, value in enumerate(of)} for name, of in columns.items()}
    lines = "\n".join(map(json.dumps, rows))
    forms = {"l.json": lines, "l.jsonl": lines, "r.json": json.dumps(rows, indent=1), "r.jsonl": json.dumps(rows)}
    forms |= {"c.json": json.dumps(columns), "i.json": json.dumps(indexed, indent=2)}
    for name, content in forms.items():
        (tmp_path / name).write_text(content)
        samples = Table(str(tmp_path / name)).load()
        assert samples.inputs.tolist() == [[k, 0.5] for k in range(4)], name
        assert samples.labels.tolist() == [0, 1, 0, 1]
