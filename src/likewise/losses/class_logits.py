"""Logits of classes or labels, as losses of these alone take them: checked, and one row for each view."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.losses.checks import check_classes, check_label_sets, check_tensor
from likewise.operator.contrast import check_finite
from likewise.operator.inputs import check_floating


def with_classes(class_logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return checked logits as rows (B·V, C), float32 or wider, and the class of each, (B·V,)."""
    _check_logits(class_logits, "class")
    if class_logits.shape[-1] < 2:
        raise ValueError(
            "class_logits are of two classes or more, got one, which every sample is of; "
            "give two, or a label set of one label to BCELoss"
        )
    check_classes("labels", labels, "samples", len(class_logits), class_logits.shape[-1])
    return _rows(class_logits, labels.to(class_logits.device, torch.int64))


def with_label_sets(class_logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return checked logits as rows (B·V, L), float32 or wider, and the label set of each in the same dtype."""
    _check_logits(class_logits, "label")
    check_label_sets("labels", labels, "samples", len(class_logits), class_logits.shape[-1])
    rows, sets = _rows(class_logits, labels.to(class_logits.device))
    return rows, sets.to(rows.dtype)


def micro_f1(rows: Float[Tensor, "n l"], sets: Float[Tensor, "n l"]) -> Float[Tensor, ""]:
    """Return 2 TP / (2 TP + FP + FN) over all labels of all rows, a label being told where its logit is positive."""
    told: Bool[Tensor, "n l"] = rows > 0
    both = (sets * told).sum()
    return 2 * both / (sets.sum() + told.sum()).clamp(min=1)


def _rows(class_logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Flatten views, (B, V, C), each with its sample's labels; widen half precision."""
    rows = class_logits.to(torch.promote_types(class_logits.dtype, torch.float32))
    if rows.ndim == 2:
        return rows, labels
    return rows.flatten(0, 1), labels.repeat_interleave(rows.shape[1], dim=0)


def _check_logits(class_logits: Tensor, of: str) -> None:
    check_tensor("class_logits", class_logits)
    check_floating("class_logits", class_logits)
    if class_logits.ndim not in (2, 3) or 0 in class_logits.shape[1:]:
        raise ValueError(
            f"class_logits are a logit for each {of} of each sample, (B, C), or of each of its views, (B, V, C), "
            f"got shape {tuple(class_logits.shape)}; classify each row with one linear layer"
        )
    check_finite("class_logits", class_logits)
