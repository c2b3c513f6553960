"""The equation as it is defined, every pair at once: for small problems, and the twin that others must match."""

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.pairs import PairWeight


def log_sum_exp(
    queries: Float[Tensor, "n d"],
    sections: tuple[Tensor, ...],
    push: PairWeight,
    temperature: Float[Tensor, ""],
) -> Float[Tensor, " n"]:
    """Return log Σ_u push_iu e^{z_i·v_u/τ} of each query, −inf (and no gradient) where its push is empty.

    Memory:
        O(N·R).
    """
    references = sections[0] if len(sections) == 1 else torch.cat(sections)
    return _over(_logits(queries, references, push, temperature), dim=1)


def log_sum_exp_both_ways(
    queries: Float[Tensor, "n d"],
    references: Float[Tensor, "r d"],
    push: PairWeight,
    temperature: Float[Tensor, ""],
) -> tuple[Float[Tensor, " n"], Float[Tensor, " r"]]:
    """Return what `log_sum_exp` returns of the queries over the references, and of the references over the queries.

    Memory:
        O(N·R).
    """
    logits = _logits(queries, references, push, temperature)
    return _over(logits, dim=1), _over(logits, dim=0)


def _logits(queries: Tensor, references: Tensor, push: PairWeight, temperature: Tensor) -> Float[Tensor, "n r"]:
    similarity = queries @ references.T / temperature
    weights = push.dense(similarity.dtype, similarity.device)
    return torch.where(weights > 0, similarity + weights.log(), -torch.inf)


def _over(logits: Float[Tensor, "n r"], dim: int) -> Tensor:
    # A row without any pair is computed on zeros, so that no NaN is born in it.
    empty = (logits == -torch.inf).all(dim=dim, keepdim=True)
    return torch.logsumexp(logits.masked_fill(empty, 0), dim=dim).masked_fill(empty.squeeze(dim), -torch.inf)
