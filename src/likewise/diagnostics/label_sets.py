"""Label sets and how alike their labels are: an order that shows groups, and the push that similarity leaves."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.pairs import MaxSimilarity, MeanSimilarity, PairWeight, SharesLabel

FEWEST = 3  # labels that can be put in an order


def grouped(similarity: Float[Tensor, "l l"]) -> Int[Tensor, " l"]:
    """Return an order of labels in which similar ones stand next to each other.

    By average linkage of 1 − similarity, with the leaves in optimal order.

    Args:
        similarity: Symmetric, from 0 to 1, (L, L).

    Source:
        Z. Bar-Joseph, D. Gifford and T. Jaakkola, Fast optimal leaf ordering for hierarchical clustering, 2001.

    Example:
        >>> blocks = torch.tensor([[1, 0, 0.9, 0], [0, 1, 0, 0.9], [0.9, 0, 1, 0], [0, 0.9, 0, 1]])
        >>> order = grouped(blocks).tolist()
        >>> {tuple(sorted(order[:2])), tuple(sorted(order[2:]))} == {(0, 2), (1, 3)}
        True
    """
    from scipy.cluster.hierarchy import leaves_list, linkage  # noqa: PLC0415 - of an extra
    from scipy.spatial.distance import squareform  # noqa: PLC0415 - likewise

    if len(similarity) < FEWEST:
        return torch.arange(len(similarity))
    distance = (1 - similarity.double()).clamp(min=0)
    distance = ((distance + distance.T) / 2).fill_diagonal_(0)
    tree = linkage(squareform(distance.numpy(), checks=False), method="average", optimal_ordering=True)
    return torch.from_numpy(leaves_list(tree)).long()


def push_weights(
    sets: Bool[Tensor, "n l"], similarity: Float[Tensor, "l l"], aggregation: Literal["mean", "max"] = "mean"
) -> Float[Tensor, " p"]:
    """Return the weights 1 − sim(y_i, y_u) with which NWS lets samples push each other, before the factor β.

    Args:
        sets: Label sets of samples, (N, L).
        similarity: S, (L, L).
        aggregation: How sim is made of S over the pairs of two samples' labels.

    Returns:
        One weight for each ordered pair of samples that share no label, the first of which has some, as anchors have;
        all 1 in MSC and MulSupCon.

    Memory:
        O(N²).

    Example:
        >>> similarity = torch.tensor([[1.0, 0.3], [0.3, 1.0]])
        >>> push_weights(torch.tensor([[True, False], [False, True]]), similarity)
        tensor([0.7000, 0.7000])
    """
    kind = MeanSimilarity if aggregation == "mean" else MaxSimilarity
    pushes: PairWeight = ~SharesLabel(sets, sets)
    weights = 1 - kind(sets, similarity, sets).dense()
    return weights[pushes.dense().bool() & sets.any(dim=1, keepdim=True)]
