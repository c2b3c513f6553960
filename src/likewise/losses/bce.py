"""Binary cross-entropy of each label: the baseline of every contrast with label sets."""

from typing import final

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.losses.base import Loss, scalar
from likewise.losses.checks import check_positive
from likewise.losses.class_logits import micro_f1, with_label_sets


@final
class BCELoss(Loss):
    r"""Binary cross-entropy: of each label, tell whether the sample carries it.

    $$
    \ell_i = -\frac{1}{L} \sum_c \bigl( w \, y_{ic} \log p_{ic} + (1 - y_{ic}) \log (1 - p_{ic}) \bigr), \qquad
    p_{ic} = \frac{1}{1 + e^{-g_{ic}}}
    $$

    with g_ic the logit of row i for label c, and w the positive weight. It is PyTorch's own, and no contrast: it has
    none of the options of the contrastive losses. Where processes hold as many samples each, the mean of their losses
    is the loss of all.

    Args:
        positive_weight: w > 0, how much a label that is carried weighs, where one that is not weighs 1.

    Attributes:
        last: ``"micro_f1"``, F1 over all labels of all rows, those told that have p > 1/2; 0 where none is carried or
            told.

    Returns:
        From a call, see `forward`: the mean over labels and rows, as PyTorch's, a scalar, float32 or wider; 0 of none.

    Raises:
        ValueError: If w is not positive, or a call's input does not agree; see `forward`.

    Memory:
        O(N·L).

    Source:
        Without weights, the likelihood of L logistic regressions; w is PyTorch's ``pos_weight``.

    Example:
        >>> import torch
        >>> class_logits, labels = torch.tensor([[2.0, 0.0, -2.0]]), torch.tensor([[1, 1, 0]])
        >>> loss_of = BCELoss()
        >>> loss_of(class_logits, labels)
        tensor(0.3157)
        >>> loss_of.last["micro_f1"]
        tensor(0.6667)
    """

    label_kinds = frozenset({"label sets"})

    def __init__(self, *, positive_weight: float = 1.0) -> None:
        super().__init__()
        self.positive_weight = check_positive("positive_weight", positive_weight, "1 to 100")

    def forward(self, class_logits: Float[Tensor, "..."], labels: Int[Tensor, "b l"]) -> Float[Tensor, ""]:
        """Return the loss of a batch.

        Args:
            class_logits: A logit for each label, of each sample, (B, L), or of each of its V views, (B, V, L).
            labels: Multi-hot labels of the samples, zeros and ones, (B, L).

        Raises:
            ValueError: If shapes or lengths disagree, logits hold NaN or infinity, or labels are not zeros and ones
                (values are looked at on the CPU).
        """
        rows, sets = with_label_sets(class_logits, labels)
        self.last = {"micro_f1": micro_f1(rows.detach(), sets)}
        weight = scalar(self.positive_weight, rows)
        total = functional.binary_cross_entropy_with_logits(rows, sets, pos_weight=weight, reduction="sum")
        return total / max(rows.numel(), 1)
