"""InfoPatch: cells of a query classified among the classes of its episode, and all cells among all classes."""

from typing import final

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.losses.base import Loss
from likewise.losses.checks import check_classes, check_number, check_tensor
from likewise.losses.patch import PatchLoss
from likewise.operator import Backend
from likewise.operator.inputs import check_finite, check_floating


@final
class InfoPatchLoss(Loss):
    r"""InfoPatch: the local loss of a query's cells within their episode, and the global loss of all cells.

    $$
    \ell = w_g \, \ell_\text{global} + w_l \, \ell_\text{local}
    $$

    The local loss is `PatchLoss`: identify the class of a query's cell among the classes of its episode. The global
    loss is a classifier's cross-entropy: identify the class of every cell, of supports and queries, among all training
    classes. How supports are masked and queries mixed is decided by the batches and inputs that it is trained with.

    Args:
        scale: 1/τ > 0 of the local loss.
        local_weight: w_l ≥ 0.
        global_weight: w_g ≥ 0. With 0 no classifier is asked for.
        backend: See `LossOptions`.

    Attributes:
        last: ``"local_loss"``, and with a classifier ``"global_loss"`` and ``"global_accuracy"``, the share of cells
            whose largest logit is that of their class.

    Returns:
        A call returns a scalar. If every process holds the same number of episodes, the mean of the processes' losses
        is the loss of all of them.

    Memory:
        That of `PatchLoss`, and O(cells·C).

    Source:
        Liu et al., "Learning a Few-shot Embedding Model with Contrastive Learning", 2021; the weights are those of the
        authors' code.

    Example:
        >>> import torch
        >>> query_maps = torch.eye(2).view(1, 2, 2, 1, 1).expand(1, 2, 2, 3, 3)
        >>> support_maps = torch.eye(2).view(1, 2, 2, 1, 1)
        >>> cell_labels = torch.arange(2).view(1, 2, 1, 1).expand(1, 2, 3, 3)
        >>> map_logits, map_labels = torch.zeros(4, 3, 3, 10), torch.zeros(4, 3, 3, dtype=torch.int64)
        >>> InfoPatchLoss(scale=1.0)(
        ...     query_maps, support_maps, cell_labels, map_logits=map_logits, map_labels=map_labels
        ... )
        tensor(2.4592)
    """

    label_kinds = frozenset({"classes"})

    def __init__(
        self,
        *,
        scale: float | Tensor = 7.0,
        local_weight: float = 0.5,
        global_weight: float = 1.0,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.local_weight = check_number("local_weight", local_weight, 0, 1e6, "0.5")
        self.global_weight = check_number("global_weight", global_weight, 0, 1e6, "1")
        if local_weight == 0 and global_weight == 0:
            raise ValueError("expected a local_weight or global_weight above 0, got 0 for both: raise one of them")
        self.patch = PatchLoss(scale=scale, backend=backend)
        self.scale = scale
        self.backend: Backend = backend

    @property
    def unused(self) -> frozenset[str]:
        """Names of the forward arguments that it does not use with these weights."""
        return frozenset() if self.global_weight else frozenset({"map_logits", "map_labels"})

    def forward(
        self,
        query_maps: Float[Tensor, "e q d h w"],
        support_maps: Float[Tensor, "e k d h2 w2"],
        cell_labels: Int[Tensor, "e q h w"],
        *,
        map_logits: Float[Tensor, "m h w c"] | None = None,
        map_labels: Int[Tensor, "m h w"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the loss of a batch of episodes.

        Args:
            query_maps: Feature maps of each episode's queries, (E, Q, D, H, W).
            support_maps: One feature map for each class of each episode, (E, K, D, H', W').
            cell_labels: Each cell's class within its episode, 0 … K − 1, (E, Q, H, W).
            map_logits: For each cell of M images one logit for each of the C training classes, (M, H, W, C). Needed
                unless global_weight is 0.
            map_labels: The training class of each of these cells, 0 … C − 1, (M, H, W).
        """
        local = self.patch(query_maps, support_maps, cell_labels)
        self.last = {"local_loss": local.detach()}
        if not self.global_weight:
            return self.local_weight * local
        logits, classes = _cells(map_logits, map_labels)
        everywhere = functional.cross_entropy(logits, classes)
        self.last["global_loss"] = everywhere.detach()
        self.last["global_accuracy"] = (logits.detach().argmax(dim=1) == classes).float().mean()
        return self.global_weight * everywhere + self.local_weight * local


def _cells(map_logits: Tensor | None, map_labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return checked logits of cells as rows, float32 or wider, and the class of each."""
    if map_logits is None or map_labels is None:
        lacking = "map_logits" if map_logits is None else "map_labels"
        raise ValueError(f"expected {lacking} for the global loss, got none: pass them, or set global_weight to 0")
    check_tensor("map_logits", map_logits)
    check_floating("map_logits", map_logits)
    check_tensor("map_labels", map_labels)
    if map_logits.ndim != 4 or map_labels.shape != map_logits.shape[:3] or map_logits.shape[3] < 2:
        raise ValueError(
            "expected map_logits (M, H, W, C) of two or more classes and map_labels (M, H, W), got shapes "
            f"{tuple(map_logits.shape)} and {tuple(map_labels.shape)}: move the classes to the last dimension"
        )
    check_finite("map_logits", map_logits)
    check_classes("map_labels", map_labels.flatten(), "cells", map_labels.numel(), map_logits.shape[3])
    rows = map_logits.flatten(0, 2)
    return rows.float() if rows.dtype.itemsize < 4 else rows, map_labels.flatten().to(rows.device)
