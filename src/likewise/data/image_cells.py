"""Images in the cells of a table: encoded files, or paths of files."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, final

from likewise.data.image_files import Encoded, Item
from likewise.data.tables import Tables


@final
class ImageCells(Sequence[Item]):
    """The image files in a column, or at the paths in a column, numbered across all splits.

    Args:
        tables: The open tables.
        splits: The names of the splits to read.
        column: The column.
    """

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
        self.starts = [0]
        for table in chosen:
            self.starts.append(self.starts[-1] + len(table))

    def __len__(self) -> int:
        """Count the cells."""
        return self.starts[-1]

    def __getitem__(self, row: Any) -> Any:
        """Return one cell's file."""
        for place, (start, end) in enumerate(pairwise(self.starts)):
            if start <= row < end:
                return self._item(self.cells[place][row - start][self.column], self.splits[place], row - start)
        raise IndexError(row)

    def _item(self, cell: Any, split: str, row: int) -> Item:
        name = f"row {row} of {split}"
        if isinstance(cell, Mapping):
            name = cell["path"] or name
            cell = cell["path"] if cell["bytes"] is None else cell["bytes"]
        if isinstance(cell, str):
            return Path(cell) if self.tables.folder is None else self.tables.folder / cell
        return Encoded(name, cell or b"")
