"""Pair weights of label sets (multi-hot labels)."""

from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.pairs.weight import PairWeight


@final
class SharesLabel(PairWeight):
    """The pairs with at least one label in common, [y_i · y_r > 0].

    Args:
        label_sets: Multi-hot labels of the anchors, zeros and ones of any dtype, shape (N, L).
        reference_label_sets: Multi-hot labels of the references, shape (R, L); None: the anchors are the references.

    Raises:
        ValueError: If label sets are not matrices of zeros and ones over the same labels (values are looked at on the
            CPU).

    Memory:
        O((N + R)·L): a tile is a thin product of its rows' and columns' label sets.

    Example:
        >>> import torch
        >>> SharesLabel(torch.tensor([[1, 0, 1], [0, 0, 1], [0, 1, 0]])).dense()
        tensor([[1., 1., 0.],
                [1., 1., 0.],
                [0., 0., 1.]])
    """

    def __init__(
        self,
        label_sets: Float[Tensor, "n l"] | Int[Tensor, "n l"] | Bool[Tensor, "n l"],
        reference_label_sets: Float[Tensor, "r l"] | Int[Tensor, "r l"] | Bool[Tensor, "r l"] | None = None,
    ) -> None:
        self.anchors = _multi_hot(label_sets, "label_sets")
        symmetric = reference_label_sets is None
        self.references = (
            self.anchors if reference_label_sets is None else _multi_hot(reference_label_sets, "reference_label_sets")
        )
        if self.anchors.shape[1] != self.references.shape[1]:
            raise ValueError(
                f"label sets of anchors and references have the same labels, got {self.anchors.shape[1]} and "
                f"{self.references.shape[1]}; give both over the same L"
            )
        shape = (len(self.anchors), len(self.references))
        super().__init__(shape, is_set=True, is_nonnegative=True, is_symmetric=symmetric)

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        anchors = self.anchors[rows].to(device, torch.float32)
        references = self.references[columns].to(device, torch.float32)
        return (anchors @ references.T).gt_(0).to(dtype)


def _multi_hot(labels: Tensor, name: str) -> Tensor:
    labels = torch.as_tensor(labels).detach()
    if labels.ndim != 2:
        raise ValueError(f"{name} is multi-hot, shape (n, labels), got shape {tuple(labels.shape)}")
    if labels.dtype != torch.bool and labels.device.type == "cpu" and not ((labels == 0) | (labels == 1)).all():
        raise ValueError(
            f"{name} is multi-hot, only zeros and ones, got other values; class labels go to SameClass as a vector (n,)"
        )
    return labels.to(torch.bool, copy=True)
