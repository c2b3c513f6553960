"""Folders of images, and tables of numbers, texts or images: in one file, in one file per part, or on the Hub."""

import warnings
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, final

import torch
from torch import Tensor

from likewise.data import columns
from likewise.data.image_files import ImageSource
from likewise.data.lazy_inputs import Ids
from likewise.data.samples import EvalLabels, Samples
from likewise.data.tables import Tables, open_tables
from likewise.data.texts import Texts
from likewise.files.formats import ID_COLUMN, LABEL_COLUMNS, PART_NAMES, PARTS, part_column, with_test_part


@dataclass(repr=False, eq=False)
class Tabular(ImageSource):
    """Abstract: data as one table per part, with columns of inputs, labels and optional ids.

    Args:
        path: The file or folder.
        inputs: The columns to learn from. None: the image column if there is one, else the column called text,
            sentence, document or body, else all number columns.
        label: The column of labels, a list of columns of 0 and 1, or "none" for no labels. None: the one named label,
            labels, fine_label, target or class.
        separator: Separator of the labels of a sample, if the column's strings hold several, such as ",".
        fine_label: The column of finer classes for evaluation, each within one class of `label`, which is for training.
            None: evaluation uses `label`.
        encoding: Encoding of CSV, TSV and JSON files, such as "latin-1". None: UTF-8.
        part: The column with the part of each row: train; validation, valid, val or dev; test. Or "none". None: the one
            named split, part, set, fold or subset, if each of its values is one of these.
    """

    path: str
    _: KW_ONLY
    label: str | list[str] | None = None
    separator: str | None = None
    fine_label: str | None = None
    part: str | None = None

    config = encoding = inputs = None  # arguments of some sources
    local = True
    """Whether the path is local, not a name on the Hub."""
    only_images = False
    """Whether inputs of another kind are refused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        columns.check_separator(self.separator)
        label, separator = self.label, self.separator
        if isinstance(label, list) and (len(set(label)) < max(1, len(label)) or separator is not None):
            got = f"separator {separator!r}" if separator is not None else f"{label}"
            raise ValueError(f"expected as data.label different columns of 0 and 1, got {got}: name each once, alone")

    def load(self) -> Samples:
        labelled = self.label != "none"
        tables = open_tables(
            self.path, self.config, labelled=labelled, local=self.local, in_part=self.in_part, encoding=self.encoding
        )
        from likewise.data import input_columns  # noqa: PLC0415 - paths are checked before the extra

        known = next(iter(tables.splits.values())).features
        wanted = self.label if isinstance(self.label, list) else [self.label] * labelled
        cells = partial(columns.words_in, next(iter(tables.splits.values())))
        label = [columns.column_of(known, name, LABEL_COLUMNS, "label", self.path, cells=cells) for name in wanted]
        if self.fine_label is not None:
            columns.column_of(known, self.fine_label, (), "fine_label", self.path)
        beside = [*label, *([] if self.fine_label is None else [self.fine_label])]
        by_row = part_in(self.path, tables, self.part)
        no_input = [*beside, *([] if by_row is None else by_row[:1])]
        choice = input_columns.choose_columns(self.path, tables, self.inputs, no_input)
        inputs, column_kind, tables = choice.inputs, choice.kind, choice.tables
        if self.only_images and column_kind != "images":
            raise ValueError(f"expected a folder of images, got {self.path}, without any: choose --data Table")
        if self.size is not None and column_kind != "images":
            what = "texts" if column_kind == "text" else "columns of numbers"
            raise ValueError(f"expected no size for {what}, got {self.size}: leave out data.size")
        check_columns(self.path, tables.splits, [*inputs, *beside[len(label) :]], label)
        part_numbers = parts_in(self.path, tables, label)
        splits = [tables.splits[name] for name in part_numbers]
        labels, names = self._labels(splits, label)
        second = self._finer(splits, labels, names)
        parts = numbers_in(part_numbers, splits, by_row)
        kept = torch.arange(len(parts))
        ids, made_of, stats = ids_in(splits, [*inputs, *beside]), None, None
        if column_kind == "images":
            cells = input_columns.ImageCells(tables, list(part_numbers), inputs[0])
            read, kept, made_of, stats = self.read_images(cells)
            ids = ids or cells.ids
        elif column_kind == "text":
            read = Texts(columns.strings_in(splits, inputs[0]))
            if blank := sum(not string.strip() for string in read.strings):
                warnings.warn(f"{blank:,} of {len(read):,} texts of {self.path} are empty", stacklevel=3)
        else:
            vectors = (input_columns.NumberRows if self.streams else input_columns.vectors_of)(splits, inputs)
            kept = input_columns.finite_rows(vectors, self.path)
            read = vectors[kept] if isinstance(vectors, Tensor) else vectors.take(kept)
            check_filled(self.path, filled_in(parts, kept))
        ids = ids or row_ids(list(part_numbers), list(map(len, splits)))
        vector_columns = tuple(inputs) if column_kind == "numbers" else ()
        labels, parts = None if labels is None else labels[kept], parts[kept] if bool(parts.any()) else None
        summary = f"{choice}" + ("" if by_row is None else f"; parts are those of {by_row[0]}")
        shows_summary = not self.inputs and (column_kind == "numbers" or choice.others or by_row is not None)
        samples = Samples(read, labels, names, parts, ids=ids[kept], preprocessing=made_of, found=stats)
        said, evaluated = summary if shows_summary else "", None if second is None else second[kept]
        return replace(samples, columns=vector_columns, said=said, evaluated=evaluated)

    def _finer(self, splits: Sequence[Any], labels: Tensor | None, names: tuple[str, ...]) -> EvalLabels | None:
        if self.fine_label is None:
            return None
        fine = columns.labels_in(splits, self.fine_label, None, in_part=self.in_part)
        return EvalLabels.finer(*fine, labels, names, f"fine labels in column {self.fine_label!r}")

    def _labels(self, splits: Sequence[Any], label: Sequence[str]) -> tuple[Tensor | None, tuple[str, ...]]:
        if isinstance(self.label, list):
            return columns.indicators_in(splits, label)
        return columns.labels_in(splits, label[0], self.separator, in_part=self.in_part) if label else (None, ())


def parts_in(path: str, tables: Tables, label: Sequence[str]) -> dict[str, int]:
    """Return the part of each split, as a number, except splits with hidden labels or other names."""
    check_filled(path, {name: len(split) for name, split in tables.splits.items() if name.lower() in PART_NAMES})
    shown = [name for name, split in tables.splits.items() if len(split) and not _is_hidden(split, label)]
    if len(shown) == 1:
        return {shown[0]: 0}
    numbers = {name: PART_NAMES[name.lower()] for name in shown if name.lower() in PART_NAMES}
    if 0 not in numbers.values():
        got = ", ".join(tables.splits) or "nothing"
        raise ValueError(f"expected a split called train, with samples and labels, got {got}: rename one")
    return dict(zip(numbers, with_test_part(list(numbers.values())), strict=True))


def part_in(path: str, tables: Tables, column: str | None) -> tuple[str, list[int]] | None:
    """Return the column with the part of each row, and the parts' numbers; None if there are several tables."""
    table, *rest = tables.splits.values()
    if rest and column not in {None, "none"}:
        got = ", ".join(tables.splits)
        raise ValueError(f"expected one table, with a column of parts, in {path}, got {got}: leave out data.part")
    if rest:
        return None
    return part_column(column, list(table.features), lambda name: columns.values_of(table, name), path)


