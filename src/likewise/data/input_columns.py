"""The input columns of tables: their choice, vectors of numbers, also of numbers written as strings, and images."""

import hashlib
import os
import warnings
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, final

import datasets
import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from pyarrow import compute as typed_compute
from torch import Tensor

from likewise.data import columns
from likewise.data.image_files import Encoded, Item
from likewise.data.lazy_inputs import Ids, LazyInputs
from likewise.data.tables import Tables
from likewise.files import formats
from likewise.files.detection import kind_of

compute: Any = typed_compute  # its functions are created at import
MIN_ROWS = 20  # fewer rows cannot show that their numbers identify them
MAX_LISTED_COLUMNS = 8  # columns named in a line
CHUNK = 16384  # rows read at a time
MAX_ODD_SHARE = 0.1  # largest share of non-numbers in a column meant to hold numbers
MAX_EXACT_INTEGER = 2**53  # from here on floats skip whole numbers
NUMBER = r"^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity)$"
MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none")  # usual words for a missing number, in any case
MAX_IMAGES = 256  # images with their content in memory at a time


class Chosen(NamedTuple):
    """The input columns of a table, their kind, and the reasons against each of the others."""

    inputs: list[str]
    kind: columns.ColumnKind
    others: Mapping[str, str]
    tables: Tables  # the tables, with numbers in place of their strings

    def __str__(self) -> str:
        left = [f"{name} ({why})" for name, why in self.others.items()]
        count = f", {len(self.inputs)} columns" * (len(self.inputs) > MAX_LISTED_COLUMNS)
        summary = f"{formats.first_of(self.inputs, MAX_LISTED_COLUMNS)} ({self.kind}{count})"
        rest = f"; left out are {formats.first_of(left, MAX_LISTED_COLUMNS)}" if left else ""
        return f"columns: inputs are {summary}{rest}"


def choose_columns(path: str, tables: Tables, input_columns: Sequence[str] | None, beside: Sequence[str]) -> Chosen:
    """Choose one column of images or texts, or several of numbers: the given ones, or else by the rules of `Table`."""
    table = next(iter(tables.splits.values()))
    if unknown := next((name for name in input_columns or () if name not in table.features), None):
        got = f"{unknown!r}: choose from {', '.join(table.features)}"
        raise ValueError(f"expected columns of {path} in data.inputs, got {got}")
    names = input_columns or [name for name in table.features if name not in beside]
    kinds = {name: columns.kind_in(table, name) for name in names}
    unfit = {} if input_columns else {name: _unfit(name, column_kind) for name, column_kind in kinds.items()}
    reasons = {name: why for name, why in unfit.items() if why}
    kinds = {name: column_kind for name, column_kind in kinds.items() if name not in reasons}

    def made(inputs: list[str], column_kind: columns.ColumnKind) -> Chosen:
        left = [name for name in names if name not in inputs]
        every = {name: reasons.get(name) or _describe_column(table, name, kinds[name]) for name in left}
        return Chosen(inputs, column_kind, every, tables)

    if images := _images(kinds, input_columns):
        return made(images, "images")
    texts = [name for name, column_kind in kinds.items() if column_kind == "text"]
    named = [name for name in texts if name in formats.TEXT_COLUMNS] if input_columns is None else []
    if len(named) == 1:
        return made(named, "text")
    numbers = {name: Numbers.of(tables.splits, name) for name in texts if name in tables.untyped}
    for name, parsed in numbers.items():
        parsed.check(path, name)
    numbers = {name: parsed for name, parsed in numbers.items() if not parsed.odd and parsed.filled}
    kinds |= dict.fromkeys(numbers, "numbers")
    odd = {name: column_kind for name, column_kind in kinds.items() if column_kind != "numbers"}
    used = [name for name in kinds if name not in odd]
    tables = replace(tables, splits=with_numbers(tables.splits, numbers))
    if input_columns is None:
        reasons |= {name: "identifies rows" for name in used if _number_rows(tables, name, numbers.get(name))}
        used = [name for name in used if name not in reasons]
    texts = [name for name in texts if name in odd]
    if len(kinds) > 1:
        long = [name for name in texts if kind_of(columns.first_values(table, name)) == "texts"]
        texts = [] if input_columns or used else long
    if len(texts) == 1:
        return made(texts, "text")
    if not used or (input_columns and odd):
        raise _none_fits(path, table.features, odd, reasons)
    return made(used, "numbers")


