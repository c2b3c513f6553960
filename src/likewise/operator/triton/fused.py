"""The contrast in kernels: the forward and backward launches, section by section, for pull and push together.

With g and h the gradients of a row's log-sum-exp and of its attraction,

    W_iu = g_i push_iu e^{s_iu − lse_i} + h_i pull_iu      ∂z_i = 1/τ Σ_u W_iu v_u      ∂v_u = 1/τ Σ_i W_iu z_i
    ∂τ = −1/τ (Σ W_iu (s_iu − s₀) + s₀ Σ W_iu)

with s₀ the similarity of equal rows: the last sum is known, and on tight clusters the first is small.

If a section is the queries and its weights are symmetric, one product gives both of its gradients, Σ_j (W_ij + W_ji)
z_j, and in the same way if the queries are part of it; if both directions are wanted, one product covers the queries
over the references and the references over the queries. Any other section takes one product per gradient.

Gradients come in parts, one for each split of a loop. One kernel adds these up and propagates the sum through the
normalisation. A pull with expensive tiles is evaluated as pull @ references; a contrast whose weights no kernel
evaluates, and one for whose kernels a GPU has no room, goes by tiles.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from triton import OutOfResources

from likewise.operator import problem as problems
from likewise.operator import tiled
from likewise.operator.problem import Found, Gradients, Outcome, Part, Problem, Wanted, put_together
from likewise.operator.triton import launches
from likewise.operator.triton.launches import Common, Loss, Rows, Sums
from likewise.operator.triton.operands import Operand, aligned, precision
from likewise.operator.triton.weights import Plan, Plans, plans


class _State(NamedTuple):
    """What the backward needs from the forward."""

    problem: Problem
    common: Common
    rows: tuple[Operand, ...]
    """Queries and other sections."""
    loss: Loss | None
    forth: Sums
    back: Sums | None
    drawn: Tensor | None
    """pull @ references, for a pull that is evaluated this way."""
    outcome: Outcome


def forward(
    problem: Problem,
    queries: Float[Tensor, "n d"],
    others: tuple[Tensor, ...],
    temperature: Float[Tensor, ""],
    wanted: Wanted,
) -> Found:
    """Visit every tile and return the outcome of the contrast, and with it what the backward is.

    Memory:
        O((N + R)·D).
    """
    found = plans(problem, tuple(len(v) for v in problem.placed(queries, others)), queries.device)
    if found is not None:
        try:
            state = _visited(problem, found, (queries, *others), temperature)
            return Found(state.outcome, state._replace(outcome=state.outcome.detached()))
        except OutOfResources as why:
            _leave(problem, queries.device, why)
    return tiled.forward(problem, queries, others, temperature, wanted)


def backward(state: Any, upstream: Outcome, wanted: Wanted) -> Gradients:
    """Return the gradients that are wanted; tiles visit the forward once more if a kernel's has no room."""
    if not isinstance(state, _State):
        return tiled.backward(state, upstream, wanted)
    try:
        return _gradients(state, upstream, wanted)
    except OutOfResources as why:
        queries, *others = (rows.came for rows in state.rows)
        _leave(state.problem, queries.device, why)
        found = tiled.forward(state.problem, queries, tuple(others), state.common.tau, wanted)
        return tiled.backward(found.state, upstream, wanted)


def _leave(problem: Problem, device: torch.device, why: OutOfResources) -> None:
    """Warn that tiles take its place; raise where other processes would wait for what kernels alone exchange."""
    if problem.part is not None:
        raise RuntimeError(
            f"expected room for a kernel on {device}, got too little ({why.name}): choose "
            'backend="tiled" on all processes'
        ) from why
    _warn(device, why.name)


@cache  # one warning for each GPU
def _warn(device: torch.device, lacking: str) -> None:
    warnings.warn(
        f'backend="triton" goes by tiles where a kernel has no room on {device} ({lacking}): choose "tiled", or fewer '
        "features or half precision for kernels",
        stacklevel=2,
    )


