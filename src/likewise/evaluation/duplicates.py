"""Near duplicates in a set: groups of samples linked by close pairs, and how far neighbours agree on labels."""

from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.evaluation.retrieval import jaccard

MIN_WAITING_PAIRS = 2**20  # pairs collected before groups are merged, at least
_NONE = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)


@final
class Groups:
    """Groups of samples: two are in one group if a chain of close pairs connects them, of which few are in memory."""

    def __init__(self, count: int) -> None:
        self.closest = torch.full((count,), -torch.inf)
        self._group = np.arange(count)
        self._waiting = [_NONE]

    def link(self, rows: Int[Tensor, " p"], columns: Int[Tensor, " p"], similarities: Float[Tensor, " p"]) -> None:
        """Link the samples of close pairs, given by their indices."""
        for index in (rows, columns):
            self.closest.scatter_reduce_(0, index, similarities.float(), "amax")
        group = torch.from_numpy(self._group)
        new = group[rows] != group[columns]
        self._waiting.append((rows[new], columns[new]))
        if sum(len(indices) for indices, _ in self._waiting) > max(MIN_WAITING_PAIRS, len(group)):
            self._merge()

    def members(self) -> list[Int[Tensor, " n"]]:
        """Return the indices of the samples of each group with at least two, largest groups first."""
        self._merge()
        group = torch.from_numpy(self._group)
        order = group.argsort(stable=True)
        groups = [rows for rows in order.split(torch.bincount(group).tolist()) if len(rows) > 1]
        return sorted(groups, key=lambda rows: (-len(rows), -float(self.closest[rows].max()), int(rows[0])))

    def _merge(self) -> None:
        from scipy.sparse import coo_array  # noqa: PLC0415 - a first prediction need not wait for it
        from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 - likewise

        rows, columns = (self._group[torch.cat(indices).numpy()] for indices in zip(*self._waiting, strict=True))
        links = coo_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=(len(self._group),) * 2)
        self._group = connected_components(links, directed=False)[1][self._group]
        self._waiting = [_NONE]


def neighbours_labels(
    labels: Int[Tensor, " n"] | Bool[Tensor, "n l"], rows: slice, indices: Int[Tensor, "m k"]
) -> tuple[Float[Tensor, " m"], Int[Tensor, " m"] | Bool[Tensor, "m l"]]:
    """Return how far the neighbours of samples agree with their labels, and what labels the neighbours would give.

    For classes: the share of the k neighbours with the sample's class, and their most frequent class; for label sets:
    the mean Jaccard similarity, and the labels that more than half of the neighbours have.
    """
    mine, near = labels[rows].unsqueeze(1), labels[indices]
    if labels.ndim == 2:
        return jaccard(mine, near).mean(dim=1).float(), 2 * near.sum(dim=1) > near.shape[1]
    return (near == mine).float().mean(dim=1), near.mode(dim=1).values
