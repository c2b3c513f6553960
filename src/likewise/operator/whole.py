"""The engine for small problems, one matrix of similarities: up to 65,536 pairs, calls take longer than arithmetic.

With s = z·v/τ, the gradients g_k of the log-sum-exps and h of the attraction, −1 for a loss, the backward uses

    W_iu = Σ_k p_k g_ki push_k,iu e^{p_k s_iu − lse_ki} + h_i pull_iu      ∂z = W v / τ      ∂v = Wᵀ z / τ

The forward keeps its exponentials for the backward. As in tiles, they have no offset unless they need one, and push and
pull are subtracted pair by pair. On a CPU one thread does it all: with several, synchronisation outweighs the work.
"""

import math
from contextlib import nullcontext
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator import threads
from likewise.operator.rows import MAX_EXPONENT, OCTAVE, prepared, projected, rounded, steepest
from likewise.operator.spec import SHAPES, ContrastSpec, NeedsGrad, Outcome, Push
from likewise.operator.tiles import GPU_FACTOR
from likewise.pairs.weight import Factors

MAX_PAIRS = 1 << 16
"""The maximum number of pairs in one matrix on a CPU: its four or five copies then stay in a core's cache."""


def is_small(problem: ContrastSpec, n: int, r: int, device: torch.device) -> bool:
    """Return whether N queries and R references, all in this process, are evaluated as one matrix.

    The limit is higher on a GPU, where a launch takes as long as many pairs.
    """
    return problem.part is None and 0 < n * r <= (MAX_PAIRS if device.type == "cpu" else MAX_PAIRS * GPU_FACTOR)


def forward(
    problem: ContrastSpec,
    queries: Float[Tensor, "n d"],
    references: tuple[Tensor, ...],
    temperature: Float[Tensor, ""],
    wanted: NeedsGrad,
) -> tuple[Outcome, "_Matrix"]:
    """Return the outcome, and the matrix for the backward, which takes O(N·R) memory until then."""
    if wanted.temperature and problem.pull is not None:  # the weights' tensors may change before the backward
        problem.pull.known_row_sum(temperature.dtype, queries.device)
    with threads.single_threaded() if queries.device.type == "cpu" else nullcontext():
        matrix = _Matrix(problem, (queries, *references), temperature)
        return matrix.outcome(), matrix


def backward(state: "_Matrix", upstream: Outcome, wanted: NeedsGrad) -> tuple[Tensor | None, ...]:
    """Return the requested gradients."""
    with threads.single_threaded() if state.x.device.type == "cpu" else nullcontext():
        return state.gradients(upstream, wanted)


class _Term(NamedTuple):
    """The contribution of a push to W: its pairs times a factor of each row or column."""

    pairs: Float[Tensor, "n r"]
    """push e^{s − offset}, or the derivative of a pairwise sum."""
    total: Tensor
    """The sums of pairs over rows or columns, as divisors of gradients; ones for a pairwise sum, without division."""
    anchors: Tensor | None = None
    """The push's factors of anchors."""

    def share(self, g: Tensor | None, power: float) -> Tensor | None:
        """Return the factor of each row or column, p g / total; 0 for one without pairs."""
        if g is None:
            return None
        share = (g * power if power != 1 else g) / self.total
        share.masked_fill_(self.total == 0, 0)
        return share if self.anchors is None else share.masked_fill_(self.anchors == 0, 0)


