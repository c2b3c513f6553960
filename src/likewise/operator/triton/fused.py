"""Forward and backward of a contrast in kernels, section by section, for pull and push together.

The equations are the same as in `likewise.operator.tiled`. If a section is or contains the queries, and its weights are
symmetric, one product gives both gradients, Σ_j (W_ij + W_ji) z_j; if both directions are wanted, one product covers
the queries over the references and the references over the queries. Any other section takes one product per gradient.

Gradients come in parts, one for each split of a loop. One kernel adds these up and propagates the sum through the
normalisation. The parts of a pull that are expensive within tiles are evaluated as pull @ references. A contrast is
evaluated in tiles if no kernel supports its weights, or a GPU has no room for its kernels.
"""

import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from triton import OutOfResources

from likewise.operator import tiled
from likewise.operator.spec import ContrastSpec, LocalAnchors, NeedsGrad, Outcome
from likewise.operator.triton import launches
from likewise.operator.triton.launches import Common, RowArgs, Sums, Visit
from likewise.operator.triton.operands import Operand, aligned, precision
from likewise.operator.triton.weights import Plan, Plans, plans


class _State(NamedTuple):
    """The state of a forward that the backward needs."""

    problem: ContrastSpec
    common: Common
    rows: tuple[Operand, ...]
    """Queries and other sections."""
    sections: tuple[Operand, ...]
    forth: Sums
    back: Sums | None
    drawn: Tensor | None
    """pull @ references, for the part of the pull evaluated this way."""
    counts: tuple[Tensor, ...]


def forward(
    problem: ContrastSpec,
    queries: Float[Tensor, "n d"],
    references: tuple[Tensor, ...],
    temperature: Float[Tensor, ""],
    wanted: NeedsGrad,
) -> tuple[Outcome, Any]:
    """Return the outcome of a contrast and its state, whose type selects the backward, in O((N + R)·D) memory."""
    all_plans = plans(problem, tuple([v.shape[0] for v in problem.per_section(queries, references)]), queries.device)
    if all_plans is not None:
        try:
            with _on(queries.device):
                return _visit_sections(problem, all_plans, (queries, *references), temperature)
        except OutOfResources as why:
            _leave(problem, queries.device, why)
    return tiled.forward(problem, queries, references, temperature, wanted)


