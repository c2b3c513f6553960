"""Similarity of two labels by how often they occur together: NWS weights its negatives by it."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.losses.checks import check_label_sets, matrix, one_of

Method = Literal["npmi", "jaccard", "identity"]


def label_pair_similarity(labels: Any, method: Method) -> Float[Tensor, "l l"]:
    r"""Return the similarity of every pair of labels, from their counts in a data set.

    With p_c the share of samples with label c, p_cd the share with both, and A_c the samples with label c,

    $$\text{npmi:} \quad S_{cd} = \frac{1}{2} \left( 1 + \frac{\log \frac{p_{cd}}{p_c \, p_d}}{-\log p_{cd}} \right)
    \qquad \text{jaccard:} \quad S_{cd} = \frac{|A_c \cap A_d|}{|A_c \cup A_d|}$$

    and identity: 0 for any two labels, so that NWS weights all negatives equally.

    Labels that never occur together have similarity 0; two labels that every sample has have similarity 1 (the limit);
    the diagonal is 1.

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
        O(N·L + L²) in float64.

    Source:
        Bouma, "Normalized (Pointwise) Mutual Information in Collocation Extraction", 2009; Jaccard, 1912.

    Example:
        >>> import torch
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
    wide = labels.double()
    both = wide.T @ wide
    each = both.diagonal()
    if method == "npmi":
        count, total = both.clamp(min=1), len(labels)
        information = torch.log(count * total / torch.outer(each, each).clamp(min=1))
        similarity = (information / torch.log(total / count) + 1) / 2
        similarity = similarity.masked_fill(both == total, 1).masked_fill(both == 0, 0)
    elif method == "identity":
        similarity = torch.zeros_like(both)
    else:
        similarity = both / (each[:, None] + each - both).clamp(min=1)
    similarity = ((similarity + similarity.T) / 2).clamp(0, 1)
    return similarity.fill_diagonal_(1).float()