def _images(kinds: Mapping[str, str], input_columns: Sequence[str] | None) -> list[str]:
    images = [name for name, column_kind in kinds.items() if column_kind == "images"]
    if len(images) > 1 and input_columns is None:
        images = [name for name in images if name in formats.IMAGE_COLUMNS] or images
    if images and max(len(images), len(input_columns or ())) > 1:
        got = ", ".join(input_columns or images)
        raise ValueError(f"expected one column of images, got {got}: name it in data.inputs")
    return images


def _none_fits(path: str, features: Any, odd: Mapping[str, str], reasons: Mapping[str, str]) -> ValueError:
    lists = {name for name in odd if columns.has_several(features[name])}
    each = [f"{name} ({'lists' if name in lists else column_kind})" for name, column_kind in odd.items()]
    each += [] if odd else [f"{name} ({why})" for name, why in reasons.items()]
    remedy = "write a row for each of a list, or give --data Pairs" if lists else "name it in data.inputs"
    got = ", ".join(each) or "only the labels"
    return ValueError(f"expected columns of numbers, or one of images or texts, in {path}, got {got}: {remedy}")


def _describe_column(table: Any, name: str, column_kind: str) -> str:
    if column_kind == "text":
        some = next(filter(None, columns.first_values(table, name)), None)
        return "empty" if some is None else f"text, such as {some[:20]!r}"
    if column_kind != "other":
        return column_kind
    feature = table.features[name]
    return "lists" if columns.is_list(feature) else str(getattr(feature, "dtype", "objects"))


def _unfit(name: str, column_kind: str) -> str:
    if name.startswith(formats.ROW_NUMBERS):
        return "no name"
    is_id = name.lower() == formats.ID_COLUMN or (formats.NAMED_ID.search(name) and column_kind in {"numbers", "text"})
    return "identifies rows" if is_id else ""


def _number_rows(tables: Tables, name: str, written: "Numbers | None") -> bool:
    """Tell whether whole numbers identify rows: they hardly repeat, and are in order, packed closely, or padded."""
    splits = [split for split in tables.splits.values() if name in split.features]
    if any(columns.is_list(split.features[name]) for split in splits):
        return False
    each = [some for split in splits if (some := _whole_numbers(split, name)) is not None]
    if len(each) < len(splits) or (count := sum(map(len, each))) < MIN_ROWS:
        return False
    steps, values = [np.diff(some) for some in each], np.concatenate(each)
    ordered = all((step >= 0).all() for step in steps) or all((step <= 0).all() for step in steps)
    packed = int(values.max()) - int(values.min()) < 2 * count
    padded = written is not None and written.padded
    return bool(ordered or packed or padded) and len(np.unique(values)) >= 0.99 * count


