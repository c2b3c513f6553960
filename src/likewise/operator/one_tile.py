"""A small problem as one tile, in as few calls as possible: below some 500 rows these take more time than the work.

For one section of references, and sets of pairs whose exponentials need no offset; others take the general way. Losses
that are reduced to one number are differentiated along with it, while the tile is there; else it is kept. All of it is
done by one thread: several would wait more than they work.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import final

import torch
from torch import Tensor

from likewise.operator import threads, tiles
from likewise.operator.normalization import prepared, projected
from likewise.operator.problem import Found, Gradients, Outcome, Problem, Wanted, put_together, taken_apart
from likewise.operator.sums import OCTAVE, mass
from likewise.operator.tiles import LAUNCHES, SAFE, rounded, steepest
from likewise.pairs.weight import Factors

Values = Sequence[Tensor | None]


def forward(
    problem: Problem, queries: Tensor, others: tuple[Tensor, ...], temperature: Tensor, wanted: Wanted
) -> Found | None:
    """Return the outcome of a contrast; None if it does not fit into one tile, or exponentials need an offset."""
    dtype, device, n = temperature.dtype, queries.device, queries.shape[0]
    r, on_cpu = others[0].shape[0] if others else n, device.type == "cpu"
    most = tiles.TILE if on_cpu else tiles.TILE * LAUNCHES
    if len(problem.own) > 1 or problem.part or problem.inverse is None or not 0 < n <= most or not 0 < r <= most:
        return None
    if problem.normalize and problem.inverse > SAFE[dtype]:
        return None
    pushes = [push.weight.factors(dtype, device, of_push=True) for push in problem.pushes]
    within = problem.pulls.within
    pull = None if within is None else within.factors(dtype, device)
    if not _fits(problem, pushes, pull):
        return None
    with threads.single_threaded() if on_cpu else nullcontext():
        tile = _Tile(problem, (queries, *others), temperature, (pushes, pull))
        if not problem.normalize and steepest(problem, tile.z.rows, (tile.v.rows,)) > SAFE[dtype]:
            return None
        return tile.forward(wanted)


def _fits(problem: Problem, pushes: list[Factors], pull: Factors | None) -> bool:
    """Return whether all pairs share one exponential, and one product gives each gradient."""
    own, (power, *powers) = problem.own[0], [push.power for push in problem.pushes]
    for push in pushes:
        if not push.base.is_set or push.references is not None or (own and not push.base.is_symmetric):
            return False
    if (
        problem.is_pairwise
        or power != 1
        or powers.count(1) < len(powers)
        or (pull is not None and pull.references is not None)
    ):
        return False
    return not problem.both_ways or (not own and not powers and pushes[0].anchors is None)


@final
class _Tile:
    """The tile of a problem, and what the backward needs of it."""

    def __init__(
        self,
        problem: Problem,
        given: tuple[Tensor, ...],
        temperature: Tensor,
        weights: tuple[list[Factors], Factors | None],
    ) -> None:
        self.problem, self.temperature = problem, temperature
        self.pushes, self.pull = weights
        self.own, self.only = len(given) == 1, len(self.pushes) == 1
        self.dtypes = [v.dtype for v in given]
        units = [prepared(v, temperature.dtype, normalize=problem.normalize) for v in given]
        self.z, self.v = units[0], units[-1]
        self.n, self.r = self.z.rows.shape[0], self.v.rows.shape[0]
        self.attraction: Tensor | None = None
        """Of what is pulled beside the tile."""
        self.x: Tensor | None = None
        """s / ln 2, if the temperature has a gradient."""
        self.drawn: Tensor | None = None
        """pull @ references, of what is pulled beside the tile."""
        self.beside = problem.pulls.beside

    def forward(self, wanted: Wanted) -> Found:
        """Return the outcome; with gradients for an upstream gradient of 1 if it is reduced and any are wanted."""
        problem, z, v = self.problem, self.z.rows, self.v.rows
        e = self.e = rounded(z, v, problem.inverse or 0, z.new_empty(len(z), len(v)))
        spare, rows, columns = torch.empty_like(e), slice(0, self.n), slice(0, self.r)
        pulled = attraction = None
        if self.pull is not None:
            pulled = torch.empty_like(e)
            self.pull.base.fill(pulled, rows, columns)
            attraction = torch.mul(pulled, e, out=spare).sum(dim=1)
        self.x = e.clone() if wanted.temperature else None
        e.exp2_()
        self.totals: list[Tensor] = []
        for push in self.pushes:
            if not self.only:
                push.base.fill(spare, rows, columns)
                spare.mul_(e)
            elif push.base.constant(rows, columns) != 1:
                push.base.weigh(e, rows, columns, logits=False, spare=spare)
            self.totals.append((e if self.only else spare).sum(dim=1))
        self.back = [e.sum(dim=0)] if problem.both_ways else []
        if self.pull is not None and attraction is not None:
            attraction.mul_(OCTAVE)
            attraction = attraction if self.pull.anchors is None else attraction.mul_(self.pull.anchors)
        if self.beside is not None:
            self.drawn = self.beside.product(v)
            beside = self.attraction = torch.linalg.vecdot(z, self.drawn).div_(self.temperature)
            attraction = beside if attraction is None else attraction.add_(beside)
        logsums = tuple(
            [
                total.log() if push.anchors is None else total.log().add_(push.anchors.log())
                for total, push in zip(self.totals, self.pushes, strict=True)
            ]
        )
        losses, self.counts = put_together(problem, logsums, attraction)
        columns_too = tuple([total.log() for total in self.back])
        outcome = Outcome(logsums, columns_too, attraction, losses, self.counts)
        if losses is None or not problem.is_reduced or not wanted.anything:
            return Found(outcome, self)
        one = Outcome((None,) * len(self.pushes), (None,) * len(self.back), None, losses.new_ones(()), ())
        sums = self._draw(one, wanted, pulled, spare)
        del pulled, spare, e, self.e, self.x  # before the projection takes memory
        return Found(outcome, _Ready(self._projected(sums), self.dtypes))

    def gradients(self, upstream: Outcome, wanted: Wanted) -> Gradients:
        with threads.single_threaded() if self.e.device.type == "cpu" else nullcontext():
            pulled = None if self.pull is None else torch.empty_like(self.e)
            if pulled is not None and self.pull is not None:
                self.pull.base.fill(pulled, slice(0, self.n), slice(0, self.r))
            sums = self._draw(upstream, wanted, pulled, torch.empty_like(self.e))
            del pulled
            return _cast(self._projected(sums), self.dtypes)

    def _draw(self, upstream: Outcome, wanted: Wanted, pulled: Tensor | None, w: Tensor) -> Gradients:
        """Return the gradients of units, not yet divided by τ, and of τ itself; ``w`` is written to."""
        upstream = taken_apart(self.problem, upstream, self.counts)
        z, v, own = self.z.rows, self.v.rows, self.own
        a = [_share(*of) for of in zip(upstream.logsums, self.totals, self.pushes, strict=True)]
        b: Values = a if own else [_share(g, self.back[0], None) for g in upstream.columns if self.back]
        force = upstream.attraction
        if force is not None and self.pull is not None and self.pull.anchors is not None:
            force = force * self.pull.anchors
        mirrored = pulled if pulled is None or self.pull is None or self.pull.base.is_symmetric else pulled.T
        self._weights(a, b, w)
        if pulled is not None and mirrored is not None and force is not None:
            w.addcmul_(pulled, force.unsqueeze(1))
            if own:
                w.addcmul_(mirrored, force)
        of_z = w @ v if wanted.queries else None
        of_v = w.T @ z if not own and wanted.sections[0] else None
        slope = self._slope(upstream, w) if wanted.temperature else None
        if self.drawn is not None and upstream.attraction is not None:
            self._pull_beside(upstream.attraction, of_z, of_z if own else of_v)
        return Gradients(slope, of_z, () if own else (of_v,))

    def _projected(self, sums: Gradients) -> Gradients:
        """Return the gradients of rows, in the dtype of the operator."""
        pairs = zip((sums.queries, *sums.others), (self.z, self.v), strict=False)
        given = [None if g is None else projected(g, unit, self.temperature) for g, unit in pairs]
        return Gradients(sums.temperature, given[0], tuple(given[1:]))

    def _pull_beside(self, force: Tensor, of_z: Tensor | None, of_references: Tensor | None) -> None:
        """Add the gradients of a pull that is evaluated as pull @ references."""
        assert self.drawn is not None and self.beside is not None  # noqa: S101, PT018 - asked by the caller
        if of_z is not None:
            of_z.addcmul_(self.drawn, force[:, None])
        if of_references is not None:
            of_references += self.beside.transposed_product(self.z.rows * force[:, None])

    def _weights(self, a: Values, b: Values, out: Tensor) -> None:
        """Write Σ_k push_k e^{s} (a_k of rows + b_k of columns)."""
        for k, (of_rows, of_columns) in enumerate(zip(a, b or [None] * len(a), strict=True)):
            part = out if k == 0 else torch.empty_like(out)
            if of_rows is not None and of_columns is not None:
                torch.add(of_rows.unsqueeze(1), of_columns, out=part)
            elif of_rows is not None:
                part.copy_(of_rows.unsqueeze(1).expand_as(part))
            else:
                part.copy_(of_columns.expand_as(part)) if of_columns is not None else part.zero_()
            if not self.only:
                weights = torch.empty_like(part)
                self.pushes[k].base.fill(weights, slice(0, self.n), slice(0, self.r))
                part.mul_(weights)
            if k:
                out.add_(part)
        out.mul_(self.e)

    def _slope(self, upstream: Outcome, w: Tensor) -> Tensor:
        """Return the temperature's gradient, −1/τ (Σ W (s − s₀) + s₀ Σ W), where Σ W is known."""
        assert self.x is not None  # noqa: S101 - kept where the temperature has a gradient
        tau, normalize = self.temperature, self.problem.normalize
        of_pairs = (self.x - 1 / (OCTAVE * tau)).mul_(w) if normalize else self.x * w
        total = of_pairs.sum(dim=1).sum().mul_(OCTAVE / (1 + self.own))
        if normalize:
            total += mass(self.problem, upstream, self.totals, self.back, [push.anchors for push in self.pushes]) / tau
        if self.attraction is not None and upstream.attraction is not None:
            total += upstream.attraction @ self.attraction
        return -total / tau


