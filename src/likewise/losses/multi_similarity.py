"""Multi-similarity: positives and negatives each in a soft maximum of their own."""

from collections.abc import Sequence
from typing import Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import LossOptions
from likewise.losses.checks import check_number, check_positive
from likewise.losses.class_loss import ClassLoss
from likewise.losses.contrast_batch import ContrastBatch
from likewise.operator import ContrastSpec, Push
from likewise.pairs import Below, Hardest


@final
class MultiSimilarityLoss(ClassLoss):
    r"""Multi-similarity: pull positives above a threshold and push negatives below it, the hardest of each the most.

    With s the cosine, P(i) the other rows of anchor i's class and N(i) those of other classes,

    $$
    \ell_i = \frac{1}{\alpha} \log \Bigl( 1 + \sum_{p \in P(i)} e^{-\alpha (s_{ip} - \lambda)} \Bigr)
           + \frac{1}{\beta} \log \Bigl( 1 + \sum_{n \in N(i)} e^{\beta (s_{in} - \lambda)} \Bigr)
    $$

    Every row with another one is active. A queue's rows, or those of references, are other rows, and no anchors.

    Args:
        alpha: α > 0, the scale of positives.
        beta: β > 0, the scale of negatives.
        threshold: λ, in units of the cosine.
        epsilon: ε, to keep only positives with s ≤ max_n s_in + ε and negatives with s > min_p s_ip − ε; None: all.

    Memory:
        O((N + R)·D + tile). With ε, similarities are computed twice more, and again wherever the weights are.

    Source:
        Wang, Han, Huang, Dong, Scott, "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning",
        2019, where λ = 1 and ε = 0.1. The defaults are those of pytorch-metric-learning.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> MultiSimilarityLoss()(embeddings, torch.tensor([0, 0, 1, 1]))
        tensor(0.1580)
    """

    def __init__(
        self, *, alpha: float = 2.0, beta: float = 50.0, threshold: float = 0.5, epsilon: float | None = None,
        **options: Unpack[LossOptions],
    ) -> None:  # fmt: skip
        super().__init__(1.0, **options)
        self.alpha = check_positive("alpha", alpha, "2")
        self.beta = check_positive("beta", beta, "40 to 50")
        self.threshold = check_number("threshold", threshold, -1e6, 1e6, "0.5 to 1")
        self.epsilon = None if epsilon is None else check_number("epsilon", epsilon, -1e6, 1e6, "0.1")

    def of_classes(
        self, rows: ContrastBatch, classes: Int[Tensor, " n"], sections: Sequence[Int[Tensor, " r"]]
    ) -> Float[Tensor, "..."]:
        """Return the loss of rows by their classes."""
        same, not_self = rows.same_class(classes, sections), rows.all_others()
        positives = same & not_self
        near, far = positives, ~same
        if self.epsilon is not None:
            z, v = (vectors.detach() for vectors in self.vectors(rows))
            nearest = Hardest(z, far, references=v).similarities[:, 0] + self.epsilon
            farthest = Hardest(z, near, references=v, farthest=True).similarities[:, 0] - self.epsilon
            near, far = near & Below(z, v, limits=nearest), far & ~Below(z, v, limits=farthest)
        (p, n), *_ = self.outcome(rows, ContrastSpec((Push(near, -self.alpha), Push(far, self.beta))))
        zero, active = torch.zeros_like(p), not_self.support(p.device)
        p, n = p + self.alpha * self.threshold, n - self.beta * self.threshold
        losses = torch.logaddexp(p, zero) / self.alpha + torch.logaddexp(n, zero) / self.beta
        return self.reduce(losses, active, positives)
