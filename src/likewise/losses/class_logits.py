"""Checked logits of classes or labels, one row for each view, for the losses that use nothing else."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.losses.checks import check_classes, check_label_sets, check_tensor
from likewise.operator.inputs import check_finite, check_floating


def with_classes(class_logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return checked logits as rows (B·V, C), float32 or wider, and the class of each, (B·V,)."""
    _check_logits(class_logits, "class")
    if class_logits.shape[-1] < 2:
        raise ValueError(
            "expected class_logits to have at least two classes, got one, which every sample would belong to: "
            "use two classes, or BCELoss with label sets over one label"
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
    """Return 2 TP / (2 TP + FP + FN) over all labels of all rows; a label with a positive logit is predicted."""
    predicted: Bool[Tensor, "n l"] = rows > 0
    both = (sets * predicted).sum()
    return 2 * both / (sets.sum() + predicted.sum()).clamp(min=1)


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
            f"expected class_logits to have a logit for each {of}, (B, C), or with views (B, V, C), "
            f"got shape {tuple(class_logits.shape)}: apply one linear layer to each row"
        )
    check_finite("class_logits", class_logits)
