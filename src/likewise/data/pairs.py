"""Pairs, such as images and their captions: two columns of a table, or two files row by row."""

import hashlib
import math
import re
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data import columns
from likewise.data.arrays import Arrays
from likewise.data.image_files import ImageSource
from likewise.data.lazy_inputs import Ids, LazyInputs, SomeRows
from likewise.data.preprocessing import FoundImages, ImagePreprocessing
from likewise.data.samples import Negatives, Samples
from likewise.data.split import never_apart
from likewise.data.table import check_columns, check_filled, filled_in, ids_in, numbers_in, part_in, parts_in, row_ids
from likewise.data.tables import Tables, open_tables
from likewise.data.texts import Texts
from likewise.files.detection import ARRAYS, exists, expanded
from likewise.files.formats import PART_NAMES, PARTS, TABLES, first_of, lines_in, with_test_part

CHUNK = 4096  # vectors read at a time


class Side(NamedTuple):
    """The distinct inputs of one side, and the input of each cell."""

    inputs: Tensor | LazyInputs  # (U, ...)
    items: Int[Tensor, " n"]  # (N,): positions among the inputs, -1 for a missing or unreadable input
    preprocessing: ImagePreprocessing | None = None
    found: FoundImages | None = None
    paths: Ids | None = None  # the file of each cell, (N,), if all have one


