"""Histograms that a loss records, such as RASCAL's of rank drift: summed over an epoch, one row each."""

import csv
import io
from typing import Any, final

import lightning
import torch
from torch import Tensor

from likewise.runs import Run

ENDING = "_histogram"


@final
class Histograms(lightning.Callback):
    """Sum the histograms that the loss leaves in `last`, and write them at the end of each epoch.

    Args:
        run: The run to write to.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._sums: dict[str, Tensor] = {}

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Drop the rows of epochs that training repeats."""
        del pl_module
        if trainer.is_global_zero and self.run.histograms_file.is_file():
            self._write(trainer.current_epoch, {})

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the step's counts; at the end of the epoch write the sums."""
        del outputs, batch
        last: dict[str, Tensor] = getattr(pl_module.loss, "last", {})
        for name, counts in last.items():
            if name.endswith(ENDING):
                before = self._sums.get(name)
                self._sums[name] = counts.detach().clone() if before is None else before.to(counts.device) + counts
        if batch_idx + 1 >= trainer.num_training_batches and self._sums:
            if trainer.is_global_zero and not trainer.fast_dev_run:  # pyright: ignore[reportAttributeAccessIssue]
                self._write(trainer.current_epoch, self._sums)
            self._sums = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the current epoch."""
        return {"sums": {name: counts.cpu() for name, counts in self._sums.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the sums of the current epoch."""
        self._sums = {name: torch.as_tensor(counts) for name, counts in state_dict["sums"].items()}

    def _write(self, epoch: int, sums: dict[str, Tensor]) -> None:
        """Write the rows of earlier epochs, and those of this one."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        for name, noted in self.run.histograms.items():
            rows.writerows((name, of, *counts) for of, counts in noted if of < epoch)
        rows.writerows((name, epoch, *counts.tolist()) for name, counts in sums.items())
        self.run.write(self.run.histograms_file.name, text.getvalue().encode())
