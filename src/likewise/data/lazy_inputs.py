"""Inputs that are read on demand: the protocol, some rows of others, two sets as one, and those that are unreadable."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from likewise.files.formats import first_of


class LazyInputs(Protocol):
    """Inputs that are not in memory and are read on demand, by worker processes, too: indexing returns a tensor.

    Where some may turn out to be unreadable, a method `unreadable` tells which, and `note_unreadable` notes those which
    a worker found; see `ImageFiles`.
    """

    shape: tuple[int, ...]
    """(N, ...), as for a tensor of all rows."""
    dtype: torch.dtype
    """The dtype of the rows."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Read the rows given by their indices, (n,), as a tensor (n, ...)."""
        ...

    def take(self, rows: Tensor) -> "Tensor | LazyInputs":
        """Return a subset of the rows, given by their indices, without reading them."""
        return SomeRows(self, rows)


class Unreadable(NamedTuple):
    """An input that could not be read."""

    place: int  # its place among the rows that were asked about
    item: int  # its number in the source
    name: str  # its file


def unreadable(inputs: Tensor | LazyInputs, rows: Int[Tensor, " n"]) -> list[Unreadable]:
    """Return which of some rows turned out to be unreadable when they were read."""
    method = getattr(inputs, "unreadable", None)
    return [] if method is None else method(rows)


def note_unreadable(inputs: Tensor | LazyInputs, rows: Int[Tensor, " n"]) -> None:
    """Note that some rows could not be read, where a worker read them."""
    note = getattr(inputs, "note_unreadable", None)
    if note is not None and len(rows):
        note(rows)


def readable(inputs: Tensor | LazyInputs, rows: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Return a mask of some rows: those that were not unreadable when they were read."""
    could = torch.ones(len(rows), dtype=torch.bool)
    could[[failure.place for failure in unreadable(inputs, rows)]] = False
    return could


def files_of(failures: Iterable[Unreadable]) -> dict[int, str]:
    """Return the files that could not be read, by their numbers in the source."""
    return {failure.item: failure.name for failure in failures}


def in_words(files: Mapping[Any, str]) -> str:
    """Say what was left out, as in "left out 1 image, which cannot be read: cat/7.jpg"."""
    plural = "s" if len(files) > 1 else ""
    return f"left out {len(files):,} image{plural}, which cannot be read: {first_of(list(files.values()))}"


@final
class SomeRows(LazyInputs):
    """Some rows of others, given by their indices, (n,)."""

    def __init__(self, all_rows: LazyInputs, rows: Tensor) -> None:
        self.all_rows, self.rows = all_rows, rows
        self.shape, self.dtype = (len(rows), *all_rows.shape[1:]), all_rows.dtype

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.all_rows[self.rows[rows]]

    def unreadable(self, rows: Tensor) -> list[Unreadable]:
        return unreadable(self.all_rows, self.rows[rows])

    def note_unreadable(self, rows: Tensor) -> None:
        note_unreadable(self.all_rows, self.rows[rows])

    def take(self, rows: Tensor) -> "SomeRows":
        return SomeRows(self.all_rows, self.rows[rows])


@final
class JoinedRows(LazyInputs):
    """Rows followed by other rows of the same shape, of which either may be in memory."""

    def __init__(self, first: Tensor | LazyInputs, second: Tensor | LazyInputs) -> None:
        self.first, self.second = first, second
        self.shape, self.dtype = (len(first) + len(second), *first.shape[1:]), first.dtype

    def sides(self, rows: Tensor) -> Iterator[tuple[Tensor | LazyInputs, Tensor, Tensor]]:
        """Yield each side's inputs, a mask of the rows that are theirs, and these rows' indices among them."""
        late = rows >= len(self.first)
        yield self.first, ~late, rows[~late]
        yield self.second, late, rows[late] - len(self.first)

    def __getitem__(self, rows: Tensor) -> Tensor:
        read = torch.empty(len(rows), *self.shape[1:], dtype=self.dtype)
        for inputs, there, side_rows in self.sides(rows):
            read[there] = inputs[side_rows]
        return read

    def unreadable(self, rows: Tensor) -> list[Unreadable]:
        failures = list[Unreadable]()
        for inputs, there, side_rows in self.sides(rows):
            places = there.nonzero().flatten().tolist()
            failures += [failure._replace(place=places[failure.place]) for failure in unreadable(inputs, side_rows)]
        return failures

    def note_unreadable(self, rows: Tensor) -> None:
        for inputs, _, side_rows in self.sides(rows):
            note_unreadable(inputs, side_rows)

    def take(self, rows: Tensor) -> Tensor | LazyInputs:
        for inputs, there, side_rows in self.sides(rows):
            if bool(there.all()):
                return inputs[side_rows] if isinstance(inputs, Tensor) else inputs.take(side_rows)
        return SomeRows(self, rows)
