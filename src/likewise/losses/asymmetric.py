"""The asymmetric loss (ASL): binary cross-entropy in which easy negatives count little or not at all."""

import math
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.losses.base import Loss, scalar
from likewise.losses.checks import check_number
from likewise.losses.class_logits import micro_f1, with_label_sets


@final
class AsymmetricLoss(Loss):
    r"""Asymmetric loss: predict each label, down-weighting easy examples, and easy negatives the most.

    $$
    \ell_i = -\sum_c \bigl( y_{ic} \, (1 - p_{ic})^{\gamma_+} \log p_{ic}
             + (1 - y_{ic}) \, \tilde p_{ic}^{\,\gamma_-} \log (1 - \tilde p_{ic}) \bigr), \qquad
    \tilde p_{ic} = \max(p_{ic} - m, 0)
    $$

    with g_ic the logit of row i for label c, and p_ic = 1/(1 + e^{−g_ic}). A negative with p ≤ m has neither loss nor
    gradient. With γ₊ = γ₋ = m = 0 this is L times `BCELoss`; with γ₊ = γ₋ and m = 0 it is the focal loss. It is not a
    contrastive loss and has none of their options. If every process holds the same number of samples, the mean of the
    processes' losses is the loss of the whole batch.

    Args:
        gamma_negative: γ₋ ≥ 0, how strongly easy negatives are down-weighted.
        gamma_positive: γ₊ ≥ 0, how strongly easy positives are down-weighted.
        clip: m between 0 and 0.99; a negative with at most this probability is ignored.

    Attributes:
        last: ``"micro_f1"``, F1 over all labels of all rows, predicting those with p > 1/2; 0 if there are neither
            true nor predicted labels.

    Returns:
        A call returns the sum over labels, averaged over rows, a scalar, float32 or wider; 0 for an empty batch.

    Raises:
        ValueError: If γ₋ or γ₊ is negative, m is not between 0 and 0.99, or a call's input is invalid; see `forward`.

    Memory:
        O(N·L).

    Source:
        Ridnik, Ben-Baruch, Zamir, Noy, Friedman, Protter, Zelnik-Manor, "Asymmetric Loss for Multi-Label
        Classification", 2021, section 2; the defaults are those of its training on MS-COCO. The authors' code sums over
        rows as well, giving B times the value; its trainer treats the powers as constants in the gradient, whereas here
        they are differentiated, as in the paper's analysis; and it clamps probabilities to at least 10⁻⁸, so that a
        positive with a logit below −18 has no gradient. Its class defaults to γ₊ = 1, its trainer to 0.

    Example:
        >>> import torch
        >>> class_logits, labels = torch.tensor([[2.0, 0.0, -2.0]]), torch.tensor([[1, 0, 0]])
        >>> AsymmetricLoss()(class_logits, labels)
        tensor(0.1514)
    """

    label_kinds = frozenset({"label sets"})
    whole = True

    def __init__(self, *, gamma_negative: float = 4.0, gamma_positive: float = 0.0, clip: float = 0.05) -> None:
        super().__init__()
        self.gamma_negative = check_number("gamma_negative", gamma_negative, 0, 1e6, "2 to 4")
        self.gamma_positive = check_number("gamma_positive", gamma_positive, 0, 1e6, "0 to 1")
        self.clip = check_number("clip", clip, 0, 0.99, "0 to 0.2")

    def forward(self, class_logits: Float[Tensor, "..."], labels: Int[Tensor, "b l"]) -> Float[Tensor, ""]:
        """Return the loss of a batch.

        Args:
            class_logits: One logit per label for each sample, (B, L), or for each of its V views, (B, V, L).
            labels: Multi-hot labels of the samples, zeros and ones, (B, L).

        Raises:
            ValueError: If shapes or lengths do not match, logits hold NaN or infinity, or labels are not zeros and ones
                (values are checked on the CPU only).
        """
        rows, sets = with_label_sets(class_logits, labels)
        self.last = {"micro_f1": micro_f1(rows.detach(), sets)}
        likelihoods = torch.where(sets > 0, self._of_positives(rows), self._of_negatives(rows))
        return -likelihoods.sum() / max(len(rows), 1)

    def _of_positives(self, logits: Tensor) -> Tensor:
        """Return (1 − p)^γ log p; the power is computed from the logarithm, which is finite where 1 − p is zero."""
        return (self.gamma_positive * functional.logsigmoid(-logits)).exp() * functional.logsigmoid(logits)

    def _of_negatives(self, logits: Tensor) -> Tensor:
        """Return p̃^γ log(1 − p̃), where 1 − p̃ = (1 − p) + m unless p ≤ m."""
        shifted = torch.sigmoid(logits) - self.clip
        margin = scalar(math.log(self.clip) if self.clip else -math.inf, logits)
        likelihoods = torch.logaddexp(functional.logsigmoid(-logits), margin)
        hard = shifted > 0
        return (shifted.where(hard, 1) ** self.gamma_negative * likelihoods).where(hard, 0)
