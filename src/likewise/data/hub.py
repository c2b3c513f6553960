"""Data that the `datasets` library reads: folders of images, CSV, JSON lines and Parquet, and data sets on the Hub."""

import warnings
from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from likewise.data import columns
from likewise.data.image_files import Encoded, Item, check_size, read_images
from likewise.data.rows import Rows
from likewise.data.samples import Samples, Source
from likewise.data.tables import Tables, open_tables
from likewise.data.texts import Texts
from likewise.files.formats import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    PART_NAMES,
    ROW_NUMBERS,
    TEXT_COLUMNS,
    UNREAD,
    image_suffixes,
    with_test_part,
)


@final
class Hub(Source):
    r"""Images, numbers or texts with their labels, from local files or from the Hub.

    - A folder of images, with one folder per class; or folders train, test and optionally validation of these. What
      lies deeper belongs to the class; a warning counts it. A metadata.csv or metadata.jsonl next to the images, with
      a column file_name, can give the labels instead.
    - A CSV, TSV, JSON lines or Parquet file, or a folder of them named after their parts (train.csv, test.csv). Inputs
      are a column of images (bytes, or paths relative to the table's folder), a column of texts, or all columns of
      numbers and of lists of numbers, which together make a vector.
    - What `datasets` has saved to disk, or a data set on the Hub by its name.

    Labels are classes (integers, strings) or label sets (lists of them, lists of only 0 and 1, strings of several with
    a separator, or a column of 0 and 1 for each label). If there is a validation part and no test part, the validation
    part is used for testing. Images that cannot be read are left out, and so are links to nothing and kinds such as
    HEIC; warnings count and name them.

    Args:
        path: A file, a folder, or a name on the Hub; what looks like a path is never looked up there.
        config: The configuration, for a data set on the Hub with several.
        inputs: The columns to learn from. None: the image column if there is one, else the column called text,
            sentence, document or body, else all number columns.
        label: The column of labels, a list of columns of 0 and 1, or "none" for no labels. None: the one named label,
            labels, fine_label, target or class.
        size: Side of the square that images are center-cropped and resized to, in pixels. None: all have the same size.
        memory: GiB of decoded images to hold in memory. A larger data set is decoded on demand.
        separator: What separates the labels of a sample, if the column's strings hold several, such as ",".

    Raises:
        ValueError: The path does not exist, no column fits, labels are missing, folders can be read in two ways,
            images differ in size and size is None, or size is below 1.

    Memory:
        The decoded images, one byte per pixel and channel, up to `memory`, and the paths of files. Tables are read
        through a temporary folder, which takes as much disk space as they do; it stays while their images are decoded
        on demand. That of a process that was killed is removed by the next. A CSV or TSV file is in memory while it is
        read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = tempfile.TemporaryDirectory()
        >>> table = Path(folder.name) / "flowers.csv"
        >>> _ = table.write_text("petal,sepal,class\n1.4,5.1,lily\n4.7,7.0,rose\n")
        >>> flowers = Hub(str(table)).load()
        >>> flowers.inputs[1], flowers.names
        (tensor([4.7000, 7.0000]), ('lily', 'rose'))
        >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str,
        config: str | None = None,
        inputs: list[str] | None = None,
        label: str | list[str] | None = None,
        *,
        size: int | None = None,
        memory: float = 2.0,
        separator: str | None = None,
    ) -> None:
        check_size(size, memory)
        columns.check_separator(separator)
        if isinstance(label, list) and (len(set(label)) < max(1, len(label)) or separator is not None):
            got = f"separator {separator!r}" if separator is not None else f"{label}"
            raise ValueError(f"expected as data.label different columns of 0 and 1, got {got}: name each once, alone")
        self.path = path
        self.config = config
        self.inputs = inputs
        self.label = label
        self.size = size
        self.memory = memory
        self.separator = separator

    def load(self) -> Samples:
        tables = open_tables(self.path, self.config, labelled=self.label != "none")
        known = next(iter(tables.splits.values())).features
        wanted = self.label if isinstance(self.label, list) else [self.label] * (self.label != "none")
        label = [columns.column_of(known, name, LABEL_COLUMNS, "label", self.path) for name in wanted]
        inputs, kind = self._inputs(tables, label)
        if self.size is not None and kind != "images":
            what = "texts" if kind == "text" else "columns of numbers"
            raise ValueError(f"expected no size for {what}, got {self.size}: leave out data.size")
        _check_columns(self.path, tables.splits, inputs, label)
        given = _parts(self.path, tables, label)
        splits = [tables.splits[name] for name in given]
        labels, names = self._labels(splits, label)
        parts = torch.repeat_interleave(torch.tensor(list(given.values())), torch.tensor(list(map(len, splits))))
        kept = torch.arange(len(parts))
        if kind == "images":
            read, kept = read_images(ImageCells(tables, list(given), inputs[0]), self.size, self.memory)
        elif kind == "text":
            read = self._texts(splits, inputs[0])
        else:
            vectors = columns.vectors_of(splits, inputs)
            kept = columns.finite_rows(vectors, self.path)
            read = vectors[kept]
            _check_filled(self.path, {name: int((parts[kept] == part).sum()) for name, part in given.items()})
        return Samples(read, None if labels is None else labels[kept], names, parts[kept] if len(given) > 1 else None)

    def _labels(self, splits: Sequence[Any], label: Sequence[str]) -> tuple[Tensor | None, tuple[str, ...]]:
        if isinstance(self.label, list):
            return columns.indicators_in(splits, label)
        return columns.labels_in(splits, label[0], self.separator) if label else (None, ())

    def _texts(self, splits: Sequence[Any], column: str) -> Rows:
        strings = [
            "" if value is None else str(value) for split in splits for value in columns.values_of(split, column)
        ]
        if blank := sum(not string.strip() for string in strings):
            warnings.warn(f"{blank:,} of {len(strings):,} texts of {self.path} are empty", stacklevel=4)
        return Texts(strings)

    def _inputs(self, tables: Tables, label: Sequence[str]) -> tuple[list[str], columns.ColumnKind]:
        """Return the input columns, and what they hold: one column of images or texts, or several of numbers."""
        table = next(iter(tables.splits.values()))
        unknown = [name for name in self.inputs or [] if name not in table.features]
        if unknown:
            raise ValueError(
                f"expected columns of {self.path} in data.inputs, got {unknown[0]!r}: "
                f"choose from {', '.join(table.features)}"
            )
        wanted = self.inputs or [
            name for name in table.features if name not in label and not name.startswith(ROW_NUMBERS)
        ]
        kinds = {name: columns.kind_of(table.features[name]) for name in wanted}
        if "images" not in kinds.values():
            kinds |= {name: "images" for name in wanted if kinds[name] == "text" and _are_paths(table, name)}
        images = [name for name, kind in kinds.items() if kind == "images"]
        if len(images) > 1 and self.inputs is None:
            images = [name for name in images if name in IMAGE_COLUMNS] or images
        if images:
            if len(images) > 1 or (self.inputs and len(self.inputs) > 1):
                raise ValueError(
                    f"expected one column of images, got {', '.join(self.inputs or images)}: name it in data.inputs"
                )
            return images, "images"
        texts = [name for name, kind in kinds.items() if kind == "text"]
        if self.inputs is None:
            texts = [name for name in texts if name in TEXT_COLUMNS] or (texts if len(texts) == 1 == len(kinds) else [])
        if len(texts) == 1 and (self.inputs is None or len(self.inputs) == 1):
            return texts, "text"
        odd = {name: kind for name, kind in kinds.items() if kind != "numbers"}
        if len(odd) == len(kinds) or (self.inputs and odd):
            got = ", ".join(f"{name} ({kind})" for name, kind in odd.items()) or "only the labels"
            raise ValueError(
                f"expected columns of numbers, or one of images or texts, in {self.path}, got {got}: "
                "name it in data.inputs"
            )
        return [name for name in kinds if name not in odd], "numbers"


def _parts(path: str, tables: Tables, label: Sequence[str]) -> dict[str, int]:
    """Return each split's part, as a number, without splits of hidden labels or of other names."""
    _check_filled(path, {name: len(split) for name, split in tables.splits.items() if name.lower() in PART_NAMES})
    shown = [name for name, split in tables.splits.items() if len(split) and not _is_hidden(split, label)]
    if len(shown) == 1:
        return {shown[0]: 0}
    numbers = {name: PART_NAMES[name.lower()] for name in shown if name.lower() in PART_NAMES}
    if 0 not in numbers.values():
        got = ", ".join(tables.splits) or "nothing"
        raise ValueError(f"expected a split called train, with samples and labels, got {got}: rename one")
    return dict(zip(numbers, with_test_part(list(numbers.values())), strict=True))


