"""Losses of a classifier's logits, the baselines of contrastive losses: cross-entropy, BCE, and the asymmetric loss."""

import math
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.losses.base import Loss, check_number, check_positive, scalar
from likewise.losses.inputs import check_classes, check_label_sets, check_tensor
from likewise.operator.inputs import check_finite, check_floating


@final
class CrossEntropyLoss(Loss):
    r"""Cross-entropy: identify the sample's class among all classes from a classifier's logits.

    $$
    \ell_i = \log \sum_c e^{g_{ic}} - \sum_c q_{ic} \, g_{ic}, \qquad
    q_{ic} = (1 - \varepsilon) \, [c = y_i] + \frac{\varepsilon}{C}
    $$

    with g_ic the logit of row i for class c, and ε the label smoothing. It is PyTorch's own loss, not a contrastive
    one, and has none of the contrastive options. If every process holds the same number of samples, the mean of the
    processes' losses is the loss of the whole batch.

    Args:
        label_smoothing: ε between 0 and 1, the share of the target spread evenly over all classes.

    Attributes:
        last: ``"accuracy"``, the share of rows with the largest logit at their own class; in a tie the first counts.

    Returns:
        A call returns the mean over all rows, a scalar, float32 or wider; 0 for an empty batch.

    Memory:
        O(N·C).

    Source:
        Label smoothing: Szegedy, Vanhoucke, Ioffe, Shlens, Wojna, "Rethinking the Inception Architecture for Computer
        Vision", 2016, section 7.

    Example:
        >>> class_logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> CrossEntropyLoss()(class_logits, torch.tensor([0, 0]))
        tensor(1.1269)
    """

    label_kinds = frozenset({"classes"})

    def __init__(self, *, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = check_number("label_smoothing", label_smoothing, 0, 1, "0 and 0.1")

    def forward(self, class_logits: Float[Tensor, "..."], labels: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        """Return the loss of a batch.

        Args:
            class_logits: One logit per class for each sample, (B, C), or for each of its V views, (B, V, C).
            labels: Classes of the samples, 0 … C − 1, (B,).
        """
        _check_logits(class_logits, "class")
        if class_logits.shape[-1] < 2:
            expected = "expected class_logits to have at least two classes, got one, which every sample would belong to"
            raise ValueError(f"{expected}: use two classes, or BCELoss with label sets over one label")
        check_classes("labels", labels, "samples", len(class_logits), class_logits.shape[-1])
        rows, classes = _flatten_views(class_logits, labels.to(class_logits.device, torch.int64))
        count = max(len(rows), 1)
        self.last = {"accuracy": (rows.detach().argmax(dim=1) == classes).sum() / count}
        smoothed = functional.cross_entropy(rows, classes, reduction="sum", label_smoothing=self.label_smoothing)
        return smoothed / count


@final
class BCELoss(Loss):
    r"""Binary cross-entropy: predict for each label whether the sample has it.

    $$
    \ell_i = -\frac{1}{L} \sum_c \bigl( w \, y_{ic} \log p_{ic} + (1 - y_{ic}) \log (1 - p_{ic}) \bigr), \qquad
    p_{ic} = \frac{1}{1 + e^{-g_{ic}}}
    $$

    with g_ic the logit of row i for label c, and w the positive weight. It is PyTorch's own loss; for several processes
    see `CrossEntropyLoss`.

    Args:
        positive_weight: w > 0, the weight of a label that the sample has, relative to 1 for an absent one.

    Attributes:
        last: ``"micro_f1"``, F1 over all labels of all rows, predicting labels with p > 1/2; 0 if there are neither
            true nor predicted labels.

    Returns:
        A call returns the mean over labels and rows, as in PyTorch, a scalar, float32 or wider; 0 for an empty batch.

    Memory:
        O(N·L).

    Source:
        With w = 1, the negative log-likelihood of L logistic regressions; w is PyTorch's ``pos_weight``.

    Example:
        >>> class_logits, labels = torch.tensor([[2.0, 0.0, -2.0]]), torch.tensor([[1, 1, 0]])
        >>> BCELoss()(class_logits, labels)
        tensor(0.3157)
    """

    label_kinds = frozenset({"label sets"})
    supports_fullgraph = True

    def __init__(self, *, positive_weight: float = 1.0) -> None:
        super().__init__()
        self.positive_weight = check_positive("positive_weight", positive_weight, "1 to 100")

    def forward(self, class_logits: Float[Tensor, "..."], labels: Int[Tensor, "b l"]) -> Float[Tensor, ""]:
        """Return the loss of a batch.

        Args:
            class_logits: One logit per label for each sample, (B, L), or for each of its V views, (B, V, L).
            labels: Multi-hot labels of the samples, zeros and ones, (B, L).
        """
        rows, sets = _with_label_sets(class_logits, labels)
        self.last = {"micro_f1": _micro_f1(rows.detach(), sets)}
        weight = scalar(self.positive_weight, rows)
        total = functional.binary_cross_entropy_with_logits(rows, sets, pos_weight=weight, reduction="sum")
        return total / max(rows.numel(), 1)


@final
class AsymmetricLoss(Loss):
    r"""Asymmetric loss: predict each label, down-weighting easy examples, and easy negatives the most.

    $$
    \ell_i = -\sum_c \bigl( y_{ic} \, (1 - p_{ic})^{\gamma_+} \log p_{ic}
             + (1 - y_{ic}) \, \tilde p_{ic}^{\,\gamma_-} \log (1 - \tilde p_{ic}) \bigr), \qquad
    \tilde p_{ic} = \max(p_{ic} - m, 0)
    $$

    with g_ic the logit of row i for label c, and p_ic = 1/(1 + e^{−g_ic}). A negative with p ≤ m has neither loss nor
    gradient. With γ₊ = γ₋ = m = 0 this is L times `BCELoss`; with γ₊ = γ₋ and m = 0 it is the focal loss. For several
    processes see `CrossEntropyLoss`.

    Args:
        gamma_negative: γ₋ ≥ 0, how strongly easy negatives are down-weighted.
        gamma_positive: γ₊ ≥ 0, how strongly easy positives are down-weighted.
        clip: m between 0 and 0.99; a negative with at most this probability is ignored.

    Attributes:
        last: ``"micro_f1"``; see `BCELoss`.

    Returns:
        A call returns the sum over labels, averaged over rows, a scalar, float32 or wider; 0 for an empty batch.

    Memory:
        O(N·L).

    Source:
        Ridnik, Ben-Baruch, Zamir, Noy, Friedman, Protter, Zelnik-Manor, "Asymmetric Loss for Multi-Label
        Classification", 2021, section 2; the defaults are the paper's for MS-COCO. The authors' code sums over rows as
        well.

    Example:
        >>> class_logits, labels = torch.tensor([[2.0, 0.0, -2.0]]), torch.tensor([[1, 0, 0]])
        >>> AsymmetricLoss()(class_logits, labels)
        tensor(0.1514)
    """

    label_kinds = frozenset({"label sets"})
    supports_fullgraph = True

    def __init__(self, *, gamma_negative: float = 4.0, gamma_positive: float = 0.0, clip: float = 0.05) -> None:
        super().__init__()
        self.gamma_negative = check_number("gamma_negative", gamma_negative, 0, 1e6, "2 to 4")
        self.gamma_positive = check_number("gamma_positive", gamma_positive, 0, 1e6, "0 to 1")
        self.clip = check_number("clip", clip, 0, 0.99, "0 to 0.2")

    def forward(self, class_logits: Float[Tensor, "..."], labels: Int[Tensor, "b l"]) -> Float[Tensor, ""]:
        """Return the loss of a batch; the arguments are the same as in `BCELoss.forward`."""
        rows, sets = _with_label_sets(class_logits, labels)
        self.last = {"micro_f1": _micro_f1(rows.detach(), sets)}
        log_likelihoods = torch.where(sets > 0, self._positive_terms(rows), self._negative_terms(rows))
        return -log_likelihoods.sum() / max(len(rows), 1)

    def _positive_terms(self, logits: Tensor) -> Tensor:
        """Return (1 − p)^γ log p; the power is computed from the logarithm, which is finite where 1 − p is zero."""
        return (self.gamma_positive * functional.logsigmoid(-logits)).exp() * functional.logsigmoid(logits)

    def _negative_terms(self, logits: Tensor) -> Tensor:
        """Return p̃^γ log(1 − p̃), where 1 − p̃ = (1 − p) + m unless p ≤ m."""
        shifted = torch.sigmoid(logits) - self.clip
        log_clip = scalar(math.log(self.clip) if self.clip else -math.inf, logits)
        log_likelihoods = torch.logaddexp(functional.logsigmoid(-logits), log_clip)
        hard = shifted > 0
        return (shifted.where(hard, 1) ** self.gamma_negative * log_likelihoods).where(hard, 0)


def _with_label_sets(class_logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return checked logits as rows (B·V, L), float32 or wider, and their label sets in the same dtype."""
    _check_logits(class_logits, "label")
    check_label_sets("labels", labels, "samples", len(class_logits), class_logits.shape[-1])
    rows, sets = _flatten_views(class_logits, labels.to(class_logits.device))
    return rows, sets.to(rows.dtype)


def _micro_f1(rows: Float[Tensor, "n l"], sets: Float[Tensor, "n l"]) -> Float[Tensor, ""]:
    """Return 2 TP / (2 TP + FP + FN) over all labels of all rows; a label with a positive logit is predicted."""
    predicted: Bool[Tensor, "n l"] = rows > 0
    both = (sets * predicted).sum()
    return 2 * both / (sets.sum() + predicted.sum()).clamp(min=1)


def _flatten_views(class_logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    rows = class_logits.to(torch.promote_types(class_logits.dtype, torch.float32))
    if rows.ndim == 2:
        return rows, labels
    return rows.flatten(0, 1), labels.repeat_interleave(rows.shape[1], dim=0)


def _check_logits(class_logits: Tensor, target: str) -> None:
    check_tensor("class_logits", class_logits)
    check_floating("class_logits", class_logits)
    if class_logits.ndim not in (2, 3) or 0 in class_logits.shape[1:]:
        expected = f"expected class_logits to have a logit for each {target}, (B, C), or with views (B, V, C)"
        raise ValueError(f"{expected}, got shape {tuple(class_logits.shape)}: apply one linear layer to each row")
    check_finite("class_logits", class_logits)
