"""The contrastive loss of pairs with margins: positives shall be closer than one, negatives farther than another."""

from collections.abc import Sequence
from typing import Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise import distributed
from likewise.losses.base import LossOptions
from likewise.losses.checks import Flag, check_number
from likewise.losses.class_loss import ClassLoss
from likewise.losses.contrast_batch import ContrastBatch
from likewise.operator import ContrastSpec, Push
from likewise.operator.inputs import one_of


@final
class ContrastiveMarginLoss(ClassLoss):
    r"""Contrastive loss with margins: pairs of a class shall be similar, pairs of two classes not.

    With s the cosine, P the pairs of a class and N those of two classes,

    $$
    L = \frac{1}{n_P} \sum_{(i, p) \in P} f(m_P - s_{ip}) + \frac{1}{n_N} \sum_{(i, u) \in N} f(s_{iu} - m_N)
    $$

    where $f(x) = \max(0, x)$, or its square, and $n_P$ and $n_N$ are the numbers of pairs with a loss: pairs beyond
    their margin are done, and do not thin out the others. For rows of length 1, ‖a − b‖² = 2 − 2s: margins of squared
    distances D are similarities of 1 − D/2.

    Args:
        positive_margin: $m_P$: positives that are more similar have no loss.
        negative_margin: $m_N$: negatives that are less similar have no loss.
        squared: Whether f is squared, so that pairs close to their margin pull or push less.
        **options: See `LossOptions`. Kernels leave it to tiles.

    Returns:
        A call returns L, a scalar; with ``reduction="none"`` the share of each row times their number, (N,), whose mean
        is L.

    Memory:
        O((N + R)·D + tile).

    Source:
        Hadsell, Chopra, LeCun, "Dimensionality Reduction by Learning an Invariant Mapping", 2006, which squares
        distances; with similarities as pytorch-metric-learning's ContrastiveLoss(distance=CosineSimilarity()).

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> ContrastiveMarginLoss(positive_margin=1.0, negative_margin=0.5)(z, torch.tensor([0, 0, 1]))
        tensor(0.7000)
    """

    def __init__(
        self,
        *,
        positive_margin: float = 1.0,
        negative_margin: float = 0.5,
        squared: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(1.0, **options)
        self.positive_margin = check_number("positive_margin", positive_margin, -1e6, 1e6, "0.8 to 1")
        self.negative_margin = check_number("negative_margin", negative_margin, -1e6, 1e6, "0 to 0.5")
        self.squared = one_of("squared", squared, Flag)

    def of_classes(
        self, rows: ContrastBatch, classes: Int[Tensor, " n"], sections: Sequence[Int[Tensor, " r"]]
    ) -> Float[Tensor, "..."]:
        """Return the loss of rows by their classes."""
        same = rows.same_class(classes, sections)
        positives = same & rows.all_others()
        pushes = [
            Push(positives, -1.0, "hinge", self.positive_margin),
            Push(~same, 1.0, "hinge", -self.negative_margin),
        ]
        if self.squared:
            pushes += [push._replace(function="squared hinge") for push in pushes]
        outcome = self.outcome(rows, ContrastSpec(tuple(pushes)))
        count = torch.full((), float(len(rows.queries)), dtype=rows.dtype, device=rows.queries.device)
        counts = [count, *(slopes.sum() for slopes in outcome.counts[:2])]  # a hinge with a loss has slope 1
        count, *of_pairs = [distributed.total(number) for number in counts] if self.gathers else counts
        sums = zip(outcome.logsums[-2:], of_pairs, strict=True)
        zeros = torch.zeros_like(outcome.logsums[0])
        losses = sum((loss * (count / pairs.clamp(min=1)) for loss, pairs in sums), zeros)
        return self.reduce(losses, positives=positives)