class Numbers(NamedTuple):
    """A column of strings, read as numbers."""

    values: Mapping[str, Any]  # the numbers of each part, NaN where there are none
    filled: int
    odd: int  # the number of filled cells with something else
    first: str  # the first of these, and its row
    padded: bool  # whether whole numbers begin with zeros

    @classmethod
    def of(cls, splits: Mapping[str, Any], column: str, missing: Sequence[str] = MISSING_WORDS) -> "Numbers":
        """Read the strings of all parts that have the column; `missing` are words for a missing number."""
        values, filled, odd, first, padded = dict[str, Any](), 0, 0, "", False
        kept = {part: split for part, split in splits.items() if column in split.features}
        cells = {part: columns.arrow_of(split, column).cast(pa.string()) for part, split in kept.items()}
        texts = {part: compute.utf8_lower(compute.utf8_trim_whitespace(strings)) for part, strings in cells.items()}
        flags = pa.array(["true", "false"])
        if all(compute.all(compute.is_in(strings.drop_null(), flags)).as_py() for strings in texts.values()):
            texts = {part: compute.if_else(compute.equal(strings, "true"), "1", "0") for part, strings in texts.items()}
        for part, strings in texts.items():
            there = compute.and_(strings.is_valid(), compute.invert(compute.is_in(strings, pa.array(missing))))
            right = compute.and_(there, compute.match_substring_regex(strings, NUMBER))
            wrong = compute.and_not(there, compute.fill_null(right, fill_value=False))
            values[part] = compute.cast(compute.if_else(right, strings, None), pa.float64())
            filled += compute.sum(there).as_py() or 0
            if count := compute.sum(wrong).as_py():
                row = compute.index(wrong, value=True).as_py()
                first = first or f"{cells[part][row].as_py()!r} in row {row}{f' of {part}' * (len(texts) > 1)}"
                odd += count
            padded |= bool(compute.any(compute.match_substring_regex(strings, "^0[0-9]+$")).as_py())
        return cls(values, filled, odd, first, padded)

    def check(self, path: str, column: str) -> None:
        if 0 < self.odd <= MAX_ODD_SHARE * self.filled:
            rest = f", and {self.odd - 1:,} more" if self.odd > 1 else ""
            got = f"{self.first} (counted from 0){rest} of {self.filled:,} cells"
            remedy = "correct it, or name the columns to learn from in data.inputs"
            raise ValueError(f"expected numbers in column {column!r} of {path}, got {got}: {remedy}")


def with_numbers(splits: Mapping[str, Any], numbers: Mapping[str, Numbers]) -> dict[str, Any]:
    """Replace strings by the numbers that they stand for."""
    made = dict(splits)
    for part, split in splits.items() if numbers else ():
        table: Any = split.with_format("arrow")[:]
        for name, parsed in numbers.items():
            if part in parsed.values:
                table = table.set_column(table.column_names.index(name), name, parsed.values[part])
        made[part] = datasets.Dataset(table, fingerprint=part)
    return made


def _whole_numbers(table: Any, column: str) -> NDArray[np.int64] | None:
    """Return the values of a column without missing ones; None if a value is not a whole number."""
    values = columns.arrow_of(table, column)
    if pa.types.is_integer(values.type):
        return values.drop_null().to_numpy()
    if not (pa.types.is_floating(values.type) or pa.types.is_decimal(values.type)):
        return None
    numbers = values.cast(pa.float64()).drop_null().to_numpy()
    numbers = numbers[~np.isnan(numbers)]
    whole = np.abs(numbers) < MAX_EXACT_INTEGER
    return numbers.astype(np.int64) if (whole.all() and (numbers == np.floor(numbers)).all()) else None


def vectors_of(tables: Sequence[Any], names: Sequence[str]) -> Tensor:
    """Combine the number columns of all tables into vectors, (N, F), float32."""
    rows = [np.concatenate([_read_numbers(table, name) for name in names], axis=1) for table in tables]
    widths = {part.shape[1] for part in rows}
    if len(widths) > 1:
        raise ValueError(f"expected vectors of one length in all parts, got {sorted(widths)}: pad or cut the lists")
    return torch.from_numpy(np.concatenate(rows))


