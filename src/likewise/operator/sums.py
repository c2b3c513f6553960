"""The forward over tiles: running sums of e^{s}, relative to running maxima if necessary, or of f."""

from copy import copy
from typing import final

import torch
from torch import Tensor

from likewise.operator.rows import OCTAVE
from likewise.operator.spec import SHAPES, ContrastSpec, NeedsGrad, Push
from likewise.operator.tiles import Exponentials, TiledProblem, View


@final
class Sums:
    """Σ e^{s} of a push over the rows (or columns) of similarities, tile by tile; or Σ f(p·s + b) and Σ f'.

    A tile holds x with s = x/unit. Exponentials relative to the running maximum of s allow any range of similarities.
    With x = z·v, τ then divides a difference of products, which rounds less than dividing each of their D terms.

    Attributes:
        total: The sums so far, each divided by e to the power of its offset.
        slopes: Σ f' so far, of a pairwise sum.
        highest: The offset of each sum, in the unit of x; None for f, or if s cannot leave the dtype's range.
    """

    def __init__(self, tiled: TiledProblem, count: int, push: Push) -> None:
        self.push, self.shape = push, SHAPES[push.function] if push.function is not None else None
        self.total = tiled.z.new_zeros(count)
        self.slopes = None if push.function is None else torch.zeros_like(self.total)
        self.highest: Tensor | None = None
        if not tiled.is_plain:
            self.highest = torch.full_like(self.total, -torch.inf)
            relative = tiled.exponentials is Exponentials.RELATIVE
            self.unit = tiled.temperature / abs(push.power) if relative else torch.ones_like(tiled.temperature)
            self.rate = 1 / (self.unit * OCTAVE)

    def exponentials(self, x: Tensor, rows: slice, dim: int, out: Tensor) -> Tensor:
        """Return e^{s − offset} of a tile of x, in ``out``, which may be x itself; for a pairwise sum, f'."""
        if self.shape is not None:
            argument = self.argument(x, out)
            return self.shape.slope(argument, out=argument)
        if self.highest is not None:
            return self._power(torch.sub(x, self._shift(self.highest[rows]).unsqueeze(dim), out=out))
        if self.push.power != 1:
            x = torch.mul(x, self.push.power, out=out)
        return torch.exp2(x, out=out)

    def argument(self, x: Tensor, out: Tensor) -> Tensor:
        """Return p·s + b of a tile of x, in ``out``."""
        return torch.mul(x, self.push.power * OCTAVE, out=out).add_(self.push.constant_bias)

    def add(self, x: Tensor, rows: slice, dim: int, out: Tensor) -> tuple[Tensor, Tensor]:
        """Add a tile along a dimension; return its exponentials and the factor that rescales the earlier sums."""
        assert self.highest is not None  # noqa: S101 - called where exponentials need an offset
        before = self.highest[rows].clone()
        torch.maximum(before, x.amax(dim=dim), out=self.highest[rows])
        e = self.exponentials(x, rows, dim, out)
        fading = self._power(before - self._shift(self.highest[rows]))
        self.total[rows] = self.total[rows] * fading + e.sum(dim=dim)
        return e, fading

    def _power(self, x: Tensor) -> Tensor:
        return x.mul_(self.rate).exp2_()

    def _shift(self, highest: Tensor) -> Tensor:
        return highest.masked_fill(highest == -torch.inf, 0)  # a row without any pair so far is shifted by 0

    def logarithms(self) -> Tensor:
        """Return log Σ e^{s}, −∞ for rows without pairs; or Σ f."""
        if self.shape is not None:
            return self.total.clone()  # an output held by the state of its own graph would never be freed
        logarithms = self.total.log()
        return logarithms if self.highest is None else logarithms.add_(self._shift(self.highest) / self.unit)

    def shares(self, upstream: Tensor) -> Tensor:
        """Return the upstream gradient divided by the total; 0 for rows without pairs, whatever their gradient."""
        if self.shape is not None:
            return upstream.clone()
        return (upstream / self.total).masked_fill_(self.total == 0, 0)

    def elsewhere(self, offsets: Tensor | None) -> "Sums":
        """Return a copy with the offsets of other rows, for exponentials relative to these offsets."""
        sums = copy(self)
        sums.highest = offsets
        return sums


