"""Lightning's trainer: its device, its rephrased messages, its progress bar, and the steps within a time limit."""

import inspect
import logging
import re
import time
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from math import ceil, isfinite
from typing import Any, final

import lightning
import torch
from lightning import Trainer
from lightning.pytorch.callbacks import LambdaCallback, ProgressBar
from tqdm import tqdm

from likewise import distributed
from likewise.configuration.trainer import TrainerOptions
from likewise.evaluation.encoding import features_of
from likewise.instantiate import arguments, as_list
from likewise.runs.machine import device_named
from likewise.training import Assembled
from likewise.training.assembly import prepared
from likewise.training.schedule import Constant
from likewise.training.validation import MAX_SAMPLES
from likewise.workflows.progress import Progress

TIMED_STEPS, TIMED_SAMPLES = 4, 64
PAGE_SECONDS = 10.0  # seconds for the page, and for reading and writing files
SIMILARITY_SECONDS = 2e-8  # approximate seconds per similarity in a nearest-neighbour search
SHARE = 0.95  # of the remaining time, since later steps may be slower
LINES = 30  # approximate number printed by a training without a bar
IRRELEVANT_WARNINGS = (
    ".*does not have many workers.*",  # samples are in memory, a worker would only copy them
    ".*LeafSpec.*",  # Lightning's use of a deprecated PyTorch class
    ".*exists and is not empty.*",  # the run's folder is new, and holds the configuration
    ".*grad attribute of a Tensor that is not a leaf.*",  # torch's compiler looks at it, and training doesn't
    ".*MLFlow only allows.*",  # it drops the @ of precision@1
)


def in_our_words(message: str) -> str:
    """Rephrase Lightning's message about a training resumed after its last epoch."""
    epochs = re.search(r"current_epoch=(\d+), but you have set Trainer\(max_epochs=(\d+)\)", message)
    if epochs is None:
        return message.rstrip(".")
    return f"expected --trainer.max_epochs of at least {epochs[1]}, got {epochs[2]}: {epochs[1]} epochs are done"


def device_of(trainer: Mapping[str, Any]) -> torch.device:
    """Return the device that a trainer with these arguments would use."""
    return torch.device("cpu") if trainer.get("accelerator") == "cpu" else device_named("auto")


def trainer_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trainer's arguments without defaults, since not every version of Lightning has all of them."""
    defaults = vars(TrainerOptions())
    chosen = {name: value for name, value in options.items() if value != defaults[name]}
    if unknown := sorted(chosen.keys() - inspect.signature(Trainer).parameters):
        named = ", ".join(f"--trainer.{name}" for name in unknown)
        raise ValueError(f"expected trainer options of Lightning {lightning.__version__}, got {named}: upgrade it")
    return arguments(Trainer, chosen)


