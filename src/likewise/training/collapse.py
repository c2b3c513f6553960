"""Collapse, named in the epoch in which it happens: all embeddings have the same direction."""

from collections.abc import Callable
from typing import Any, final

import lightning
import torch
from torch import Tensor

from likewise.diagnostics import spread
from likewise.training.step import Step

LEAST = 1e-4  # spread of a batch's embeddings: below it, two samples have a mean cosine above 0.9999


@final
class Collapse(lightning.Callback):
    """Look at the embeddings of each epoch's last batch, and say when they have collapsed.

        1 − ‖z̄‖² < 10⁻⁴,   z̄ the mean of the batch's normalised embeddings

    They are what the loss is of: embeddings, features where there is no head, or means of feature maps. Nothing more
    is computed, and with several processes they are those of the first. A collapse is told once.

    Args:
        tell: Takes the warning.

    Example:
        >>> Collapse(print).collapsed
        False
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.collapsed = False
        self._rows: Tensor | None = None

    def on_train_batch_start(self, trainer: lightning.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Ask for the embeddings in the last step of an epoch."""
        del batch
        self._rows = None
        is_last = batch_idx + 1 >= trainer.num_training_batches and trainer.is_global_zero
        pl_module.observer = self._receive if is_last else None

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure how far the embeddings are spread."""
        del pl_module, outputs, batch, batch_idx
        rows, self._rows = self._rows, None
        if rows is None or len(rows) < 2 or not torch.isfinite(rows).all():
            return
        if not self.collapsed and (spread_out := spread(rows)) < LEAST:
            self.collapsed = True
            self.tell(
                f"after epoch {trainer.current_epoch + 1} the embeddings have collapsed: those of a batch have a mean "
                f"cosine of {1 - spread_out:.6f}, so the encoder tells no samples apart; lower the learning rate, "
                "raise the temperature, or, for a method without negatives, see to its momentum encoder and predictor"
            )

    def _receive(self, step: Step) -> None:
        rows = step.represented
        self._rows = None if rows is None else rows.detach().float().cpu()
