"""What the loss receives in the last step of the first epoch and of the last, kept with the run."""

from collections.abc import Mapping
from typing import Any, final

import lightning
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from likewise.data import Batch
from likewise.diagnostics import Snapshot, load_snapshots, save_snapshots
from likewise.runs import Run
from likewise.training.inputs.signature import EMBEDDINGS, LossSignature

MOST_ROWS = 2048  # of a snapshot: whole samples, the first of the batch
FIRST, LAST = "first", "last"


@final
class Snapshots(lightning.Callback):
    """Keep the embeddings that the loss received in the last step of the first epoch and of the last.

    Snapshots of losses whose forward takes `embeddings` are written to the run's batches.npz. At the end of every
    epoch after the first, the last one is replaced, so that it is there however the training ends. A hook on the loss
    reads the embeddings in these steps only; the training and its random numbers do not change. With several
    processes, the rows are those of the first.

    Args:
        run: The run to write to.

    Memory:
        At most 2,048 rows: whole samples, the first of the batch.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._received: Tensor | None = None
        self._hook: RemovableHandle | None = None

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Listen to the loss in the last step of an epoch."""
        del batch
        self._forget()
        loss: Any = pl_module.loss
        if _is_last(trainer, batch_idx) and EMBEDDINGS in LossSignature.by(type(loss)).names:
            self._hook = loss.register_forward_pre_hook(self._receive, with_kwargs=True)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write what the loss received."""
        del outputs, batch_idx
        received = self._received
        self._forget()
        if received is None:
            return
        first = trainer.current_epoch == 0
        kept = {} if first or not self.run.batches.is_file() else load_snapshots(self.run.batches)
        kept[FIRST if first else LAST] = _snapshot(trainer, pl_module.loss, received, batch)
        with self.run.writing(self.run.batches.name) as path:
            save_snapshots(path, kept)

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Leave no hook behind."""
        del trainer, pl_module, exception
        self._forget()

    def _receive(self, loss: Any, views: tuple[Tensor, ...], named: Mapping[str, Any]) -> None:
        """Remember the embeddings of this call of the loss; views are given by position."""
        del loss
        self._received = (views[0] if views else named[EMBEDDINGS]).detach()

    def _forget(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._received = None


def _is_last(trainer: lightning.Trainer, batch_idx: int) -> bool:
    """Return whether this step ends an epoch, or the training, and its process writes."""
    ends = batch_idx + 1 >= trainer.num_training_batches or 0 < trainer.max_steps <= trainer.global_step + 1
    return ends and trainer.is_global_zero and not trainer.fast_dev_run  # pyright: ignore[reportAttributeAccessIssue]


def _snapshot(trainer: lightning.Trainer, loss: Any, received: Tensor, batch: Batch) -> Snapshot:
    """Return the first samples of a batch as a snapshot."""
    few = max(1, MOST_ROWS // (received.shape[1] if received.ndim == 3 else 1))
    labels, temperature = batch.get("labels"), getattr(loss, "temperature", None)
    return Snapshot(
        embeddings=received[:few].float().cpu(),
        sample_index=batch["sample_index"][:few].cpu(),
        labels=None if labels is None else labels[:few].cpu(),
        epoch=trainer.current_epoch + 1,
        step=trainer.fit_loop.epoch_loop.total_batch_idx,
        samples=len(received) * (trainer.world_size if getattr(loss, "gathers", False) else 1),
        temperature=torch.nan
        if temperature is None
        else float(torch.as_tensor(temperature, dtype=torch.float64).detach()),
    )
