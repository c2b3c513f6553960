"""Label sets of the nearest neighbours: how much of their weight has each label."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.evaluation.features import Features

LABELS = 2**22  # of neighbours at a time: 16 MiB in float32


def label_votes(
    train: Features, indices: Int[Tensor, "m k"], weights: Float[Tensor, "m k"], ks: Sequence[int]
) -> Iterator[tuple[int, Float[Tensor, "m l"]]]:
    """Yield for every k how much of the weight of the nearest k has each label, (m, L), from 0 to 1.

    Args:
        train: The neighbours, with label sets (N, L).
        indices: The nearest of them to each sample, nearest first, (m, k).
        weights: Their weights, (m, k).
        ks: How many neighbours vote.

    Memory:
        2²² labels of neighbours, and the votes, (m, L), twice.

    Example:
        >>> train = Features(torch.eye(2), torch.tensor([[1, 1], [0, 1]]))
        >>> [votes.tolist() for _, votes in label_votes(train, torch.tensor([[0, 1]]), torch.ones(1, 2), [1, 2])]
        [[[1.0, 1.0]], [[0.5, 1.0]]]
    """
    sets = train.sets.float().to(indices.device)
    votes = sets.new_zeros(len(indices), sets.shape[1])
    before = 0
    for k in sorted(ks):
        near, given = indices[:, before:k], weights[:, before:k].float()
        rows = max(1, LABELS // max(1, (k - before) * sets.shape[1]))
        for some in torch.arange(len(indices), device=indices.device).split(rows):
            votes[some] += torch.einsum("mk,mkl->ml", given[some], sets[near[some]])
        before = k
        yield k, votes / weights[:, :k].sum(dim=1, keepdim=True).float()