@contextmanager
def quiet_lightning() -> Generator[None]:
    """Silence Lightning's tips, and its warnings without relevance to a run."""
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
    """A progress bar over all steps, with the loss; without a bar, a line for each epoch, or for some of many."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.is_enabled = True
        self._progress = progress
        self._bar: tqdm[Any] | None = None

    def disable(self) -> None:
        """Show nothing from now on; Lightning calls this in all processes except one."""
        self.is_enabled = False

    def enable(self) -> None:
        """Show the bar again."""
        self.is_enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Open the bar."""
        if self.is_enabled:
            self._bar = self._progress.steps(_steps(trainer), "training")

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move the bar, and show the loss when the bar is next drawn."""
        if self._bar is not None:
            self._bar.update(trainer.global_step - self._bar.n)
            self._bar.set_postfix_str(_epoch_and_loss(trainer), refresh=False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Print the epoch's line where there is no bar; of many epochs only the first, the last, and some between."""
        steps = _steps(trainer)
        epochs = 0 if steps is None else ceil(steps * trainer.accumulate_grad_batches / trainer.num_training_batches)
        epoch = trainer.current_epoch + 1
        due = epoch == 1 or epoch >= epochs or epoch % max(1, epochs // LINES) == 0
        if self.is_enabled and self._bar is None and due:
            of_all = "" if steps is None else f"/{steps}"
            self._progress.log(f"training: {trainer.global_step}{of_all} steps, {_epoch_and_loss(trainer)}")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Close the bar, to put the error on its own line."""
        self.on_train_end(trainer, pl_module)


def _steps(trainer: Trainer) -> int | None:
    """Return the number of steps of the whole training; None with a time limit."""
    steps = trainer.estimated_stepping_batches
    return int(steps) if isfinite(steps) else None


def _epoch_and_loss(trainer: Trainer) -> str:
    loss = trainer.progress_bar_metrics.get("loss")
    fields = [] if loss is None else [f"loss={float(torch.as_tensor(loss)):.3f}"]
    return ", ".join([f"epoch={trainer.current_epoch + 1}", *fields])


def steps_within(
    minutes: float, ready: Assembled, trainer: Mapping[str, Any], *, every: int, most: int | None, started: float
) -> tuple[int, float]:
    """Return how many steps fit, with the evaluations, into `minutes` since the start, and the seconds per step.

    Validations are `every` epochs apart, 0 for none; the final evaluation is of `most` samples of each part. The
    training and its random state are unchanged; memory is a copy of the module and its optimizer.
    """
    if not minutes > 0:
        raise ValueError(f"expected --minutes above 0, got {minutes:g}")
    if distributed.world_size() > 1:
        raise ValueError("expected one process for --minutes, got several: give --steps")
    ends = list[float]()

    def note(trainer: Trainer, *_: Any) -> None:
        if trainer.strategy.root_device.type != "cpu":
            torch.accelerator.synchronize()  # kernels are queued
        ends.append(time.monotonic())

    timed = LambdaCallback(on_train_batch_end=note)
    chosen = {name: value for name, value in trainer.items() if name in {"accelerator", "devices", "precision"}}
    batches = as_list(trainer.get("accumulate_grad_batches"))
    each = int(batches[0]) if batches else 1
    with torch.random.fork_rng():
        module = deepcopy(ready.module)
        module.schedule = Constant()  # its epochs, and the epochs of fine-tuning, refer to the whole training
        module.fine_tuning.unfreeze_epoch = None
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        pilot = Trainer(**chosen, **quiet, max_epochs=-1, max_steps=TIMED_STEPS * each, callbacks=[timed])
        pilot.fit(module, datamodule=ready.data)
        seconds = each * (ends[-1] - ends[0]) / max(1, len(ends) - 1)
        some = prepared(module.encoder, ready.parts.train.fewer(TIMED_SAMPLES), module.second)
        at = time.monotonic()
        features_of(some, module.encoder, "train", second=module.second, workers=0)
        encoding = (time.monotonic() - at) / max(1, len(some))
    counts = [len(part) for part in (ready.parts.train, ready.parts.validation, ready.parts.test)]
    last = counts if most is None else [min(count, most) for count in counts]
    searches = sum(last) * (last[1] + last[2]) * SIMILARITY_SECONDS * (3 if ready.origin else 2)  # raw inputs, too
    end = PAGE_SECONDS + searches + encoding * sum(last) * (2 if ready.origin else 1)
    validation = encoding * sum(min(count, MAX_SAMPLES) for count in counts[:2]) if every else 0.0
    epoch = max(1, pilot.num_training_batches / each)
    left = SHARE * (60 * minutes - (time.monotonic() - started)) - end - 2 * validation
    steps = int(left / (seconds + validation / (max(1, every) * epoch)))
    if steps < 1:
        needed = (end + 2 * validation + seconds) / 60 + (time.monotonic() - started) / 60
        expected = f"expected --minutes for at least one step and the evaluation, about {needed:.1f}"
        raise ValueError(f"{expected}, got {minutes:g}: give more, or --evaluations []")
    return steps, seconds