@final
class Forward:
    """Sums over all tiles.

    Attributes:
        forth: Σ push_k e^{p_k s} of each push, over rows.
        back: Σ push_k e^{p_k s} of each push, over columns, if both directions are requested.
        attraction: Σ pull·s of each row, (N,), without the factors of anchors and in the problem's unit of s; None if
            no pull is evaluated within tiles.
        average: Σ_u P_iu v_u over the sections visited once; None if every section is visited twice.
        once: Whether each section is visited only once, in the forward: it has no gradient and no pull.
    """

    def __init__(self, tiled: TiledProblem, problem: ContrastSpec, wanted: NeedsGrad) -> None:
        self.tiled = tiled
        self.forth = [Sums(tiled, len(tiled.z), push) for push in problem.pushes]
        both = problem.pushes if problem.both_ways else ()
        self.back = [Sums(tiled, len(tiled.sections[0]), push) for push in both]
        self._across = self.forth if tiled.is_triangle else self.back
        """The sums to which a tile's columns are added; may be empty."""
        self.attraction = None if tiled.pull is None else tiled.z.new_zeros(tiled.z.shape[0])
        single = len(self.forth) == 1 and not self.back and problem.part is None and not problem.is_pairwise
        single = single and wanted.queries and not wanted.temperature
        self.once = tuple(single and not need and not self._pulls(k) for k, need in enumerate(wanted.sections))
        self.average = torch.zeros_like(tiled.z) if any(self.once) else None

    def run(self) -> None:
        """Visit all tiles."""
        self.tiled.visit(self._add, owned=not self.back)
        if self.average is not None:
            total = self.forth[0].total
            self.average /= total.masked_fill(total == 0, 1)[:, None]

    def _pulls(self, section: int) -> bool:
        tiled = self.tiled
        start = sum(len(v) for v in tiled.sections[:section])
        columns = slice(start, start + len(tiled.sections[section]))
        return tiled.pull is not None and tiled.pull.base.constant(slice(0, len(tiled.z)), columns) != 0

    def _add(self, view: View) -> None:
        tiled, x = self.tiled, view.x
        if self.attraction is not None:
            self._attract(self.attraction, view)
        if not tiled.is_plain:
            self._add_relative(view)
            return
        last, shared = len(self.forth) - 1, tiled.exponentials is Exponentials.SHARED
        for k in range(last, -1, -1):
            if self.forth[k].shape is not None:
                self._add_pairwise(k, view)
                continue
            if not shared:
                e = out = self.forth[k].exponentials(x, view.tile.rows, 1, out=view.buffer(1))
            else:
                e = self.forth[k].exponentials(x, view.tile.rows, 1, out=x) if k == last else x
                out = e if last == 0 else view.buffer(1)
            e = tiled.weighed(k, view, e, out)
            if e is not None:
                self._sum(k, view, e)

    def _add_pairwise(self, k: int, view: View) -> None:
        push_sums, tile = self.forth[k], view.tile
        if view.pushes[k] == 0 or push_sums.shape is None or push_sums.slopes is None:
            return
        argument = push_sums.argument(view.x, view.buffer(1))
        of_slopes = ((push_sums.slopes, push_sums.shape.slope, view.buffer(2)),) if push_sums.push.is_counted else ()
        for sums, shape, out in (*of_slopes, (push_sums.total, push_sums.shape.value, argument)):
            values = self.tiled.weighed(k, view, shape(argument, out=out), out)
            if values is None:
                continue
            sums[tile.rows].add_(values.sum(dim=1))
            if self.tiled.is_mirrored(tile):
                sums[tile.columns].add_(values.sum(dim=0))

    def _sum(self, k: int, view: View, e: Tensor) -> None:
        tile = view.tile
        self.forth[k].total[tile.rows].add_(e.sum(dim=1))
        if self._across and (self.back or self.tiled.is_mirrored(tile)):
            self._across[k].total[tile.columns].add_(e.sum(dim=0))
        if self.average is not None and self.once[tile.section]:
            self.average[tile.rows].addmm_(e, self.tiled.sections[tile.section][tile.columns])

    def _add_relative(self, view: View) -> None:
        """Add exponentials relative to the running maximum."""
        tile = view.tile
        for k in range(len(self.forth) - 1, -1, -1):
            y = self.tiled.logits(k, view, out=view.x if k == 0 else view.buffer(1))
            for back in self.back[k : k + 1]:
                back.add(y, tile.columns, dim=0, out=view.buffer(2))
            e, fading = self.forth[k].add(y, tile.rows, dim=1, out=y)
            if self.average is not None:
                self.average[tile.rows].mul_(fading[:, None])
                if self.once[tile.section]:
                    self.average[tile.rows].addmm_(e, self.tiled.sections[tile.section][tile.columns])

    def _attract(self, attraction: Tensor, view: View) -> None:
        tiled, tile = self.tiled, view.tile
        if tiled.listed is not None:
            attraction[tile.rows].add_(tiled.listed.sums(view.x, tile.rows, tile.among_all))
            if tiled.is_mirrored(tile):
                attraction[tile.columns].add_(tiled.listed.sums(view.x.T, tile.columns, tile.rows))
            return
        weights = tiled.pulled(view, view.buffer(1))
        if weights is not None:
            attraction[tile.rows].add_(weights.mul_(view.x).sum(dim=1))
        if not tiled.is_mirrored(tile):
            return
        if tiled.pull is not None and not tiled.pull.is_symmetric:
            weights = tiled.pulled(view, view.buffer(1), mirrored=True)
            weights = None if weights is None else weights.mul_(view.x)
        if weights is not None:
            attraction[tile.columns].add_(weights.sum(dim=0))
