"""The tiled engine: the exact equation and its gradients, on any device, in O((N + R)·D + tile) memory.

A tile of similarities is visited once in the forward and once in the backward, for pull and push together. In the
forward it adds to

    lse_i = log Σ_u push_iu e^{s_iu}        attraction_i = Σ_r pull_ir s_ir

In the backward, with g and h the gradients of these, W is formed within the tile and multiplied once:

    W_iu = g_i push_iu e^{s_iu − lse_i} + h_i pull_iu      ∂z_i = 1/τ Σ_u W_iu v_u      ∂v_u = 1/τ Σ_i W_iu z_i

On tight clusters push and pull almost cancel. Subtracted pair by pair, they have the rounding error of the plain
formula; subtracted as sums, up to fifty times as much. The forward keeps only sums, and the backward recomputes each
tile of similarities. If the queries are the references and every push is symmetric, a tile is used for both (i, j) and
(j, i). The upper triangle of tiles is then enough,

    W_ij = push_ij e^{s_ij} (a_i + a_j) + h_i pull_ij + h_j pull_ji        a_i = g_i e^{−lse_i}

as long as e^{s} and its sums stay within the dtype's range. Similarly, if both directions are requested, a tile is used
for the queries over the references and for the references over the queries. Sections without gradient or pull need
only one visit: the forward sums P_iu v_u over them along with e^{s}. The temperature's gradient is

    ∂τ = −1/τ Σ W_iu s_iu = −1/τ (Σ W_iu (s_iu − s₀) + s₀ Σ W_iu)

with s₀ the similarity of equal rows: the last sum is known, and on tight clusters the first is small.

If the queries are part of the references, and the other references are queries of other processes (`LocalAnchors`),
these processes send their a_u and h_u. The same W_iu then gives the whole gradient of the queries.

The part of a pull with expensive tiles (`PairWeight.split`) is evaluated as pull @ V instead, outside the visit.
"""

from contextlib import nullcontext
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator import threads
from likewise.operator.rows import Unit, prepared, projected
from likewise.operator.spec import ContrastSpec, LocalAnchors, NeedsGrad, Outcome
from likewise.operator.sums import Forward, Sums
from likewise.operator.tiles import TILE, Exponentials, TiledProblem, View
from likewise.pairs import PairWeight


class _State(NamedTuple):
    """The state of a forward, kept for the backward."""

    problem: ContrastSpec
    forward: Forward
    rows: list[Unit]
    """Prepared queries and other sections, ready to be multiplied."""
    dtypes: list[torch.dtype]
    """The dtypes of the inputs."""
    drawn: Tensor | None
    """pull @ references, for the part of the pull beside the tiles."""
    counts: tuple[Tensor, ...]
    """The outcome's counts, detached: a graph that holds its own outputs would never be freed."""


def forward(
    problem: ContrastSpec,
    queries: Float[Tensor, "n d"],
    references: tuple[Tensor, ...],
    temperature: Float[Tensor, ""],
    wanted: NeedsGrad,
) -> tuple[Outcome, _State]:
    """Visit every tile and return the outcome, and the state for the backward, in O((N + R)·D + tile) memory."""
    with threads.single_threaded() if _is_small(queries, references) else nullcontext():
        rows = [prepared(v, temperature.dtype, normalize=problem.normalize) for v in (queries, *references)]
        z, *rest = (unit.rows for unit in rows)
        tiles = TiledProblem(problem, z, problem.per_section(z, rest), temperature)
        sums = Forward(tiles, problem, wanted)
        sums.run()
        drawn, attraction = None, None
        if tiles.pull is not None and sums.attraction is not None:
            attraction = sums.attraction / tiles.unit
            if tiles.pull.anchors is not None:
                attraction *= tiles.pull.anchors
        if tiles.beside is not None:
            drawn = tiles.beside @ tiles.sections
            beside = torch.linalg.vecdot(z, drawn) / temperature
            attraction = beside if attraction is None else attraction + beside
        logsums = tuple(
            push_sums.logarithms() if push.anchors is None else push_sums.logarithms() + push.anchors.log()
            for push_sums, push in zip(sums.forth, tiles.pushes, strict=True)
        )
        columns = tuple(push_sums.logarithms() for push_sums in sums.back)
        losses, counts = problem.losses(logsums, attraction)
        counts += tuple(push_sums.slopes for push_sums in sums.forth if push_sums.slopes is not None)
        outcome = Outcome(logsums, columns, attraction, losses, counts)
    dtypes = [v.dtype for v in (queries, *references)]
    return outcome, _State(problem, sums, rows, dtypes, drawn, tuple(count.detach() for count in counts))


