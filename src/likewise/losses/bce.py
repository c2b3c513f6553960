"""Binary cross-entropy of each label: the baseline for contrastive losses with label sets."""

from typing import final

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.losses.base import Loss, scalar
from likewise.losses.checks import check_positive
from likewise.losses.class_logits import micro_f1, with_label_sets


@final
class BCELoss(Loss):
    r"""Binary cross-entropy: predict for each label whether the sample has it.

    $$
    \ell_i = -\frac{1}{L} \sum_c \bigl( w \, y_{ic} \log p_{ic} + (1 - y_{ic}) \log (1 - p_{ic}) \bigr), \qquad
    p_{ic} = \frac{1}{1 + e^{-g_{ic}}}
    $$

    with g_ic the logit of row i for label c, and w the positive weight. It is PyTorch's own loss. It is not a
    contrastive loss and has none of their options. If every process holds the same number of samples, the mean of the
    processes' losses is the loss of the whole batch.

    Args:
        positive_weight: w > 0, the weight of a label that the sample has, relative to 1 for one that it does not have.

    Attributes:
        last: ``"micro_f1"``, F1 over all labels of all rows, predicting those with p > 1/2; 0 if there are neither
            true nor predicted labels.

    Returns:
        A call returns the mean over labels and rows, as in PyTorch, a scalar, float32 or wider; 0 for an empty batch.

    Raises:
        ValueError: If w is not positive, or a call's input is invalid; see `forward`.

    Memory:
        O(N·L).

    Source:
        With w = 1, the negative log-likelihood of L logistic regressions; w is PyTorch's ``pos_weight``.

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
    whole = True

    def __init__(self, *, positive_weight: float = 1.0) -> None:
        super().__init__()
        self.positive_weight = check_positive("positive_weight", positive_weight, "1 to 100")

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
        weight = scalar(self.positive_weight, rows)
        total = functional.binary_cross_entropy_with_logits(rows, sets, pos_weight=weight, reduction="sum")
        return total / max(rows.numel(), 1)
