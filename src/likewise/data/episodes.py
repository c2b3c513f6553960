"""Batches of episodes, as few-shot learning trains: some classes, with samples to learn from and others to classify."""

from collections.abc import Collection
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data.augmentation import Augmentation, Draw
from likewise.data.batches import Batch, Batches, LocalBatch, derive_seed, fit_augmentation
from likewise.data.episode_sampler import EpisodeSampler, EpisodeShape, fitted
from likewise.data.patch_mix import draw_mix, patched
from likewise.data.samples import Samples

MIXING = 1  # purpose of a step's random numbers


@final
class Episodes(Batches):
    """Episodes: of some classes a few samples to learn from, the support, and others to classify, the queries.

    A batch is the samples of several episodes, (E, N, K + Q) flattened, of each class the support first. Classes differ
    within an episode, and samples within a class; another episode may have the same ones.

    Args:
        ways: Classes of an episode, N. None: 5, or as many as there are.
        shots: Support samples of each class, K.
        queries: Query samples of each class, Q. None: 15, or as many as every class has beside its shots.
        episodes: Episodes of a batch over all processes, E.
        steps: Batches of an epoch. None: as many as there are samples for, at least one.
        mix: Whether a box of each query comes from another query of its episode, as InfoPatch trains; see `Mix`. Such a
            query has no single class. None: the command mixes for losses that read `cell_labels`; else not.
        augmentation: How a sample is changed before it is used; supports and queries alike. None: not at all.

    Raises:
        ValueError: A size is below 1, there are fewer classes than ways, a class has too few samples, or samples don't
            have one class each.

    Memory:
        A batch of inputs, and another one while queries are mixed.

    Example:
        >>> samples = Samples(torch.rand(60, 1, 8, 8), torch.arange(60) % 6, tuple("abcdef"))
        >>> Episodes(ways=5, shots=1, queries=3, episodes=2).order(samples, seed=0, epoch=0).shape
        torch.Size([1, 40])
    """

    def __init__(
        self,
        ways: int | None = None,
        shots: int = 1,
        queries: int | None = None,
        episodes: int = 4,
        steps: int | None = None,
        *,
        mix: bool | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        self._given = {"ways": ways, "queries": queries}
        self.shape = self.wanted = EpisodeShape.usual(episodes, ways, shots, queries)
        self.shape.check()
        if steps is not None and steps < 1:
            raise ValueError(f"expected steps of at least 1 batch an epoch, got {steps}")
        self.together = self.shape.samples
        self.batch_size = episodes * self.together
        self.steps, self.mix, self.augmentation = steps, mix, augmentation

    def suit(self, loss: str, arguments: Collection[str]) -> None:
        """Mix queries for losses of cells, unless `mix` says; refuse it for others, which would take them for whole."""
        cells = "cell_labels" in arguments
        if self.mix and not cells:
            expected = f"queries of one class each for {loss}, which takes no cell_labels"
            raise ValueError(f"expected {expected}, got mixed: leave batches.mix out")
        self.mix = cells if self.mix is None else self.mix

    @property
    def recorded(self) -> dict[str, Any]:
        return {"mix": self.mix, "ways": self.shape.ways, "queries": self.shape.queries}

    def order(self, samples: Samples, *, seed: int, epoch: int) -> Int[Tensor, "batches b"]:
        sampled = EpisodeSampler(samples.classes_for("Episodes", "choose Views"), samples.names, self.shape)
        steps = self.steps or max(1, len(samples) // self.batch_size)
        seeds = (torch.Generator().manual_seed(derive_seed(seed, epoch, step)) for step in range(steps))
        return torch.stack([sampled(generator).flatten() for generator in seeds])

    def fit(self, samples: Samples) -> None:
        self.shape = fitted(samples.counts, self.shape, self._given)
        self.together = self.shape.samples
        self.batch_size = self.shape.episodes * self.together
        if self.augmentation is not None:
            fit_augmentation(self.augmentation, samples)

    def on_device(self, batch: Batch) -> Batch:
        """Return the batch with one view of each input, (B, 1, ...), queries mixed, and the shape of its episodes."""
        inputs = batch["inputs"]
        share = LocalBatch.of(batch)
        held, over = divmod(len(inputs), self.shape.samples)
        if over:
            got = f"{len(inputs)}: set batches.episodes to a multiple of the number of processes"
            raise ValueError(f"expected whole episodes of {self.shape.samples} samples on every process, got {got}")
        shape = self.shape._replace(episodes=held)
        if self.augmentation is not None:
            inputs = self.augmentation(inputs, share.draw(1, len(inputs), inputs.device))
        if not self.mix:
            return {**batch, "inputs": inputs.unsqueeze(1), "episodes": shape}
        if inputs.ndim != 4:
            raise ValueError(f"expected images to mix, got inputs {tuple(inputs.shape[1:])}: leave batches.mix out")
        first, total = share.first // shape.samples, share.samples // shape.samples
        draw = Draw(derive_seed(share.seed, MIXING), total, slice(first, first + held), inputs.device)
        mix = draw_mix(draw, shape.ways * shape.queries, *inputs.shape[2:])
        parted = inputs.view(held, shape.ways, shape.each, *inputs.shape[1:])
        queries = patched(parted[:, :, shape.shots :].flatten(1, 2), mix)
        queries = queries.unflatten(1, (shape.ways, shape.queries))
        inputs = torch.cat([parted[:, :, : shape.shots], queries], dim=2).flatten(0, 2)
        return {**batch, "inputs": inputs.unsqueeze(1), "episodes": shape, "mix": mix}