def backward(state: _State, upstream: Outcome, wanted: NeedsGrad) -> tuple[Tensor | None, ...]:
    """Visit the tiles once more and return the requested gradients."""
    tiles = state.forward.tiled
    with threads.single_threaded() if _is_small(tiles.z, tiles.sections) else nullcontext():
        upstream = state.problem.split_upstream(upstream, state.counts)
        drawing = Backward(state.problem, state.forward, upstream, wanted)
        drawing.run()
        slope = drawing.slope()
        if tiles.beside is not None and upstream.attraction is not None:
            drawing.add_beside(tiles.beside, state.drawn, upstream.attraction)
            if slope is not None and state.drawn is not None:
                slope -= upstream.attraction @ torch.linalg.vecdot(tiles.z, state.drawn) / tiles.temperature.square()
        of_references: list[Tensor | None] = []
        for v, of_section in zip(tiles.sections, drawing.of_sections, strict=True):
            if v is not tiles.z:
                of_references.append(of_section)
            elif drawing.of_z is not None and of_section is not None and of_section is not drawing.of_z:
                drawing.of_z += of_section
        gradients = [
            None if gradient is None else projected(gradient, unit, tiles.temperature).to(dtype)
            for gradient, unit, dtype in zip((drawing.of_z, *of_references), state.rows, state.dtypes, strict=True)
        ]
    return slope, *gradients


def _is_small(queries: Tensor, sections: tuple[Tensor, ...]) -> bool:
    """Return whether splitting a call among threads would gain little, and wait long on a busy machine."""
    rows = queries.shape[0] + sum(v.shape[0] for v in sections if v is not queries)
    return queries.device.type == "cpu" and rows <= TILE // 2


class ColumnTerms(NamedTuple):
    """Factors of a tile's columns in its rows' gradients, if columns are anchors, too, or pushes summed both ways."""

    shares: list[Tensor | None]
    """a_k of each column."""
    sums: list[Sums]
    """The sums that provide the exponentials for the shares."""
    force: Tensor | None
    """h of each column."""