def numbers_in(part_numbers: Mapping[str, int], splits: Sequence[Any], by_row: tuple[str, list[int]] | None) -> Tensor:
    """Return the part of each row, (N,), from a column, or else from its table."""
    if by_row is not None:
        return torch.tensor(by_row[1])
    return torch.repeat_interleave(torch.tensor(list(part_numbers.values())), torch.tensor(list(map(len, splits))))


def filled_in(parts: Tensor, kept: Tensor) -> dict[str, int]:
    """Count the kept rows of each part, by its name."""
    return {PARTS[part]: int((parts[kept] == part).sum()) for part in parts.unique().tolist()}


def check_filled(path: str, counts: Mapping[str, int]) -> None:
    """Raise an error for a part without samples; it would be cut from the training part unnoticed."""
    empty = next((part for part, count in counts.items() if count == 0), None)
    if empty is not None:
        raise ValueError(f"expected samples in the {empty} part of {path}, got none: fill it, or remove it")


def check_columns(path: str, splits: Mapping[str, Any], inputs: Sequence[str], label: Sequence[str]) -> None:
    """Raise an error unless every part has the columns, and all parts or none have lists of labels."""
    for part, split in splits.items():
        for column in [*inputs, *label]:
            if column not in split.features:
                got = ", ".join(split.features)
                raise ValueError(f"expected a column {column!r} in the {part} part of {path}, got {got}")
    lists = {part: columns.is_list(split.features[label[0]]) for part, split in splits.items()} if label else {}
    if len(set(lists.values())) > 1:
        single = next(part for part, has_lists in lists.items() if not has_lists)
        raise ValueError(f"expected lists of labels in every part of {path} or in none, got no lists in {single}")


def _is_hidden(split: Any, label: Sequence[str]) -> bool:
    if not label or columns.kind_of(split.features[label[0]]) != "classes":
        return False
    return all(value in {None, -1} for value in columns.values_of(split, label[0]))


