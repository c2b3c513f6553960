"""The ids of samples: paths below the data's root, values of an id column, or numbers, read on demand."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.files.formats import as_text

CHUNK = 4096  # ids read at a time


@final
class Ids:
    """The ids of samples, in order, each different from the others.

    Args:
        read: Returns the ids of some rows of the source, given by their numbers.
        rows: The row of each sample in the source, (N,).

    Example:
        >>> ids = Ids.of(["cat/1.jpg", "cat/2.jpg", "dog/1.jpg"])
        >>> list(ids[torch.tensor([2, 0])]), list(Ids.numbers(torch.tensor([7, 8])))
        (['dog/1.jpg', 'cat/1.jpg'], ['7', '8'])
    """

    def __init__(self, read: Callable[[list[int]], Sequence[str]], rows: Int[Tensor, " n"]) -> None:
        self._read, self._rows = read, rows

    @classmethod
    def of(cls, names: Iterable[str]) -> "Ids":
        """Return ids that are in memory, as text; where one occurs again, the second becomes "name (2)"."""
        listed = distinct(list(names))
        return cls(partial(_select_names, listed), torch.arange(len(listed)))

    @classmethod
    def numbers(cls, rows: Int[Tensor, " n"]) -> "Ids":
        """Return numbers as ids, (N,): what samples without names are called."""
        return cls(_format_rows, rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Tensor) -> "Ids":
        return Ids(self._read, self._rows[index])

    def __iter__(self) -> Iterator[str]:
        for rows in self._rows.split(CHUNK):
            yield from self._read(rows.tolist())

    def __add__(self, other: "Ids") -> "Ids":
        if self.plain and other.plain:
            return Ids(_format_rows, torch.cat([self._rows, other._rows]))
        return Ids.of([*self, *other])

    def agree(self, other: "Ids") -> bool:
        """Tell whether both may name the same samples: they are equal, or either has only numbers, not names."""
        return self.plain or other.plain or list(self) == list(other)

    @property
    def plain(self) -> bool:
        return self._read is _format_rows


def _select_names(names: Sequence[str], rows: list[int]) -> list[str]:
    return [names[row] for row in rows]


def _format_rows(rows: list[int]) -> list[str]:
    return [str(row) for row in rows]


def distinct(names: Sequence[str]) -> Sequence[str]:
    """Return names as text, and number those that occur again: the second "a" becomes "a (2)", unless that is taken."""
    names = [as_text(name) for name in names]
    taken = set(names)
    if len(taken) == len(names):
        return names
    seen, unique_names = Counter[str](), list[str]()
    for name in names:
        seen[name] += 1
        if seen[name] == 1:
            unique_names.append(name)
            continue
        while (new := f"{name} ({seen[name]})") in taken:
            seen[name] += 1
        taken.add(new)
        unique_names.append(new)
    return unique_names
