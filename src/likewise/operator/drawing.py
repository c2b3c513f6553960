"""The backward over tiles: the matrix W of each tile, and the gradients that it gives."""

from typing import final

import torch
from torch import Tensor

from likewise.operator.adding import Adding
from likewise.operator.problem import Outcome, Part, Problem, Wanted
from likewise.operator.scene import View
from likewise.operator.sums import Sums


@final
class Drawing:
    """Gradients of the prepared rows, summed over all tiles of a scene and not yet divided by τ.

    Args:
        problem: The problem.
        adding: The forward.
        upstream: The gradients of log-sum-exps and attraction.
        wanted: Which gradients are wanted.

    Attributes:
        of_z: Σ W v of the queries, (N, D), as anchors; in a triangle, or as part of the references, as both.
        of_sections: Σ W z of each section's references.
    """

    def __init__(self, problem: Problem, adding: Adding, upstream: Outcome, wanted: Wanted) -> None:
        scene = self.scene = adding.scene
        self.problem, self.adding, self.upstream = problem, adding, upstream
        self._shares = self._of(adding.forth, upstream.logsums, [push.anchors for push in scene.pushes])
        self._shares_back = self._of(adding.back, upstream.columns, [None for _ in adding.back])
        self._back, self._force, self._force_back = adding.back, None, None
        if scene.pull is not None and upstream.attraction is not None:
            anchors = scene.pull.anchors
            self._force = upstream.attraction if anchors is None else upstream.attraction * anchors
        if scene.is_triangle:
            self._shares_back, self._force_back = self._shares, self._force
        elif problem.part is not None:
            self._learn(problem.part)
        self.of_z = torch.zeros_like(scene.z) if wanted.queries else None
        self.of_sections: tuple[Tensor | None, ...] = (self.of_z,)
        if not scene.is_triangle:
            needed = zip(scene.sections, wanted.sections, strict=True)
            self.of_sections = tuple(torch.zeros_like(v) if need else None for v, need in needed)
        self._slopes = scene.z.new_zeros(scene.z.shape[0]) if wanted.temperature else None
        self._kept = None if wanted.temperature else adding.kept

    def _learn(self, part: Part) -> None:
        """Get from the other processes what the gradients of their rows as anchors need: a few numbers a row."""
        offsets = [sums.offsets() for sums in self.adding.forth]
        mine = [*self._shares, *offsets, self._force]
        numbers = torch.stack([of for of in mine if of is not None], dim=1)
        rest = iter(part.gather(numbers).unbind(dim=1))
        everyone = [None if of is None else next(rest).contiguous() for of in mine]
        count = len(self._shares)
        self._shares_back, self._force_back = everyone[:count], everyone[-1]
        self._back = [
            sums.elsewhere(of) for sums, of in zip(self.adding.forth, everyone[count : 2 * count], strict=True)
        ]

    def run(self) -> None:
        """Visit the tiles that contribute to a gradient."""
        average, share = self.adding.average, self._shares[0]
        if self.of_z is not None and average is not None and share is not None:
            torch.mul(average, (share * self.adding.forth[0].total)[:, None], out=self.of_z)
        drawn = [v for v in self.of_sections if v is not None]
        if drawn or self.of_z is not None or self._slopes is not None:
            self.scene.visit(self._draw, owned=not drawn, skip=self.adding.once, kept=self._kept)

    def _of(
        self, sums: list[Sums], upstreams: tuple[Tensor | None, ...], anchors: list[Tensor | None]
    ) -> list[Tensor | None]:
        """Return a_k = power·g / total of each log-sum-exp; 0 where there is no pair."""
        shares: list[Tensor | None] = []
        for k, (of, g, scale) in enumerate(zip(sums, upstreams, anchors, strict=True)):
            share = None if g is None else of.shares(g)
            if share is not None and self.scene.powers[k] != 1:
                share *= self.scene.powers[k]
            shares.append(share if share is None or scale is None else share.masked_fill_(scale == 0, 0))
        return shares

    def _draw(self, view: View) -> None:
        scene, tile = self.scene, view.tile
        rows, columns = tile.rows, tile.columns
        w = self._pushed(view)
        if self._force is not None:
            self._pull(view, w, self._force)
        # each pair is visited twice: in a tile on a triangle's diagonal; by two processes, if each draws its own rows
        twice = (scene.is_triangle and rows == columns) or self.problem.part is not None
        if self._slopes is not None:
            sums = view.x.sub_(self._equal_rows).mul_(w).sum(dim=1)
            self._slopes[rows].add_(sums, alpha=0.5 if twice else 1)
        if self.of_z is not None:
            self.of_z[rows].addmm_(w, scene.sections[tile.section][columns])
        of_section = self.of_sections[tile.section]
        if of_section is not None and not twice:
            of_section[columns].addmm_(w.T, scene.z[rows])

    def _pushed(self, view: View) -> Tensor:
        """Return Σ_k push_k a_k e^{p_k s} of a tile, with a_k of its rows, its columns, or both."""
        w: Tensor | None = None
        for k in range(len(self._shares)):
            if view.known.pushes[k] == 0:
                continue
            out = view.buffer(1 if w is None else 2)
            part = self._plain(k, view, out) if self.scene.is_plain else self._relative(k, view, out)
            if part is not None:
                w = part if w is None else w.add_(part)
        if w is None:
            return view.buffer(1).zero_()
        return w.mul_(self._exponentials(view)) if self.scene.is_alike else w

    def _exponentials(self, view: View) -> Tensor:
        """Return the exponentials that all pushes share."""
        if self._kept is not None:
            return view.x
        out = view.x if self._slopes is None else view.buffer(2)
        return self.adding.forth[0].exponentials(view.x, view.tile.rows, 1, out=out)

    def _plain(self, k: int, view: View, out: Tensor) -> Tensor | None:
        """Return push_k a_k of a set, times its exponentials unless all pushes share them."""
        part, tile, base = self._coefficients(k, view, out), view.tile, self.scene.pushes[k].base
        kept_weighed = self._kept is not None and len(self._shares) == 1
        if part is not None and view.known.pushes[k] is None and not kept_weighed:
            base.weigh(part, tile.rows, tile.among_all, logits=False, spare=view.buffer(3))
        if part is not None and not self.scene.is_alike:
            part.mul_(self.adding.forth[k].exponentials(view.x, tile.rows, 1, out=view.buffer(3)))
        return part

    def _coefficients(self, k: int, view: View, out: Tensor) -> Tensor | None:
        """Return a_k of the rows of a tile, of its columns, or the sum of both; None if there is neither."""
        of_rows, of_columns = self._shares[k], self._shares_back[k] if self._shares_back else None
        if of_rows is None:
            return None if of_columns is None else out.copy_(of_columns[view.tile.among_all].expand_as(out))
        if of_columns is None:
            return out.copy_(of_rows[view.tile.rows, None].expand_as(out))
        return torch.add(of_rows[view.tile.rows, None], of_columns[view.tile.among_all], out=out)

    def _relative(self, k: int, view: View, out: Tensor) -> Tensor | None:
        """Return push_k a_k e^{p_k s}, with exponentials relative to the maximum of each row and each column."""
        scene, tile = self.scene, view.tile
        of_rows, of_columns = self._shares[k], self._shares_back[k] if self._shares_back else None
        last = k == len(self._shares) - 1 and self._slopes is None
        y = scene.logits(k, view, out=view.x if last else view.buffer(3))
        if of_columns is None:
            if of_rows is None:
                return None
            return self.adding.forth[k].exponentials(y, tile.rows, 1, out=out).mul_(of_rows[tile.rows, None])
        other = out if of_rows is None else view.buffer(4)
        part = self._back[k].exponentials(y, tile.among_all, 0, out=other).mul_(of_columns[tile.among_all])
        if of_rows is not None:
            self.adding.forth[k].exponentials(y, tile.rows, 1, out=out).mul_(of_rows[tile.rows, None])
            part = out.add_(part)
        return part

    def _pull(self, view: View, w: Tensor, force: Tensor) -> None:
        """Add h_i pull_iu, and h_u pull_ui in a triangle or if the queries are part of the references."""
        scene, tile = self.scene, view.tile
        weights = scene.pulled(view, view.buffer(2))
        if weights is not None:
            w.addcmul_(weights, force[tile.rows, None])
        if self._force_back is None:
            return
        if scene.is_triangle and scene.pull is not None and not scene.pull.is_symmetric:
            weights = scene.pulled(view, view.buffer(2), mirrored=True)
        if weights is not None:
            w.addcmul_(weights, self._force_back[tile.among_all])

    @property
    def _equal_rows(self) -> Tensor | float:
        """The value of x for two equal rows of length 1 if rows are normalised; else 0."""
        return self.scene.unit / self.scene.temperature if self.problem.normalize else 0.0

    def slope(self) -> Tensor | None:
        """Return the temperature's gradient, −1/τ (Σ W (s − s₀) + s₀ Σ W), where Σ W is known."""
        if self._slopes is None:
            return None
        total = self._slopes.sum() / self.scene.unit
        if self.problem.normalize:
            total += self._mass() / self.scene.temperature
        return -total / self.scene.temperature

    def _mass(self) -> Tensor:
        """Return Σ W of all pairs, which follows from the upstream gradients of rows and columns."""
        mass = torch.zeros_like(self.adding.forth[0].total)
        anchors = [push.anchors for push in self.scene.pushes]
        forth, back = self.adding.forth, self.adding.back
        for sums, g, scale, power in zip(forth, self.upstream.logsums, anchors, self.scene.powers, strict=True):
            if g is not None:
                empty = sums.total == 0 if scale is None else (sums.total == 0) | (scale == 0)
                mass += g.masked_fill(empty, 0) * power
        if self._force is not None and self.problem.pull is not None:
            mass += self.upstream.attraction * self.problem.pull.known_row_sum(mass.dtype, mass.device)
        total = mass.sum()
        for sums, g, power in zip(back, self.upstream.columns, self.scene.powers, strict=False):
            if g is not None:
                total += g.masked_fill(sums.total == 0, 0).sum() * power
        return total
