"""The equation as it is defined, every pair at once: for small problems, and the twin that others must match."""

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator.normalization import normalized
from likewise.operator.problem import Outcome, Problem, put_together


def forward(
    problem: Problem,
    queries: Float[Tensor, "n d"],
    others: tuple[Tensor, ...],
    temperature: Float[Tensor, ""],
) -> Outcome:
    """Return the outcome of a contrast from all similarities at once; autograd differentiates it.

    Memory:
        O(N·R).
    """
    z, *rest = ((normalized(v) if problem.normalize else v).to(temperature.dtype) for v in (queries, *others))
    # Section by section: a product over all sums in another order, onto the own key's share too.
    similarity = torch.cat([z @ v.T for v in problem.placed(z, rest)], dim=1) / temperature
    pushes = [(similarity * push.power, push.weight.dense(z.dtype, z.device)) for push in problem.pushes]
    logsums = tuple(_log_sum_exp(s, weights, dim=1) for s, weights in pushes)
    columns = tuple(_log_sum_exp(s, weights, dim=0) for s, weights in pushes) if problem.both_ways else ()
    pull = problem.pull
    attraction = None if pull is None else (similarity * pull.dense(z.dtype, z.device)).sum(dim=1)
    return Outcome(logsums, columns, attraction, *put_together(problem, logsums, attraction))


def _log_sum_exp(s: Float[Tensor, "n r"], weights: Float[Tensor, "n r"], dim: int) -> Tensor:
    """Return log Σ weights·e^{s} along a dimension, −∞ and no gradient where no weight is.

    It is shifted by its highest term, which stays out of the gradient: `torch.logsumexp` differentiates to e^{s − lse},
    whose rounding is that of lse.
    """
    inside = weights > 0
    empty = ~inside.any(dim=dim, keepdim=True)
    terms = (s.detach() + weights.log()).masked_fill(~inside, -torch.inf)
    highest = terms.amax(dim=dim, keepdim=True).masked_fill(empty, 0) if terms.numel() else empty.to(s.dtype)
    total = (weights * (s - highest).masked_fill(~inside, -torch.inf).exp()).sum(dim=dim)
    empty = empty.squeeze(dim)
    return (total.masked_fill(empty, 1).log() + highest.squeeze(dim)).masked_fill(empty, -torch.inf)
