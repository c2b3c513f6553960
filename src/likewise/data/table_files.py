"""Tables in files: CSV, TSV and JSON, with cells taken literally, and Parquet, with images read in place."""

import json
import os
import re
import warnings
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, final

import datasets
import numpy as np
import pyarrow as pa
from datasets.table import table_cast
from numpy.typing import NDArray
from pyarrow import compute as typed_compute
from pyarrow import dataset, parquet

from likewise.data import columns
from likewise.data.tables import RefusedError, Tables, empty, warn_of
from likewise.files.formats import CELL_SEPARATORS, TABLES, Lines

CHUNK = 16384  # rows held as Python objects at a time
compute: Any = typed_compute  # its functions are created at import
MAX_HELD_GROUPS = 4  # row groups held in each process
MAX_GROUP_BYTES = 2**26  # bytes read for one image without a warning


def read_written(
    parts: Mapping[str, Sequence[Path]], encoding: str | None = None
) -> tuple[dict[str, Any], frozenset[str]]:
    """Read the files of each part; return the tables, and the string columns that may stand for numbers.

    Cells of CSV and TSV are strings, or whole numbers if every filled cell of a column is one. Cells of JSON keep their
    types; in a column of several types they are strings too.
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
                raise RefusedError(f"{message}, got {', '.join(some[0])}")
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
        raise empty(part, files[0])
    return pa.table(
        {name: _joined(chunks, f"column {name!r} of {files[0]}", name, mixed) for name, chunks in pieces.items()}
    )


def _array(cells: list[Any]) -> Any:
    try:
        return pa.array(cells)
    except (ValueError, TypeError, OverflowError):
        return cells


def _joined(pieces: Sequence[Any], where: str, name: str, mixed: set[str]) -> Any:
    """Join the pieces of a column; mixed types become strings or, with lists or objects, JSON."""
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
    columns.warn_of_same(cells, texts, f"{where} has")
    return pa.array(texts)


def _format_cell(cell: Any) -> str | None:
    return cell if cell is None or isinstance(cell, str) else json.dumps(cell)


def _is_whole(column: Any) -> bool:
    try:
        numbers = column.cast("int64")
    except (ValueError, NotImplementedError):  # pyarrow's errors are of these
        return False
    return numbers.null_count < len(numbers) and numbers.cast(column.type).equals(column)


def _refusal(lines: Lines) -> RefusedError:
    line, why = min(lines.lost)
    cells = re.fullmatch(r"(\d+) cells instead of (\d+)", why)
    if cells is None:
        return RefusedError(f"expected an object in each line of {lines.file}, got {why} in line {line}")
    more = int(cells[1]) > int(cells[2])
    remedy = "quote cells that have a separator in them" if more else "write the empty cells of shorter rows too"
    message = f"expected {cells[2]} cells in each row of {lines.file}, as in its header, got {cells[1]}"
    return RefusedError(f"{message}: {remedy} (line {line})")


def read_metadata(
    where: Path, files: Sequence[Path], encoding: str | None, parts: Mapping[str, str], images: Iterable[Path]
) -> Tables:
    """Read the tables of file names beside images, with `parts` by folder; images in no table are left out."""
    of_text = [file for file in files if TABLES[file.suffix.lower()] != "parquet"]
    read, texts = read_written({str(file): [where / file] for file in of_text}, encoding)
    grouped, named = dict[str, list[Any]](), set[str]()
    for file in files:
        table = read[str(file)].with_format("arrow")[:] if file in of_text else parquet.read_table(where / file)
        made = dict[str, Any]()
        for name in table.column_names:
            match = re.fullmatch("(?:(.+)_)?file_name(s?)", name)
            if match is None:
                made[name] = table.column(name)
                continue
            places = [_placed(cell, file.parent, named) for cell in table.column(name).to_pylist()]
            made[match[1] or f"image{match[2]}"] = pa.array(places)
        grouped.setdefault(parts.get(file.parts[0], "train"), []).append(pa.table(made))
    without = [str(image) for image in images if str(image) not in named]
    warn_of({("image", f"that {files[0].name} does not name"): without} if without else {}, where)
    joined = {part: pa.concat_tables(each, promote_options="permissive") for part, each in grouped.items()}
    splits = {part: datasets.Dataset(table, fingerprint=part) for part, table in joined.items()}
    return Tables(splits, where.absolute(), untyped=texts)


def _placed(name: Any, folder: Path, named: set[str]) -> Any:
    if not isinstance(name, str):
        return [_placed(file_name, folder, named) for file_name in name] if isinstance(name, list) else name
    named.add(path := os.path.normpath(folder / name))
    return path


class RowGroup(NamedTuple):
    """The images of a row group of a file, and their uncompressed size in bytes."""

    file: str
    column: str
    number: int
    size: int


@final
class Contents:
    """The contents of images in Parquet files, numbered through all row groups; the groups read last are held."""

    def __init__(self) -> None:
        self.groups, self.starts = list[RowGroup](), [0]
        self._hold()

    def _hold(self) -> None:
        self._read, self._alone = lru_cache(MAX_HELD_GROUPS)(_read_images), Lock()  # headers are read by threads

    def __getstate__(self) -> dict[str, Any]:
        return {"groups": self.groups, "starts": self.starts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._hold()

    def add(self, file: str, metadata: Any, column: str) -> NDArray[np.bool_]:
        """Number the images in a column of one more file, and return a mask of the null ones."""
        names, nulls = [metadata.schema.column(number).path for number in range(metadata.num_columns)], list[Any]()
        leaf = names.index(f"{column}.bytes" if f"{column}.bytes" in names else column)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            images, rows = group.column(leaf), group.num_rows
            self.groups.append(RowGroup(file, column, number, images.total_uncompressed_size))
            self.starts.append(self.starts[-1] + rows)
            known = images.statistics.null_count if images.is_stats_set and images.statistics.has_null_count else None
            nulls.append(np.full(rows, known == rows) if known in (0, rows) else self._read(self.groups[-1]).is_null())
        return np.concatenate([np.zeros(0, dtype=bool), *nulls])

    def __getitem__(self, number: int) -> bytes:
        index = bisect(self.starts, number) - 1
        try:
            with self._alone:
                images = self._read(self.groups[index])
            return images[number - self.starts[index]].as_py() or b""
        except (OSError, ValueError, IndexError, NotImplementedError):  # pyarrow's errors are of these
            return b""

    def place(self, number: int) -> str:
        """Return the key of an image for `read_headers`: its file, NUL, its column, row group and row."""
        index = bisect(self.starts, number) - 1
        file, column, group, _ = self.groups[index]
        return f"{file}\0{column}/{group}/{number - self.starts[index]}"

    def warn(self) -> None:
        largest = max(self.groups, key=lambda group: group.size, default=None)
        if largest is not None and largest.size > MAX_GROUP_BYTES and len(self.groups) > MAX_HELD_GROUPS:
            remedy = "write it with pyarrow.parquet.write_table(table, file, row_group_size=100)"
            message = f"images of {largest.file} are in row groups of up to {largest.size >> 20:,} MiB"
            warnings.warn(f"{message}, one of which is read for an image in random order: {remedy}", stacklevel=2)


def _read_images(group: RowGroup) -> Any:
    with parquet.ParquetFile(group.file, pre_buffer=False) as file:
        nested = pa.types.is_struct(file.schema_arrow.field(group.column).type)
        leaf = f"{group.column}.bytes" if nested else group.column
        images = file.read_row_group(group.number, columns=[leaf], use_threads=False).column(group.column)
    return compute.struct_field(images, "bytes") if nested else images


@final
class Columns:
    """The columns of a part in Parquet files, each read on demand; the columns read last of a row group are held."""

    def __init__(self, data: Any, features: Any, *, held: bool = False) -> None:
        self.data, self.features, self.held = data, features, held
        self.rows = sum(group.num_rows for file in data.get_fragments() for group in file.row_groups)

    def __len__(self) -> int:
        return self.rows

    @property
    def groups(self) -> "list[Columns]":
        data, pieces = self.data, [piece for file in self.data.get_fragments() for piece in file.split_by_row_group()]
        each = (dataset.FileSystemDataset([piece], data.schema, data.format, data.filesystem) for piece in pieces)
        return [Columns(piece, self.features, held=True) for piece in each]

    def select_columns(self, names: Sequence[str]) -> Any:
        return (_last_read if self.held else _read_columns)(self, tuple(names))


def _read_columns(source: Columns, names: tuple[str, ...]) -> Any:
    features = datasets.Features({name: source.features[name] for name in names})
    try:
        table = table_cast(source.data.to_table(columns=list(names)), features.arrow_schema)
    except (OSError, ValueError) as error:
        raise ValueError(f"expected columns {', '.join(names)} of a Parquet file, got {error}") from error
    return datasets.Dataset(table, fingerprint=f"{names}")


_last_read = lru_cache(maxsize=1)(_read_columns)


def open_columns(part: str, files: Sequence[Path]) -> Columns:
    """Open the columns of a part, with the types of its first file."""
    data = dataset.dataset([str(file) for file in files], format="parquet")
    table = Columns(data, datasets.Features.from_arrow_schema(data.schema))
    for fragment in data.get_fragments():
        if {*(names := fragment.physical_schema.names)} != {*table.features}:
            expected = f"expected the columns {', '.join(table.features)} in {fragment.path}"
            raise RefusedError(f"{expected}, got {', '.join(names)}")
    if not len(table):
        raise empty(part, files[0])
    return table


def read_in_place(parts: Mapping[str, Sequence[Path]]) -> tuple[dict[str, Any], Contents] | None:
    """Read all columns, with numbers in place of images' bytes; None if the first part has no such images."""
    contents, read = Contents(), dict[str, Any]()
    for part, files in parts.items():
        schema = parquet.read_schema(files[0])
        features = datasets.Features.from_arrow_schema(schema)
        images = [
            name for name, feature in features.items() if columns.kind_of(feature) == "images" and _has(schema, name)
        ]
        if not images and not read:
            return None
        numbered = {"bytes": datasets.Value("int64"), "path": datasets.Value("string")}
        schema = datasets.Features(features | dict.fromkeys(images, numbered)).arrow_schema
        table = pa.concat_tables([table_cast(_read_table(file, images, contents), schema) for file in files])
        if not len(table):
            raise empty(part, files[0])
        read[part] = datasets.Dataset(table, fingerprint=part)
    return read, contents


