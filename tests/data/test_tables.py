"""Tables are what their text says: labels, ids and texts as written, numbers of inputs alone, and nothing unsaid."""

import datetime as dt
import decimal
import json
import re
from functools import partial

import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet as pq

from likewise.data import Folder, Pairs, Table, Text

WORDS = ["NA", "null", "None", "nan", "N/A", "NaN", "#N/A", "<NA>", "n/a", "NULL", "-", "true"]
ALIKE = ["01", "1", "1.0", "1e3", "10e2", "1000", "+1", " 1", "9007199254740993", "9007199254740992", "2020-01-01"]


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
    rows = [("x", "label"), (1, "9007199254740993"), (2, ""), (3, "9007199254740992"), (4, "NA")]
    path = table(tmp_path / "t.csv", rows)
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
def test_rows_that_are_not_as_long_as_the_header_are_refused(tmp_path, cells):
    rows = [("label", "a", "b"), *(("x", 1, 2) for _ in range(3)), ("y", 1, 2, 3)[:cells]]
    words = rf"expected 3 cells in each row of .*, as in its header, got {cells}: .*\(line {len(rows)}\)"
    path = table(tmp_path / "t.csv", rows)
    for source in (Table(path), Pairs(path, first="a", second="b")):
        with pytest.raises(ValueError, match=words):
            source.load()


def test_headers_name_each_column_once_and_may_have_empty_cells(tmp_path):
    path = table(tmp_path / "t.csv", [("a", "a", "label"), (1, 2, "x")])
    for source in (Table(path), Text(path, text="a")):
        with pytest.raises(ValueError, match=r"columns of different names in .*, got 'a' twice"):
            source.load()
    unnamed = table(tmp_path / "u.csv", [("", "a", "label", "", ""), (0, 1.5, "x", "", ""), (1, 2.5, "y", "", "")])
    assert Table(unnamed).load().columns == ("a",)
    (tmp_path / "parts").mkdir()
    table(tmp_path / "parts" / "train-0.csv", [("a", "label"), (1.5, "x")])
    table(tmp_path / "parts" / "train-1.csv", [("a", "lable"), (1.5, "x")])
    with pytest.raises(ValueError, match=r"expected the columns a, label in .*train-1.csv, .*, got a, lable$"):
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
    (tmp_path / "parts").mkdir()  # of which one alone has numbers as strings
    mixed = [("x", "label"), *((k if k % 3 else str(k), "ab"[k % 2]) for k in range(12))]
    table(tmp_path / "parts" / "train.jsonl", mixed)
    table(tmp_path / "parts" / "test.jsonl", [("x", "label"), (7, "a"), (9, "b")])
    assert Table(str(tmp_path / "parts")).load().inputs.flatten().tolist() == [*range(12), 7, 9]


# Which columns are inputs

REAL = [round(0.37 * (row * 7 % 40), 2) for row in range(40)]


def columns(**more):
    """Return 40 rows of two columns of real numbers, one of labels, and others."""
    of = {**more, "x": REAL, "y": REAL[::-1], "label": ["ab"[row % 2] for row in range(40)]}
    return [tuple(of), *zip(*of.values(), strict=True)]


IDENTIFYING = {
    "id": range(40),
    "ID": [*range(39), 7],  # one twice
    "Id": ["", *range(39)],  # one lacks
    "customer_id": [row % 7 for row in range(40)],
    "PassengerId": range(900, 940),
    "id of user": [f"u{row}" for row in range(40)],
    "nr": range(1, 41),
    "shuffled": [row * 7 % 40 for row in range(40)],
    "falling": range(4000, 0, -100),
    "code": [f"{row * 7919 % 99991:07}" for row in range(40)],
}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("name", IDENTIFYING)
def test_a_column_that_identifies_rows_is_an_input_only_where_it_is_named(tmp_path, name, suffix):
    values = list(IDENTIFYING[name])
    rows = columns(**{name: [None if one == "" and suffix != ".csv" else one for one in values]})
    path = str(tmp_path / f"t{suffix}")
    if suffix == ".parquet":
        pq.write_table(pa.table(dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))), path)
    else:
        table(tmp_path / f"t{suffix}", rows)
    samples = Table(path).load()
    assert samples.columns == ("x", "y")
    assert f"{name} (" in samples.said
    if all(isinstance(one, int) for one in values) or (suffix == ".csv" and name == "code"):
        assert Table(path, inputs=[name, "x"]).load().columns == (name, "x")


MEASURED = {
    "real": [row / 8 + 0.05 for row in range(40)],  # in order
    "counts": [row * row * 7919 % 99991 for row in range(40)],  # all different, far apart, in no order
    "few": [row % 5 for row in range(40)],
    "month": [f"{row % 12 + 1:02}" for row in range(40)],
    "grid": [row * row % 11 for row in range(40)],
    "flag": [str(row % 3 == 0) for row in range(40)],
    "e": [f"{row * row % 13}e-3" for row in range(40)],
    "signed": [f" +{row * row % 13}. " for row in range(40)],
}


@pytest.mark.parametrize("name", MEASURED)
def test_columns_of_measurements_are_inputs(tmp_path, name):
    samples = Table(table(tmp_path / "t.csv", columns(**{name: MEASURED[name]}))).load()
    assert samples.columns == (name, "x", "y")
    numbers = [{"True": 1.0, "False": 0.0}.get(one) if name == "flag" else float(one) for one in MEASURED[name]]
    assert torch.equal(samples.inputs[:, 0], torch.tensor(numbers))
    few = [("x", "label"), (1, "a"), (2, "b"), (3, "a")]  # rows that never identify themselves
    assert Table(table(tmp_path / "few.csv", few)).load().columns == ("x",)


