"""Tables that are written as text, CSV, TSV and JSON: cells are what stands there, and only an empty one is missing."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa

from likewise.data.columns import warn_of_same
from likewise.files import folders
from likewise.files.formats import CELL_SEPARATORS, Lines

CHUNK = 16384  # rows held as Python objects at a time


def read(parts: Mapping[str, Sequence[Path]], encoding: str | None = None) -> tuple[dict[str, Any], frozenset[str]]:
    """Read the files of each part; return the tables, and the columns of strings that may be meant as numbers.

    Cells of CSV and TSV are strings, or whole numbers where every filled cell of a column is written as one. Those of
    JSON keep JSON's types; where a column has several, they are strings too.
    """
    mixed = set[str]()
    tables = {part: _part(part, files, mixed, encoding) for part, files in parts.items()}
    separated = [part for part, files in parts.items() if files[0].suffix.lower() in CELL_SEPARATORS]
    mixed |= (cells := {name for part in separated for name in tables[part].column_names})
    having = {name: [table.column(name) for table in tables.values() if name in table.column_names] for name in cells}
    mixed -= (whole := {name for name, each in having.items() if all(map(_is_whole, each))})
    for part in separated:
        kinds = {name: pa.int64() if name in whole else pa.string() for name in tables[part].column_names}
        tables[part] = tables[part].cast(pa.schema(kinds))
    return {part: datasets.Dataset(table, fingerprint=part) for part, table in tables.items()}, frozenset(mixed)


def _part(part: str, files: Sequence[Path], mixed: set[str], encoding: str | None) -> Any:
    pieces, count, separated = dict[str, list[Any]](), 0, files[0].suffix.lower() in CELL_SEPARATORS
    for file in files:
        lines = Lines(file, encoding)
        rows = iter(lines)
        while some := [row for _, row in islice(rows, CHUNK)]:
            if separated and count and pieces.keys() != some[0].keys():
                message = f"expected the columns {', '.join(pieces)} in {file}, as in other files of its part"
                raise folders.RefusedError(f"{message}, got {', '.join(some[0])}")
            for name in dict.fromkeys([*pieces, *(name for row in some for name in row)]):
                cells = [row.get(name) for row in some]
                made = pa.array([cell or None for cell in cells], pa.string()) if separated else _array(cells)
                pieces.setdefault(name, [pa.nulls(count)] if count else []).append(made)
            count += len(some)
            if lines.lost:
                break
        if lines.lost:
            raise _refusal(lines)
    if not count:
        raise folders.empty(part, files[0])
    return pa.table(
        {name: _joined(chunks, f"column {name!r} of {files[0]}", name, mixed) for name, chunks in pieces.items()}
    )


def _array(cells: list[Any]) -> Any:
    try:
        return pa.array(cells)
    except (ValueError, TypeError, OverflowError):
        return cells


def _joined(pieces: Sequence[Any], where: str, name: str, mixed: set[str]) -> Any:
    """Join the pieces of a column: of several kinds as strings or, with lists or objects, as JSON."""
    if not any(isinstance(piece, list) for piece in pieces):
        try:
            return pa.concat_tables([pa.table({"": piece}) for piece in pieces], promote_options="permissive").column(0)
        except (ValueError, TypeError):
            pass
    cells = [cell for piece in pieces for cell in (piece if isinstance(piece, list) else piece.to_pylist())]
    kinds = {*map(type, cells)} - {type(None)}
    if kinds == {list}:
        return pa.array([None if cell is None else [_format_cell(value) for value in cell] for cell in cells])
    if kinds & {list, dict}:
        return pa.array([None if cell is None else {"json": json.dumps(cell)} for cell in cells])
    mixed.add(name)
    texts = [_format_cell(cell) for cell in cells]
    warn_of_same(cells, texts, f"{where} has")
    return pa.array(texts)


def _format_cell(cell: Any) -> str | None:
    return cell if cell is None or isinstance(cell, str) else json.dumps(cell)


def _is_whole(column: Any) -> bool:
    try:
        numbers = column.cast("int64")
    except (ValueError, NotImplementedError):  # pyarrow's errors are of these
        return False
    return numbers.null_count < len(numbers) and numbers.cast(column.type).equals(column)


def _refusal(lines: Lines) -> folders.RefusedError:
    line, why = min(lines.lost)
    cells = re.fullmatch(r"(\d+) cells instead of (\d+)", why)
    if cells is None:
        return folders.RefusedError(f"expected an object in each line of {lines.file}, got {why} in line {line}")
    more = int(cells[1]) > int(cells[2])
    remedy = "quote cells that have a separator in them" if more else "write the empty cells of shorter rows too"
    message = f"expected {cells[2]} cells in each row of {lines.file}, as in its header, got {cells[1]}"
    return folders.RefusedError(f"{message}: {remedy} (line {line})")
