"""Columns of numbers, also those written as strings: as vectors, in memory or read on demand."""

import warnings
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from likewise.data.columns import arrow_of, is_list
from likewise.data.lazy_inputs import LazyInputs
from likewise.files.formats import first_of

CHUNK = 16384  # rows read at a time
MAX_ODD_SHARE = 0.1  # of a column's cells that are no numbers, if it is meant to be of numbers
MAX_EXACT_INTEGER = 2**53  # from here on not every whole number is a float
NUMBER = r"^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity)$"
MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none")  # how a missing number is usually written, in any case


class Numbers(NamedTuple):
    """A column of strings, read as numbers."""

    values: Mapping[str, Any]  # the numbers of each part, NaN where there are none
    filled: int
    odd: int  # how many of the filled cells are something else
    first: str  # the first of these, and its row
    padded: bool  # whether whole numbers begin with zeros

    @classmethod
    def of(cls, splits: Mapping[str, Any], column: str, missing: Sequence[str] = MISSING_WORDS) -> "Numbers":
        """Read the strings of all parts that have the column; `missing` are words for a missing number."""
        import pyarrow as pa  # noqa: PLC0415 - comes with `datasets`
        from pyarrow import compute as typed  # noqa: PLC0415 - likewise

        compute: Any = typed  # its functions are made at import
        values, filled, odd, first, padded = dict[str, Any](), 0, 0, "", False
        kept = {part: split for part, split in splits.items() if column in split.features}
        cells = {part: arrow_of(split, column).cast(pa.string()) for part, split in kept.items()}
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
    """Put numbers in the place of the strings that stand for them."""
    import datasets  # noqa: PLC0415 - only sets that the library reads need it

    made = dict(splits)
    for part, split in splits.items() if numbers else ():
        table: Any = split.with_format("arrow")[:]
        for name, parsed in numbers.items():
            if part in parsed.values:
                table = table.set_column(table.column_names.index(name), name, parsed.values[part])
        made[part] = datasets.Dataset(table, fingerprint=part)
    return made


def whole_numbers(table: Any, column: str) -> NDArray[np.int64] | None:
    """Return the values of a column without those that are missing; None where one is not whole."""
    import pyarrow as pa  # noqa: PLC0415 - comes with `datasets`

    values = arrow_of(table, column)
    if pa.types.is_integer(values.type):
        return values.drop_null().to_numpy()
    if not (pa.types.is_floating(values.type) or pa.types.is_decimal(values.type)):
        return None
    numbers = values.cast(pa.float64()).drop_null().to_numpy()
    numbers = numbers[~np.isnan(numbers)]
    whole = np.abs(numbers) < MAX_EXACT_INTEGER
    return numbers.astype(np.int64) if (whole.all() and (numbers == np.floor(numbers)).all()) else None


def vectors_of(tables: Sequence[Any], names: Sequence[str]) -> Tensor:
    """Concatenate number columns of all tables to vectors, (N, F), float32."""
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
    """Return the rows whose numbers are all there and finite; a warning counts the others and names the first."""
    read = (vectors[rows] for rows in torch.arange(len(vectors)).split(CHUNK))
    whole = torch.cat([torch.isfinite(some).all(dim=1) for some in read])
    lost = (~whole).nonzero().flatten().tolist()
    if lost and len(lost) == len(vectors):
        got = f"missing or infinite numbers in all {len(lost):,}: choose columns with data.inputs"
        raise ValueError(f"expected rows of finite numbers in {path}, got {got}")
    if lost:
        some = f"rows {first_of([str(row) for row in lost], 5)}, counted from 0"
        message = f"left out {len(lost):,} of {len(vectors):,} rows of {path}, whose numbers are missing or infinite"
        warnings.warn(f"{message}: {some}", stacklevel=3)
    return whole.nonzero().flatten()


def _read_numbers(table: Any, name: str) -> NDArray[np.float32]:
    if not is_list(table.features[name]):
        numbers = arrow_of(table, name).cast("float64", safe=False).to_numpy()
    else:
        numbers = table.select_columns([name]).with_format("numpy")[:][name]
    try:
        return np.asarray(numbers, dtype=np.float32).reshape(len(numbers), -1)
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected numbers, or lists of one length, in every row of column {name!r}") from error
