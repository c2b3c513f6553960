"""Callbacks of a training that record statistics and snapshots, warn of collapse, and report the pace."""

import csv
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from datetime import datetime, timedelta
from typing import Any, final

import torch
from jaxtyping import Float, Int
from lightning import Callback, Trainer
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from likewise.data import Batch
from likewise.diagnostics import Snapshot, load_snapshots, save_snapshots, spread
from likewise.runs import Run
from likewise.training.inputs.loss_input import EMBEDDINGS, LossSignature, Step

HISTOGRAM, BY_ANCHOR = "_histogram", "_by_anchor"
"""Suffixes of the names in a loss's `last` whose values are summed here instead of logged as curves."""
VALIDATION = "validation/"
"""The prefix of the names of validation scores in logs."""
MAX_ROWS = 2048  # of a snapshot: whole samples, the first of the batch
FIRST, LAST = "first", "last"
MIN_SPREAD = 1e-4  # spread of a batch's embeddings: below it, two samples have a mean cosine above 0.9999
PACE_STEPS, PACE_SECONDS = 4, 5.0  # least steps and time to measure the pace
MIN_REPORTED_SECONDS = 60.0  # least remaining time for a report of the end
EARLY_STEPS, MIN_EARLY_SPREAD = (25, 50), 5e-3  # steps, and the spread that one of them must reach


@final
class Statistics(Callback):
    """A callback that sums the loss's statistics in `last`, and writes the sums at the end of each epoch.

    Names ending in ``_histogram`` hold counts, added over an epoch. Names ending in ``_by_anchor`` hold the sum and the
    number of some values for each anchor of this process, (2, V·B), view-major; if the samples have classes, the
    anchors' means, from all processes, are averaged by class over an epoch. All processes need this callback; the first
    one writes.

    Args:
        run: The run to write to: histograms.csv and classes.csv.
        names: The classes' names.
    """

    def __init__(self, run: Run, names: Sequence[str] = ()) -> None:
        self.run = run
        self.names = tuple(names)
        self._sums: dict[str, Tensor] = {}

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Drop the rows of epochs that training repeats."""
        if trainer.is_global_zero:
            self._write(trainer.current_epoch + 1, {})

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Add the statistics of the step; at the end of the epoch, write the sums."""
        last: dict[str, Tensor] = getattr(pl_module.loss, "last", {})
        labels: Tensor | None = batch.get("labels")
        for name, value in last.items():
            if name.endswith(HISTOGRAM):
                self._add(name, value.detach())
            elif name.endswith(BY_ANCHOR) and self.names and labels is not None and labels.ndim == 1:
                sums = by_class(value.detach(), labels.to(value.device), len(self.names))
                self._add(name, trainer.strategy.reduce(sums, reduce_op="sum"))  # a checkpoint is of one process
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
        histograms = [
            (name, at, *counts) for name, noted in self.run.histograms.items() for at, counts in noted if at < epoch
        ]
        histograms += [(name, epoch, *value.tolist()) for name, value in sums.items() if name.endswith(HISTOGRAM)]
        means = [astuple(mean) for mean in self.run.class_means if mean.epoch < epoch]
        for name, value in sums.items():
            if name.endswith(BY_ANCHOR):
                statistic, by_label = name.removesuffix(BY_ANCHOR), zip(self.names, *value.tolist(), strict=True)
                means += [(statistic, epoch, label, total / n, int(n)) for label, total, n in by_label if n]
        for file, rows in ((self.run.histograms_file, histograms), (self.run.class_means_file, means)):
            if rows or file.is_file():
                with self.run.writing(file.name) as path, path.open("w", encoding="utf-8", newline="") as opened:
                    csv.writer(opened, lineterminator="\n").writerows(rows)