@final
class _Matrix:
    """All pairs of a problem, and their terms for the backward."""

    def __init__(self, problem: ContrastSpec, inputs: tuple[Tensor, ...], temperature: Tensor) -> None:
        self.problem, self.temperature, dtype = problem, temperature, temperature.dtype
        self.dtypes = [rows.dtype for rows in inputs]
        self.prepared = [prepared(rows, dtype, normalize=problem.normalize) for rows in inputs]
        self.z, *rest = (unit.rows for unit in self.prepared)
        self.sections: tuple[Tensor, ...] = problem.per_section(self.z, rest)
        self.pushes = problem.push_factors(dtype, self.z.device)
        self.pull = None if problem.pull is None else problem.pull.factors(dtype, self.z.device)
        self.pulled: Tensor | None = None
        """The pull, without the factors of anchors."""
        sets, powers = all(push.base.is_set for push in self.pushes), [abs(push.power) for push in problem.pushes]
        self.is_plain = problem.is_pairwise or (
            sets and steepest(problem, self.z, self.sections) * max(powers) <= MAX_EXPONENT[self.z.dtype]
        )
        """Whether x is s / ln 2, with exponentials that need no offset."""
        self.unit = 1 / OCTAVE if self.is_plain else temperature if sets else 1.0
        """The value of x at s = 1."""
        lengths = [len(v) for v in self.sections]
        self.x = self.z.new_empty(len(self.z), sum(lengths))
        """s times the unit."""
        inverse = problem.inv_temperature if self.is_plain else None
        for v, out in zip(self.sections, self.x.split(lengths, dim=1), strict=True):
            torch.mm(self.z, v.T, out=out) if inverse is None else rounded(self.z, v, inverse, out)
        if inverse is None and self.unit is not temperature:
            self.x.div_(temperature * OCTAVE if self.is_plain else temperature)

    def outcome(self) -> Outcome:
        """Return the terms and losses."""
        problem = self.problem
        self.rows, self.columns = list[_Term](), list[_Term]()
        logsums, columns, slopes, shared = list[Tensor](), list[Tensor](), list[Tensor](), dict[float, Tensor]()
        for push, factors in zip(problem.pushes, self.pushes, strict=True):
            if push.function is not None:
                value, slope = self._pairwise(push)
                logsums.append(value)
                slopes.append(slope)
                continue
            for dim, logarithms, terms in ((1, logsums, self.rows), (0, columns, self.columns)):
                if dim == 1 or problem.both_ways:
                    term, logarithm = self._exponentials(push, factors, dim, shared)
                    terms.append(term)
                    logarithms.append(logarithm if term.anchors is None else logarithm + term.anchors.log())
        attraction = self._attraction()
        losses, self.counts = problem.losses(tuple(logsums), attraction)
        return Outcome(tuple(logsums), tuple(columns), attraction, losses, (*self.counts, *slopes))

    def _pairwise(self, push: Push) -> tuple[Tensor, Tensor]:
        """Return Σ w f(p s + b) of each row, and Σ w f' if it is counted, else zeros."""
        argument, shape = torch.mul(self.x, push.power * OCTAVE).add_(push.constant_bias), SHAPES[push.function]
        weights = push.weight.dense(argument.dtype, argument.device)
        value = (shape.value(argument) * weights).sum(dim=1)
        slopes = shape.slope(argument) * weights
        self.rows.append(_Term(slopes, torch.ones_like(value)))
        return value, slopes.sum(dim=1) if push.is_counted else torch.zeros_like(value)

    def _exponentials(
        self, push: Push, factors: Factors, dim: int, shared: dict[float, Tensor]
    ) -> tuple[_Term, Tensor]:
        """Return the exponentials of a push with their sums along a dimension, and the logarithms of the sums."""
        everything = slice(0, self.x.shape[0]), slice(0, self.x.shape[1])
        if self.is_plain:
            if push.power not in shared:
                shared[push.power] = torch.exp2(self.x if push.power == 1 else self.x * push.power)
            pairs = self.rows[-1].pairs if dim == 0 else shared[push.power]  # rows come before columns
            if dim == 1 and factors.base.constant(*everything) != 1:
                pairs = pairs.clone() if len(self.pushes) > 1 else pairs
                factors.base.weigh(pairs, *everything, logits=False)
            total = pairs.sum(dim=dim)
            return _Term(pairs, total, factors.anchors if dim else None), total.log()
        relative = self.unit is self.temperature
        x = self.x * (-1 if push.power < 0 else 1) if relative else self.x * push.power
        factors.base.weigh(x, *everything, logits=True)
        highest = x.amax(dim=dim, keepdim=True)
        highest = highest.masked_fill(highest == -torch.inf, 0)
        unit = self.temperature / abs(push.power) if relative else self.unit
        pairs = x.sub_(highest).mul_(1 / (unit * OCTAVE)).exp2_()
        total = pairs.sum(dim=dim)
        return _Term(pairs, total, factors.anchors if dim else None), total.log() + highest.squeeze(dim) / unit

    def _attraction(self) -> Tensor | None:
        """Return Σ pull s of each row."""
        if self.pull is None:
            return None
        base, _, references = self.pull
        weights = base.dense(self.x.dtype, self.x.device)
        self.pulled = weights.clone() if references is None else weights * references
        attraction = (self.pulled * self.x).sum(dim=1).div_(self.unit)
        return attraction if self.pull.anchors is None else attraction.mul_(self.pull.anchors)

    def gradients(self, upstream: Outcome, wanted: NeedsGrad) -> tuple[Tensor | None, ...]:
        """Return the gradients of the temperature and of the input rows."""
        scale = upstream.losses if self.problem.is_reduced else None
        if scale is not None:  # applied at the end: if infinite, the gradient of inactive rows stays 0
            upstream = upstream._replace(losses=torch.ones_like(scale))
        upstream = self.problem.split_upstream(upstream, self.counts)
        symmetric = self.is_plain and self.problem.own == (True,) and not self.problem.both_ways
        twice = symmetric and all(push.is_symmetric for push in self.pushes)
        w = self._weights(upstream, twice=twice)
        of_z = torch.zeros_like(self.z) if wanted.queries else None
        of_sections: list[Tensor | None] = []
        parts = w.split([len(v) for v in self.sections], dim=1)
        for v, part, need in zip(self.sections, parts, wanted.sections, strict=True):
            if of_z is not None:
                of_z.addmm_(part + part.T if v is self.z and not twice else part, v)
            if v is not self.z:
                of_sections.append(part.T @ self.z if need else None)
        slope = self._slope(upstream, w.div_(2) if twice else w) if wanted.temperature else None  # x is then symmetric
        unprojected = zip((of_z, *of_sections), self.prepared, strict=True)
        gradients = [None if g is None else projected(g, unit, self.temperature) for g, unit in unprojected]
        if scale is not None:
            slope, *gradients = (None if g is None else _scaled(g, scale) for g in (slope, *gradients))
        of_z, *of_references = (None if g is None else g.to(to) for g, to in zip(gradients, self.dtypes, strict=True))
        return slope, of_z, *of_references

    def _weights(self, upstream: Outcome, *, twice: bool) -> Float[Tensor, "n r"]:
        """Return W, or, if twice, W + Wᵀ for symmetric pairs."""
        w: Tensor | None = None
        for dim, terms, slopes in ((1, self.rows, upstream.logsums), (0, self.columns, upstream.columns)):
            for push, term, g in zip(self.problem.pushes, terms, slopes, strict=False):  # there may be no columns
                if (share := term.share(g, push.power)) is not None:
                    factor = share.unsqueeze(1) + share if twice else share.unsqueeze(dim)
                    w = term.pairs * factor if w is None else w.addcmul_(term.pairs, factor)
        w = torch.zeros_like(self.x) if w is None else w
        if self.pulled is not None and self.pull is not None and upstream.attraction is not None:
            anchors = self.pull.anchors
            force = upstream.attraction if anchors is None else upstream.attraction * anchors
            w.addcmul_(self.pulled, force.unsqueeze(1))
            if twice:
                w.addcmul_(self.pulled if self.pull.is_symmetric else self.pulled.T, force)
        return w

    def _slope(self, upstream: Outcome, w: Tensor) -> Tensor:
        """Return the temperature's gradient, −1/τ (Σ W (s − s₀) + s₀ Σ W) with s₀ = 1/τ where Σ W is known."""
        tau, problem = self.temperature, self.problem
        if problem.is_pairwise or not problem.normalize:
            total = (self.x * w).sum(dim=1).sum() / self.unit
        else:
            total = (self.x - self.unit / tau).mul_(w).sum(dim=1).sum() / self.unit
            totals, back = ([term.total for term in terms] for terms in (self.rows, self.columns))
            anchors = [push.anchors for push in self.pushes]
            total += problem.mass(upstream, totals, back, anchors, pull=problem.pull) / tau
        return -total / tau


def _scaled(gradient: Tensor, scale: Tensor) -> Tensor:
    """Return a gradient times an upstream gradient; 0 stays 0 even if the latter is infinite."""
    if scale.device.type == "cpu" and math.isfinite(scale):
        return gradient * scale
    return torch.where(gradient == 0, gradient, gradient * scale)
