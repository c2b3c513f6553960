"""Pretraining: encoder, head and loss as one Lightning module."""

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, final

import lightning
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from likewise.data import Batch
from likewise.losses import ContrastiveLoss
from likewise.models import Encoder, Head

OptimizerCallable = Callable[[Iterable[nn.Parameter]], Optimizer]
STEPS_BETWEEN_CHECKS = 50  # looking at a value makes an accelerator wait; a CPU looks at every step


@final
class Pretraining(lightning.LightningModule):
    """Train an encoder by contrast, under a cosine schedule from the optimizer's learning rate to 0.

        z = g(f(views)),   minimise loss(z, what else of the batch the loss names)

    Args:
        encoder: f; what is kept.
        head: g; what only training uses.
        loss: The loss. Its forward receives the embeddings (B, V, E) first, and `labels` and `sample_index` (B,) where
            it has parameters of these names. What it leaves in `last` is logged.
        optimizer: Makes the optimizer from the parameters of all three.

    Raises:
        ValueError: The loss is not reduced. In training, when embeddings or loss stop being finite, and when the
            trainer's length is infinite.

    Example:
        >>> import likewise as lw
        >>> from likewise.models import MLP, ProjectionHead
        >>> module = Pretraining(MLP((3,), width=8), ProjectionHead(8), lw.SupConLoss(), torch.optim.AdamW)
        >>> module(torch.zeros(4, 3)).shape
        torch.Size([4, 8])
    """

    def __init__(self, encoder: Encoder, head: Head, loss: ContrastiveLoss, optimizer: OptimizerCallable) -> None:
        super().__init__()
        if loss.reduction == "none":
            raise ValueError("expected a loss with reduction mean or sum, one value a batch, got none: choose mean")
        self.encoder = encoder
        self.head = head
        self.loss = loss
        self._make_optimizer = optimizer
        self._asked_for = [name for name in ("labels", "sample_index") if name in _parameters(loss)]

    def forward(self, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """Encode inputs (N, ...) to features (N, D), without the head."""
        return self.encoder(inputs)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Contrast one batch."""
        views = batch["inputs"]
        embeddings = self.head(self.encoder(views.flatten(0, 1))).unflatten(0, views.shape[:2])
        self._check_finite("embeddings", embeddings, batch_idx)
        loss = self.loss(embeddings, **{name: batch[name] for name in self._asked_for})
        if loss.ndim:
            raise ValueError(f"expected one loss a batch, got {tuple(loss.shape)}: reduce it by its mean or sum")
        self._check_finite("loss", loss, batch_idx)
        self.log("loss", loss, prog_bar=True, batch_size=len(views))
        self.log("learning_rate", self.optimizers().param_groups[0]["lr"], batch_size=len(views))  # pyright: ignore[reportAttributeAccessIssue]
        for name, value in self.loss.last.items():
            self.log(name, value.float().mean(), batch_size=len(views))
        return loss

    def configure_optimizers(self) -> Any:
        """Make the optimizer and its cosine schedule, one step a batch."""
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise ValueError("expected a training of finite length, got no limit: set trainer.max_epochs or max_steps")
        optimizer = self._make_optimizer(self.parameters())
        schedule = CosineAnnealingLR(optimizer, T_max=max(1, int(steps)))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _check_finite(self, name: str, value: Tensor, batch_idx: int) -> None:
        if value.device.type != "cpu" and batch_idx % STEPS_BETWEEN_CHECKS:
            return
        if not torch.isfinite(value).all():
            raise ValueError(
                f"expected finite {name}, got NaN or infinity at step {self.global_step}, training has diverged: "
                "lower the learning rate or raise the temperature"
            )


def _parameters(loss: ContrastiveLoss) -> Iterable[str]:
    return inspect.signature(loss.forward).parameters
