"""Implicit hard mining in numbers: how strength depends on similarity, and how much of it is due to the hardest."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.diagnostics.gradients import AnchorGradients


class HardestShares(NamedTuple):
    """What the hardest references contribute, from 0 to 1; NaN where there is nothing to share."""

    pull: float
    """The share of the pull that the least similar positives supply."""
    push: float
    """The share of the push that the most similar negatives supply."""


def strength_by_similarity(
    gradients: AnchorGradients, bins: int = 50
) -> tuple[Float[Tensor, "edges"], Float[Tensor, "bins"], Float[Tensor, "bins"]]:
    """Average the strength of positives and of negatives whose cosine with their anchor is about the same.

    Args:
        gradients: What `anchor_gradients` returned.
        bins: Bins between -1 and 1.

    Returns:
        The edges (bins + 1,), and the mean strength of the positives and of the negatives in each bin, (bins,) each;
        NaN in an empty bin.

    Example:
        >>> from likewise.diagnostics import anchor_gradients
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> found = anchor_gradients(embeddings, torch.tensor([0, 0, 1]), temperature=1.0, anchors=[0])
        >>> [of.tolist() for of in strength_by_similarity(found, bins=2)[1:]]
        [[nan, 0.2689414213699951], [0.0, nan]]
    """
    places = ((gradients.similarities.clamp(-1, 1) + 1) / 2 * bins).long().clamp(max=bins - 1)
    means: list[Tensor] = []
    for pairs in (gradients.positives, gradients.negatives):
        sums = torch.bincount(places[pairs], weights=gradients.strengths[pairs], minlength=bins)
        means.append(sums / torch.bincount(places[pairs], minlength=bins))
    return torch.linspace(-1, 1, bins + 1, dtype=torch.float64), means[0], means[1]


def hardest_shares(gradients: AnchorGradients, fraction: float = 0.1) -> HardestShares:
    """Measure how much of all pull and push the hardest pairs supply; with equal strengths it would be `fraction`.

    The pairs of all anchors are taken together. Hard positives are the least similar ones, hard negatives the most
    similar. The pull is the sum of the strengths of the positives that attract: with "out", a positive that is much
    closer than the others can have P > X, and then it repels.

    Args:
        gradients: What `anchor_gradients` returned.
        fraction: Which part of the pairs counts as the hardest, above 0 and at most 1; at least one pair does.

    Returns:
        The shares of pull and push; NaN where there is none.

    Raises:
        ValueError: fraction is outside (0, 1].

    Example:
        >>> from likewise.diagnostics import anchor_gradients
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, -0.8], [-1.0, 0.0]])
        >>> found = anchor_gradients(embeddings, torch.tensor([0, 0, 0, 1, 1]), temperature=0.1, anchors=[0])
        >>> [round(of, 3) for of in hardest_shares(found, fraction=0.5)]
        [1.0, 1.0]
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"expected fraction above 0 and at most 1, got {fraction}: 0.1 is the hardest tenth")
    attracting = gradients.strengths.where(gradients.coefficients < 0, 0)
    positives, negatives = gradients.positives, gradients.negatives
    return HardestShares(
        _share(-gradients.similarities[positives], attracting[positives], fraction),
        _share(gradients.similarities[negatives], gradients.strengths[negatives], fraction),
    )


def _share(hardness: Tensor, strengths: Tensor, fraction: float) -> float:
    """Return the share of all strength that the hardest pairs have."""
    total = float(strengths.sum())
    if total == 0:
        return math.nan
    count = max(1, round(fraction * len(hardness)))
    return float(strengths[hardness.argsort(descending=True, stable=True)[:count]].sum()) / total
