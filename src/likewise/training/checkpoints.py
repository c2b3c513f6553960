"""Checkpoints and curves of a run, written during training: checkpoints atomically, curves row by row."""

import csv
import io
import signal
import threading
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from lightning import Callback, Trainer
from torch import Tensor

from likewise.runs import Run
from likewise.training.callbacks import VALIDATION
from likewise.training.launch import TERMINATED

RESUME_KEYS = {"optimizer_states", "lr_schedulers"}
"""Entries of a checkpoint that only resuming needs; an optimizer's state is up to twice the weights."""
SECONDS_BETWEEN_ROWS = 5.0  # reading values synchronises an accelerator


class Terminated(SystemExit):
    """The process received SIGTERM; what there was to save has been saved."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


@final
class Checkpoints(Callback):
    """Save the state of a training every epoch, every few minutes and at its end, and its curves.

    Checkpoints are saved after a step of the optimizer, since accumulated gradients are not saved. Each is written
    under a temporary name, fsync, and renamed; the previous one is kept. After SIGTERM, one more is saved and the
    training ends.

    Args:
        run: The run to save to.
        minutes: Minutes between checkpoints within an epoch.

    Attributes:
        saves: Whether checkpoints are saved at all.
        told_to_end: Whether the training should end after the next step of the optimizer.

    Raises:
        ValueError: minutes is not positive.
    """

    def __init__(self, run: Run, minutes: float = 10.0) -> None:
        if not minutes > 0:
            raise ValueError(f"expected minutes above 0 between checkpoints, got {minutes}: 10 is the default")
        self.run = run
        self.minutes = minutes
        self.saves = True
        self.told_to_end = False
        self._curves = MetricsFile(run)
        self._last = time.monotonic()
        self._steps = self._saved = 0

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Continue the curves from the current step."""
        self._steps = self._saved = trainer.global_step
        self._last = time.monotonic()
        if threading.current_thread() is threading.main_thread():
            # in place of Lightning's, which ends the training at once, even between two steps of the optimizer
            signal.signal(signal.SIGTERM, self._end_soon)
        if trainer.is_global_zero:
            self._curves.go_on(trainer.fit_loop.epoch_loop.batch_progress.total.ready)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record what was logged, and save if it is time."""
        number = trainer.fit_loop.epoch_loop.total_batch_idx
        every = int(getattr(trainer, "log_every_n_steps", 1))
        if trainer.is_global_zero and every and (number + 1) % every == 0:
            self._curves.note(number, trainer.current_epoch + 1, trainer.callback_metrics)
        stepped = trainer.global_step > self._steps
        if not stepped or trainer.fast_dev_run:  # pyright: ignore[reportAttributeAccessIssue]
            return
        self._steps = trainer.global_step
        ends = batch_idx + 1 >= trainer.num_training_batches
        agree, late = trainer.strategy.reduce_boolean_decision, time.monotonic() - self._last > 60 * self.minutes
        ending = agree(self.told_to_end, all=False)
        due = ending or ends or agree(late, all=False)
        if due and self.saves:
            self.save(trainer)
        if ending:
            raise Terminated

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the last rows, and a checkpoint where steps or time ran out within an epoch."""
        self._curves.write()
        if self.saves and self._steps > self._saved:
            self.save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Write the rows so far."""
        self._curves.write()

    def save(self, trainer: Trainer) -> None:
        """Write a checkpoint under a temporary name, then rename it, and keep the last one as the previous."""
        self._curves.write()
        new = self.run.folder / f"{self.run.checkpoint.name}.new"
        epochs: Any = trainer.fit_loop.epoch_progress
        for progress in (epochs.total, epochs.current):
            # Lightning does not count the epoch that follows a resumption at the end of one, and would begin it again
            progress.ready = progress.started = progress.processed + 1
        trainer.save_checkpoint(new)  # called by all processes; the first writes
        if trainer.is_global_zero:
            self.run.adopt_checkpoint(new)
        self._last, self._saved = time.monotonic(), trainer.global_step

    def _end_soon(self, *_: object) -> None:
        self.told_to_end = True


@final
class MetricsFile:
    """The rows of a run's metrics, buffered before they are written."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: list[tuple[int, int, dict[str, Any]]] = []
        self._columns: list[str] = []
        self._written = time.monotonic()

    def go_on(self, batches: int) -> None:
        """Drop the rows from this batch on, since training repeats them."""
        if not self._run.metrics_file.exists():
            return
        rows = self._rows()
        self._columns = list(rows[0]) if rows else []
        whole = [row for row in rows if row["step"].isdigit() and None not in row.values()]
        self._rewrite([row for row in whole if int(row["step"]) < batches])

    def note(self, batch: int, epoch: int, metrics: Mapping[str, Tensor]) -> None:
        """Add a row, without validation scores, which `Run.scores` keeps."""
        values = {name: value.detach() for name, value in metrics.items() if not name.startswith(VALIDATION)}
        self._waiting.append((batch, epoch, values))
        if time.monotonic() - self._written > SECONDS_BETWEEN_ROWS:
            self.write()

    def write(self) -> None:
        """Write the buffered rows."""
        self._written = time.monotonic()
        if not self._waiting:
            return
        rows: list[dict[str, Any]] = [
            {"step": batch, "epoch": epoch} | {name: repr(float(value)) for name, value in values.items()}
            for batch, epoch, values in self._waiting
        ]
        self._waiting.clear()
        new = dict.fromkeys(name for row in rows for name in row if name not in self._columns)
        if new:
            self._columns += new
            self._rewrite(self._rows())
        with self._run.metrics_file.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns, restval="", lineterminator="\n").writerows(rows)

    def _rows(self) -> list[dict[str, Any]]:
        if not self._run.metrics_file.exists():
            return []
        with self._run.metrics_file.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        self._run.write(self._run.metrics_file.name, text.getvalue().encode())


def drop_checkpoints(run: Run, *, keep: bool) -> None:
    """Remove the checkpoints of a finished run, or keep its weights, without what only resuming needs."""
    if not keep:
        for path in (run.checkpoint, run.checkpoint_before, run.best):
            path.unlink(missing_ok=True)
        return
    if run.best.is_file():
        run.checkpoint.unlink(missing_ok=True)
    elif readable(run.checkpoint):
        state = torch.load(run.checkpoint, map_location="cpu", weights_only=True, mmap=True)
        with run.writing(run.checkpoint.name) as beside:
            torch.save({name: value for name, value in state.items() if name not in RESUME_KEYS}, beside)
    else:
        return
    run.checkpoint_before.unlink(missing_ok=True)


def readable(checkpoint: Path) -> bool:
    """Return whether a checkpoint is there and whole."""
    try:
        with zipfile.ZipFile(checkpoint) as file:
            if file.testzip() is not None:
                return False
        torch.load(checkpoint, map_location="meta", weights_only=True)
    except Exception:  # noqa: BLE001 - a truncated file can raise anything
        return False
    return True
