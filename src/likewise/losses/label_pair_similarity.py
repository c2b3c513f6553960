"""Similarity of two labels by how often they occur together: NWS weights its negatives by it."""

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.inputs import check_label_sets
from likewise.operator.inputs import check_dense, one_of

Method = Literal["npmi", "jaccard", "identity"]
PAIRS = 2**22  # pairs of labels at a time
ROWS = 2**16  # samples at a time
PAIR_COST = 2000  # multiplications of a matrix product in the time of one pair


def label_pair_similarity(labels: Any, method: Method) -> Float[Tensor, "l l"]:
    r"""Return the similarity of every pair of labels, from their counts in a data set.

    With p_c the share of samples with label c, p_cd the share with both, and A_c the samples with label c,

    $$\text{npmi:} \quad S_{cd} = \frac{1}{2} \left( 1 + \frac{\log \frac{p_{cd}}{p_c \, p_d}}{-\log p_{cd}} \right)
    \qquad \text{jaccard:} \quad S_{cd} = \frac{|A_c \cap A_d|}{|A_c \cup A_d|}$$

    and identity: 0 for any two labels, so that NWS weights all negatives equally.

    Labels that never occur together have similarity 0; two labels that are both in every sample have similarity 1
    (the limit); the diagonal is 1.

    Args:
        labels: Multi-hot labels of the training samples, zeros and ones of any dtype, shape (N, L): a tensor, or
            anything that ``torch.as_tensor`` accepts.
        method: "npmi", normalised pointwise mutual information scaled to [0, 1] (0.5: independent), "jaccard" or
            "identity".

    Returns:
        Shape (L, L), float32, symmetric, within [0, 1].

    Raises:
        ValueError: If labels are not a matrix of zeros and ones with at least one sample, or the method is unknown.

    Memory:
        12·L² bytes besides the labels, and the label pairs of some samples at a time.

    Source:
        Bouma, "Normalized (Pointwise) Mutual Information in Collocation Extraction", 2009; Jaccard, 1912.

    Example:
        >>> label_pair_similarity(torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 0], [0, 0, 1]]), "jaccard")
        tensor([[1.0000, 0.6667, 0.0000],
                [0.6667, 1.0000, 0.0000],
                [0.0000, 0.0000, 1.0000]])
    """
    one_of("method", method, Method)
    labels = matrix("labels", labels, "pass the multi-hot labels of the training samples")
    check_label_sets("labels", labels, "samples", len(labels) if labels.ndim else 0)
    if not len(labels):
        raise ValueError("expected labels to be those of at least one sample, got none: pass those of the training set")
    both = _together(labels)
    each = both.diagonal().double()
    if method == "identity":
        return torch.eye(len(each), dtype=torch.float32, device=labels.device)
    table = torch.empty(both.shape, dtype=torch.float32, device=labels.device)
    for rows in torch.arange(len(each), device=labels.device).split(max(1, PAIRS // max(1, len(each)))):
        table[rows] = _similarity(both[rows].double(), each[rows, None], each, len(labels), method).float()
    return table.fill_diagonal_(1)


def _similarity(both: Tensor, first: Tensor, other: Tensor, total: int, method: Method) -> Tensor:
    """Return the similarity of labels from the numbers of samples with both, the first, and the other, and in total."""
    if method == "jaccard":
        return both / (first + other - both).clamp(min=1)
    count = both.clamp(min=1)
    information = torch.log(count * total / (first * other).clamp(min=1))
    similarity = (information / torch.log(total / count) + 1) / 2
    return similarity.masked_fill(both == total, 1).masked_fill(both == 0, 0).clamp(0, 1)


def _together(labels: Tensor) -> Int[Tensor, "l l"]:
    """Count the samples with both of two labels: from each sample's pairs, or by a matrix product if there are many."""
    samples, count = labels.shape
    sample, label = labels.nonzero(as_tuple=True)
    label_counts = torch.bincount(sample, minlength=samples)
    both = torch.zeros(count, count, dtype=torch.int32, device=labels.device)
    if PAIR_COST * int(label_counts.square().sum()) > samples * count * count:
        with torch.autocast(labels.device.type, enabled=False):
            for some in labels.split(ROWS):  # float32 counts this few exactly
                both += (some.float().T @ some.float()).int()
        return both
    first = label_counts.cumsum(0) - label_counts
    for some in torch.arange(len(label), device=labels.device).split(max(1, PAIRS // max(1, int(label_counts.max())))):
        times = label_counts[sample[some]]
        index = torch.arange(len(some), device=labels.device).repeat_interleave(times)
        position = torch.arange(len(index), device=labels.device) - (times.cumsum(0) - times)[index]
        other = label[first[sample[some]][index] + position]
        both.view(-1).index_add_(0, label[some][index] * count + other, torch.ones_like(other, dtype=torch.int32))
    return both


def matrix(name: str, value: Any, remedy: str) -> Tensor:
    """Return numbers of any kind, such as an array, as a detached tensor; raise if they are not numbers."""
    if isinstance(value, Tensor):
        check_dense(name, value)
    try:
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        expected = f"expected {name} to be a tensor or an array of numbers, got {type(value).__name__}"
        raise ValueError(f"{expected}: {remedy}") from error