@final
@dataclass(repr=False, eq=False)
class Pairs(ImageSource):
    r"""Samples with a counterpart: an image and its caption, a question and its answer, a sentence and its translation.

    With a path, two columns of a table; a row with a list of counterparts is as many pairs. Without one, two files with
    matching rows: .npy and .npz arrays, or files of lines, also with .gz. In a folder of files of lines named after
    part and side, train.en and train.de, the sides are en and de. Each side is images, texts, or numbers (one, or a
    list), as in `Table`. Pairs without a side are left out, with a warning.

    Equal inputs on one side are one item. No two parts share an item or, with `group`, a group, directly or through
    other pairs; if the source gives the parts, earlier parts lose pairs connected to later parts, with a warning.

    Args:
        path: The table, or a folder of files named after their parts; see `Table`. None: `first` and `second` are
            files.
        first: The column, or the file, of the first side.
        second: The column, or the file, of the counterparts.
        negatives: A column of hard negatives, of the second's kind: similar but wrong counterparts of the first, one
            per row, or a list. Validation and test parts may lack it.
        label: A column of labels; pairs that share one are never pushed apart.
        group: A column of groups to keep in one part, instead of equal firsts and seconds: scenes, documents.
        encoding: Encoding of files of lines and of text tables, such as "latin-1". None: UTF-8.
        part: A column of parts; see `Table`.

    Raises:
        ValueError: A file or a column does not exist, both sides are the same, files differ in length, no pair has both
            sides, or all pairs are connected.

    Memory:
        Each image and each text once, however many pairs contain it; images that fit into `memory` once per pair.

    Example:
        >>> Pairs("captions.parquet", first="image", second="caption", size=224).second
        'caption'
    """

    path: str | None = None
    _: KW_ONLY
    first: str
    second: str
    negatives: str | None = None
    label: str | None = None
    group: str | None = None
    encoding: str | None = None
    part: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first == self.second:
            side_kind = "files" if self.path is None else "columns"
            raise ValueError(f"expected two {side_kind}, got {self.first!r} as data.first and as data.second")
        if self.negatives in {self.first, self.second}:
            raise ValueError(f"expected a column of its own as data.negatives, got {self.negatives!r}: name another")

    def load(self) -> Samples:
        if self.path is None:
            return self._of_files(f"{self.first} and {self.second}", {"train": (self.first, self.second)})
        files = self._files_in(expanded(self.path))
        return self._of_files(self.path, files) if files else self._of_table(self.path)

    def _files_in(self, folder: Path) -> dict[str, tuple[str, str]]:
        """Return the two files of each part in a folder: for train, train.en and train.de.gz."""
        if not folder.is_dir():
            return {}
        files = {file.name.removesuffix(".gz"): str(file) for file in sorted(folder.iterdir())}
        named = [name.removesuffix(f".{self.first}") for name in files if name.endswith(f".{self.first}")]
        seconds = {name: f"{name}.{self.second}" for name in named if _part(name) is not None}
        lone = [name for name, other in seconds.items() if other not in files]
        if lone or (seconds and all(_part(name) for name in seconds)):
            missing = f"{lone[0] if lone else 'train'}.{self.second}"
            raise ValueError(f"expected {missing} in {folder}, got {', '.join(files)}: add it, or check data.second")
        order = sorted(seconds, key=lambda name: (_part(name), name))
        return {name: (files[f"{name}.{self.first}"], files[seconds[name]]) for name in order}

    def _of_files(self, where: str, files: Mapping[str, tuple[str, str]]) -> Samples:
        for name in ("negatives", "label", "group", "part"):
            if getattr(self, name) is not None:
                raise ValueError(f"expected a table, which has data.{name}, got {where}: put the files in one table")
        sides: tuple[list[Any], list[Any]] = [], []
        for pair in files.values():
            for option, path, side in zip(("first", "second"), pair, sides, strict=True):
                side.append(self._rows_of(option, path))
            count, other = (len(side[-1]) for side in sides)
            if count != other:
                got = f"{count:,} rows in {pair[0]} and {other:,} in {pair[1]}"
                raise ValueError(f"expected files that belong together row by row, got {got}")
        lengths, several = list(map(len, sides[0])), len(files) > 1
        rows, parts = torch.arange(sum(lengths)), with_test_part([_part(name) or 0 for name in files])
        first, second = map(_side_of_rows, sides)
        names = row_ids(list(files), lengths) if several else Ids.numbers(rows)
        samples, rows = self._paired(where, first, second, of_first=rows, of_second=rows, names=names)
        part_numbers = torch.tensor(parts).repeat_interleave(torch.tensor(lengths))[rows] if several else None
        return _leave_out_bound(where, replace(samples, groups=grouped(samples), parts=part_numbers))

    def _rows_of(self, option: str, path: str) -> list[str] | Samples:
        file = expanded(path)
        if not file.is_file():
            got = f"{path}, which {'is none' if exists(file) else 'does not exist'}"
            raise ValueError(f"expected a file as data.{option}, got {got}; the table of a column is data.path")
        suffix = file.suffix.lower()
        if suffix in TABLES:
            raise ValueError(f"expected lines or arrays as data.{option}, got the table {path}: name it in data.path")
        if suffix in ARRAYS:
            arrays = Arrays(file, self.size, self.resize)
            return arrays.stream() if self.streams else arrays.load()
        return lines_in(file, self.encoding)

    def _of_table(self, path: str) -> Samples:
        tables = open_tables(path, None, labelled=False, local=True, encoding=self.encoding)
        from likewise.data.input_columns import Numbers, cells_of, with_numbers  # noqa: PLC0415 - only tables need it

        known = next(iter(tables.splits.values())).features
        columns_by_option = {name: getattr(self, name) for name in ("first", "second", "negatives", "label", "group")}
        used = {option: name for option, name in columns_by_option.items() if name is not None}
        for option, name in used.items():
            if name not in known:
                got = f"{name!r}: choose from {', '.join(known)}"
                raise ValueError(f"expected a column of {path} as data.{option}, got {got}")
        sides = [used[option] for option in ("first", "second", "negatives") if used.get(option) in tables.untyped]
        read = {name: Numbers.of(tables.splits, name, [""]) for name in sides}
        numbers = {name: parsed for name, parsed in read.items() if not parsed.odd and parsed.filled}
        tables = replace(tables, splits=with_numbers(tables.splits, numbers))
        check_columns(path, tables.splits, [name for option, name in used.items() if option != "negatives"], [])
        part_numbers = parts_in(path, tables, [])
        splits = {name: tables.splits[name] for name in part_numbers}
        lengths = list(map(len, splits.values()))
        cells, of_first = cells_of(path, splits, self.first, "first")
        first = self._side(path, tables, cells, self.first)
        cells, of_second = cells_of(path, splits, self.second, "second")
        of_negatives = of_second[:0]
        if self.negatives is not None:
            wrong, of_negatives = cells_of(path, splits, self.negatives, "negatives")
            kinds = [_kind_in(path, values, name) for values, name in ((cells, self.second), (wrong, self.negatives))]
            if kinds[0] != kinds[1]:
                raise ValueError(f"expected data.negatives of what data.second is, {kinds[0]}, got {kinds[1]}")
            renamed = {name: table.rename_column(self.negatives, self.second) for name, table in wrong.items()}
            cells |= {f"negatives of {name}": table for name, table in renamed.items()}
        second = self._side(path, tables, cells, self.second)
        places = second.items[len(of_second) :]
        if self.negatives is not None and not bool((places >= 0).any()):
            raise ValueError(f"expected data.negatives in column {self.negatives!r} of {path}, got none to be read")
        names = ids_in(list(splits.values()), list(used.values())) or row_ids(list(part_numbers), lengths)
        samples, rows = self._paired(path, first, second, of_first=of_first, of_second=of_second, names=names)
        labels, named = (None, ()) if self.label is None else columns.labels_in(list(splits.values()), self.label, None)
        parts = numbers_in(part_numbers, list(splits.values()), part_in(path, tables, self.part))
        filled = filled_in(parts, rows)
        check_filled(path, filled)
        groups = None if self.group is None else _group_numbers(path, list(splits.values()), self.group)[rows]
        groups = grouped(samples) if groups is None else groups
        if self.negatives is not None:
            negatives = _negatives(second.inputs, places, of_negatives, sum(lengths))[rows]
            samples = replace(samples, negatives=negatives)
        if labels is not None:
            samples = replace(samples, labels=labels[rows], names=named)
        return _leave_out_bound(path, replace(samples, groups=groups, parts=parts[rows] if len(filled) > 1 else None))

    def _side(self, path: str, tables: Tables, cells: Mapping[str, Any], column: str) -> Side:
        from likewise.data.input_columns import ImageCells, NumberRows, vectors_of  # noqa: PLC0415 - as above

        column_kind, each = _kind_in(path, cells, column), list(cells.values())
        if column_kind == "images":
            images = ImageCells(replace(tables, splits=cells), list(cells), column)
            items, firsts = numbered(images.keys)
            inputs, kept, made_of, stats = self.read_images(images, firsts.tolist())
            places = torch.full((len(firsts) + 1,), -1)  # the last is for missing inputs, -1
            places[torch.searchsorted(firsts, kept)] = torch.arange(len(kept))
            return Side(inputs, places[items], made_of, stats, images.ids)
        if column_kind == "text":
            return _side_of_texts(columns.strings_in(each, column))
        vectors = (NumberRows if self.streams else vectors_of)(each, [column])
        items, firsts = numbered(contents(vectors))
        return Side(_take(vectors, firsts), items)

    def _paired(
        self, where: str, first: Side, second: Side, *, of_first: Tensor, of_second: Tensor, names: Ids
    ) -> tuple[Samples, Int[Tensor, " n"]]:
        """Pair each row's cell of the first side with its cells of the second; return the pairs and their rows."""
        if self.size is not None and first.preprocessing is second.preprocessing is None:
            raise ValueError(f"expected no size without images, got {self.size}: leave out data.size")
        cell = torch.full((len(names),), -1)
        cell[of_first] = torch.arange(len(of_first))
        cell, seconds = cell[of_second], second.items[: len(of_second)]
        whole = (cell >= 0) & (first.items[cell] >= 0) & (seconds >= 0)
        none = torch.ones(len(names), dtype=torch.bool)
        none[of_second] = False  # these have at least one cell
        total, lost = len(of_second) + int(none.sum()), int((~whole).sum()) + int(none.sum())
        if lost == total:
            got = f"none with both sides among {total:,}: check data.first and data.second"
            raise ValueError(f"expected pairs in {where}, got {got}")
        if lost:
            none[of_second[~whole]] = True
            rows = list(names[none])
            message = f"left out {lost:,} of {total:,} pairs of {where}, where a side is missing or cannot be read"
            warnings.warn(f"{message}: rows {first_of(rows, 5)}", stacklevel=4)
        cell, rows, seconds = cell[whole], of_second[whole], seconds[whole]
        firsts, ids = first.items[cell], names[rows]
        if len(rows.unique()) < len(rows):
            ids = Ids.of(ids)

        def samples_of(side: Side, cells: Tensor, items: Tensor, other: Samples | None = None) -> Samples:
            cell_ids = ids if side.paths is None else Ids.of(side.paths[cells])
            samples = Samples(_take(side.inputs, items, self.memory), ids=cell_ids, items=items, counterparts=other)
            return replace(samples, preprocessing=side.preprocessing, found=side.found)

        counterparts = samples_of(second, whole.nonzero().flatten(), seconds)
        return samples_of(first, cell, firsts, counterparts), rows


