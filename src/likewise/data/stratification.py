"""Iterative stratification: parts in which every label of label sets has its share of samples."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def stratified(sets: Bool[Tensor, "n l"], share: float, seed: int) -> Int[Tensor, " k"]:
    """Choose a share of samples so that each label keeps that share of its own samples, the rarest labels first.

    Again and again the label with the fewest samples left is taken. Each of its samples, in random order, goes to the
    part that lacks more samples of this label to its share; if both lack as many, to the part that lacks more samples.
    Samples without a label fill up the parts. At the end, samples that were placed last, which have frequent labels
    only, change the part until the sizes are right.

    Args:
        sets: Label sets, (N, L).
        share: The share of the part that is chosen, between 0 and 1.
        seed: Seed of the order of samples.

    Returns:
        The rows that are chosen, share · N of them, rounded, sorted.

    Source:
        K. Sechidis, G. Tsoumakas and I. Vlahavas, On the Stratification of Multi-Label Data, 2011.

    Example:
        >>> sets = torch.tensor([[True, False]] * 8 + [[False, True]] * 4)
        >>> sets[stratified(sets, 0.25, seed=0)].sum(0)
        tensor([2, 1])
    """
    count = len(sets)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    left = torch.ones(count, dtype=torch.bool)
    chosen = torch.zeros(count, dtype=torch.bool)
    totals = sets.sum(dim=0)
    wanted = totals * share, totals * (1 - share)
    lacking = [[float(of) for of in part] for part in wanted]
    samples = [share * count, (1 - share) * count]
    remaining = totals.clone()
    placed: list[int] = []
    own_labels = [of.nonzero().flatten().tolist() for of in sets]
    while bool((remaining > 0).any()):
        label = int(torch.where(remaining > 0, remaining, count + 1).argmin())
        for row in order[sets[order, label] & left[order]].tolist():
            first, second = ((lacking[part][label], samples[part]) for part in (0, 1))
            part = 0 if first > second else 1
            chosen[row] = part == 0
            left[row] = False
            placed.append(row)
            samples[part] -= 1
            for own in own_labels[row]:
                lacking[part][own] -= 1
                remaining[own] -= 1
    blank = order[left[order]]
    chosen[blank[: max(0, round(samples[0]))]] = True
    surplus = int(chosen.sum()) - max(1, round(share * count))
    moved = [row for row in reversed(placed) if bool(chosen[row]) == (surplus > 0)][: abs(surplus)]
    chosen[moved] = surplus < 0
    return chosen.nonzero().flatten()
