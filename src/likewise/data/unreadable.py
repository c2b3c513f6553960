"""Inputs on demand that turn out to be unreadable: nothing is learned from them, and they are not evaluated."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

if TYPE_CHECKING:
    from likewise.data.samples import Rows

NAMED = 3  # files that a sentence names


class Unreadable(NamedTuple):
    """An input that could not be read."""

    place: int
    """Its place among the rows that were asked about."""
    item: int
    """Its number in the source."""
    name: str
    """Its file."""


def unreadable(inputs: "Tensor | Rows", rows: Int[Tensor, " n"]) -> list[Unreadable]:
    """Return those of some rows, all of which have been read, that could not be.

    Args:
        inputs: Inputs in memory, which all could be; or `Rows`, which may have a method of this name.
        rows: The rows, (n,).

    Example:
        >>> unreadable(torch.zeros(3, 1, 4, 4), torch.tensor([0, 2]))
        []
    """
    told = getattr(inputs, "unreadable", None)
    return [] if told is None else told(rows)


def readable(inputs: "Tensor | Rows", rows: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Tell which of some rows, all of which have been read, could be."""
    could = torch.ones(len(rows), dtype=torch.bool)
    could[[one.place for one in unreadable(inputs, rows)]] = False
    return could


def files_of(found: Iterable[Unreadable]) -> dict[int, str]:
    """Return the files that could not be read, by their numbers in the source."""
    return {one.item: one.name for one in found}


def in_words(files: Mapping[Any, str]) -> str:
    """Say what was left out.

    Example:
        >>> in_words({7: "cat/7.jpg"})
        'left out 1 image, which cannot be decoded: cat/7.jpg'
    """
    names = ", ".join(list(files.values())[:NAMED]) + (", ..." if len(files) > NAMED else "")
    return f"left out {len(files):,} image{'s' if len(files) > 1 else ''}, which cannot be decoded: {names}"
