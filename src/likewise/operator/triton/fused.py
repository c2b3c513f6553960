"""The contrast in kernels: the forward and backward launches, section by section, for pull and push together.

With g and h the gradients of a row's log-sum-exp and of its attraction,

    W_iu = g_i push_iu e^{s_iu − lse_i} + h_i pull_iu      ∂z_i = 1/τ Σ_u W_iu v_u      ∂v_u = 1/τ Σ_i W_iu z_i
    ∂τ = −1/τ (Σ W_iu (s_iu − s₀) + s₀ Σ W_iu)

with s₀ the similarity of equal rows: the last sum is known, and on tight clusters the first is small.

A section is handled in one of three ways. If it is the queries and its weights are symmetric, one product gives both of
its gradients, Σ_j (W_ij + W_ji) z_j, and in the same way if the queries are part of it; if both directions are wanted,
one product covers the queries over the references and the references over the queries. If it has no gradient and
no pull (keys, a queue), the forward computes Σ_u P_iu v_u, and the backward has nothing left to multiply. Any other
section takes one product per gradient.

Gradients come in parts, one for each split of a loop. One kernel adds these up and propagates the sum through the
normalisation. Sections without a form are evaluated in tiles, on rows rounded as in the kernels, and a pull with
expensive tiles as pull @ references.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator import problem as problems
from likewise.operator import tiled
from likewise.operator.problem import Found, Gradients, Outcome, Part, Problem, Wanted, put_together
from likewise.operator.triton import launches
from likewise.operator.triton.launches import Loss, Merged, Numbers, Rows, Scales
from likewise.operator.triton.operands import Operand, Precision, aligned, precision
from likewise.operator.triton.sections import SplitProblem, taken_apart, without_pull
from likewise.operator.triton.weights import Plan


class _State(NamedTuple):
    """What the backward needs from the forward."""

    problem: Problem
    parts: SplitProblem
    how: Precision
    temperature: Tensor
    rows: tuple[Operand, ...]
    """Queries and other sections."""
    sections: tuple[Operand, ...]
    numbers: tuple[Numbers | None, ...]
    """For the queries and each section that kernels evaluate."""
    scales: Scales
    loss: Loss | None
    forth: Merged | None
    back: Merged | None
    average: Tensor | None
    """Σ_u P_iu v_u over sections that are visited once."""
    once: tuple[bool, ...]
    drawn: Tensor | None
    """pull @ references, of what is pulled this way."""
    rest: Found | None
    """The result of the tiles."""
    outcome: Outcome


def forward(
    problem: Problem,
    queries: Float[Tensor, "n d"],
    others: tuple[Tensor, ...],
    temperature: Float[Tensor, ""],
    wanted: Wanted,
) -> Found:
    """Visit every tile and return the outcome of the contrast.

    Memory:
        O((N + R)·D).
    """
    device = queries.device
    how = precision(problem.half, device)
    rows = tuple(launches.operand(v, how, normalize=problem.normalize) for v in (queries, *others))
    sections = tuple(problem.placed(rows[0], rows[1:]))
    parts = taken_apart(problem, tuple(len(v.came) for v in sections), device)
    found = _State(
        problem, parts, how, temperature, rows, sections, (), Scales((), ()), None, None, None, None, (), None, None,
        Outcome((), (), None, None, ()),
    )  # fmt: skip
    if any(plan is not None for plan in parts.plans):
        found = _visited(found, wanted)
    if parts.rest is not None:
        found = found._replace(rest=_by_tiles(found, parts.rest, wanted))
    drawn = None
    if parts.streamed is not None:
        drawn = parts.streamed @ tuple(v.values(temperature.dtype) for v in sections)
    found = found._replace(drawn=drawn)
    outcome = _outcome(found)
    return Found(outcome, found._replace(outcome=outcome.detached()))


def _visited(state: _State, wanted: Wanted) -> _State:
    """Return the sums over the sections that kernels evaluate."""
    problem, parts, how = state.problem, state.parts, state.how
    z, n, device = state.rows[0], len(state.rows[0].came), state.temperature.device
    known = [plan for plan in parts.plans if plan is not None]
    numbers: dict[int, Numbers] = {}
    for v, plan in zip(state.sections, parts.plans, strict=True):
        if plan is not None and id(v) not in numbers:
            same = next(iter(numbers.values()), None) if problem.normalize else None  # for rows of length 1
            own = z if problem.part is None else z._replace(longest=v.longest)  # one bound for all processes
            numbers[id(v)] = same or launches.numbers(own, v, state.temperature, problem.inverse, how)
    once: list[bool] = []
    visits: list[launches.Visit] = []
    for plan, v, need in zip(parts.plans, state.sections, wanted.sections, strict=True):
        if plan is None or _is_empty(plan, z, v):
            once.append(False)
            continue
        alone = plan.shape.pushes == 1 and not plan.pulls and not problem.both_ways
        once.append(wanted.queries and not wanted.temperature and not need and alone and problem.part is None)
        visits.append(
            launches.visit(
                "average" if once[-1] else "sums", z, v, plan, numbers[id(v)], how, fixable=plan.is_set and not once[-1]
            )
        )
    sums = launches.forward(visits, known[0], n, device)
    scales = Scales(
        tuple(scale.anchors for scale in parts.pushes),
        tuple(scale.by_mass for scale in parts.pushes),
        parts.pull.anchors,
        parts.pull.by_mass,
        known[0].shape.pulls and known[0].shape.sets[-1],
    )
    loss = None
    if parts.losses and problem.coefficients is not None:
        loss = Loss(tuple(_coefficient(problem, c, n, device) for c in problem.coefficients), problem.reduction)
    any_numbers = next(iter(numbers.values()))
    forth, back = launches.merged(sums, any_numbers, scales, loss), None
    if problem.both_ways:
        plan, v = without_pull(known[0].transposed), state.sections[0]
        turned = [] if _is_empty(plan, v, z) else [
            launches.visit("sums", v, z, plan, any_numbers, how, fixable=plan.is_set, swapped=True)
        ]  # fmt: skip
        pushes = plan.shape.pushes
        sums_back = launches.forward(turned, plan, len(v.came), device)
        back = launches.merged(sums_back, any_numbers, Scales((None,) * pushes, (False,) * pushes), None)
    return state._replace(
        numbers=tuple(numbers.get(id(v)) for v in state.sections),
        scales=scales,
        loss=loss,
        forth=forth,
        back=back,
        average=_averaged(sums, forth),
        once=tuple(once),
    )


def _is_empty(plan: Plan, own: Operand, other: Operand) -> bool:
    """Return whether no pair pushes or pulls."""
    return not len(own.came) or not len(other.came) or not any(plan.shape.terms)


def _coefficient(problem: Problem, coefficient: Tensor | None, n: int, device: torch.device) -> Tensor | None:
    """Return c for a kernel to read; None if the kernels count it."""
    if coefficient is None and problem.pull is not None and problem.pull.knows_row_sum:
        coefficient = problem.pull.known_row_sum(torch.float32, device)
    return None if coefficient is None else aligned(coefficient.to(device).expand(n))


def _by_tiles(state: _State, rest: Problem, wanted: Wanted) -> Found:
    """Return the result of tiles for the sections without a plan, on rows rounded as in the kernels."""
    z, *others = (v.values(state.temperature.dtype) for v in state.rows)
    unknown = [plan is None for plan in state.parts.plans]
    sections = [v for v, is_left in zip(state.problem.placed(z, others), unknown, strict=True) if is_left]
    needs = tuple(need for need, is_left in zip(wanted.sections, unknown, strict=True) if is_left)
    given = tuple(v for v in sections if v is not z)
    return tiled.forward(rest, z, given, state.temperature, wanted._replace(sections=needs))


def _outcome(state: _State) -> Outcome:
    """Return the outcome of all sections."""
    problem, forth, rest = state.problem, state.forth, state.rest
    logsums: tuple[Tensor, ...] = () if forth is None else forth.logsums
    attraction = None if forth is None else forth.attraction
    if rest is not None:
        theirs = rest.outcome
        logsums = tuple(map(_log_add_exp, logsums, theirs.logsums)) if logsums else theirs.logsums
        if theirs.attraction is not None:
            attraction = theirs.attraction if attraction is None else attraction + theirs.attraction
    if state.drawn is not None:
        z = state.rows[0].values(state.temperature.dtype)
        beside = torch.linalg.vecdot(z, state.drawn) / state.temperature
        attraction = beside if attraction is None else attraction + beside
    columns = rest.outcome.columns if rest is not None else () if state.back is None else state.back.logsums
    if forth is None or state.loss is None:
        return Outcome(logsums, columns, attraction, *put_together(problem, logsums, attraction))
    counts: tuple[Any, ...] = forth.active, forth.rows_active
    plan = next(plan for plan in state.parts.plans if plan is not None)
    if forth.mass is not None and plan.shape.sets[plan.shape.counted]:
        counts = *counts, forth.mass
    return Outcome(logsums, columns, attraction, forth.losses, counts)


def _log_add_exp(one: Tensor, other: Tensor) -> Tensor:
    """Return log(e^a + e^b), −∞ where both a and b are."""
    empty = (one == -torch.inf) & (other == -torch.inf)
    return torch.logaddexp(one.masked_fill(empty, 0), other.masked_fill(empty, 0)).masked_fill(empty, -torch.inf)


def _averaged(sums: launches.Sums, forth: Merged) -> Tensor | None:
    """Return the average over all references, (N, D), from the averages of the splits that have one."""
    result = None
    for first, averages in sums.averages:
        part = slice(first, first + len(averages))
        # The offset of an empty row is ∞, so its average becomes zero.
        fading = torch.exp2(sums.offsets[0, part] - forth.offset[0])
        averages.mul_((sums.totals[0, part] * fading / forth.total[0].masked_fill(forth.total[0] == 0, 1))[:, :, None])
        share = averages[0] if len(averages) == 1 else averages.sum(dim=0)
        result = share if result is None else result.add_(share)
    return result


class _Drawn:
    """The gradient of some rows, times τ: its parts, in one buffer allocated once all are known."""

    def __init__(self, rows: Operand, padded: int) -> None:
        self.rows, self.padded, self.count = rows, padded, 0
        self.calls: list[tuple[slice, Callable[[Tensor], object]]] = []

    def add(self, parts: int, call: Callable[[Tensor], object]) -> None:
        """Register a call that fills ``parts`` parts."""
        self.calls.append((slice(self.count, self.count + parts), call))
        self.count += parts

    def add_values(self, values: Callable[[], Tensor]) -> None:
        """Register a gradient that is computed as one part."""

        def fill(out: Tensor) -> None:
            found = values()
            if found.shape[1] < self.padded:
                out.zero_()
            out[0, :, : found.shape[1]] = found

        self.add(1, fill)

    def given(self, state: _State) -> Tensor:
        """Compute all parts and return the gradient of the input rows."""
        make = torch.empty if self.count else torch.zeros
        parts = make(max(1, self.count), len(self.rows.came), self.padded, device=self.rows.came.device)
        for part, call in self.calls:
            call(parts[part])
        return launches.projected(parts, self.rows, state.temperature, state.problem.inverse, state.how)


def backward(state: _State, upstream: Outcome, wanted: Wanted) -> Gradients:
    """Visit the tiles once more and return the gradients that are wanted."""
    problem, rows = state.problem, state.rows
    padded = rows[0].parts.shape[2]
    drawn = {id(v): _Drawn(v, padded) for v in rows}
    slopes: list[Tensor] = []
    if state.loss is None:
        upstream = problems.taken_apart(problem, upstream, state.outcome.counts)
    if state.forth is not None:
        _draw(state, state.forth, upstream, wanted, drawn, slopes)
    if state.rest is not None:
        _draw_by_tiles(state, state.rest, upstream, wanted, drawn, slopes)
    if state.parts.streamed is not None and upstream.attraction is not None and state.drawn is not None:
        z = rows[0].values(state.temperature.dtype)
        _stream(state, z, upstream.attraction, wanted, drawn)
        if wanted.temperature:
            slopes.append(-(upstream.attraction @ torch.linalg.vecdot(z, state.drawn)) / state.temperature.square())
    needs = dict(zip(map(id, state.sections), wanted.sections, strict=True)) | {id(rows[0]): wanted.queries}
    given = [drawn[id(v)].given(state) if needs.get(id(v)) else None for v in rows]
    if wanted.temperature and not wanted.queries:  # the same loops compute that of the temperature
        drawn[id(rows[0])].given(state)
    slope = sum(slopes, start=torch.zeros_like(state.temperature)) if wanted.temperature else None
    return Gradients(slope, given[0], tuple(given[1:]))


def _draw(  # noqa: C901, PLR0917 - one branch for each way of handling a section
    state: _State, forth: Merged, upstream: Outcome, wanted: Wanted, drawn: dict[int, _Drawn], slopes: list[Tensor]
) -> None:
    """Register the gradients that kernels compute from their sums."""
    problem, z, how, device = state.problem, state.rows[0], state.how, state.temperature.device
    if not len(z.came) and problem.part is None:  # with a part the others wait for what is told, also of no rows
        return
    of_rows, of_columns, strongest, weights = _forces(state, forth, upstream)
    known = [plan for plan in state.parts.plans if plan is not None]
    fixable = all(plan.is_set for plan in known) and (len(known) == 1 or state.numbers[0] is not None)
    if len([plan for plan in known if any(plan.shape.terms)]) > 1 and not (problem.normalize and fixable):
        fixable = False  # each section has its own bound
    average = state.average
    if average is not None and wanted.queries:
        drawn[id(z)].add_values(lambda: average * (of_rows.share[0] * forth.total[0])[:, None])
    for plan, v, given, need, once in zip(
        state.parts.plans, state.sections, state.numbers, wanted.sections, state.once, strict=True
    ):
        if plan is None or given is None or once or _is_empty(plan, z, v):
            continue
        both = v is z and plan.is_symmetric and of_columns is None and wanted.queries

        def call(
            own: Operand, other: Operand, plan: Plan, mine: Rows | None, theirs: Rows | None, *,
            swapped: bool, given: Numbers = given, share: float = 0.0,
        ) -> None:  # fmt: skip
            each = launches.visit("backward", own, other, plan, given, how, fixable=fixable, swapped=swapped)
            found = torch.empty(each.splits, len(own.came), device=device) if share else None

            def run(out: Tensor) -> None:
                launches.backward(each, mine, theirs, strongest, out, found)
                if found is not None:
                    slopes.append(_slope(found.sum(dtype=torch.float64) * share, given, state.temperature))

            drawn[id(own)].add(each.splits, run)

        if wanted.queries or wanted.temperature:
            counted = (0.5 if both or problem.part is not None else 1.0) if wanted.temperature else 0.0
            call(z, v, plan, of_rows, of_rows if both else of_columns, swapped=False, share=counted)
        if need and not both:
            call(v, z, plan.transposed, of_columns, of_rows, swapped=True)
    if wanted.temperature and problem.normalize:
        slopes.append((-weights.sum() / state.temperature.square()).to(state.temperature.dtype))


def _forces(state: _State, forth: Merged, upstream: Outcome) -> tuple[Rows, Rows | None, Tensor, Tensor]:
    """Return what the gradients of queries and of the other rows read, the largest of it, and Σ W of each block."""
    problem, device = state.problem, state.temperature.device
    powers = tuple(push.power for push in problem.pushes)
    upstreams = upstream.logsums if state.rest is None else _shared(upstream, forth.logsums, state.outcome)
    counts = [-(-forth.total.shape[1] // launches.BLOCK)]
    counts += [] if state.back is None else [-(-state.back.total.shape[1] // launches.BLOCK)]
    make = torch.empty if sum(counts) else torch.zeros
    strongest, weights = (make(max(1, sum(counts)), dtype=of, device=device) for of in (torch.float32, torch.float64))
    of_rows = launches.shares(
        forth, powers, state.scales, upstreams, upstream.attraction, upstream.losses, state.loss,
        strongest[: counts[0]], weights[: counts[0]],
    )  # fmt: skip
    if problem.part is not None:
        return *_learned(problem.part, of_rows, strongest.amax()), weights
    if state.back is None:
        return of_rows, None, strongest.amax(), weights
    none = Scales((None,) * len(powers), (False,) * len(powers))
    of_columns = launches.shares(
        state.back, powers, none, upstream.columns, None, None, None, strongest[counts[0] :], weights[counts[0] :]
    )
    return of_rows, of_columns, strongest.amax(), weights


def _shared(upstream: Outcome, mine: tuple[Tensor, ...], whole: Outcome) -> tuple[Tensor | None, ...]:
    """Return what a part of the rows' sums receives of the gradients of their logarithms: its share."""
    return tuple(
        None if g is None else g * (own - all_of.masked_fill(all_of == -torch.inf, torch.inf)).exp()
        for g, own, all_of in zip(upstream.logsums, mine, whole.logsums, strict=True)
    )


