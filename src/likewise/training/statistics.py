"""What a loss records of its steps, over each epoch: histograms, and means of the values of anchors, by class."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any, final

import lightning
import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.data import Batch
from likewise.records import ClassMean
from likewise.runs import Run

HISTOGRAM, BY_ANCHOR = "_histogram", "_by_anchor"
"""How the names in a loss's `last` end that are not logged as curves, but summed here."""


@final
class Statistics(lightning.Callback):
    """Sum what the loss leaves in `last`, and write it at the end of each epoch.

    A name that ends in ``_histogram`` holds counts, added over an epoch. One that ends in ``_by_anchor`` holds
    the sum of some values for each anchor of this process, and how many there are, (2, V·B), view-major; if the samples
    have classes, the means of the anchors of each class, of all processes, are averaged over an epoch. All processes
    need it; the first one writes.

    Args:
        run: The run to write to: histograms.csv and classes.csv.
        names: The classes' names.
    """

    def __init__(self, run: Run, names: Sequence[str] = ()) -> None:
        self.run = run
        self.names = tuple(names)
        self._sums: dict[str, Tensor] = {}

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Drop the rows of epochs that training repeats."""
        del pl_module
        if trainer.is_global_zero:
            self._write(trainer.current_epoch + 1, {})

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add what the step left; at the end of the epoch write the sums."""
        del outputs
        last: dict[str, Tensor] = getattr(pl_module.loss, "last", {})
        for name, value in last.items():
            if name.endswith(HISTOGRAM):
                self._add(name, value.detach())
            elif name.endswith(BY_ANCHOR) and self.names and _has_classes(batch):
                own = by_class(value.detach(), batch["labels"].to(value.device), len(self.names))
                self._add(name, trainer.strategy.reduce(own, reduce_op="sum"))  # a checkpoint is that of one process
        if batch_idx + 1 >= trainer.num_training_batches and self._sums:
            if trainer.is_global_zero and not trainer.fast_dev_run:  # pyright: ignore[reportAttributeAccessIssue]
                self._write(trainer.current_epoch + 1, self._sums)
            self._sums = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the current epoch."""
        return {"sums": {name: value.cpu() for name, value in self._sums.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the sums of the current epoch."""
        self._sums = {name: torch.as_tensor(value) for name, value in state_dict["sums"].items()}

    def _add(self, name: str, value: Tensor) -> None:
        before = self._sums.get(name)
        self._sums[name] = value.clone() if before is None else before.to(value.device) + value

    def _write(self, epoch: int, sums: Mapping[str, Any]) -> None:
        """Write the rows of earlier epochs, and those of this one."""
        histograms = [
            (name, of, *counts) for name, noted in self.run.histograms.items() for of, counts in noted if of < epoch
        ]
        histograms += [(name, epoch, *value.tolist()) for name, value in sums.items() if name.endswith(HISTOGRAM)]
        means = [astuple(mean) for mean in self.run.class_means if mean.epoch < epoch]
        for name, value in sums.items():
            if name.endswith(BY_ANCHOR):
                means += map(astuple, _means(name.removesuffix(BY_ANCHOR), epoch, self.names, value))
        for file, rows in ((self.run.histograms_file, histograms), (self.run.class_means_file, means)):
            if rows or file.is_file():
                text = io.StringIO()
                csv.writer(text, lineterminator="\n").writerows(rows)
                self.run.write(file.name, text.getvalue().encode(errors="surrogateescape"))


def by_class(sums: Float[Tensor, "2 n"], labels: Int[Tensor, " b"], classes: int) -> Float[Tensor, "2 c"]:
    """Add the means of anchors by class, from their sums and counts (2, V·B), view-major, and count those with one."""
    of = labels.repeat(sums.shape[1] // max(1, len(labels)))
    means = torch.stack([sums[0] / sums[1].clamp(min=1), (sums[1] > 0).to(sums.dtype)])
    return sums.new_zeros(2, classes).index_add_(1, of, means)


def _has_classes(batch: Batch) -> bool:
    return "labels" in batch and batch["labels"].ndim == 1


def _means(name: str, epoch: int, names: Sequence[str], sums: Tensor) -> list[ClassMean]:
    """Return the mean of each class that has a value."""
    pairs = zip(names, *sums.tolist(), strict=True)
    return [ClassMean(name, epoch, label, total / count, int(count)) for label, total, count in pairs if count]
