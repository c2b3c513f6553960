"""Gradients of learned weights: the value comes from any engine, the derivative of each pair from tiles.

With the logarithms and losses of all rows, and g the upstream gradients,

    ∂w_iu = g_i e^{p s_iu − lse_i} of a push        ∂w_ir = g_i s_ir of an attraction
    ∂w_iu = g_i f(p s_iu + b) of a pairwise sum     ∂w_ir = g_i (Σ_k lse_ki − s_ir) of a loss

where the last is for losses whose coefficients are the row sums of the pull, which are then learned as well.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from likewise.operator.rows import prepared
from likewise.operator.spec import SHAPES, ContrastSpec, Outcome, Push
from likewise.pairs import PairWeight
from likewise.pairs.weight import Slope, with_gradient

Derivative = Callable[[Tensor, Tensor, slice, slice], Tensor]
"""Takes the upstream gradient and a tile of similarities; returns the gradient of its weights."""


def with_weights(problem: ContrastSpec, outcome: Outcome, rows: tuple[Tensor, ...], temperature: Tensor) -> Outcome:
    """Return an outcome without losses with the gradients of learned weights, and with losses if these are wanted.

    ``rows`` are the queries, and the sections that are not the queries.
    """

    def learning(value: Tensor, weight: PairWeight | None, derivative: Derivative, *dependencies: Tensor) -> Tensor:
        def slope(g: Tensor) -> Slope:
            z, *rest = (prepared(v.detach(), temperature.dtype, normalize=problem.normalize).rows for v in rows)
            v = torch.cat(problem.per_section(z, rest))
            tau = temperature.detach()
            return lambda i, r: derivative(g, (z[i] @ v[r].T).div_(tau), i, r)

        return value if weight is None else with_gradient(value, weight, slope, temperature, *rows, *dependencies)

    def of_push(push: Push, value: Tensor, *, columns: bool = False) -> Tensor:
        return learning(value, push.weight, _of_push(push, value.detach(), columns=columns), value)

    logsums, columns = outcome.logsums, outcome.columns
    outcome = outcome._replace(
        logsums=tuple(map(of_push, problem.pushes, logsums)),
        columns=tuple(of_push(push, x, columns=True) for push, x in zip(problem.pushes, columns, strict=False)),
    )
    pull, attraction = problem.pull, outcome.attraction
    outcome = outcome._replace(attraction=learning(attraction, pull, lambda g, s, i, _: s.mul_(g[i, None])))
    if problem.coefficients is None:
        return outcome
    sums = None if pull is None else pull.known_row_sum(temperature.dtype, temperature.device).detach()
    known = tuple(sums if c is None else c for c in problem.coefficients)
    unreduced = problem._replace(coefficients=known, reduction="none")
    losses, counts = unreduced.losses(outcome.logsums, attraction)
    assert losses is not None  # noqa: S101 - there are coefficients
    active = counts[0]
    chosen = [x.detach() for x, c in zip(logsums, problem.coefficients, strict=True) if c is None]
    height = torch.stack([torch.zeros_like(losses), *chosen]).sum(dim=0).where(active, 0)

    def of_losses(g: Tensor, s: Tensor, i: slice, _: slice) -> Tensor:
        return torch.sub(height[i, None], s, out=s).mul_(g.where(active, 0)[i, None])

    losses = problem.reduced(learning(losses, pull, of_losses), counts[1])
    return outcome._replace(losses=losses, counts=counts)


def _of_push(push: Push, value: Tensor, *, columns: bool) -> Derivative:
    """Return the derivative of a log-sum-exp, of rows or of columns, or of a pairwise sum."""
    most = 0.9 * math.log(torch.finfo(value.dtype).max)  # pairs of weight 0 may be far above the others

    def of_logsum(g: Tensor, s: Tensor, i: slice, r: slice) -> Tensor:
        at, dim = (r, 0) if columns else (i, 1)
        share = g.masked_fill(value == -torch.inf, 0)[at].unsqueeze(dim)
        return s.mul_(push.power).sub_(value[at].unsqueeze(dim)).clamp_(max=most).exp_().mul_(share)

    def of_sum(g: Tensor, s: Tensor, i: slice, _: slice) -> Tensor:
        return SHAPES[push.function].value(s.mul_(push.power).add_(push.constant_bias)).mul_(g[i, None])

    return of_logsum if push.function is None else of_sum
