"""What is nearly the same in a set: groups of samples that close pairs link, and how far neighbours agree on labels."""

from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.evaluation.retrieval import jaccard

WAITING = 2**20  # pairs that wait to be linked, at least
MAJORITY = 0.5
_NONE = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)


@final
class Groups:
    """Groups of samples: two are in one group if close pairs lead from one to the other.

    Args:
        count: How many samples there are.

    Memory:
        O(count), however many pairs there are.

    Example:
        >>> groups = Groups(4)
        >>> groups.link(torch.tensor([0, 1]), torch.tensor([1, 3]), torch.tensor([0.98, 0.99]))
        >>> [of.tolist() for of in groups.members()]
        [[0, 1, 3]]
        >>> groups.closest
        tensor([0.9800, 0.9900,   -inf, 0.9900])
    """

    def __init__(self, count: int) -> None:
        self.closest = torch.full((count,), -torch.inf)
        self._group = np.arange(count)
        self._waiting = [_NONE]

    def link(self, rows: Int[Tensor, " p"], others: Int[Tensor, " p"], similarities: Float[Tensor, " p"]) -> None:
        """Link the samples of pairs, by their places."""
        for of in (rows, others):
            self.closest.scatter_reduce_(0, of, similarities.float(), "amax")
        group = torch.from_numpy(self._group)
        new = group[rows] != group[others]
        self._waiting.append((rows[new], others[new]))
        if sum(len(of) for of, _ in self._waiting) > max(WAITING, len(group)):
            self._merge()

    def members(self) -> list[Int[Tensor, " n"]]:
        """Return the places of each group's samples, of groups of two and more, large ones first."""
        self._merge()
        group = torch.from_numpy(self._group)
        order = group.argsort(stable=True)
        found = [of for of in order.split(torch.bincount(group).tolist()) if len(of) > 1]
        return sorted(found, key=lambda of: (-len(of), -float(self.closest[of].max()), int(of[0])))

    def _merge(self) -> None:
        from scipy.sparse import coo_array  # noqa: PLC0415 - a first prediction is not to wait for it
        from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 - likewise

        rows, others = (self._group[torch.cat(of).numpy()] for of in zip(*self._waiting, strict=True))
        links = coo_array((np.ones(len(rows), dtype=bool), (rows, others)), shape=(len(self._group),) * 2)
        self._group = connected_components(links, directed=False)[1][self._group]
        self._waiting = [_NONE]


def neighbours_labels(
    labels: Int[Tensor, " n"] | Bool[Tensor, "n l"], own: slice, indices: Int[Tensor, "m k"]
) -> tuple[Float[Tensor, " m"], Int[Tensor, " m"] | Bool[Tensor, "m l"]]:
    """Return how far the neighbours of samples agree with their labels, and what labels the neighbours would give.

    Of classes it is the share of the k neighbours with the sample's own, and the most frequent; of label sets the mean
    Jaccard similarity, and the labels that more than half of the neighbours have.
    """
    mine, near = labels[own].unsqueeze(1), labels[indices]
    if labels.ndim == 2:
        return jaccard(mine, near).mean(dim=1).float(), near.float().mean(dim=1) > MAJORITY
    return (near == mine).float().mean(dim=1), near.mode(dim=1).values