def _learned(part: Part, mine: Rows, strongest: Tensor) -> tuple[Rows, Rows, Tensor]:
    """Return what the gradients of queries and of all queries as anchors read, and the largest of all processes."""
    rows = [
        *mine.offset,
        *mine.share,
        *([] if mine.force is None else [mine.force]),
        strongest.expand_as(mine.share[0]),
    ]
    everyone, count = part.gather(torch.stack(rows, dim=1)).T.contiguous(), len(mine.share)
    force = None if mine.force is None else everyone[2 * count]
    largest = everyone[-1].amax() if everyone.shape[1] else strongest
    return mine, Rows(everyone[:count], everyone[count : 2 * count], force), largest


def _slope(total: Tensor, given: Numbers, temperature: Tensor) -> Tensor:
    """Return −1/τ times a sum of W (s − s₀), given in exponents of base 2."""
    off = given.off if given.scalars is None else given.scalars[6].double()
    return (-total * (0.6931471805599453 * (1 + off)) / temperature).to(temperature.dtype)


def _draw_by_tiles(  # noqa: PLR0917 - the ingredients of a gradient
    state: _State, rest: Found, upstream: Outcome, wanted: Wanted, drawn: dict[int, _Drawn], slopes: list[Tensor]
) -> None:
    """Register the gradients that tiles compute from their result."""
    unknown = [plan is None for plan in state.parts.plans]
    needs = tuple(need for need, is_left in zip(wanted.sections, unknown, strict=True) if is_left)
    upstreams = _shared(upstream, rest.outcome.logsums, state.outcome)
    attraction = None if rest.outcome.attraction is None else upstream.attraction
    asked = upstream._replace(logsums=upstreams, attraction=attraction, losses=None)
    found = tiled.backward(rest.state, asked, wanted._replace(sections=needs))
    if found.temperature is not None:
        slopes.append(found.temperature)
    left = [v for v, is_left in zip(state.sections, unknown, strict=True) if is_left and v is not state.rows[0]]
    for v, gradient in zip((state.rows[0], *left), (found.queries, *found.others), strict=True):
        if gradient is not None:
            drawn[id(v)].add_values(lambda gradient=gradient: gradient * state.temperature)


def _stream(state: _State, z: Tensor, force: Tensor, wanted: Wanted, drawn: dict[int, _Drawn]) -> None:
    """Register the gradients of a pull that is evaluated as pull @ references."""
    pull, of_queries, normalize = state.parts.streamed, state.drawn, state.problem.normalize
    if wanted.queries and of_queries is not None:
        drawn[id(state.rows[0])].add_values(lambda: of_queries * force[:, None])
    if pull is not None:
        sections = [z if v is state.rows[0] else v.values(z.dtype) for v in state.sections]
        parts = pull.pulled(z, force, sections, wanted.sections, normalize=normalize)
        for v, part in zip(state.sections, parts, strict=True):
            if part is not None:
                drawn[id(v)].add_values(lambda part=part: part)
