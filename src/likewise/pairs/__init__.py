"""Pair weights: how much each (anchor, reference) pair pulls or pushes, computed for any tile of pairs.

Sets of pairs combine with ``&``, ``|`` and ``~``, weights with ``*``, ``+``, `scale` and `mean_over_row`. Expressions
of keys (`AllPairs`, `NotSelf`, `SameSample`, `SameClass`, `Equal`) have closed forms for row sums and products; all
others are evaluated tile by tile. Mismatched inputs raise a ValueError; values are checked on the CPU only.

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

from likewise.pairs.concat import concat
from likewise.pairs.equal import AllPairs, Equal, KeySet, NoPairs, NotSelf, SameClass, SameSample
from likewise.pairs.explicit import Below, Explicit, Hardest, LowRank
from likewise.pairs.expressions import PairWeight
from likewise.pairs.label_sets import Jaccard, MaxSimilarity, MeanSimilarity, Overlap, SharesLabel
from likewise.pairs.within_class import Block, WithinClass

# fmt: off
__all__ = [
    "AllPairs", "Below", "Block", "Equal", "Explicit", "Hardest", "Jaccard", "KeySet", "LowRank", "MaxSimilarity",
    "MeanSimilarity", "NoPairs", "NotSelf", "Overlap", "PairWeight", "SameClass", "SameSample", "SharesLabel",
    "WithinClass", "concat",
]
# fmt: on