def _negatives(inputs: Tensor | LazyInputs, items: Tensor, rows: Tensor, count: int) -> Negatives:
    """Gather the negatives of each row; `items` and `rows` are each negative's input and row, in order."""
    items, rows = items[items >= 0], rows[items >= 0]
    each, pool = items.unique(return_inverse=True)
    counts = torch.bincount(rows, minlength=count)
    places = torch.full((count, int(counts.max())), -1)
    places[rows, torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]] = pool
    return Negatives(_take(inputs, each), each, places)


def _part(name: str) -> int | None:
    """Return the part at the start of a name, as a number: test_2016 is a test part."""
    return PART_NAMES.get(re.split("[^a-z]", name.lower())[0])


def _kind_in(where: str, cells: Mapping[str, Any], column: str) -> columns.ColumnKind:
    """Return the kind of a column of cells: images, text or numbers."""
    column_kind = columns.kind_in(next(table for table in cells.values() if len(table)), column)
    if column_kind in {"images", "text", "numbers"}:
        return column_kind
    got = "numbered classes" if column_kind == "classes" else "something else"
    raise ValueError(f"expected images, texts or numbers in column {column!r} of {where}, got {got}")


def _side_of_rows(files: Sequence[list[str] | Samples]) -> Side:
    samples = files[0]
    if isinstance(samples, Samples):
        items, firsts = numbered(contents(samples.inputs))
        return Side(_take(samples.inputs, firsts), items, samples.preprocessing)
    return _side_of_texts([line for lines in files if isinstance(lines, list) for line in lines])


