"""The training part for Lightning's trainer: its loader, and views made on the training device."""

import json
import os
import warnings
from typing import final

import lightning
import torch
from torch import Tensor

from likewise import distributed
from likewise.data import Batch, Batches, Samples, Views, derive_seed
from likewise.data.lazy_inputs import MAX_WORKERS, in_words
from likewise.training.loader import ORDER, Loader, Position

DROPOUT = 2  # purpose of a seed


@final
class TrainingData(lightning.LightningDataModule):
    """The training part as a data module for Lightning's trainer.

    The random numbers of a step are a function of the seed and the step. So no random state is saved, and a resumed
    training continues bit for bit (on a CPU, in one process). Before every step, PyTorch's global generator is seeded
    too, by seed, step and rank, for dropout and the like.

    Args:
        samples: The training part.
        batches: How samples become batches. None: Views().
        seed: Seed of everything random.
        workers: Processes that read inputs not in memory. None: one per core, up to 8.

    Attributes:
        lost: The images that could not be read, by their numbers in the source: for each, another sample took its
            place. After the training they are those of all processes, and a warning counts them.

    Example:
        >>> data = TrainingData(Samples(torch.rand(8, 3)), Views(batch_size=4))
        >>> len(data.train_dataloader())
        2
    """

    def __init__(
        self, samples: Samples, batches: Batches | None = None, *, seed: int = 0, workers: int | None = None
    ) -> None:
        super().__init__()
        self.samples = samples
        self.batches = Views() if batches is None else batches
        self.seed = seed
        self.workers = min(MAX_WORKERS, os.cpu_count() or 1) if workers is None else workers
        self.lost: dict[int, str] = {}
        self.batches.fit(samples)

    def epoch_shape(self) -> tuple[int, int]:
        """Return the batches of an epoch and the samples of each; a ValueError if the samples cannot fill them."""
        steps, size = self.batches.order(self.samples, seed=derive_seed(self.seed, ORDER), epoch=0).shape
        return steps, size

    def train_dataloader(self) -> Loader:
        """Return the loader of batches, which continues from the trainer's current step."""
        loader = Loader(self.samples, self.batches, seed=self.seed, position=self._place, workers=self.workers)
        loader.lost = self.lost
        return loader

    def teardown(self, stage: str) -> None:
        """Collect what no process could decode, and warn of it."""
        if self.trainer is None or isinstance(self.samples.inputs, Tensor):
            return
        everyone = distributed.exchange_texts(json.dumps(list(self.lost.items())), self.trainer.strategy.root_device)
        self.lost |= {item: name for theirs in everyone for item, name in json.loads(theirs)}
        if self.lost:
            warnings.warn(in_words(self.lost), stacklevel=2)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Make the views on the training device."""
        ready = self.batches.on_device(batch)
        if "share" in batch:
            torch.manual_seed(derive_seed(batch["share"].seed, DROPOUT, self._place().rank))
        return ready

    def _place(self) -> Position:
        trainer = self.trainer
        if trainer is None:
            return Position()
        done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        return Position(
            trainer.current_epoch, done, trainer.global_rank, trainer.world_size, trainer.strategy.root_device
        )