def by_class(sums: Float[Tensor, "2 n"], labels: Int[Tensor, " b"], classes: int) -> Float[Tensor, "2 c"]:
    """Add the anchors' means by class, from sums and counts (2, V·B), view-major, and count the anchors with a mean."""
    classes_of_anchors = labels.repeat(sums.shape[1] // max(1, len(labels)))
    means = torch.stack([sums[0] / sums[1].clamp(min=1), (sums[1] > 0).to(sums.dtype)])
    return sums.new_zeros(2, classes).index_add_(1, classes_of_anchors, means)


@final
class Snapshots(Callback):
    """A callback that keeps the loss's input embeddings in the last step of the first epoch and of the last.

    The embeddings are written to the run's batches.npz if the loss's forward takes `embeddings`. At the end of every
    epoch after the first, the last snapshot is replaced, so it exists however the training ends. A hook on the loss
    reads the embeddings in these steps only; the training and its random numbers do not change. With several processes,
    the rows are the first one's.

    Args:
        run: The run to write to.

    Memory:
        At most 2,048 rows: whole samples, the first of the batch.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._received: Tensor | None = None
        self._hook: RemovableHandle | None = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Hook the loss in the last step of an epoch."""
        self._forget()
        loss: Any = pl_module.loss
        if _is_last(trainer, batch_idx) and EMBEDDINGS in LossSignature.by(type(loss)).names:
            self._hook = loss.register_forward_pre_hook(self._receive, with_kwargs=True)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Write the embeddings that the loss received."""
        received = self._received
        self._forget()
        if received is None:
            return
        first = trainer.current_epoch == 0
        kept = {} if first or not self.run.batches.is_file() else load_snapshots(self.run.batches)
        kept[FIRST if first else LAST] = _snapshot(trainer, pl_module.loss, received, batch)
        with self.run.writing(self.run.batches.name) as path:
            save_snapshots(path, kept)

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Remove the hook."""
        self._forget()

    def _receive(self, loss: Any, views: tuple[Tensor, ...], named: Mapping[str, Any]) -> None:
        self._received = (views[0] if views else named[EMBEDDINGS]).detach()

    def _forget(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._received = None


def _is_last(trainer: Trainer, batch_idx: int) -> bool:
    """Return whether this step ends an epoch or the training, and this process writes."""
    ends = batch_idx + 1 >= trainer.num_training_batches or 0 < trainer.max_steps <= trainer.global_step + 1
    return ends and trainer.is_global_zero and not trainer.fast_dev_run  # pyright: ignore[reportAttributeAccessIssue]


def _snapshot(trainer: Trainer, loss: Any, received: Tensor, batch: Batch) -> Snapshot:
    few = max(1, MAX_ROWS // (received.shape[1] if received.ndim == 3 else 1))
    labels, temperature = batch.get("labels"), getattr(loss, "temperature", torch.nan)
    return Snapshot(
        embeddings=received[:few].float().cpu(),
        sample_index=batch["sample_index"][:few].cpu(),
        labels=None if labels is None else labels[:few].cpu(),
        epoch=trainer.current_epoch + 1,
        step=trainer.fit_loop.epoch_loop.total_batch_idx,
        samples=len(received) * (trainer.world_size if getattr(loss, "gathers", False) else 1),
        temperature=float(torch.as_tensor(temperature, dtype=torch.float64).detach()),
    )


@final
class Collapse(Callback):
    """A callback that warns if the embeddings of a batch have collapsed.

        1 − ‖z̄‖² < 10⁻⁴,   z̄ the mean of the batch's normalised embeddings

    in the last batch of an epoch or of the training, or below 0.005 after 25 steps and again after 50: random networks
    often begin there, and learning ones have left it by then. The embeddings are the loss's: head outputs, features if
    there is no head, or means of feature maps; with several processes, those of the first. Nothing more is computed. A
    collapse is reported once.

    Args:
        tell: Receives the warning.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.collapsed = False
        self._rows: Tensor | None = None
        self._narrow = 0  # early steps with too small a spread

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Ask for the embeddings in the last step of an epoch, or of the training, and in early steps."""
        self._rows = None
        early = trainer.is_global_zero and trainer.global_step + 1 in EARLY_STEPS
        pl_module.observer = self._receive if early or _is_last(trainer, batch_idx) else None

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Measure the spread of the embeddings."""
        rows, self._rows = self._rows, None
        if self.collapsed or rows is None or len(rows) < 2 or not torch.isfinite(rows).all():
            return
        spread_out = spread(rows)
        self._narrow += trainer.global_step in EARLY_STEPS and spread_out < MIN_EARLY_SPREAD
        if spread_out < MIN_SPREAD or self._narrow == len(EARLY_STEPS):
            self.collapsed = True
            ends = batch_idx + 1 >= trainer.num_training_batches
            when = f"epoch {trainer.current_epoch + 1}" if ends else f"step {trainer.global_step}"
            self.tell(
                f"after {when} the embeddings have collapsed: those of a batch have a mean "
                f"cosine of {1 - spread_out:.6f}, so the encoder tells no samples apart; lower --lr, raise "
                "--loss.temperature, or, for a method without negatives, see to its momentum encoder and predictor"
            )

    def _receive(self, step: Step) -> None:
        rows = step.represented
        self._rows = None if rows is None else rows.detach().float().cpu()


@final
class Pace(Callback):
    """A callback that reports, after some steps, the time per step and the end, if it is over a minute away.

    `beside` returns the seconds that evaluations will take; the sentence ends with `advice` on speed.
    """

    def __init__(self, tell: Callable[[str], None], beside: Callable[[Trainer], float], advice: str = "") -> None:
        self.tell = tell
        self.advice = advice
        self.beside = beside
        self._first: tuple[int, float] | None = None
        self._told = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Start counting after the first step, in which memory is set up and networks are compiled."""
        if self._first is None and trainer.global_step:
            self._first = trainer.global_step, time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report the pace once enough steps have been counted."""
        steps = trainer.estimated_stepping_batches
        if self._told or self._first is None or math.isinf(steps):
            return
        start_step, at = self._first
        counted, gone = trainer.global_step - start_step, time.monotonic() - at
        if counted < PACE_STEPS or gone < PACE_SECONDS:
            return
        self._told = True
        left = (steps - trainer.global_step) * gone / counted + self.beside(trainer)
        if left > MIN_REPORTED_SECONDS:
            end = (datetime.now().astimezone() + timedelta(seconds=left)).strftime("%H:%M")
            self.tell(f"{gone / counted:.2g} s a step: done at about {end}, evaluation included{self.advice}")
