"""Lightning's trainer: its messages in our words, only the warnings that concern a run, and its progress bar."""

import inspect
import logging
import re
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from math import ceil, isfinite
from typing import Any, final

import lightning
import torch
from lightning import Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from likewise.configuration.trainer import TrainerOptions
from likewise.instantiate import arguments
from likewise.workflows.progress import Progress

LINES = 30  # printed by a training, about, where no bar is drawn
IRRELEVANT_WARNINGS = (
    ".*does not have many workers.*",  # samples are in memory, a worker would only copy them
    ".*LeafSpec.*",  # Lightning's use of what PyTorch deprecates
    ".*exists and is not empty.*",  # the run's folder is new, and holds the configuration
    ".*grad attribute of a Tensor that is not a leaf.*",  # torch's compiler looks at it, and training doesn't
    ".*MLFlow only allows.*",  # it leaves the @ of precision@1 out
)


def in_our_words(message: str) -> str:
    """Rephrase Lightning's message about a training that is to end before it resumes."""
    epochs = re.search(r"current_epoch=(\d+), but you have set Trainer\(max_epochs=(\d+)\)", message)
    if epochs is None:
        return message.rstrip(".")
    return f"expected --trainer.max_epochs of at least {epochs[1]}, got {epochs[2]}: so many epochs are done"


def trainer_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Make a trainer's arguments; defaults are left out, as not every version of Lightning has all of them."""
    defaults = vars(TrainerOptions())
    chosen = {name: value for name, value in options.items() if value != defaults[name]}
    if unknown := sorted(chosen.keys() - inspect.signature(Trainer).parameters):
        named = ", ".join(f"--trainer.{name}" for name in unknown)
        raise ValueError(f"expected trainer options of Lightning {lightning.__version__}, got {named}: upgrade it")
    return arguments(Trainer, chosen)


@contextmanager
def quiet_lightning() -> Generator[None]:
    """Silence Lightning's tips, and its warnings that do not concern a run."""
    logs = [logging.getLogger(f"lightning.{package}") for package in ("pytorch", "fabric")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in IRRELEVANT_WARNINGS:
                warnings.filterwarnings("ignore", message)
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


@final
class TrainingBar(ProgressBar):
    """One bar over all steps, with the loss beside it; where none is drawn, one line an epoch, or every few of many."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.is_enabled = True
        self._progress = progress
        self._bar: tqdm[Any] | None = None

    def disable(self) -> None:
        """Show nothing from now on; Lightning asks for it in all processes but one."""
        self.is_enabled = False

    def enable(self) -> None:
        """Show the bar again."""
        self.is_enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Open the bar."""
        super().on_train_start(trainer, pl_module)
        if self.is_enabled:
            self._bar = self._progress.steps(_steps(trainer), "training")

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move the bar, and show the loss when the bar is next drawn."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if self._bar is None:
            return
        self._bar.update(trainer.global_step - self._bar.n)
        self._bar.set_postfix_str(_epoch_and_loss(trainer), refresh=False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Say the epoch's line where there is no bar; of many epochs the first, the last, and some between."""
        super().on_train_epoch_end(trainer, pl_module)
        steps = _steps(trainer)
        epochs = 0 if steps is None else ceil(steps * trainer.accumulate_grad_batches / trainer.num_training_batches)
        epoch = trainer.current_epoch + 1
        due = epoch == 1 or epoch >= epochs or epoch % max(1, epochs // LINES) == 0
        if self.is_enabled and self._bar is None and due:
            of_all = "" if steps is None else f"/{steps}"
            self._progress.log(f"training: {trainer.global_step}{of_all} steps, {_epoch_and_loss(trainer)}")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Close the bar."""
        super().on_train_end(trainer, pl_module)
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Close the bar, so that the error stands on a line of its own."""
        super().on_exception(trainer, pl_module, exception)
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _steps(trainer: Trainer) -> int | None:
    """Return the steps of the whole training; None where a time ends it."""
    steps = trainer.estimated_stepping_batches
    return int(steps) if isfinite(steps) else None


def _epoch_and_loss(trainer: Trainer) -> str:
    loss = trainer.progress_bar_metrics.get("loss")
    fields = [] if loss is None else [f"loss={float(torch.as_tensor(loss)):.3f}"]
    return ", ".join([f"epoch={trainer.current_epoch + 1}", *fields])