@final
class Backward:
    """Gradients of the prepared rows, summed over all tiles and not yet divided by τ.

    Attributes:
        of_z: Σ W v of the queries, (N, D), as anchors; also as references in a triangle or if they are part of these.
        of_sections: Σ W z of each section's references.
    """

    def __init__(self, problem: ContrastSpec, forward: Forward, upstream: Outcome, wanted: NeedsGrad) -> None:
        tiled = self.tiled = forward.tiled
        self.problem, self.forward, self.upstream = problem, forward, upstream
        self._shares = self._of(forward.forth, upstream.logsums, [push.anchors for push in tiled.pushes])
        self._force = None
        if tiled.pull is not None and upstream.attraction is not None:
            anchors = tiled.pull.anchors
            self._force = upstream.attraction if anchors is None else upstream.attraction * anchors
        self._across = self._of_columns()
        self.of_z = torch.zeros_like(tiled.z) if wanted.queries else None
        self.of_sections: tuple[Tensor | None, ...] = (self.of_z,)
        if not tiled.is_triangle:
            needed = zip(tiled.sections, wanted.sections, strict=True)
            self.of_sections = tuple(torch.zeros_like(v) if need else None for v, need in needed)
        self._slopes = tiled.z.new_zeros(tiled.z.shape[0]) if wanted.temperature else None
        self._knows_mass = problem.normalize and not problem.is_pairwise
        self._equal_rows = tiled.unit / tiled.temperature if self._knows_mass and wanted.temperature else 0.0
        """The value of x for two equal rows of length 1 if Σ W is known; else 0."""

    def _of_columns(self) -> ColumnTerms:
        """Return the terms of columns: as anchors in a triangle, as other processes' rows, or for a push both ways."""
        sums = self.forward.forth
        if self.tiled.is_triangle:
            return ColumnTerms(self._shares, sums, self._force)
        if self.problem.part is not None:
            return self._exchange_terms(self.problem.part)
        back = self.forward.back
        if not back:
            return ColumnTerms([None for _ in sums], sums, None)
        return ColumnTerms(self._of(back, self.upstream.columns, [None for _ in back]), back, None)

    def _exchange_terms(self, part: LocalAnchors) -> ColumnTerms:
        """Gather the terms of the other processes' rows as anchors: a few numbers per row."""
        sums, count = self.forward.forth, len(self._shares)
        mine = [*self._shares, *(push_sums.highest for push_sums in sums), self._force]
        numbers = torch.stack([tensor for tensor in mine if tensor is not None], dim=1)
        rest = iter(part.gather(numbers).unbind(dim=1))
        everyone = [None if tensor is None else next(rest).contiguous() for tensor in mine]
        offsets = zip(sums, everyone[count : 2 * count], strict=True)
        return ColumnTerms(
            everyone[:count], [push_sums.elsewhere(highest) for push_sums, highest in offsets], everyone[-1]
        )

    def run(self) -> None:
        """Visit the tiles that contribute to a gradient."""
        average, share = self.forward.average, self._shares[0]
        if self.of_z is not None and average is not None and share is not None:
            torch.mul(average, (share * self.forward.forth[0].total)[:, None], out=self.of_z)
        drawn = [v for v in self.of_sections if v is not None]
        if drawn or self.of_z is not None or self._slopes is not None:
            self.tiled.visit(self._accumulate, owned=not drawn, skip=self.forward.once)

    def _of(
        self, sums: list[Sums], upstreams: tuple[Tensor | None, ...], anchors: list[Tensor | None]
    ) -> list[Tensor | None]:
        """Return a_k = power·g / total of each log-sum-exp; 0 for rows without pairs."""
        shares: list[Tensor | None] = []
        for k, (push_sums, g, scale) in enumerate(zip(sums, upstreams, anchors, strict=True)):
            share = None if g is None else push_sums.shares(g)
            if share is not None and self.tiled.powers[k] != 1:
                share *= self.tiled.powers[k]
            shares.append(share if share is None or scale is None else share.masked_fill_(scale == 0, 0))
        return shares

    def _accumulate(self, view: View) -> None:
        tiled, tile = self.tiled, view.tile
        # whether each pair of the tile is visited twice, once as (i, j) and once as (j, i)
        twice = tile.rows == tile.columns if tiled.is_triangle else self.problem.part is not None
        w = self._pushed(view)
        if self._force is not None:
            self._pull(view, w, self._force)
        if self._slopes is not None:
            sums = view.x.sub_(self._equal_rows).mul_(w).sum(dim=1)
            self._slopes[tile.rows].add_(sums, alpha=0.5 if twice else 1)
        if self.of_z is not None:
            self.of_z[tile.rows].addmm_(w, tiled.sections[tile.section][tile.columns])
        of_section = self.of_sections[tile.section]
        if of_section is not None and not twice:
            of_section[tile.columns].addmm_(w.T, tiled.z[tile.rows])

    def _pushed(self, view: View) -> Tensor:
        """Return Σ_k push_k a_k e^{p_k s} of a tile, with a_k of its rows, its columns, or both."""
        w: Tensor | None = None
        exponentials = self.tiled.exponentials
        for k in range(len(self._shares)):
            if view.pushes[k] == 0:
                continue
            out = view.buffer(1 if w is None else 2)
            part = self._plain(k, view, out) if self.tiled.is_plain else self._relative(k, view, out)
            if part is not None:
                w = part if w is None else w.add_(part)
        if w is None:
            return view.buffer(1).zero_()
        if exponentials is not Exponentials.SHARED:
            return w
        out = view.x if self._slopes is None else view.buffer(2)
        return w.mul_(self.forward.forth[0].exponentials(view.x, view.tile.rows, 1, out=out))

    def _plain(self, k: int, view: View, out: Tensor) -> Tensor | None:
        """Return push_k a_k of a set, times its exponentials unless all pushes share them."""
        part, tile, base = self._coefficients(k, view, out), view.tile, self.tiled.pushes[k].base
        if part is not None and view.pushes[k] is None:
            base.weigh(part, tile.rows, tile.among_all, logits=False, spare=view.buffer(3))
        if part is not None and self.tiled.exponentials is Exponentials.PLAIN:
            part.mul_(self.forward.forth[k].exponentials(view.x, tile.rows, 1, out=view.buffer(3)))
        return part

    def _coefficients(self, k: int, view: View, out: Tensor) -> Tensor | None:
        """Return a_k of the rows of a tile, of its columns, or the sum of both; None if there is neither."""
        of_rows, of_columns = self._shares[k], self._across.shares[k]
        if of_rows is None:
            return None if of_columns is None else out.copy_(of_columns[view.tile.among_all].expand_as(out))
        if of_columns is None:
            return out.copy_(of_rows[view.tile.rows, None].expand_as(out))
        return torch.add(of_rows[view.tile.rows, None], of_columns[view.tile.among_all], out=out)

    def _relative(self, k: int, view: View, out: Tensor) -> Tensor | None:
        """Return push_k a_k e^{p_k s}, with exponentials relative to the maximum of each row and each column."""
        tiled, tile, across = self.tiled, view.tile, self._across
        of_rows, of_columns = self._shares[k], across.shares[k]
        last = k == len(self._shares) - 1 and self._slopes is None
        y = tiled.logits(k, view, out=view.x if last else view.buffer(3))
        if of_columns is None:
            if of_rows is None:
                return None
            return self.forward.forth[k].exponentials(y, tile.rows, 1, out=out).mul_(of_rows[tile.rows, None])
        other = out if of_rows is None else view.buffer(4)
        part = across.sums[k].exponentials(y, tile.among_all, 0, out=other).mul_(of_columns[tile.among_all])
        if of_rows is not None:
            self.forward.forth[k].exponentials(y, tile.rows, 1, out=out).mul_(of_rows[tile.rows, None])
            part = out.add_(part)
        return part

    def _pull(self, view: View, w: Tensor, force: Tensor) -> None:
        """Add h_i pull_iu, and h_u pull_ui in a triangle or if the queries are part of the references."""
        tiled, tile, across = self.tiled, view.tile, self._across
        if tiled.listed is not None:
            tiled.listed.add(w, tile.rows, tile.among_all, force[tile.rows])
            if across.force is not None:
                tiled.listed.add(w.T, tile.among_all, tile.rows, across.force[tile.among_all])
            return
        weights = tiled.pulled(view, view.buffer(2))
        if weights is not None:
            w.addcmul_(weights, force[tile.rows, None])
        if across.force is None:
            return
        if tiled.is_triangle and tiled.pull is not None and not tiled.pull.is_symmetric:
            weights = tiled.pulled(view, view.buffer(2), mirrored=True)
        if weights is not None:
            w.addcmul_(weights, across.force[tile.among_all])

    def slope(self) -> Tensor | None:
        """Return the temperature's gradient, −1/τ (Σ W (s − s₀) + s₀ Σ W), where Σ W is known."""
        if self._slopes is None:
            return None
        total = self._slopes.sum() / self.tiled.unit
        if self._knows_mass:
            anchors = [push.anchors for push in self.tiled.pushes]
            forth, back = ([push_sums.total for push_sums in sums] for sums in (self.forward.forth, self.forward.back))
            of_pairs = self.problem.mass(self.upstream, forth, back, anchors, pull=self.problem.pulls.within)
            total += of_pairs / self.tiled.temperature
        return -total / self.tiled.temperature

    def add_beside(self, pull: PairWeight, drawn: Tensor | None, force: Tensor) -> None:
        """Add the gradients of a pull evaluated as pull @ references, ``drawn``."""
        if self.of_z is not None and drawn is not None:
            self.of_z.addcmul_(drawn, force[:, None])
        wanted = [v is not None for v in self.of_sections]
        parts = pull.transposed_products(self.tiled.z * force[:, None], [len(v) for v in self.tiled.sections], wanted)
        for of_section, part in zip(self.of_sections, parts, strict=True):
            if of_section is not None and part is not None:
                of_section.add_(part)