def _check_filled(path: str, counts: Mapping[str, int]) -> None:
    """Raise where a part has no sample; it would be cut from the training part unnoticed."""
    empty = next((part for part, count in counts.items() if count == 0), None)
    if empty is not None:
        raise ValueError(f"expected samples in the {empty} part of {path}, got none: fill it, or remove it")


def _check_columns(path: str, splits: Mapping[str, Any], inputs: Sequence[str], label: Sequence[str]) -> None:
    """Raise unless every part has the columns, and lists of labels where the others have lists."""
    for part, split in splits.items():
        for column in [*inputs, *label]:
            if column not in split.features:
                raise ValueError(
                    f"expected a column {column!r} in the {part} part of {path}, got {', '.join(split.features)}: "
                    "add it, or leave the part out"
                )
    lists = {part: columns.is_list(split.features[label[0]]) for part, split in splits.items()} if label else {}
    if len(set(lists.values())) > 1:
        single = next(part for part, has_lists in lists.items() if not has_lists)
        raise ValueError(
            f"expected lists of labels in every part of {path} or in none, got single labels in the {single} part: "
            "write them as lists too"
        )


def _is_hidden(split: Any, label: Sequence[str]) -> bool:
    """Tell whether a part's classes are all hidden, None or -1; lists and strings never are."""
    if not label or columns.kind_of(split.features[label[0]]) != "classes":
        return False
    return all(value in {None, -1} for value in columns.values_of(split, label[0]))


