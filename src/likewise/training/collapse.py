"""Collapse, named in the epoch in which it happens: all embeddings have the same direction."""

from collections.abc import Callable
from typing import Any, final

import lightning
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from likewise.diagnostics import spread

LEAST = 1e-4  # spread of a batch's embeddings: below it, two samples have a mean cosine above 0.9999


@final
class Collapse(lightning.Callback):
    """Look at the embeddings of each epoch's last batch, and say when they have collapsed.

        1 − ‖z̄‖² < 10⁻⁴,   z̄ the mean of the batch's normalised embeddings

    A hook on the head, or on the encoder where there is no head, reads the embeddings in these steps only; the training
    and its random numbers do not change. With several processes, they are those of the first. A collapse is told once.

    Args:
        tell: Takes the warning.

    Example:
        >>> Collapse(print).collapsed
        False
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.collapsed = False
        self._received: list[Tensor] = []
        self._hook: RemovableHandle | None = None

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Listen to the head in the last step of an epoch."""
        del batch
        self._forget()
        if batch_idx + 1 >= trainer.num_training_batches and trainer.is_global_zero:
            head: Any = pl_module.head
            part: Any = pl_module.encoder if head is None else head
            self._hook = part.register_forward_hook(self._receive)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure how far the embeddings are spread."""
        del pl_module, outputs, batch, batch_idx
        received = [of for of in self._received if of.ndim == 2]
        self._forget()
        rows = torch.cat(received) if received else torch.zeros(0, 1)
        if len(rows) < 2 or not torch.isfinite(rows).all():
            return
        if not self.collapsed and (spread_out := spread(rows)) < LEAST:
            self.collapsed = True
            self.tell(
                f"after epoch {trainer.current_epoch + 1} the embeddings have collapsed: those of a batch have a mean "
                f"cosine of {1 - spread_out:.6f}, so the encoder tells no samples apart; lower the learning rate, "
                "raise the temperature, or, for a method without negatives, see to its momentum encoder and predictor"
            )

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Leave no hook behind."""
        del trainer, pl_module, exception
        self._forget()

    def _receive(self, part: Any, inputs: Any, output: Tensor) -> None:
        del part, inputs
        self._received.append(output.detach().float().cpu())

    def _forget(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = None
        self._received = []