@final
class _Ready:
    """Gradients for an upstream gradient of 1, in the dtype of the operator."""

    def __init__(self, found: Gradients, dtypes: list[torch.dtype]) -> None:
        self.found, self.dtypes = found, dtypes

    def gradients(self, upstream: Outcome, wanted: Wanted) -> Gradients:
        del wanted
        temperature, queries, others = self.found
        g = upstream.losses
        times = [None if v is None or g is None else _times(v, g) for v in (temperature, queries, *others)]
        return _cast(Gradients(times[0], times[1], tuple(times[2:])), self.dtypes)


State = _Tile | _Ready


def _times(gradient: Tensor, g: Tensor) -> Tensor:
    """Return a gradient times an upstream one; 0 stays 0, as that of an inactive row, whatever the upstream one is."""
    if g.device.type == "cpu" and math.isfinite(g):
        return gradient * g
    return torch.where(gradient == 0, gradient, gradient * g)


def _share(g: Tensor | None, total: Tensor, push: Factors | None) -> Tensor | None:
    """Return the upstream gradient over the total; 0 where there is no pair."""
    if g is None:
        return None
    share = (g / total).masked_fill_(total == 0, 0)
    return share if push is None or push.anchors is None else share.masked_fill_(push.anchors == 0, 0)


def _cast(found: Gradients, dtypes: list[torch.dtype]) -> Gradients:
    given = [v if v is None else v.to(dtype) for v, dtype in zip((found.queries, *found.others), dtypes, strict=True)]
    return Gradients(found.temperature, given[0], tuple(given[1:]))