def ids_in(splits: Sequence[Any], taken: Sequence[str]) -> Ids | None:
    """Return the values of a column id, in upper or lower case, if every row has one and all are distinct."""
    column = next((name for name in splits[0].features if name.lower() == ID_COLUMN), None)
    if column is None or column in taken or any(column not in split.features for split in splits):
        return None
    values = [value for split in splits for value in columns.values_of(split, column)]
    named = all(isinstance(value, int | str) for value in values) and len(set(values)) == len(values)
    return Ids.of(map(str, values)) if named else None


def row_ids(parts: Sequence[str], lengths: Sequence[int]) -> Ids:
    """Return the ids of rows in tables without any: their numbers, after the part if there are several."""
    return Ids(partial(_row_names, parts, [0, *accumulate(lengths)]), torch.arange(sum(lengths)))


def _row_names(parts: Sequence[str], starts: Sequence[int], rows: Sequence[int]) -> list[str]:
    if len(parts) == 1:
        return [str(row) for row in rows]
    places = [bisect(starts, row) - 1 for row in rows]
    return [f"{parts[index]}/{row - starts[index]}" for row, index in zip(rows, places, strict=True)]


@final
@dataclass(repr=False, eq=False, kw_only=True)
class Folder(Tabular):
    """Images in a folder with one folder per class, or in folders train, test and optionally validation of these.

    Images in deeper folders belong to the class; a warning counts them. A metadata.csv or metadata.jsonl next to the
    images, with a column file_name, can give the labels instead. If there is a validation part and no test part, it is
    used for testing. An image's id is its path below the folder. Unreadable images and broken links are left out, with
    a warning. HEIC is read if `pillow-heif` is installed.

    Args:
        path: The folder.
        label: The column of metadata.csv with the labels, a list of columns of 0 and 1, or "none" for no labels. None:
            the folders, or the column named label, labels, fine_label, target or class.

    Raises:
        ValueError: There is no such folder, it has no images, its folders are ambiguous, labels are missing, or images
            differ in size and size is None.

    Memory:
        The decoded images, one byte per pixel and channel, up to `memory`, and the paths of files.

    Example:
        >>> Folder("photos", size=224, label="none").size
        224
    """

    encoding: str | None = None

    only_images = True


@final
@dataclass(repr=False, eq=False, kw_only=True)
class Table(Tabular):
    r"""A CSV, TSV, JSON lines or Parquet file, a folder of these named after their parts, or one saved by `datasets`.

    Inputs are a column of images (bytes, or paths relative to the table's folder), a column of texts, or all columns of
    numbers and of lists of numbers, which together make a vector. Labels are classes (integers, strings) or label sets
    (lists of them, lists of only 0 and 1, strings of several with a separator, or a column of 0 and 1 for each label).
    If there is a validation part and no test part, it is used for testing. Unreadable images and rows with missing
    numbers are left out, with a warning.

    Labels, ids, texts and parts are taken literally: 01 and 1 are two classes, NA is one, and only an empty cell is
    missing. In columns of numbers NA, nan, null and None are missing too; another word in a cell is refused. A column
    that identifies rows is an input only if named in `inputs`: a column called id, customer_id or the like, or, with 20
    rows or more, whole numbers that hardly repeat and are in order, packed closely, or written with leading zeros.
    `Samples.said` names the omitted columns and the reasons.

    A column id with distinct values gives the ids of samples; otherwise an id is the image's path, or the number of the
    row, from 0, after the name of its part if there are several.

    Raises:
        ValueError: The path does not exist, no column fits, labels are missing, or images differ in size and size is
            None.

    Memory:
        As for `Folder`. CSV, TSV and JSON are held in memory, as strings and numbers. Of Parquet only the used columns
        are, or a row group of them if inputs are streamed. Images in Parquet files are read by row group; each process
        holds the last four.

    Example:
        >>> Table("flowers.csv", inputs=["petal", "sepal"], label="species").inputs
        ['petal', 'sepal']
    """

    inputs: list[str] | None = None
    encoding: str | None = None


@final
@dataclass(repr=False, eq=False, kw_only=True)
class Hub(Tabular):
    """Images, numbers or texts with their labels, from a data set on the Hub; columns are read as by `Table`.

    Args:
        path: The data set's name, such as user/name.
        config: The configuration, if there are several.

    Raises:
        ValueError: There is no such data set, or it can't be reached; others, and the memory, are as for `Table`.

    Example:
        >>> Hub("uoft-cs/cifar100", label="fine_label").label
        'fine_label'
    """

    config: str | None = None
    inputs: list[str] | None = None

    local = False
