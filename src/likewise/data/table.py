"""Folders of images, and tables of numbers, texts or images: in a file, in one of each part, or on the Hub."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from likewise.data.chosen import Chosen
from likewise.data.tables import Tables
from likewise.data.tabular import Tabular


@final
@dataclass(repr=False, eq=False, kw_only=True)
class Folder(Tabular):
    """Images in a folder, with one folder per class; or folders train, test and optionally validation of these.

    What lies deeper belongs to the class; a warning counts it. A metadata.csv or metadata.jsonl next to the images,
    with a column file_name, can give the labels instead. If there is a validation part and no test part, that is used
    for testing. An image is called by its path below the folder. Images that cannot be read, and links to nothing, are
    left out, with a warning. HEIC is read where `pillow-heif` is installed.

    Args:
        path: The folder.
        label: The column of metadata.csv with the labels, a list of columns of 0 and 1, or "none" for no labels. None:
            the folders, or the column named label, labels, fine_label, target or class.

    Raises:
        ValueError: There is no such folder, it has no images, folders can be read in two ways, labels are missing,
            or images differ in size and size is None.

    Memory:
        The decoded images, one byte per pixel and channel, up to `memory`, and the paths of files.

    Example:
        >>> Folder("photos", size=224, label="none").size
        224
    """

    encoding: str | None = None

    def _chosen(self, tables: Tables, beside: Sequence[str]) -> Chosen:
        choice = super()._chosen(tables, beside)
        if choice.kind != "images":
            raise ValueError(f"expected a folder of images, got {self.path}, without any: choose --data Table")
        return choice


@final
@dataclass(repr=False, eq=False, kw_only=True)
class Table(Tabular):
    r"""A CSV, TSV, JSON lines or Parquet file, a folder of them named after their parts, or what `datasets` has saved.

    Inputs are a column of images (bytes, or paths relative to the table's folder), a column of texts, or all columns of
    numbers and of lists of numbers, which together make a vector. Labels are classes (integers, strings) or label sets
    (lists of them, lists of only 0 and 1, strings of several with a separator, or a column of 0 and 1 for each label).
    If there is a validation part and no test part, that is used for testing. Images that cannot be read and rows with
    missing numbers are left out, with a warning.

    Labels, ids, texts and parts are what is written: 01 and 1 are two classes, NA is one, and only an empty cell is
    missing. In columns of numbers NA, nan, null and None are missing too; another word in a cell is refused. A column
    that identifies rows is an input only where it is named in `inputs`: one called id, customer_id or the like, and, of
    20 rows or more, whole numbers that hardly repeat and are in order, packed closely, or written with leading zeros.
    `Samples.said` names what is left out, and why.

    A column id whose values differ says what each sample is called; else it is the image's path, or the number of the
    row, from 0, after the name of its part where there are several.

    Raises:
        ValueError: The path does not exist, no column fits, labels are missing, or images differ in size and size is
            None.

    Memory:
        As for `Folder`. CSV, TSV and JSON are in memory, as strings and numbers. Of Parquet the columns that are used
        are, or, where inputs are streamed, a row group of them. Images in Parquet files are read by their row group, of
        which each process holds the last four.

    Example:
        >>> Table("flowers.csv", inputs=["petal", "sepal"], label="species").inputs
        ['petal', 'sepal']
    """

    inputs: list[str] | None = None
    encoding: str | None = None


@final
@dataclass(repr=False, eq=False, kw_only=True)
class Hub(Tabular):
    """Images, numbers or texts with their labels, from a data set on the Hub; columns are read as `Table` reads them.

    Args:
        path: The data set's name, such as user/name.
        config: The configuration, where there are several.

    Raises:
        ValueError: There is no such data set, or it can't be reached; and as for `Table`, as is the memory.

    Example:
        >>> Hub("uoft-cs/cifar100", label="fine_label").label
        'fine_label'
    """

    config: str | None = None
    inputs: list[str] | None = None

    local = False
