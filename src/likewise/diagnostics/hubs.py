"""Hubness: samples that are a near neighbour of very many others, and samples that are of none."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.diagnostics.unit_rows import Array, as_rows
from likewise.evaluation.features import Progress, silent
from likewise.evaluation.nearest import nearest


@final
@dataclass(frozen=True)
class Hubness:
    """How often each sample is among the k nearest neighbours of another.

    Args:
        occurrences: N_k, how often, (N,); k on average.
        k: How many neighbours each sample has.
    """

    occurrences: Int[Tensor, " n"]
    k: int

    @property
    def skewness(self) -> float:
        """E[(N_k − k)³] / σ³: 0 without hubs, above 1 with strong ones; 0 where all occur alike."""
        deviations = self.occurrences.double() - self.occurrences.double().mean()
        variance = float(deviations.square().mean()) if len(deviations) else 0.0
        return float(deviations.pow(3).mean()) / variance**1.5 if variance else 0.0

    @property
    def never(self) -> float:
        """The share of samples that are a neighbour of none, which no retrieval finds."""
        return float((self.occurrences == 0).double().mean()) if len(self.occurrences) else 0.0


def hubness(features: Float[Array, "n d"], k: int = 10, *, progress: Progress = silent) -> Hubness:
    """Count how often each sample is among the k nearest neighbours of another, by cosine.

    Args:
        features: (N, D); L2-normalised here.
        k: Neighbours of each sample; fewer where there are fewer others.
        progress: Wraps the tiles.

    Raises:
        ValueError: The shape is another, an entry is not finite, or k < 1.

    Memory:
        O(N·D) and one tile of similarities.

    Source:
        M. Radovanović, A. Nanopoulos and M. Ivanović, Hubs in Space: Popular Nearest Neighbors in High-Dimensional
        Data, 2010, section 2.

    Example:
        >>> star = torch.tensor([[1.0, 0.0], [1.0, 0.5], [1.0, -0.5], [0.2, 1.0]])
        >>> hubness(star, k=1).occurrences.tolist()
        [2, 2, 0, 0]
    """
    features = as_rows(features)
    if k < 1:
        raise ValueError(f"expected k of at least 1, got {k}: 10 is usual")
    occurrences = torch.zeros(len(features), dtype=torch.long)
    near = min(k, max(0, len(features) - 1))
    if near:
        for *_, indices in nearest(features, None, near, progress=progress, doing="hubs"):
            occurrences += torch.bincount(indices.flatten().cpu(), minlength=len(features))
    return Hubness(occurrences, near)