def _visited(problem: Problem, found: Plans, rows: tuple[Tensor, ...], tau: Tensor) -> _State:
    """Return the sums over all sections, and the outcome."""
    how = precision(problem.half, tau.device)
    fixed = found.sets and problem.normalize and problem.inverse is not None
    fixed = fixed and launches.LOG2E * (problem.inverse or 0) * how.slack * max(found.powers) <= launches.SAFE
    common = Common(found, how, tau, fixed)
    operands = tuple([launches.operand(v, how, normalize=problem.normalize) for v in rows])
    z, sections, n = operands[0], tuple(problem.placed(operands[0], operands[1:])), len(rows[0])
    filled = [(v, plan) for v, plan in zip(sections, found.sections, strict=True) if not _is_empty(plan, z, v)]
    loss = None
    if found.streamed is None and problem.coefficients is not None:
        loss = Loss(tuple([_coefficient(problem, c, n, tau.device) for c in problem.coefficients]), problem.reduction)
    forth = launches.forward([launches.visit("sums", z, v, plan, common) for v, plan in filled], n, common, loss)
    columns, back = (), None
    if problem.both_ways:
        turned = [launches.visit("sums", v, z, plan, common, pulls=False, swapped=True) for v, plan in filled]
        back = launches.forward(turned, len(sections[0].came), common, pulls=False)
        columns = back.logsums
    attraction, drawn = forth.attraction, None
    if found.streamed is not None:
        drawn = found.streamed @ tuple([v.values(tau.dtype) for v in sections])
        attraction = torch.linalg.vecdot(z.values(tau.dtype), drawn) / tau
    if loss is None:
        losses, counts = put_together(problem, forth.logsums, attraction)
    else:
        losses, counts = forth.losses, (forth.active, forth.rows_active, *[forth.mass] * found.counts_pairs)
    outcome = Outcome(forth.logsums, columns, attraction, losses, counts)
    return _State(problem, common, operands, loss, forth, back, drawn, outcome)


def _is_empty(plan: Plan, own: Operand, other: Operand) -> bool:
    """Return whether no pair pushes or pulls."""
    return plan.is_empty or not len(own.came) or not len(other.came)


def _coefficient(problem: Problem, coefficient: Tensor | None, n: int, device: torch.device) -> Tensor | None:
    """Return c for a kernel to read; None if the kernels count it."""
    if coefficient is None and problem.pull is not None and problem.pull.knows_row_sum:
        coefficient = problem.pull.known_row_sum(torch.float32, device)
    return None if coefficient is None else aligned(coefficient.to(device).expand(n))


class _Gradient:
    """The gradient of some rows, times τ: its parts, in one buffer allocated once all are known."""

    def __init__(self, rows: Operand) -> None:
        self._rows, self._calls = rows, list[tuple[int, Callable[[Tensor], object]]]()

    def add(self, parts: int, call: Callable[[Tensor], object]) -> None:
        """Register a call that fills so many parts."""
        self._calls.append((parts, call))

    def add_values(self, values: Tensor) -> None:
        """Register a gradient that is one part."""
        padded = self._rows.parts.shape[2] - values.shape[1]
        self.add(1, lambda out: out[0].copy_(torch.nn.functional.pad(values, (0, padded))))

    def projected(self, common: Common) -> Tensor:
        """Compute all parts and return the gradient of the input rows."""
        _, n, padded = self._rows.parts.shape
        counts = [parts for parts, _ in self._calls]
        whole = torch.empty(sum(counts), n, padded, device=common.tau.device)
        for (_, call), out in zip(self._calls, whole.split(counts) if counts else (), strict=True):
            call(out)
        return launches.projected(whole, self._rows, common)


