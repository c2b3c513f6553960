"""L-BFGS of many functions at once, each of its own column of variables, with a step of its own."""

from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

HISTORY = 8  # steps that are remembered
ENOUGH = 1e-4  # of the decrease that the slope promises, for a step to be taken
SMALLEST = 1e-30


@final
class ColumnSearch:
    """Minimise f_1(x_1), …, f_C(x_C): evaluate all of them at `points`, (V, C), `tell` the values, and repeat.

    A column whose value has not decreased enough halves its step; the others go on. Coordinates should be scaled so
    that Hessians are close to the identity: the first step is the gradient's. `best` holds the last points taken.

    Source:
        J. Nocedal and S. Wright, Numerical Optimization, 2006, algorithms 7.4 and 3.1.
    """

    def __init__(self, start: Float[Tensor, "v c"]) -> None:
        self.points = start
        self.best = start
        self._value = torch.full_like(start[0], torch.inf)
        self._slope = self._direction = torch.zeros_like(start)
        self._step = torch.ones_like(self._value)
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def tell(self, values: Float[Tensor, " c"], slopes: Float[Tensor, "v c"]) -> Bool[Tensor, " c"]:
        """Take the values and gradients at `points`, and move these; return which columns took their step, (C,)."""
        promised = self._step * (self._slope * self._direction).sum(dim=0)
        taken = self._value.isinf() | (values <= self._value + ENOUGH * promised)
        if not bool(self._value.isinf().any()):
            moved = torch.where(taken, self.points - self.best, 0.0)
            turned = torch.where(taken, slopes - self._slope, 0.0)
            product = (moved * turned).sum(dim=0)
            inverse = torch.where(product > SMALLEST, 1 / product, 0.0)
            self._pairs = [*self._pairs, (moved, turned, inverse)][-HISTORY:]
        self.best = torch.where(taken, self.points, self.best)
        self._value = torch.where(taken, values, self._value)
        self._slope = torch.where(taken, slopes, self._slope)
        self._direction = torch.where(taken, self._downhill(), self._direction)
        self._step = torch.where(taken, 1.0, self._step / 2)
        self.points = self.best + self._step * self._direction
        return taken

    def keep(self, columns: Bool[Tensor, " c"]) -> None:
        """Drop the other columns."""
        if bool(columns.all()):
            return
        self.points, self.best, self._slope, self._direction = (
            of[:, columns] for of in (self.points, self.best, self._slope, self._direction)
        )
        self._value, self._step = self._value[columns], self._step[columns]
        self._pairs = [(moved[:, columns], turned[:, columns], of[columns]) for moved, turned, of in self._pairs]

    def _downhill(self) -> Float[Tensor, "v c"]:
        """Return the direction of L-BFGS for every column, or the gradient's where that one leads uphill."""
        direction = -self._slope
        shares: list[Tensor] = []
        for moved, turned, inverse in reversed(self._pairs):
            share = inverse * (moved * direction).sum(dim=0)
            direction = direction - share * turned
            shares.append(share)
        if self._pairs:
            _, turned, inverse = self._pairs[-1]
            scaled = 1 / (inverse * turned.square().sum(dim=0)).clamp(min=SMALLEST)
            direction = torch.where(inverse > 0, scaled, 1.0) * direction
        for (moved, turned, inverse), share in zip(self._pairs, reversed(shares), strict=True):
            direction = direction + moved * (share - inverse * (turned * direction).sum(dim=0))
        uphill = (direction * self._slope).sum(dim=0) >= 0
        return torch.where(uphill, -self._slope, direction)