@final
class NumberRows(LazyInputs):
    """Number columns of all tables as vectors, (N, F), float32, read on demand."""

    def __init__(self, tables: Sequence[Any], columns: list[str]) -> None:
        self.tables, self.columns = [group for table in tables for group in getattr(table, "groups", [table])], columns
        self.starts = [0, *accumulate(map(len, self.tables))]
        some = next(table for table in self.tables if len(table))
        first = vectors_of([some.select_columns(columns).select(range(1))], columns)
        self.shape, self.dtype = (self.starts[-1], first.shape[1]), torch.float32

    def __getitem__(self, rows: Tensor) -> Tensor:
        read = torch.empty(len(rows), *self.shape[1:])
        for table, start, end in zip(self.tables, self.starts, self.starts[1:], strict=False):
            here = (rows >= start) & (rows < end)
            within = (rows[here] - start).tolist()
            if not within:
                continue
            together = within == list(range(within[0], within[0] + len(within)))
            some = table.select_columns(self.columns).select(range(within[0], within[-1] + 1) if together else within)
            vectors = vectors_of([some], self.columns)
            if vectors.shape[1:] != self.shape[1:]:
                widths = sorted({vectors.shape[1], *self.shape[1:]})
                raise ValueError(f"expected vectors of one length, got {widths}: pad or cut the lists")
            read[here] = vectors
        return read


def finite_rows(vectors: Float[Tensor, "n f"] | LazyInputs, path: str) -> Int[Tensor, " m"]:
    """Return the rows whose numbers are all present and finite; a warning counts the others and names the first."""
    read = (vectors[rows] for rows in torch.arange(len(vectors)).split(CHUNK))
    whole = torch.cat([torch.isfinite(some).all(dim=1) for some in read])
    lost = (~whole).nonzero().flatten().tolist()
    if lost and len(lost) == len(vectors):
        got = f"missing or infinite numbers in all {len(lost):,}: choose columns with data.inputs"
        raise ValueError(f"expected rows of finite numbers in {path}, got {got}")
    if lost:
        some = f"rows {formats.first_of([str(row) for row in lost], 5)}, counted from 0"
        message = f"left out {len(lost):,} of {len(vectors):,} rows of {path}, whose numbers are missing or infinite"
        warnings.warn(f"{message}: {some}", stacklevel=3)
    return whole.nonzero().flatten()


def _read_numbers(table: Any, name: str) -> NDArray[np.float32]:
    if not columns.is_list(table.features[name]):
        numbers = columns.arrow_of(table, name).cast("float64", safe=False).to_numpy()
    else:
        numbers = table.select_columns([name]).with_format("numpy")[:][name]
    try:
        return np.asarray(numbers, dtype=np.float32).reshape(len(numbers), -1)
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected numbers, or lists of one length, in every row of column {name!r}") from error


def cells_of(where: str, splits: Mapping[str, Any], column: str, option: str) -> tuple[dict[str, Any], Tensor]:
    """Return the filled cells of a column, with the items of lists as single cells, and the row of each, (M,)."""
    cells, rows, start = dict[str, Any](), list[Tensor](), 0
    for name, split in splits.items():
        if column not in split.features:  # negatives, which only the training part must have
            start += len(split)
            continue
        table, within = split.select_columns([column]), torch.arange(len(split))
        if columns.has_several(split.features[column]):
            if option == "first":
                message = f"expected one input a row in column {column!r} of {where}, got lists"
                raise ValueError(f"{message}: name it in data.second")
            lists = columns.arrow_of(split, column)
            within = within.repeat_interleave(_lengths(lists))
            table = datasets.Dataset(pa.table({column: compute.list_flatten(lists)}), fingerprint=name)
        values = columns.arrow_of(table, column)
        filled = torch.from_numpy(values.is_valid().to_numpy().copy())
        if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
            filled &= _lengths(values) > 0
        kept = filled.nonzero().flatten()
        cells[name] = table if len(kept) == len(table) else table.select(kept.numpy())
        rows.append(within[kept] + start)
        start += len(split)
    if not any(map(len, rows)):
        raise ValueError(f"expected data.{option} in column {column!r} of {where}, got only empty cells")
    return cells, torch.cat(rows)


