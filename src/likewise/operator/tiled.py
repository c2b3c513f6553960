"""The equation in tiles: exact, on any device, in O((N + R)·D + tile) memory, forward and backward.

A tile of similarities is visited once forward and once backward, by pull and push together. Forward it adds to

    lse_i = log Σ_u push_iu e^{s_iu}        attraction_i = Σ_r pull_ir s_ir

and backward, with g and h the gradients of these, W is formed within the tile, and multiplied once:

    W_iu = g_i push_iu e^{s_iu − lse_i} + h_i pull_iu      ∂z_i = 1/τ Σ_u W_iu v_u      ∂v_u = 1/τ Σ_i W_iu z_i

On tight clusters push and pull all but cancel: taken from each other pair by pair they leave the plain formula's
rounding, taken from each other as sums up to fifty times as much. Nothing is kept from the forward but sums, and each
tile of similarities is made again. Where the queries are the references and every push is symmetric, a tile serves
(i, j) and (j, i), so that the upper triangle of tiles is all,

    W_ij = push_ij e^{s_ij} (a_i + a_j) + h_i pull_ij + h_j pull_ji        a_i = g_i e^{−lse_i}

as long as no e^{s} nor the sum of them leaves the range. Likewise a tile serves the queries over the references and
the references over the queries, both ways. Sections without gradient and without pull need one visit: the forward sums
P_iu v_u over them as it sums e^{s}. The temperature's gradient is

    ∂τ = −1/τ Σ W_iu s_iu = −1/τ (Σ W_iu (s_iu − s₀) + s₀ Σ W_iu)

with s₀ the similarity of equal rows: the last sum is known, and what is left of the first on tight clusters is small.

A pull whose tiles are dear (`PairWeight.within_tiles`) comes as pull @ V instead, beside the visit.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator import threads
from likewise.operator.normalization import Unit, prepared, projected
from likewise.operator.problem import Found, Gradients, Outcome, Problem, Wanted, put_together, taken_apart
from likewise.operator.scene import TILE, Buffers, Known, Scene, Tile
from likewise.operator.sums import Sums
from likewise.pairs import PairWeight
from likewise.pairs.weight import Factors


class _State(NamedTuple):
    """What the backward needs of the forward."""

    scene: Scene
    problem: Problem
    rows: list[Unit]
    """Queries and other sections as they are multiplied."""
    dtypes: list[torch.dtype]
    """In which they came."""
    forth: list[Sums]
    back: list[Sums]
    kept: Tensor | None
    """The exponentials, where there is one tile."""
    average: Tensor | None
    """Σ_u P_iu v_u over sections that are visited once."""
    once: tuple[bool, ...]
    drawn: Tensor | None
    """pull @ references, of a pull that comes so."""
    attraction: Tensor | None
    counts: tuple[Tensor, ...]


def forward(
    problem: Problem,
    queries: Float[Tensor, "n d"],
    others: tuple[Tensor, ...],
    temperature: Float[Tensor, ""],
    wanted: Wanted,
) -> Found:
    """Visit every tile, and return the outcome of the contrast.

    Memory:
        O((N + R)·D + tile).
    """
    with threads.alone() if _is_small(queries, others) else nullcontext():
        rows = [prepared(v, temperature.dtype, normalize=problem.normalize) for v in (queries, *others)]
        z, *rest = (unit.rows for unit in rows)
        scene = Scene(problem, z, tuple(problem.placed(z, rest)), temperature)
        visit = _Adding(scene, problem, wanted)
        scene.visit(visit.worker, owned=not problem.both_ways)
        average = visit.average
        if average is not None:
            total = visit.forth[0].total
            average /= total.masked_fill(total == 0, 1)[:, None]
        drawn = None if scene.streamed is None else scene.streamed @ scene.sections
        attraction = visit.attraction
        if scene.pull is not None and attraction is not None:
            attraction /= scene.unit
            if scene.pull.anchors is not None:
                attraction *= scene.pull.anchors
        elif drawn is not None:
            attraction = torch.linalg.vecdot(z, drawn) / temperature
        logsums = tuple(_logarithm(sums, push) for sums, push in zip(visit.forth, scene.pushes, strict=True))
        columns = tuple(sums.logarithms() for sums in visit.back)
        losses, counts = put_together(problem, logsums, attraction)
    dtypes = [v.dtype for v in (queries, *others)]
    made = visit.forth, visit.back, visit.kept, average, visit.once, drawn, attraction, counts
    return Found(Outcome(logsums, columns, attraction, losses, counts), _State(scene, problem, rows, dtypes, *made))


def backward(state: _State, upstream: Outcome, wanted: Wanted) -> Gradients:
    """Visit the tiles once more, and return the gradients that are wanted."""
    scene = state.scene
    with threads.alone() if _is_small(scene.z, scene.sections) else nullcontext():
        upstream = taken_apart(state.problem, upstream, state.counts)
        drawing = _Drawing(state, upstream, wanted)
        if drawing.of_z is not None or drawing.slopes is not None or any(v is not None for v in drawing.of_sections):
            scene.visit(drawing.worker, owned=drawing.owned, skip=state.once)
        if scene.streamed is not None and upstream.attraction is not None:
            _stream(state, drawing, scene.streamed, upstream.attraction[:, None])
        others: list[Tensor | None] = []
        for v, of_section in zip(scene.sections, drawing.of_sections, strict=True):
            if v is not scene.z:
                others.append(of_section)
            elif drawing.of_z is not None and of_section is not None and of_section is not drawing.of_z:
                drawing.of_z += of_section
        given = [
            None if gradient is None else projected(gradient, unit, scene.temperature).to(dtype)
            for gradient, unit, dtype in zip((drawing.of_z, *others), state.rows, state.dtypes, strict=True)
        ]
        return Gradients(drawing.slope(), given[0], tuple(given[1:]))


def _is_small(queries: Tensor, sections: tuple[Tensor, ...]) -> bool:
    """Say whether threads would wait for each other longer than they work."""
    return queries.device.type == "cpu" and len(queries) + sum(len(v) for v in sections if v is not queries) <= 2 * TILE


def _stream(state: _State, drawing: "_Drawing", pull: PairWeight, force: Tensor) -> None:
    """Add what a pull draws that comes as pull @ references."""
    if drawing.of_z is not None and state.drawn is not None:
        drawing.of_z.addcmul_(state.drawn, force)
    if any(v is not None for v in drawing.of_sections):
        scene = state.scene
        parts = pull.transposed_product(scene.z * force).split([len(v) for v in scene.sections])
        for of_section, part in zip(drawing.of_sections, parts, strict=True):
            if of_section is not None:
                of_section.add_(part)


def _logarithm(sums: Sums, push: Factors) -> Tensor:
    logarithms = sums.logarithms()
    return logarithms if push.anchors is None else logarithms + push.anchors.log()


@final
class _Adding:
    """The forward: what every tile adds to."""

    def __init__(self, scene: Scene, problem: Problem, wanted: Wanted) -> None:
        self.scene = scene
        self.forth = [scene.sums(len(scene.z), power) for power in scene.powers]
        self.back: list[Sums] = []
        if problem.both_ways:
            self.back = [scene.sums(len(scene.sections[0]), power) for power in scene.powers]
        self.attraction = None if scene.pull is None else scene.z.new_zeros(len(scene.z))
        self.once = tuple(
            wanted.queries and not wanted.temperature and not need and not self._pulls(k) and len(self.forth) == 1
            for k, need in enumerate(wanted.sections)
        )
        self.average = torch.zeros_like(scene.z) if any(self.once) else None
        self.kept: Tensor | None = None
        self._alike = len(set(scene.powers)) == 1

    def _pulls(self, section: int) -> bool:
        """Say whether anything pulls within the tiles of a section, or it is visited both ways."""
        scene = self.scene
        if scene.pull is None:
            return bool(self.back)
        start = sum(len(v) for v in scene.sections[:section])
        columns = slice(start, start + len(scene.sections[section]))
        return scene.pull.base.constant(slice(0, len(scene.z)), columns) != 0

    def worker(self) -> Callable[[Tile], None]:
        """Return what a thread does with a tile."""
        buffers = self.scene.buffers()

        def add(*tiles: Tile) -> None:
            for tile in tiles:
                known = self.scene.known(tile)
                if known is not None:
                    self._add(tile, known, buffers)

        return add

    def _add(self, tile: Tile, known: Known, buffers: Buffers) -> None:
        scene = self.scene
        x = scene.products(tile, buffers)
        if self.attraction is not None:
            self._attract(self.attraction, tile, known.pull, x, buffers.tile(1, x))
        average = self.average if self.once[tile.section] else None
        v = scene.sections[tile.section][tile.columns]
        if not scene.is_plain:
            self._add_relative(tile, known, x, buffers, average, v)
            return
        for k in reversed(range(len(self.forth))):
            if k == len(self.forth) - 1 or not self._alike:
                out = x if self._alike else buffers.tile(1, x)
                e = self.forth[k].exponentials(x, tile.rows, 1, out=out)
            else:
                e = x
            e = scene.weighed(
                k, e, tile, known.pushes[k], out=e if len(self.forth) == 1 or not self._alike else buffers.tile(1, x)
            )
            if e is not None:
                self._sum(k, e, tile)
                if average is not None:
                    average[tile.rows].addmm_(e, v)
        if scene.is_one_tile and self._alike:
            self.kept = x

    def _sum(self, k: int, e: Tensor, tile: Tile) -> None:
        self.forth[k].total[tile.rows] += e.sum(dim=1)
        if self.back:
            self.back[k].total[tile.columns] += e.sum(dim=0)
        elif self.scene.is_triangle and tile.rows != tile.columns:
            self.forth[k].total[tile.columns] += e.sum(dim=0)

    def _add_relative(
        self, tile: Tile, known: Known, x: Tensor, buffers: Buffers, average: Tensor | None, v: Float[Tensor, "r d"]
    ) -> None:
        """Add exponentials relative to the highest so far."""
        for k in reversed(range(len(self.forth))):
            y = self.scene.logits(k, x, tile, known.pushes[k], out=x if k == 0 else buffers.tile(1, x))
            if self.back:
                self.back[k].add(y, tile.columns, dim=0, out=buffers.tile(2, x))
            e, fading = self.forth[k].add(y, tile.rows, dim=1, out=y)
            if self.average is not None:
                self.average[tile.rows] *= fading[:, None]
            if average is not None:
                average[tile.rows].addmm_(e, v)

    def _attract(self, attraction: Tensor, tile: Tile, known: float | None, x: Tensor, out: Tensor) -> None:
        scene = self.scene
        weights = scene.pulled(tile, known, out)
        if weights is not None:
            attraction[tile.rows] += weights.mul_(x).sum(dim=1)
        if not scene.is_triangle or tile.rows == tile.columns:
            return
        if scene.pull is None or not scene.pull.is_symmetric:
            weights = scene.pulled(tile, known, out, mirrored=True)
            weights = None if weights is None else weights.mul_(x)
        if weights is not None:
            attraction[tile.columns] += weights.sum(dim=0)


@final
class _Drawing:
    """The backward: W of every tile, and what is drawn by it."""

    def __init__(self, state: _State, upstream: Outcome, wanted: Wanted) -> None:
        scene, z = state.scene, state.scene.z
        self.state, self.scene, self.upstream = state, scene, upstream
        self.shares = self._shares(state.forth, upstream.logsums, [push.anchors for push in scene.pushes])
        self.shares_back = self._shares(state.back, upstream.columns, [None for _ in state.back])
        self.force = None
        if scene.pull is not None and upstream.attraction is not None:
            anchors = scene.pull.anchors
            self.force = upstream.attraction if anchors is None else upstream.attraction * anchors
        self.of_z = torch.zeros_like(z) if wanted.queries else None
        if scene.is_triangle:
            self.of_sections: tuple[Tensor | None, ...] = (self.of_z,)
        else:
            needed = zip(scene.sections, wanted.sections, strict=True)
            self.of_sections = tuple(torch.zeros_like(v) if need else None for v, need in needed)
        self.slopes = z.new_zeros(len(z)) if wanted.temperature else None
        self.kept = None if wanted.temperature else state.kept
        if self.of_z is not None and state.average is not None and upstream.logsums[0] is not None:
            g = upstream.logsums[0].masked_fill(state.forth[0].total == 0, 0)
            torch.mul(state.average, g[:, None], out=self.of_z)

    @property
    def owned(self) -> bool:
        """Whether a tile draws its rows alone."""
        return all(v is None for v in self.of_sections)

    def _shares(
        self, sums: list[Sums], upstreams: tuple[Tensor | None, ...], anchors: list[Tensor | None]
    ) -> list[Tensor | None]:
        """Return power·g / total of each log-sum-exp; 0 where it has no pair."""
        shares: list[Tensor | None] = []
        for k, (of, g) in enumerate(zip(sums, upstreams, strict=True)):
            share = None if g is None else of.shares(g)
            if share is not None and self.scene.powers[k] != 1:
                share *= self.scene.powers[k]
            scale = anchors[k]
            shares.append(share if share is None or scale is None else share.masked_fill_(scale == 0, 0))
        return shares

    def worker(self) -> Callable[[Tile], None]:
        """Return what a thread does with a tile."""
        buffers = self.scene.buffers()

        def draw(*tiles: Tile) -> None:
            for tile in tiles:
                known = self.scene.known(tile)
                if known is not None:
                    self._draw(tile, known, buffers)

        return draw

    def _draw(self, tile: Tile, known: Known, buffers: Buffers) -> None:
        scene, rows, columns = self.scene, tile.rows, tile.columns
        x = scene.products(tile, buffers) if self.kept is None else self.kept
        w = self._pushed(tile, known, x, buffers)
        if self.force is not None:
            self._pull(tile, known.pull, w, buffers.tile(2, w), self.force)
        on_diagonal = scene.is_triangle and rows == columns
        if self.slopes is not None:  # of pairs that a tile on the diagonal has twice, half
            sums = x.sub_(self._equal_rows).mul_(w).sum(dim=1)
            self.slopes[rows].add_(sums, alpha=0.5 if on_diagonal else 1)
        if self.of_z is not None:
            self.of_z[rows].addmm_(w, scene.sections[tile.section][columns])
        of_section = self.of_sections[tile.section]
        if of_section is not None and not on_diagonal:
            of_section[columns].addmm_(w.T, scene.z[rows])

    def _pushed(self, tile: Tile, known: Known, x: Tensor, buffers: Buffers) -> Tensor:
        """Return Σ_k push_k a_k e^{p_k s} of a tile, with a_k of its rows, its columns, or both."""
        w: Tensor | None = None
        alike = self.scene.is_plain and len(set(self.scene.powers)) == 1
        for k in range(len(self.shares)):
            out = buffers.tile(1 if w is None else 2, x)
            inside = known.pushes[k]
            if inside == 0:
                continue
            if alike:
                part = self._coefficients(k, tile, inside, out, buffers)
            else:
                part = self._relative(k, tile, inside, x, out, buffers)
            if part is not None:
                w = part if w is None else w.add_(part)
        if w is None:
            return buffers.tile(1, x).zero_()
        if alike:
            if self.kept is None:
                out = x if self.slopes is None else buffers.tile(2, x)
                x = self.state.forth[0].exponentials(x, tile.rows, 1, out=out)
            w.mul_(x)
        return w

    def _coefficients(self, k: int, tile: Tile, inside: float | None, out: Tensor, buffers: Buffers) -> Tensor | None:
        """Return push_k a_k of a tile of a set, by which exponentials are multiplied; None where there are none."""
        scene, rows, columns = self.scene, tile.rows, tile.columns
        of_rows = self.shares[k]
        of_columns = of_rows if scene.is_triangle else self.shares_back[k] if self.shares_back else None
        if of_rows is None and of_columns is None:
            return None
        if of_rows is not None and of_columns is not None:
            torch.add(of_rows[rows, None], of_columns[columns], out=out)
        else:
            out.copy_(of_columns[columns].expand_as(out) if of_rows is None else of_rows[rows, None].expand_as(out))
        if inside is None and (self.kept is None or len(self.shares) > 1):
            scene.pushes[k].base.weigh(out, rows, tile.among_all, logits=False, spare=buffers.tile(3, out))
        return out

    def _relative(
        self, k: int, tile: Tile, inside: float | None, x: Tensor, out: Tensor, buffers: Buffers
    ) -> Tensor | None:
        """Return push_k a_k e^{p_k s} of a tile, of exponentials that are relative to each row's highest."""
        scene, state = self.scene, self.state
        of_rows, of_columns = self.shares[k], self.shares_back[k] if self.shares_back else None
        if scene.is_plain:
            part = self._coefficients(k, tile, inside, out, buffers)
            if part is None:
                return None
            return part.mul_(state.forth[k].exponentials(x, tile.rows, 1, out=buffers.tile(3, x)))
        y = scene.logits(k, x, tile, inside, out=buffers.tile(3, x))
        if of_columns is not None:
            part = state.back[k].exponentials(y, tile.columns, 0, out=out if of_rows is None else buffers.tile(4, x))
            part.mul_(of_columns[tile.columns])
            if of_rows is None:
                return part
            state.forth[k].exponentials(y, tile.rows, 1, out=out).mul_(of_rows[tile.rows, None])
            return out.add_(part)
        if of_rows is None:
            return None
        return state.forth[k].exponentials(y, tile.rows, 1, out=out).mul_(of_rows[tile.rows, None])

    def _pull(self, tile: Tile, known: float | None, w: Tensor, spare: Tensor, force: Tensor) -> None:
        """Add h_i pull_iu, and in a triangle h_u pull_ui."""
        scene, rows, columns = self.scene, tile.rows, tile.columns
        weights = scene.pulled(tile, known, spare)
        if weights is not None:
            w.addcmul_(weights, force[rows, None])
        if scene.is_triangle:
            if scene.pull is None or not scene.pull.is_symmetric:
                weights = scene.pulled(tile, known, spare, mirrored=True)
            if weights is not None:
                w.addcmul_(weights, force[columns])

    @property
    def _equal_rows(self) -> Tensor | float:
        """X of rows that are equal and of length 1, where rows are normalised; else 0."""
        return self.scene.unit / self.scene.temperature if self.state.problem.normalize else 0.0

    def slope(self) -> Tensor | None:
        """Return the temperature's gradient: −1/τ Σ W (s − s₀), and s₀ Σ W, which is known for every row."""
        if self.slopes is None:
            return None
        scene, state, upstream = self.scene, self.state, self.upstream
        total = self.slopes.sum() / scene.unit
        if state.problem.normalize:
            total += self._mass().sum() / scene.temperature
        if scene.streamed is not None and state.attraction is not None and upstream.attraction is not None:
            total += upstream.attraction @ state.attraction
        return -total / scene.temperature

    def _mass(self) -> Tensor:
        """Return Σ_u W_iu of all rows, and where they are visited both ways of all columns."""
        scene, state, upstream = self.scene, self.state, self.upstream
        mass = torch.zeros_like(state.forth[0].total)
        for push, sums, g, power in zip(scene.pushes, state.forth, upstream.logsums, scene.powers, strict=True):
            if g is not None:
                empty = sums.total == 0 if push.anchors is None else (sums.total == 0) | (push.anchors == 0)
                mass += g.masked_fill(empty, 0) * power
        if self.force is not None and upstream.attraction is not None and state.problem.pull is not None:
            mass += upstream.attraction * state.problem.pull.known_row_sum(mass.dtype, mass.device)
        of_columns = [
            (g.masked_fill(sums.total == 0, 0) * power).sum()
            for sums, g, power in zip(state.back, upstream.columns, scene.powers, strict=False)
            if g is not None
        ]
        return torch.stack([mass.sum(), *of_columns])
