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
    similarity = (queries / temperature) @ references.T
    weights = push.dense(similarity.dtype, similarity.device)
    logits = torch.where(weights > 0, similarity + weights.log(), -torch.inf)
    # A row without any pair is computed on zeros, so that no NaN is born in it.
    empty = ~(weights > 0).any(dim=1)
    return torch.logsumexp(logits.masked_fill(empty[:, None], 0), dim=1).masked_fill(empty, -torch.inf)
