"""One side of pairs: its inputs, each once and numbered, and which of them the cells of a column or a file hold."""

import hashlib
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data import columns
from likewise.data.ids import Ids
from likewise.data.lazy_inputs import LazyInputs, SomeRows
from likewise.data.preprocessing import FoundImages, ImagePreprocessing
from likewise.data.samples import Samples
from likewise.data.texts import Texts

CHUNK = 4096  # vectors read at a time


class Side(NamedTuple):
    """The inputs of one side, each once, and which of them a cell holds."""

    inputs: Tensor | LazyInputs  # (U, ...)
    items: Int[Tensor, " n"]  # (N,): places among the inputs, -1 for what is missing or cannot be read
    preprocessing: ImagePreprocessing | None = None
    found: FoundImages | None = None
    paths: Ids | None = None  # the file of each cell, (N,), where every one has one


def cells_of(where: str, splits: Mapping[str, Any], column: str, option: str) -> tuple[dict[str, Any], Tensor]:
    """Return a column's cells that are filled, those of a list one by one, and the row in which each is, (M,)."""
    import datasets  # noqa: PLC0415 - only sets that the library reads need it
    import pyarrow as pa  # noqa: PLC0415 - comes with it
    from pyarrow import compute as typed  # noqa: PLC0415 - likewise

    compute: Any = typed  # its functions are made at import
    cells, rows, start = dict[str, Any](), list[Tensor](), 0
    for name, split in splits.items():
        if column not in split.features:  # negatives, which other parts than the training part may lack
            start += len(split)
            continue
        table, within = split.select_columns([column]), torch.arange(len(split))
        if columns.has_several(split.features[column]):
            if option == "first":
                message = f"expected one input a row in column {column!r} of {where}, got lists"
                raise ValueError(f"{message}: name it in data.second")
            lists = columns.arrow_of(split, column)
            within = within.repeat_interleave(_lengths(compute, lists))
            table = datasets.Dataset(pa.table({column: compute.list_flatten(lists)}), fingerprint=name)
        values = columns.arrow_of(table, column)
        filled = torch.from_numpy(values.is_valid().to_numpy().copy())
        if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
            filled &= _lengths(compute, values) > 0
        kept = filled.nonzero().flatten()
        cells[name] = table if len(kept) == len(table) else table.select(kept.numpy())
        rows.append(within[kept] + start)
        start += len(split)
    if not any(map(len, rows)):
        raise ValueError(f"expected data.{option} in column {column!r} of {where}, got only empty cells")
    return cells, torch.cat(rows)


def _lengths(compute: Any, lists: Any) -> Int[Tensor, " n"]:
    return torch.from_numpy(compute.fill_null(compute.list_value_length(lists), 0).to_numpy().astype(np.int64))


def kind_in(where: str, cells: Mapping[str, Any], column: str) -> columns.ColumnKind:
    """Return what a column of cells holds: images, text or numbers."""
    column_kind = columns.kind_in(next(table for table in cells.values() if len(table)), column)
    if column_kind in {"images", "text", "numbers"}:
        return column_kind
    got = "numbered classes" if column_kind == "classes" else "something else"
    raise ValueError(f"expected images, texts or numbers in column {column!r} of {where}, got {got}")


def of_rows(files: Sequence[list[str] | Samples]) -> Side:
    """Return a side from the lines of its files, or from its arrays."""
    samples = files[0]
    if isinstance(samples, Samples):
        items, firsts = numbered(contents(samples.inputs))
        return Side(taken(samples.inputs, firsts), items, samples.preprocessing)
    return of_texts([line for lines in files if isinstance(lines, list) for line in lines])


def of_texts(strings: Sequence[str]) -> Side:
    """Return a side of texts; an empty one is missing."""
    items, firsts = numbered(string if string.strip() else None for string in strings)
    rows: list[int] = firsts.tolist()
    return Side(Texts(strings[row] for row in rows), items)


def contents(inputs: Tensor | LazyInputs) -> Iterator[bytes | None]:
    """Yield what tells each input from others; None for one that is not finite."""
    for rows in torch.arange(len(inputs)).split(CHUNK):
        read = inputs[rows].flatten(1)
        read = read + 0.0 if read.is_floating_point() else read  # there are two zeros
        for values, finite in zip(read.numpy(), torch.isfinite(read).all(dim=1).tolist(), strict=True):
            yield hashlib.blake2b(values.tobytes(), digest_size=16).digest() if finite else None


def numbered(keys: Iterable[Hashable | None]) -> tuple[Int[Tensor, " n"], Int[Tensor, " u"]]:
    """Number keys by when they come first, (N,), -1 for None, and return where each comes first, (U,)."""
    known, items, firsts = dict[Hashable, int](), list[int](), list[int]()
    for row, key in enumerate(keys):
        items.append(-1 if key is None else known.setdefault(key, len(known)))
        if items[-1] == len(firsts):
            firsts.append(row)
    return torch.tensor(items, dtype=torch.int64), torch.tensor(firsts, dtype=torch.int64)


def taken(inputs: Any, rows: Tensor, memory: float = math.inf) -> Tensor | LazyInputs:
    """Take some inputs, some perhaps often: from memory without a copy of each, if that takes more GiB than given."""
    if torch.equal(rows, torch.arange(len(inputs))):
        return inputs
    if not isinstance(inputs, Tensor):
        return inputs.take(rows)
    size = inputs.nbytes // max(1, len(inputs)) * len(rows)
    return inputs[rows] if size <= max(memory * 2**30, inputs.nbytes) else SomeRows(inputs, rows)  # pyright: ignore[reportArgumentType] - which reads a tensor, too
