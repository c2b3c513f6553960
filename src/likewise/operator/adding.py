"""The forward over tiles: each tile adds to the sums of exponentials and to the attraction."""

from typing import final

import torch
from torch import Tensor

from likewise.operator.problem import Problem, Wanted
from likewise.operator.scene import Scene, View
from likewise.operator.sums import Running, Sums


@final
class Adding:
    """Sums over all tiles of a scene.

    Attributes:
        forth: Σ push_k e^{p_k s} of each push, over rows.
        back: The same over columns, if both directions are wanted.
        attraction: Σ pull·s of each row, (N,), without the factors of anchors and in the scene's unit of s; None if no
            pull is evaluated within tiles.
        average: Σ_u P_iu v_u over the sections that are visited once; None if there are none.
        once: Which sections are visited once: those without gradient and without pull.
        kept: The exponentials, if there is only one tile; unweighted if there are several pushes.
    """

    def __init__(self, scene: Scene, problem: Problem, wanted: Wanted) -> None:
        self.scene = scene
        self.forth = [scene.sums(scene.z.shape[0], power) for power in scene.powers]
        self.back: list[Sums] = []
        if problem.both_ways:
            self.back = [scene.sums(scene.sections[0].shape[0], power) for power in scene.powers]
        self.attraction = None if scene.pull is None else scene.z.new_zeros(scene.z.shape[0])
        alone = len(self.forth) == 1 and not self.back and problem.part is None
        single = wanted.queries and not wanted.temperature and alone
        self.once = tuple(single and not need and not self._pulls(k) for k, need in enumerate(wanted.sections))
        self.average = torch.zeros_like(scene.z) if any(self.once) else None
        self.kept: Tensor | None = None

    def run(self) -> None:
        """Visit all tiles."""
        self.scene.visit(self._add, owned=not self.back)
        if self.average is not None:
            total = self.forth[0].total
            self.average /= total.masked_fill(total == 0, 1)[:, None]

    def _pulls(self, section: int) -> bool:
        """Return whether the tiles of a section have any pull."""
        scene = self.scene
        start = sum(len(v) for v in scene.sections[:section])
        columns = slice(start, start + len(scene.sections[section]))
        return scene.pull is not None and scene.pull.base.constant(slice(0, len(scene.z)), columns) != 0

    def _add(self, view: View) -> None:
        scene, x = self.scene, view.x
        if self.attraction is not None:
            self._attract(self.attraction, view)
        if not scene.is_plain:
            self._add_relative(view)
            return
        last = len(self.forth) - 1
        for k in range(last, -1, -1):
            if not scene.is_alike:
                e = out = self.forth[k].exponentials(x, view.tile.rows, 1, out=view.buffer(1))
            else:
                e = self.forth[k].exponentials(x, view.tile.rows, 1, out=x) if k == last else x
                out = e if last == 0 else view.buffer(1)
            e = scene.weighed(k, view, e, out)
            if e is not None:
                self._sum(k, view, e)
        if scene.is_one_tile and scene.is_alike:
            self.kept = x

    def _sum(self, k: int, view: View, e: Tensor) -> None:
        tile = view.tile
        self.forth[k].total[tile.rows].add_(e.sum(dim=1))
        if self.back:
            self.back[k].total[tile.columns].add_(e.sum(dim=0))
        elif self.scene.is_mirrored(tile):
            self.forth[k].total[tile.columns].add_(e.sum(dim=0))
        if self.average is not None and self.once[tile.section]:
            self.average[tile.rows].addmm_(e, self.scene.sections[tile.section][tile.columns])

    def _add_relative(self, view: View) -> None:
        """Add exponentials relative to the running maximum."""
        tile = view.tile
        for k in range(len(self.forth) - 1, -1, -1):
            y = self.scene.logits(k, view, out=view.x if k == 0 else view.buffer(1))
            for back in self.back[k : k + 1]:
                _running(back).add(y, tile.columns, dim=0, out=view.buffer(2))
            e, fading = _running(self.forth[k]).add(y, tile.rows, dim=1, out=y)
            if self.average is not None:
                self.average[tile.rows].mul_(fading[:, None])
                if self.once[tile.section]:
                    self.average[tile.rows].addmm_(e, self.scene.sections[tile.section][tile.columns])

    def _attract(self, attraction: Tensor, view: View) -> None:
        scene, tile = self.scene, view.tile
        weights = scene.pulled(view, view.buffer(1))
        if weights is not None:
            attraction[tile.rows].add_(weights.mul_(view.x).sum(dim=1))
        if not scene.is_mirrored(tile):
            return
        if scene.pull is not None and not scene.pull.is_symmetric:
            weights = scene.pulled(view, view.buffer(1), mirrored=True)
            weights = None if weights is None else weights.mul_(view.x)
        if weights is not None:
            attraction[tile.columns].add_(weights.sum(dim=0))


def _running(sums: Sums) -> Running:
    assert isinstance(sums, Running)  # noqa: S101 - the scene creates these when exponentials need an offset
    return sums