def _has(schema: Any, name: str) -> bool:
    column_type: Any = schema.field(name).type if name in schema.names else None
    content, text = (pa.binary(), pa.large_binary()), (pa.string(), pa.large_string())
    if column_type is None or not pa.types.is_struct(column_type):
        return column_type in content
    kinds = {field.name: field.type for field in column_type}
    return kinds.keys() == {"bytes", "path"} and kinds["bytes"] in content and kinds["path"] in text


def _read_table(path: Path, images: Sequence[str], contents: Contents) -> Any:
    with parquet.ParquetFile(path, pre_buffer=False) as file:
        if lost := [name for name in images if not _has(file.schema_arrow, name)]:
            raise ValueError(f"{path} has no images in column {lost[0]!r}, as other files of its part do")
        nested = {name: pa.types.is_struct(file.schema_arrow.field(name).type) for name in images}
        remaining_columns = [name for name in file.schema_arrow.names if name not in nested]
        table = file.read([*remaining_columns, *(f"{name}.path" for name in images if nested[name])])
        made = {name: table.column(name) for name in remaining_columns}
        for name in images:
            start, lacks = contents.starts[-1], contents.add(str(path), file.metadata, name)
            numbers = pa.array(np.arange(start, contents.starts[-1]), mask=lacks)
            paths, none = pa.nulls(len(numbers), pa.string()), lacks
            if nested[name]:
                structs = table.column(name).combine_chunks()
                none, paths = structs.is_null().to_numpy(zero_copy_only=False), structs.field("path").cast(pa.string())
            made[name] = pa.StructArray.from_arrays([numbers, paths], ["bytes", "path"], mask=pa.array(none))
    return pa.table(made)
