"""Pair weights: how much each (anchor, reference) pair pulls or pushes, computed for any tile of pairs.

Sets of pairs combine with ``&``, ``|`` and ``~``, weights with ``*``, ``+``, `scale` and `mean_over_row`. Expressions
of keys (`AllPairs`, `NotSelf`, `SameSample`, `SameClass`, `Equal`) have closed forms for row sums and products; all
others are evaluated tile by tile. Making one from what does not fit together is a ValueError; values are checked on the
CPU only.

Example:
    >>> import torch
    >>> from likewise import pairs
    >>> labels = torch.tensor([0, 1, 0, 0])
    >>> pull = (pairs.SameClass(labels) & pairs.NotSelf(4)).mean_over_row()
    >>> pull.dense()
    tensor([[0.0000, 0.0000, 0.5000, 0.5000],
            [0.0000, 0.0000, 0.0000, 0.0000],
            [0.5000, 0.0000, 0.0000, 0.5000],
            [0.5000, 0.0000, 0.5000, 0.0000]])
"""

from collections.abc import Sequence

from likewise.pairs.concat import Concat
from likewise.pairs.equal import AllPairs, Equal, KeySet, NoPairs, NotSelf, SameClass, SameSample
from likewise.pairs.explicit import Explicit
from likewise.pairs.expressions import PairWeight
from likewise.pairs.hardest import Hardest
from likewise.pairs.label_sets import Jaccard, Overlap, SharesLabel
from likewise.pairs.label_similarity import MaxSimilarity, MeanSimilarity
from likewise.pairs.vectors import Below, LowRank
from likewise.pairs.within_class import Block, WithinClass

__all__ = [
    "AllPairs",
    "Below",
    "Block",
    "Equal",
    "Explicit",
    "Hardest",
    "Jaccard",
    "KeySet",
    "LowRank",
    "MaxSimilarity",
    "MeanSimilarity",
    "NoPairs",
    "NotSelf",
    "Overlap",
    "PairWeight",
    "SameClass",
    "SameSample",
    "SharesLabel",
    "WithinClass",
    "concat",
]


def concat(sections: Sequence[PairWeight]) -> PairWeight:
    """Concatenate the weights of several sections of references for the same anchors, (N, R₁), (N, R₂) and so on.

    Returns:
        The weight, (N, R₁ + R₂ + …). ``concat(...) @ (v₁, v₂, …)`` takes references split into the same sections.

    Example:
        >>> concat([NotSelf(2), AllPairs(2, 1)]).dense()
        tensor([[0., 1., 1.],
                [1., 0., 1.]])
    """
    if not sections:
        raise ValueError("expected at least one section for concat, got none: pass a weight for each section")
    return sections[0] if len(sections) == 1 else Concat(tuple(sections))