def _are_paths(table: Any, column: str) -> bool:
    """Decide whether a column's strings are paths of images, judged by the first."""
    first = table.select_columns([column])[0][column] if len(table) else None
    return isinstance(first, str) and Path(first).suffix.lower() in {*image_suffixes(), *UNREAD}


@final
class ImageCells(Sequence[Item]):
    """The image files in a column, or at the paths in a column, numbered across all splits."""

    def __init__(self, tables: Tables, splits: Sequence[str], column: str) -> None:
        import datasets  # noqa: PLC0415 - only sets that the library reads need it

        self.tables = tables
        self.column = column
        self.splits = tuple(splits)
        chosen = [tables.splits[name].select_columns([column]) for name in splits]
        encoded = datasets.Image(decode=False)
        self.cells = [
            table.cast_column(column, encoded) if isinstance(table.features[column], datasets.Image) else table
            for table in chosen
        ]
        self.starts = [0, *accumulate(map(len, chosen))]

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, row: Any) -> Any:
        if not 0 <= row < len(self):
            raise IndexError(row)
        place = bisect(self.starts, row) - 1
        within = row - self.starts[place]
        cell, name = self.cells[place][within][self.column], f"row {within} of {self.splits[place]}"
        if isinstance(cell, Mapping):
            name = cell["path"] or name
            cell = cell["path"] if cell["bytes"] is None else cell["bytes"]
        if isinstance(cell, str):
            return Path(cell) if self.tables.folder is None else self.tables.folder / cell
        return Encoded(name, cell or b"")
