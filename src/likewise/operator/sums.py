"""Sums of a function of similarities in tiles: of e^{s}, without offset where safe, else relative to running maxima."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor

from likewise.operator.spec import ContrastSpec, Function, Outcome, Push
from likewise.pairs import PairWeight

OCTAVE = math.log(2)
"""The increase of s that doubles e^{s}; a power of two takes a third of the time of a power of e."""


class Sums(ABC):
    """Abstract: Σ e^{s} over the rows (or columns) of similarities, tile by tile.

    Attributes:
        total: The sums so far, each divided by e to the power of its offset.
    """

    total: Tensor

    @abstractmethod
    def exponentials(self, x: Tensor, rows: slice, dim: int, out: Tensor) -> Tensor:
        """Return e^{s − offset} of a tile of x, in ``out``, which may be x itself."""

    @abstractmethod
    def logarithms(self) -> Tensor:
        """Return log Σ e^{s}, −∞ if there was no pair."""

    def offsets(self) -> Tensor | None:
        """Return the offset of each sum in the unit of x; None if there is none."""
        return None

    def elsewhere(self, offsets: Tensor | None) -> "Sums":
        """Return sums of other rows with these offsets, to take exponentials relative to them."""
        del offsets
        return self

    def shares(self, upstream: Tensor) -> Tensor:
        """Return the upstream gradient over the total; 0 where there was no pair, whatever the gradient there."""
        return (upstream / self.total).masked_fill_(self.total == 0, 0)


@final
class Plain(Sums):
    """Sums without offset, for similarities given as x = s / ln 2 that cannot leave the dtype's range."""

    def __init__(self, total: Tensor, power: float = 1.0) -> None:
        self.total, self.power = total, power

    def exponentials(self, x: Tensor, rows: slice, dim: int, out: Tensor) -> Tensor:
        del rows, dim
        if self.power != 1:
            x = torch.mul(x, self.power, out=out)
        return torch.exp2(x, out=out)

    def logarithms(self) -> Tensor:
        return self.total.log()


class Shape(NamedTuple):
    """A function of an argument, and its derivative; each may overwrite the argument, or be written to ``out``."""

    value: Callable[..., Tensor]
    slope: Callable[..., Tensor]


SHAPES: dict[Function | None, Shape] = {
    "softplus": Shape(lambda a, out=None: torch.logaddexp(a, a.new_zeros(()), out=out), torch.sigmoid),
    "hinge": Shape(lambda a, out=None: torch.clamp(a, min=0, out=out), lambda a, out=None: torch.gt(a, 0, out=out)),
    "squared hinge": Shape(
        lambda a, out=None: torch.clamp(a, min=0, out=out).square_(),
        lambda a, out=None: torch.clamp(a, min=0, out=out).mul_(2),
    ),
}
"""f of each name, whose derivative is bounded or grows with the similarity only."""


@final
class Pairwise(Sums):
    """Sums of f(p·s + b), for similarities given as x = s / ln 2, and of its derivative, ``slopes``."""

    def __init__(self, total: Tensor, push: Push) -> None:
        self.total, self.slopes, self.push = total, torch.zeros_like(total), push
        self.value, self.slope = SHAPES[push.function]

    def argument(self, x: Tensor, out: Tensor) -> Tensor:
        """Return p·s + b of a tile of x, in ``out``."""
        return torch.mul(x, self.push.power * OCTAVE, out=out).add_(self.push.constant_bias)

    def exponentials(self, x: Tensor, rows: slice, dim: int, out: Tensor) -> Tensor:
        """Return the derivative, which is to f what exponentials are to their sum."""
        del rows, dim
        argument = self.argument(x, out)
        return self.slope(argument, out=argument)

    def logarithms(self) -> Tensor:
        """Return the sums, not ``total`` itself: a result of the graph that the graph's state holds is never freed."""
        return self.total.clone()

    def shares(self, upstream: Tensor) -> Tensor:
        return upstream.clone()


@final
class Running(Sums):
    """Sums relative to the running maximum of s, for any range of similarities.

    A tile holds x with s = x/unit: the division by τ then applies to a difference of products z·v, which rounds less
    than dividing each of their D terms.

    ``total`` are zeros to which exponentials are added, ``unit`` is the value of x at s = 1.
    """

    def __init__(self, total: Tensor, unit: Tensor) -> None:
        self.total, self.unit, self.rate = total, unit, 1 / (unit * OCTAVE)
        self.highest = torch.full_like(total, -torch.inf)

    def offsets(self) -> Tensor:
        return self.highest

    def elsewhere(self, offsets: Tensor | None) -> Sums:
        assert offsets is not None  # noqa: S101 - those of another process, whose sums are of the same kind
        sums = Running(torch.zeros_like(offsets), self.unit)
        sums.highest = offsets
        return sums

    def add(self, x: Tensor, rows: slice, dim: int, out: Tensor) -> tuple[Tensor, Tensor]:
        """Add a tile along a dimension; return its exponentials and the factor that rescales earlier ones."""
        before = self.highest[rows].clone()
        torch.maximum(before, x.amax(dim=dim), out=self.highest[rows])
        e = self.exponentials(x, rows, dim, out)
        fading = self._power(before - self._shift(rows))
        self.total[rows] = self.total[rows] * fading + e.sum(dim=dim)
        return e, fading

    def exponentials(self, x: Tensor, rows: slice, dim: int, out: Tensor) -> Tensor:
        return self._power(torch.sub(x, self._shift(rows).unsqueeze(dim), out=out))

    def _power(self, x: Tensor) -> Tensor:
        return x.mul_(self.rate).exp2_()

    def _shift(self, rows: slice) -> Tensor:
        highest = self.highest[rows]
        return highest.masked_fill(highest == -torch.inf, 0)  # a row without any pair so far is shifted by 0

    def logarithms(self) -> Tensor:
        return self.total.log().add_(self._shift(slice(None)) / self.unit)


def mass(
    problem: ContrastSpec,
    upstream: Outcome,
    totals: list[Tensor],
    back: list[Tensor],
    anchors: list[Tensor | None],
    *,
    pull: PairWeight | None,
) -> Tensor:
    """Return Σ W of all pairs, which follows from the upstream gradients of rows and columns.

    ``pull`` is the part of it that W holds.
    """
    of_rows = torch.zeros_like(totals[0])
    for push, g, total, scale in zip(problem.pushes, upstream.logsums, totals, anchors, strict=True):
        if g is not None:
            empty = total == 0 if scale is None else (total == 0) | (scale == 0)
            of_rows += g.masked_fill(empty, 0) * push.power
    if upstream.attraction is not None and pull is not None:
        of_rows += upstream.attraction * pull.known_row_sum(of_rows.dtype, of_rows.device)
    result = of_rows.sum()
    for push, g, total in zip(problem.pushes, upstream.columns if back else (), back, strict=False):
        if g is not None:
            result += g.masked_fill(total == 0, 0).sum() * push.power
    return result