@pytest.mark.parametrize("odd", ["?", "12 %", '"1,000"', "1.5.2", "1_000", "-", "12a"])
def test_what_is_nearly_all_numbers_is_refused_with_its_first_odd_cell(tmp_path, odd):
    rows = columns(a=[*range(17), odd, *range(3, 23), odd, 24])
    cell = re.escape(repr(odd.strip('"')))
    words = rf"expected numbers in column 'a' of .*, got {cell} in row 17 \(counted from 0\), and 1 more .*data\.inputs"
    path = table(tmp_path / "t.csv", rows)
    for inputs in (None, ["x", "a"], ["a"]):
        with pytest.raises(ValueError, match=words):
            Table(path, inputs=inputs).load()
    assert Table(path, inputs=["x"]).load().columns == ("x",)
    mixed = table(tmp_path / "t.jsonl", [tuple(odd.strip('"') if one == odd else one for one in row) for row in rows])
    with pytest.raises(ValueError, match=words):
        Table(mixed).load()


@pytest.mark.parametrize("word", ["NA", "nan", "", "None", "N/A", "null"])
def test_numbers_that_are_missing_leave_their_rows_out_as_an_empty_cell_does(tmp_path, word):
    cells = [row * row % 23 + 0.5 for row in range(40)]
    cells[11] = word
    with pytest.warns(UserWarning, match=r"left out 1 of 40 rows of .*: rows 11, counted from 0"):
        samples = Table(table(tmp_path / "t.csv", columns(a=cells))).load()
    assert samples.columns == ("a", "x", "y")


def test_every_column_that_is_no_input_is_named_with_the_reason(tmp_path):
    more = {"id": range(40), "site": ["north", "south"] * 20, "smoker": ["yes", "no"] * 20, "none": [""] * 40}
    said = Table(table(tmp_path / "t.csv", columns(**more))).load().said
    assert said == (
        "columns: inputs are x, y (numbers); left out are id (identifies rows), site (text, such as 'north'), "
        "smoker (text, such as 'yes'), none (empty)"
    )
    assert Table(str(tmp_path / "t.csv"), inputs=["x"]).load().said == ""
    typed = {name: list(of) for name, of in zip(columns()[0], zip(*columns()[1:], strict=True), strict=True)}
    typed |= {"cost": [decimal.Decimal(row) / 4 for row in range(40)], "when": [dt.datetime(2020, 1, 1)] * 40}  # noqa: DTZ001
    pq.write_table(pa.table(typed), tmp_path / "t.parquet", row_group_size=16)
    samples = Table(str(tmp_path / "t.parquet")).load()
    assert samples.said == "columns: inputs are x, y, cost (numbers); left out are when (timestamp[us])"
    assert samples.inputs[:, 2].tolist() == [row / 4 for row in range(40)]
    read = Table(str(tmp_path / "t.parquet")).stream().inputs
    assert torch.equal(read[torch.tensor([39, 0, 17])], samples.inputs[[39, 0, 17]])


# A column of parts


@pytest.mark.parametrize("name", ["split", "Part", "set", "fold", "subset", "phase"])
@pytest.mark.parametrize("kind", ["numbers", "texts", "images", "pairs", "text source"])
def test_a_column_says_the_parts(tmp_path, kind, name):
    parts = [["train", "Train", "val", "test"][row % 4] for row in range(12)]
    Image.new("L", (4, 4)).save(tmp_path / "0.png")
    own = {"numbers": "x", "images": "file"}.get(kind, "text")
    cells = {"x": [row / 4 for row in range(12)], "file": ["0.png"] * 12, "text": [f"no {row}" for row in range(12)]}
    rows = [(own, "second", name, "label"), *zip(cells[own], map(str, cells["x"]), parts, "abc" * 4, strict=True)]
    path, given = table(tmp_path / "t.csv", rows), {"part": name} if name == "phase" else {}
    made = {"pairs": partial(Pairs, path, first="text", second="second"), "text source": partial(Text, path)}
    source = made.get(kind, partial(Table, path, inputs=[own]))
    assert source(**given).load().parts.tolist() == [0, 0, 1, 2] * 3
    if name == "split":
        assert source(part="none").load().parts is None


def test_what_names_no_part_is_no_column_of_parts(tmp_path):
    few = [("x", "split", "label"), (1.5, "train", "a"), (2.5, "dev", "b"), (3.5, "holdout", "a"), (4.5, "train", "b")]
    path = table(tmp_path / "t.csv", few)
    samples = Table(path).load()
    assert samples.parts is None
    assert "split (text, such as 'train')" in samples.said
    for part, got in {"split": "'holdout' in row 2", "x": "'1.5' in row 0", "part": "columns x, split"}.items():
        words = rf"expected train, .* in column '{part}' of .*, got {got}"
        with pytest.raises(ValueError, match=words):
            Table(path, part=part).load()
    table(tmp_path / "v.csv", [*few[:3], (3.5, "dev", "a"), (4.5, "train", "b")])
    assert Table(str(tmp_path / "v.csv")).load().parts.tolist() == [0, 2, 2, 0]  # without a test part
    table(tmp_path / "new.csv", [few[0], *((row, "test", "a") for row in REAL)])
    assert Table(str(tmp_path / "new.csv")).load().parts is None