def backward(state: Any, upstream: Outcome, wanted: NeedsGrad) -> tuple[Tensor | None, ...]:
    """Return the wanted gradients; if a kernel has no room, tiles repeat the forward as well."""
    if not isinstance(state, _State):
        return tiled.backward(state, upstream, wanted)
    try:
        with _on(state.common.tau.device):
            return _gradients(state, upstream, wanted)
    except OutOfResources as why:
        queries, *references = (rows.came for rows in state.rows)
        _leave(state.problem, queries.device, why)
        _, state = tiled.forward(state.problem, queries, tuple(references), state.common.tau, wanted)
        return tiled.backward(state, upstream, wanted)


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context that makes this GPU the current one, on which Triton launches."""
    current = device.type != "cuda" or device.index == torch.cuda.current_device()
    return _SAME if current else torch.cuda.device(device)


_SAME = nullcontext()


def _leave(problem: ContrastSpec, device: torch.device, why: OutOfResources) -> None:
    """Warn that tiles take over; raise if other processes would wait for an exchange between kernels."""
    if problem.part is not None:
        remedy = 'choose backend="tiled" on all processes'
        raise RuntimeError(f"expected room for a kernel on {device}, got too little ({why.name}): {remedy}") from why
    _warn(device, why.name)


@cache  # one warning for each GPU
def _warn(device: torch.device, lacking: str) -> None:
    warnings.warn(
        f'backend="triton" goes by tiles where a kernel has no room on {device} ({lacking}): choose "tiled", or fewer '
        "features or half precision for kernels",
        stacklevel=2,
    )


def _visit_sections(
    problem: ContrastSpec, all_plans: Plans, rows: tuple[Tensor, ...], tau: Tensor
) -> tuple[Outcome, _State]:
    how = precision(problem.half, tau.device)
    fixed = all_plans.sets and problem.normalize and problem.inv_temperature is not None
    largest_offset = launches.LOG2E * (problem.inv_temperature or 0) * how.slack * max(all_plans.powers)
    fixed = fixed and largest_offset <= launches.MAX_FIXED_OFFSET
    common = Common(all_plans, how, tau, fixed)
    operands = tuple([launches.operand(v, how, normalize=problem.normalize, order=all_plans.order) for v in rows])
    z, sections, n = operands[0], problem.per_section(operands[0], operands[1:]), rows[0].shape[0]
    filled = [(v, plan) for v, plan in zip(sections, all_plans.sections, strict=True) if not _is_empty(plan, z, v)]
    if all_plans.streamed is None and problem.coefficients is not None:
        coefficients = tuple([_coefficient(problem, c, n, tau.device) for c in problem.coefficients])
        common = Common(all_plans, how, tau, fixed, coefficients, problem.reduction)
    forth, terms = launches.forward([launches.visit("sums", z, v, plan, common) for v, plan in filled], n, common)
    columns, back = (), None
    if problem.both_ways:
        turned = [launches.visit("sums", v, z, plan, common, swapped=True) for v, plan in filled]
        back, (columns, *_) = launches.forward(turned, sections[0].came.shape[0], common, columns=True)
    attraction, drawn = terms.attraction, None
    if all_plans.streamed is not None:
        drawn = all_plans.streamed @ tuple([v.values(tau.dtype) for v in sections])
        beside = torch.linalg.vecdot(z.values(tau.dtype), drawn) / tau
        attraction = beside if attraction is None else attraction + beside
    if forth.active is None:
        losses, counts = problem.losses(terms.logsums, attraction)
    else:
        tensors = (forth.active.view(torch.bool), forth.rows_active, forth.mass if all_plans.counts_pairs else None)
        losses, counts = terms.losses, tuple([each for each in tensors if each is not None])
    state = _State(problem, common, operands, sections, forth, back, drawn, counts)
    return Outcome(terms.logsums, columns, attraction, losses, counts), state


def _is_empty(plan: Plan, rows: Operand, other: Operand) -> bool:
    return plan.is_empty or not rows.came.shape[0] or not other.came.shape[0]


def _coefficient(problem: ContrastSpec, coefficient: Tensor | None, n: int, device: torch.device) -> Tensor | None:
    """Return c for a kernel to read; None if the kernels count it."""
    if coefficient is None and problem.pull is not None and problem.pull.given_row_sum is not None:
        coefficient = problem.pull.known_row_sum(torch.float32, device)
    return None if coefficient is None else aligned(coefficient.to(device).expand(n))


def _gradients(state: _State, upstream: Outcome, wanted: NeedsGrad) -> tuple[Tensor | None, ...]:
    problem, common, z = state.problem, state.common, state.rows[0]
    tau, slopes = common.tau, list[Tensor]()
    if common.coefficients is None:
        upstream = problem.split_upstream(upstream, state.counts)
    of_rows, of_columns, strongest, weights = _forces(state, upstream)
    products = _products(state, wanted, of_rows, of_columns)
    streamed = _streamed(state, upstream.attraction, wanted, slopes)
    if wanted.temperature and problem.normalize:
        slopes.append((-weights.sum() / tau.square()).to(tau.dtype))
    needs = dict(zip(map(id, state.sections), wanted.sections, strict=True)) | {
        id(z): wanted.queries or wanted.temperature  # the same loops compute the gradient of the temperature
    }
    gradients: list[Tensor | None] = []
    for v in state.rows:
        mine, values = products[id(v)], streamed.get(id(v), [])
        counts = [*(visit.splits for visit, *_ in mine), *(1 for _ in values)]
        parts = torch.empty(sum(counts), *v.parts.shape[1:], device=tau.device)
        outs = iter(parts.split(counts) if len(counts) > 1 else (parts,) * len(counts))
        for (visit, sides, share), out in zip(mine, outs, strict=False):
            slope = torch.empty(out.shape[:2], device=tau.device) if share and wanted.temperature else None
            launches.backward(visit, sides, strongest, out, slope)
            if slope is not None:
                slopes.append((slope.sum(dtype=torch.float64) * (-share / launches.LOG2E) / tau).to(tau.dtype))
        for of_pull, out in zip(values, outs, strict=True):
            out[0] = torch.nn.functional.pad(of_pull, (0, out.shape[2] - of_pull.shape[1]))
        gradients.append(launches.projected(parts, v, common) if needs.get(id(v)) else None)
    slope = sum(slopes, start=torch.zeros_like(tau)) if wanted.temperature else None
    return slope, gradients[0] if wanted.queries else None, *gradients[1:]


def _products(
    state: _State, wanted: NeedsGrad, of_rows: RowArgs, of_columns: RowArgs | None
) -> dict[int, list[tuple[Visit, tuple[RowArgs | None, RowArgs | None], float]]]:
    """Return the visits that compute rows' gradients, inputs of own and other rows, and the share of Σ W (s − s₀)."""
    problem, common, z = state.problem, state.common, state.rows[0]
    products = {id(v): [] for v in state.rows}
    for v, plan, need in zip(state.sections, common.plans.sections, wanted.sections, strict=True):
        if _is_empty(plan, z, v):
            continue
        both = v is z and plan.is_symmetric and of_columns is None
        if wanted.queries or wanted.temperature:
            visit = launches.visit("backward", z, v, plan, common)
            share = 0.5 if both or problem.part is not None else 1.0
            products[id(z)].append((visit, (of_rows, of_rows if both else of_columns), share))
        if need and not both:
            visit = launches.visit("backward", v, z, plan, common, swapped=True)
            products[id(v)].append((visit, (of_columns, of_rows), 0.0))
    return products