def _lengths(lists: Any) -> Int[Tensor, " n"]:
    return torch.from_numpy(compute.fill_null(compute.list_value_length(lists), 0).to_numpy().astype(np.int64))


@final
class ImageCells(Sequence[Item]):
    """The images of a column, as files or as paths, numbered across all splits."""

    def __init__(self, tables: Tables, splits: Sequence[str], column: str) -> None:
        self.folder, self.contents, self.odd = tables.folder, tables.contents, tables.odd
        self.column = column
        self.splits = tuple(splits)
        self.cells = [tables.splits[name].select_columns([column]) for name in splits]
        for index, table in enumerate(self.cells):
            if isinstance(table.features[column], datasets.Image):
                self.cells[index] = table.cast_column(column, datasets.Image(decode=False))
        self.starts = [0, *accumulate(map(len, self.cells))]

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def ids(self) -> Ids | None:
        """The paths of image files, as written in the table or relative to its folder; None if an image has no file."""
        root = "" if self.folder is None else f"{self.folder.absolute()}{os.sep}"
        names = [name for _, name, _ in self._named()]
        return Ids.of(name.removeprefix(root) for name in names) if all(names) else None

    @property
    def files(self) -> list[str | None]:
        """The path of each image with its own file, or the position of its bytes in a table; None without either."""
        folder = "" if self.folder is None else str(self.folder)
        join = os.path.join  # ten times as fast as Path
        return [
            self.contents.place(number)
            if self.contents is not None and number is not None
            else (join(folder, self.odd.get(name, name)) if apart and name else None)
            for apart, name, number in self._named()
        ]

    def warn(self) -> None:
        if self.contents is not None:
            self.contents.warn()

    def _named(self) -> Iterator[tuple[bool, str, int | None]]:
        """Yield for each image whether it is outside the table, its name, and its number in the table."""
        for table in self.cells:
            named: Any = table.with_format("arrow")[:][self.column]
            apart, numbers = [True] * len(named), [None] * len(named)
            if pa.types.is_struct(named.type):
                content = compute.struct_field(named, "bytes")
                apart = compute.is_null(content).to_pylist()
                numbers = numbers if self.contents is None else content.to_pylist()
                named = compute.struct_field(named, "path")
            known = pa.types.is_string(named.type) or pa.types.is_large_string(named.type)
            names = named.to_pylist() if known else [None] * len(named)
            for alone, name, number in zip(apart, names, numbers, strict=True):
                yield alone, name or "", number

    @property
    def keys(self) -> Iterator[str | bytes | None]:
        """The key of each image: a digest of its content, or else its path; None without either."""
        for table in self.cells:
            for some in table.with_format("arrow").iter(MAX_IMAGES):
                for cell in some[self.column].to_pylist():
                    content, path = (cell["bytes"], cell["path"]) if isinstance(cell, Mapping) else (cell, cell)
                    if isinstance(content, int) and self.contents is not None:
                        content = self.contents[content] or b""
                    if content and isinstance(content, bytes):
                        yield hashlib.blake2b(content, digest_size=16).digest()
                    else:
                        yield os.path.normpath(path) if isinstance(path, str) and path.strip() else None

    def __getitem__(self, row: Any) -> Any:
        if not 0 <= row < len(self):
            raise IndexError(row)
        index = bisect(self.starts, row) - 1
        within = row - self.starts[index]
        cell, name = self.cells[index][within][self.column], f"row {within} of {self.splits[index]}"
        if isinstance(cell, Mapping):
            name = cell["path"] or name
            cell = cell["path"] if cell["bytes"] is None else cell["bytes"]
        if isinstance(cell, str):
            return Path(self.folder or "", self.odd.get(cell, cell))
        content: Any = self.contents[cell] if isinstance(cell, int) and self.contents is not None else cell
        return Encoded(name, content or b"")
