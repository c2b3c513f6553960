"""The number of steps that fit into a time limit: a few are timed on a copy, which is then discarded."""

import time
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import LambdaCallback

from likewise import distributed
from likewise.evaluation.encoding import features_of
from likewise.instantiate import as_list
from likewise.training import Assembled
from likewise.training.assembly import prepared
from likewise.training.schedule import Constant
from likewise.training.validation import MAX_SAMPLES

TIMED_STEPS, TIMED_SAMPLES = 4, 64  # timed
PAGE_SECONDS = 10.0  # seconds for the page, and for reading and writing files
SIMILARITY_SECONDS = 2e-8  # seconds of one similarity in a nearest-neighbour search, about
SHARE = 0.95  # of what is left, since later steps may be slower


def steps_within(
    minutes: float, ready: Assembled, trainer: Mapping[str, Any], *, every: int, most: int | None, started: float
) -> tuple[int, float]:
    """Return how many steps fit into minutes since the start, with the evaluations, and the seconds of one.

    Between validations are `every` epochs, 0 if there are none; at the end `most` samples of each part are evaluated.
    The training and its random state stay as they are; memory is a copy of the module and its optimizer.
    """
    if distributed.world_size() > 1:
        raise ValueError("expected one process for --minutes, got several: give --steps")
    ends = list[float]()

    def note(trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.strategy.root_device.type != "cpu":
            torch.accelerator.synchronize()  # kernels are queued
        ends.append(time.monotonic())

    timed = LambdaCallback(on_train_batch_end=note)
    chosen = {name: value for name, value in trainer.items() if name in {"accelerator", "devices", "precision"}}
    batches = as_list(trainer.get("accumulate_grad_batches"))
    each = int(batches[0]) if batches else 1
    with torch.random.fork_rng():
        module = deepcopy(ready.module)
        module.schedule = Constant()  # its epochs, and those of fine-tuning, are of the whole training
        module.fine_tuning.unfreeze_epoch = None
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        pilot = lightning.Trainer(**chosen, **quiet, max_epochs=-1, max_steps=TIMED_STEPS * each, callbacks=[timed])
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