def _streamed(state: _State, force: Tensor | None, wanted: NeedsGrad, slopes: list[Tensor]) -> dict[int, list[Tensor]]:
    """Return the gradients of rows, times τ, from a pull evaluated as pull @ references, and append τ's to slopes."""
    problem, pull, tau, drawn = state.problem, state.common.plans.streamed, state.common.tau, state.drawn
    if pull is None or drawn is None or force is None:
        return {}
    z, *references = (v.values(tau.dtype) for v in state.rows)
    if wanted.temperature:
        slopes.append(-(force @ torch.linalg.vecdot(z, drawn)) / tau.square())
    gradients = {id(v): list[Tensor]() for v in state.rows}
    gradients[id(state.rows[0])].append(drawn * force[:, None])
    lengths = [len(v) for v in problem.per_section(z, references)]
    products = pull.transposed_products(z * force[:, None], lengths, wanted.sections)
    for v, values in zip(state.sections, products, strict=True):
        gradients[id(v)] += [] if values is None else [values]
    return gradients


def _forces(state: _State, upstream: Outcome) -> tuple[RowArgs, RowArgs | None, Tensor, Tensor]:
    """Return the inputs of the gradients of queries and of other rows, their largest value, and Σ W of each block."""
    forth, back, part, device = state.forth, state.back, state.problem.part, state.common.tau.device
    first, second = (0 if sums is None else -(-sums.total.shape[1] // launches.BLOCK) for sums in (forth, back))
    make = torch.empty if first + second else torch.zeros
    strongest = make(max(1, first + second), dtype=torch.float32, device=device)
    weights = make(max(1, first + second), dtype=torch.float64, device=device)
    of_rows, of_columns = launches.shares(forth, upstream, state.common, strongest, weights), None
    if back is not None:
        of_back = Outcome(upstream.columns, (), None, None, ())
        of_columns = launches.shares(back, of_back, state.common, strongest[first:], weights[first:])
    if part is not None:
        return of_rows, *_exchange_shares(part, of_rows, strongest.amax()), weights
    return of_rows, of_columns, strongest.amax(), weights


def _exchange_shares(part: LocalAnchors, mine: RowArgs, strongest: Tensor) -> tuple[RowArgs, Tensor]:
    """Return the inputs of the gradients for all queries as anchors, and the largest value of all processes."""
    rows = [
        *mine.offset,
        *mine.share,
        *([] if mine.force is None else [mine.force]),
        strongest.expand_as(mine.share[0]),
    ]
    everyone, count = part.gather(torch.stack(rows, dim=1)).T.contiguous(), len(mine.share)
    force = None if mine.force is None else aligned(everyone[2 * count])
    largest = everyone[-1].amax() if everyone.shape[1] else strongest
    return RowArgs(everyone[:count], aligned(everyone[count : 2 * count]), force), largest
