"""Steps on a copy, timed and forgotten: how many fit into some minutes, and in which precision they are fastest."""

import time
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import LambdaCallback

from likewise import distributed, machine
from likewise.evaluation.encoding import features_of
from likewise.parts import listed
from likewise.training import Assembled
from likewise.training.assembly import prepared
from likewise.training.memory import MemoryOfStep
from likewise.training.validation import MOST_SAMPLES
from likewise.workflows.metadata import device_of

STEPS, ENCODED = 4, 64  # that are timed
WHOLE = 10.0  # seconds for the page, and for what is read and written
SIMILARITY = 2e-8  # seconds of one similarity in a search for the nearest, about
SHARE = 0.95  # of what is left, since later steps may be slower
FULL, HALF = "32-true", "bf16-mixed"
FASTER = 0.9  # of the seconds of a step: less is not worth other numbers


def faster_precision(ready: Assembled, trainer: Mapping[str, Any], *, compiled: bool = False) -> str:
    """Return the precision of a training: bf16-mixed where the device multiplies bfloat16 and a step is faster.

    A few steps are timed in both. Several processes, and networks that are to be compiled, are not timed: on GPUs they
    take bfloat16, on processors float32. The loss, evaluations and what is embedded are float32 always.

    Args:
        ready: The training, which stays as it is, with its random numbers.
        trainer: Options of Lightning's trainer, whatever their precision.
        compiled: Whether the network is to be compiled.

    Memory:
        A copy of the module and its optimizer.
    """
    device = device_of(trainer)
    if not machine.multiplies_bfloat16(device):
        return FULL
    if compiled or distributed.world_size() > 1:
        return HALF if device.type == "cuda" else FULL
    seconds = {each: _timed(ready, {**trainer, "precision": each})[0] for each in (FULL, HALF)}
    return HALF if seconds[HALF] < FASTER * seconds[FULL] else FULL


def steps_within(
    minutes: float, ready: Assembled, trainer: Mapping[str, Any], *, every: int, most: int | None, started: float
) -> tuple[int, float]:
    """Return how many steps fit into some minutes with the evaluations, and how many seconds one takes.

    The random numbers of the training do not change.

    Args:
        minutes: From when it started until its results are there.
        ready: The training, which stays as it is.
        trainer: Options of Lightning's trainer.
        every: Epochs between validations; 0: none.
        most: Samples of each part that are evaluated at the end, at most; 0: there are no evaluations.
        started: When it started, by `time.monotonic`.

    Raises:
        ValueError: There are several processes, or not even a step fits.

    Memory:
        A copy of the module and its optimizer.
    """
    if distributed.world_size() > 1:
        raise ValueError("expected one process for --minutes, got several: give --steps")
    seconds, epoch = _timed(ready, trainer)
    with torch.random.fork_rng():
        encoder, second = deepcopy((ready.module.encoder, ready.module.second))
        some = prepared(encoder, ready.parts.train.fewer(ENCODED), second)
        at = time.monotonic()
        features_of(some, encoder, "train", second=second, workers=0)
        encoding = (time.monotonic() - at) / max(1, len(some))
    counts = [len(part) for part in (ready.parts.train, ready.parts.validation, ready.parts.test)]
    last = counts if most is None else [min(count, most) for count in counts]
    searches = sum(last) * (last[1] + last[2]) * SIMILARITY * (3 if ready.origin else 2)  # raw inputs, too
    end = WHOLE + searches + encoding * sum(last) * (2 if ready.origin else 1)
    validation = encoding * sum(min(count, MOST_SAMPLES) for count in counts[:2]) if every else 0.0
    left = SHARE * (60 * minutes - (time.monotonic() - started)) - end - 2 * validation
    steps = int(left / (seconds + validation / (max(1, every) * epoch)))
    if steps < 1:
        needed = (end + 2 * validation + seconds) / 60 + (time.monotonic() - started) / 60
        expected = f"expected --minutes for at least one step and the evaluation, about {needed:.1f}"
        raise ValueError(f"{expected}, got {minutes:g}: give more, or --evaluations []")
    return steps, seconds


def _timed(ready: Assembled, trainer: Mapping[str, Any]) -> tuple[float, float]:
    """Return the seconds of a step on a copy, without the first, and how many steps an epoch has."""
    ends = list[float]()

    def note(trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.strategy.root_device.type != "cpu":
            torch.accelerator.synchronize()  # its work is queued
        ends.append(time.monotonic())

    chosen = {name: value for name, value in trainer.items() if name in {"accelerator", "devices", "precision"}}
    batches = listed(trainer.get("accumulate_grad_batches"))
    each = int(batches[0]) if batches else 1
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    with torch.random.fork_rng():
        callbacks: list[lightning.Callback] = [MemoryOfStep(lambda _: None), LambdaCallback(on_train_batch_end=note)]
        pilot = lightning.Trainer(**chosen, **quiet, max_epochs=-1, max_steps=STEPS * each, callbacks=callbacks)
        pilot.fit(deepcopy(ready.module), datamodule=ready.data)
    return each * (ends[-1] - ends[0]) / max(1, len(ends) - 1), max(1, pilot.num_training_batches / each)
