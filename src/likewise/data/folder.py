"""A folder of images, with their classes."""

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
