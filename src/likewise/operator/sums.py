"""Sums of exponentials at any range: each row's relative to its highest similarity so far."""

import math
from typing import final

import torch
from torch import Tensor

OCTAVE = math.log(2)
"""The s by which e^{s} doubles; a power of two takes a third of the time of one of e."""


@final
class Sums:
    """Σ e^{s} of the rows (or columns) of similarities that come in tiles, each relative to its highest s so far.

    A tile holds x, where s = x/unit: what is divided by τ is then a difference of products z·v, which rounds less than
    dividing each of their D terms.

    Args:
        count: How many rows.
        unit: What of x is 1 of s, a 0-d tensor.
    """

    def __init__(self, count: int, unit: Tensor) -> None:
        self.unit, self.rate = unit, 1 / (unit * OCTAVE)
        self.highest = unit.new_full((count,), -torch.inf)
        self.total = unit.new_zeros(count)

    def add(self, x: Tensor, rows: slice, dim: int, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Add a tile along a dimension; return its exponentials, and by what older ones are to be multiplied."""
        before = self.highest[rows].clone()
        torch.maximum(before, x.amax(dim=dim), out=self.highest[rows])
        e = self.exponentials(x, rows, dim, out)
        fading = self._power(before - self._shift(rows))
        self.total[rows] = self.total[rows] * fading + e.sum(dim=dim)
        return e, fading

    def exponentials(self, x: Tensor, rows: slice, dim: int, out: Tensor | None = None) -> Tensor:
        """Return e^{s − highest} of a tile."""
        return self._power(torch.sub(x, self._shift(rows).unsqueeze(dim), out=out))

    def _power(self, x: Tensor) -> Tensor:
        return x.mul_(self.rate).exp2_()

    def _shift(self, rows: slice) -> Tensor:
        highest = self.highest[rows]
        return highest.masked_fill(highest == -torch.inf, 0)  # a row that has met no pair yet shifts by 0

    def logarithms(self) -> Tensor:
        """Return log Σ e^{s}, −inf where there was no pair."""
        return self.total.log().add_(self._shift(slice(None)) / self.unit)


def shares(upstream: Tensor, total: Tensor) -> Tensor:
    """Return the upstream over the total; 0 where there was no pair, whatever comes there."""
    return (upstream / total).masked_fill_(total == 0, 0)