def _gradients(state: _State, upstream: Outcome, wanted: Wanted) -> Gradients:
    """Visit the tiles once more and return the gradients that are wanted."""
    problem, common, z = state.problem, state.common, state.rows[0]
    sections, tau = tuple(problem.placed(z, state.rows[1:])), common.tau
    found, slopes = {id(v): _Gradient(v) for v in state.rows}, list[Tensor]()
    if state.loss is None:
        upstream = problems.taken_apart(problem, upstream, state.outcome.counts)
    of_rows, of_columns, strongest, weights = _forces(state, upstream)

    def add(
        own: Operand, other: Operand, plan: Plan, sides: tuple[Rows | None, Rows | None], *,
        swapped: bool = False, share: float = 0.0,
    ) -> None:  # fmt: skip
        each = launches.visit("backward", own, other, plan, common, swapped=swapped)
        slope = torch.empty(each.splits, len(own.came), device=tau.device) if share else None

        def call(out: Tensor) -> None:
            launches.backward(each, sides, strongest, out, slope)
            if slope is not None:
                slopes.append((slope.sum(dtype=torch.float64) * (-share / launches.LOG2E) / tau).to(tau.dtype))

        found[id(own)].add(each.splits, call)

    for v, plan, need in zip(sections, common.plans.sections, wanted.sections, strict=True):
        if _is_empty(plan, z, v):
            continue
        both = v is z and plan.is_symmetric and of_columns is None
        if wanted.queries or wanted.temperature:
            share = 0.5 if both or problem.part is not None else 1.0
            add(z, v, plan, (of_rows, of_rows if both else of_columns), share=share * wanted.temperature)
        if need and not both:
            add(v, z, plan, (of_columns, of_rows), swapped=True)
    if wanted.temperature and problem.normalize:
        slopes.append((-weights.sum() / tau.square()).to(tau.dtype))
    if common.plans.streamed is not None and state.drawn is not None and upstream.attraction is not None:
        force, lengths = upstream.attraction[:, None], [len(v.came) for v in sections]
        found[id(z)].add_values(state.drawn * force)
        products = common.plans.streamed.transposed_products(z.values(tau.dtype) * force, lengths, wanted.sections)
        for v, values in zip(sections, products, strict=True):
            if values is not None:
                found[id(v)].add_values(values)
        if wanted.temperature and state.outcome.attraction is not None:
            slopes.append(-(upstream.attraction @ state.outcome.attraction) / tau)
    needs = dict(zip(map(id, sections), wanted.sections, strict=True)) | {
        id(z): wanted.queries or wanted.temperature  # the same loops compute that of the temperature
    }
    given = [found[id(v)].projected(common) if needs.get(id(v)) else None for v in state.rows]
    slope = sum(slopes, start=torch.zeros_like(tau)) if wanted.temperature else None
    return Gradients(slope, given[0] if wanted.queries else None, tuple(given[1:]))


def _forces(state: _State, upstream: Outcome) -> tuple[Rows, Rows | None, Tensor, Tensor]:
    """Return what the gradients of queries and of the other rows read, the largest of it, and Σ W of each block."""
    part, device, of_rows = state.problem.part, state.common.tau.device, list[Rows]()
    ways = [(state.forth, upstream, state.loss)]
    if state.back is not None:
        ways.append((state.back, Outcome(upstream.columns, (), None, None, ()), None))
    counts = [-(-sums.total.shape[1] // launches.BLOCK) for sums, *_ in ways]
    make = torch.empty if sum(counts) else torch.zeros
    strongest, weights = (make(max(1, sum(counts)), dtype=of, device=device) for of in (torch.float32, torch.float64))
    for way, start in zip(ways, (0, counts[0]), strict=False):
        of_rows.append(launches.shares(*way, state.common, strongest[start:], weights[start:]))
    if part is not None:
        return of_rows[0], *_learned(part, of_rows[0], strongest.amax()), weights
    return of_rows[0], of_rows[1] if state.back is not None else None, strongest.amax(), weights


def _learned(part: Part, mine: Rows, strongest: Tensor) -> tuple[Rows, Tensor]:
    """Return what the gradients of all queries as anchors read, and the largest of all processes."""
    rows = [*mine.offset, *mine.share, *([] if mine.force is None else [mine.force]), strongest.expand_as(mine.share[0])]
    everyone, count = part.gather(torch.stack(rows, dim=1)).T.contiguous(), len(mine.share)
    force = None if mine.force is None else everyone[2 * count]
    largest = everyone[-1].amax() if everyone.shape[1] else strongest
    return Rows(everyone[:count], everyone[count : 2 * count], force), largest
