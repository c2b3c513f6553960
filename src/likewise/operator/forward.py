"""The forward over tiles: each tile adds to the sums of exponentials and to the attraction."""

from typing import final

import torch
from torch import Tensor

from likewise.operator.spec import ContrastSpec, NeedsGrad
from likewise.operator.sums import Pairwise, Running, Sums
from likewise.operator.tiles import Exponentials, TiledProblem, View


@final
class Forward:
    """Sums over all tiles.

    Attributes:
        forth: Σ push_k e^{p_k s} of each push, over rows.
        back: Σ push_k e^{p_k s} of each push, over columns, if both directions are wanted.
        attraction: Σ pull·s of each row, (N,), without the factors of anchors and in the problem's unit of s; None if
            no pull is evaluated within tiles.
        average: Σ_u P_iu v_u over the sections that are visited once; None if there are none.
        once: Which sections are visited once: those without gradient and without pull.
    """

    def __init__(self, tiled: TiledProblem, problem: ContrastSpec, wanted: NeedsGrad) -> None:
        self.tiled = tiled
        self.forth = [tiled.sums(tiled.z.shape[0], push) for push in problem.pushes]
        both = problem.pushes if problem.both_ways else ()
        self.back = [tiled.sums(tiled.sections[0].shape[0], push) for push in both]
        self._across = self.forth if tiled.is_triangle else self.back
        """The sums that a tile's columns are added to; empty: none."""
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
            if isinstance(push_sums := self.forth[k], Pairwise):
                self._add_pairwise(k, push_sums, view)
                continue
            if not shared:
                e = out = self.forth[k].exponentials(x, view.tile.rows, 1, out=view.buffer(1))
            else:
                e = self.forth[k].exponentials(x, view.tile.rows, 1, out=x) if k == last else x
                out = e if last == 0 else view.buffer(1)
            e = tiled.weighed(k, view, e, out)
            if e is not None:
                self._sum(k, view, e)

    def _add_pairwise(self, k: int, push_sums: Pairwise, view: View) -> None:
        if view.known.pushes[k] == 0:
            return
        tile, argument = view.tile, push_sums.argument(view.x, view.buffer(1))
        across = self.forth[k] if self.tiled.is_mirrored(tile) else None
        of_slopes = (("slopes", push_sums.slope, view.buffer(2)),) if push_sums.push.is_counted else ()
        for name, shape, out in (*of_slopes, ("total", push_sums.value, argument)):
            values = self.tiled.weighed(k, view, shape(argument, out=out), out)
            if values is None:
                continue
            getattr(push_sums, name)[tile.rows].add_(values.sum(dim=1))
            if across is not None:
                getattr(across, name)[tile.columns].add_(values.sum(dim=0))

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
                _running(back).add(y, tile.columns, dim=0, out=view.buffer(2))
            e, fading = _running(self.forth[k]).add(y, tile.rows, dim=1, out=y)
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


def _running(sums: Sums) -> Running:
    assert isinstance(sums, Running)  # noqa: S101 - made where exponentials need an offset
    return sums
