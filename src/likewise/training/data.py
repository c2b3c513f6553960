"""The training part under Lightning's trainer: its loader, and the views made where a batch is trained on."""

import os
from typing import final

import lightning
import torch

from likewise.data import Batch, Batches, Samples, Views, mixed
from likewise.training.loader import Loader, Place

DROPOUT = 2  # what is seeded
MOST_WORKERS = 8


@final
class TrainingData(lightning.LightningDataModule):
    """The training part as Lightning's trainer takes it.

    What is random about a step is a function of the seed and the step: nothing random is saved, and a training that
    goes on from a checkpoint goes on bit for bit (on a CPU, in one process). Before every step PyTorch's own generator
    is seeded too, for dropout and the like, by seed, step and rank.

    Args:
        samples: The training part.
        batches: How it becomes batches. None: Views().
        seed: Seed of everything random.
        workers: Processes that read inputs which are not in memory; None: as many as there are cores, up to 8.

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
        self.workers = min(MOST_WORKERS, os.cpu_count() or 1) if workers is None else workers
        self.batches.fit(samples)

    def train_dataloader(self) -> Loader:
        """Return the loader of batches, which goes on from where the trainer stands."""
        return Loader(self.samples, self.batches, seed=self.seed, place=self._place, workers=self.workers)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Make the views where the batch already is, on the device that trains."""
        del dataloader_idx
        ready = self.batches.on_device(batch)
        if "share" in batch:
            torch.manual_seed(mixed(batch["share"].seed, DROPOUT, self._place().rank))
        return ready

    def _place(self) -> Place:
        trainer = self.trainer
        if trainer is None:
            return Place()
        done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        return Place(trainer.current_epoch, done, trainer.global_rank, trainer.world_size, trainer.strategy.root_device)
