"""The equation as it is defined, every pair at once: for small problems, and the twin that others must match."""

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator.normalization import normalized
from likewise.operator.problem import Outcome, Problem, put_together
from likewise.pairs import PairWeight


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
    references = torch.cat(list(problem.placed(z, rest)))
    similarity = z @ references.T / temperature
    logits = [_weighted(similarity * push.power, push.weight) for push in problem.pushes]
    logsums = tuple(_over(x, dim=1) for x in logits)
    columns = tuple(_over(x, dim=0) for x in logits) if problem.both_ways else ()
    pull = problem.pull
    attraction = None if pull is None else (similarity * pull.dense(z.dtype, z.device)).sum(dim=1)
    return Outcome(logsums, columns, attraction, *put_together(problem, logsums, attraction))


def _weighted(similarity: Float[Tensor, "n r"], push: PairWeight) -> Float[Tensor, "n r"]:
    weights = push.dense(similarity.dtype, similarity.device)
    return torch.where(weights > 0, similarity + weights.log(), -torch.inf)


def _over(logits: Float[Tensor, "n r"], dim: int) -> Tensor:
    # A row without any pair is computed on zeros, so that no NaN is born in it.
    empty = (logits == -torch.inf).all(dim=dim, keepdim=True)
    return torch.logsumexp(logits.masked_fill(empty, 0), dim=dim).masked_fill(empty.squeeze(dim), -torch.inf)
