"""Two sets of rows as one, for training on training and validation samples together."""

from typing import final

import torch
from torch import Tensor

from likewise.data.samples import Rows
from likewise.data.unreadable import Unreadable, unreadable


@final
class JoinedRows(Rows):
    """Rows followed by other rows of the same shape, read on demand.

    Args:
        first: The rows from 0.
        second: The rows that follow.
        rows: Which of them, (N,), in any order; None: all.
    """

    def __init__(self, first: Rows, second: Rows, rows: Tensor | None = None) -> None:
        self.first = first
        self.second = second
        self.rows = torch.arange(len(first) + len(second)) if rows is None else rows

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, ...), as for a tensor of all rows."""
        return (len(self.rows), *self.first.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the rows."""
        return self.first.dtype

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Read the rows given by their indices, (n,), as a tensor (n, ...)."""
        chosen = self.rows[rows]
        late = chosen >= len(self.first)
        read = torch.empty(len(chosen), *self.shape[1:], dtype=self.dtype)
        read[~late] = self.first[chosen[~late]]
        read[late] = self.second[chosen[late] - len(self.first)]
        return read

    def unreadable(self, rows: Tensor) -> list[Unreadable]:
        """Return those of the rows given by their indices, (n,), that were found to be unreadable."""
        chosen, found = self.rows[rows], []
        late = chosen >= len(self.first)
        for of, there, before in ((self.first, ~late, 0), (self.second, late, len(self.first))):
            places = there.nonzero().flatten().tolist()
            found += [one._replace(place=places[one.place]) for one in unreadable(of, chosen[there] - before)]
        return found

    def take(self, rows: Tensor) -> "JoinedRows":
        """Return a subset of the rows, given by their indices, without reading them."""
        return JoinedRows(self.first, self.second, self.rows[rows])