def _side_of_texts(strings: Sequence[str]) -> Side:
    """Return a side of texts; an empty text is missing."""
    items, firsts = numbered(string if string.strip() else None for string in strings)
    rows: list[int] = firsts.tolist()
    return Side(Texts(strings[row] for row in rows), items)


def contents(inputs: Tensor | LazyInputs) -> Iterator[bytes | None]:
    """Yield a digest of each input; None for an input that is not finite."""
    for rows in torch.arange(len(inputs)).split(CHUNK):
        read = inputs[rows].flatten(1)
        read = read + 0.0 if read.is_floating_point() else read  # turns -0.0 into 0.0
        for values, finite in zip(read.numpy(), torch.isfinite(read).all(dim=1).tolist(), strict=True):
            yield hashlib.blake2b(values.tobytes(), digest_size=16).digest() if finite else None


def numbered(keys: Iterable[Hashable | None]) -> tuple[Int[Tensor, " n"], Int[Tensor, " u"]]:
    """Number keys by first occurrence, (N,), -1 for None; return the numbers and the first occurrences, (U,)."""
    known, items, firsts = dict[Hashable, int](), list[int](), list[int]()
    for row, key in enumerate(keys):
        items.append(-1 if key is None else known.setdefault(key, len(known)))
        if items[-1] == len(firsts):
            firsts.append(row)
    return torch.tensor(items, dtype=torch.int64), torch.tensor(firsts, dtype=torch.int64)


def _take(inputs: Any, rows: Tensor, memory: float = math.inf) -> Tensor | LazyInputs:
    """Take some inputs, possibly repeated, without copying tensors if the copies take more GiB than `memory`."""
    if torch.equal(rows, torch.arange(len(inputs))):
        return inputs
    if not isinstance(inputs, Tensor):
        return inputs.take(rows)
    size = inputs.nbytes // max(1, len(inputs)) * len(rows)
    return inputs[rows] if size <= max(memory * 2**30, inputs.nbytes) else SomeRows(inputs, rows)  # pyright: ignore[reportArgumentType] - SomeRows reads a tensor, too


def grouped(samples: Samples) -> Int[Tensor, " n"]:
    """Return numbers, (N,), equal for pairs that share a first or a second, directly or through others."""
    return never_apart(replace(samples, groups=None, labels=None))


def _group_numbers(where: str, splits: Sequence[Any], column: str) -> Int[Tensor, " n"]:
    values = [value for split in splits for value in columns.values_of(split, column)]
    odd = sum(value is None or value != value or isinstance(value, list | dict) for value in values)  # noqa: PLR0124 - NaN
    if odd:
        got = f"none in {odd:,} of {len(values):,} of column {column!r}"
        raise ValueError(f"expected a group, a number or a string, in every row of {where}, got {got}")
    return numbered(values)[0]


def _leave_out_bound(where: str, samples: Samples) -> Samples:
    """Leave out pairs whose group is in a later part too, where the source gives the parts."""
    if samples.parts is None or samples.groups is None:
        return samples
    last = torch.zeros(int(samples.groups.max()) + 1, dtype=torch.int64)
    for part in range(3):
        last[samples.groups[samples.parts == part]] = part
    kept = samples.parts == last[samples.groups]
    left, all_of = (torch.bincount(samples.parts[some], minlength=3).tolist() for some in (~kept, kept | True))
    if left[0] == all_of[0]:
        got = f"none of {all_of[0]:,}: name a column of what belongs together in --data.group"
        raise ValueError(f"expected training pairs of {where} that share nothing with later parts, got {got}")
    each = zip(left, all_of, PARTS, strict=True)
    if counts := [f"{count:,} of {total:,} {part} pairs" for count, total, part in each if count]:
        some = f"{' and '.join(counts)} of {where}"
        warnings.warn(f"left out {some}, which share a first, a second or a group with later parts", stacklevel=4)
    return samples[kept]
