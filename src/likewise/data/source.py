"""The abstract source: what every data set has in common, whatever its samples come from."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import lightning
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader

from likewise.data.augmentation import Augmentation, FeatureDropout, RandomAffine
from likewise.data.samples import Batch, IndexedSamples, Samples


class LabelledData(lightning.LightningDataModule, ABC):
    """A labelled source: a subclass loads the samples; splitting, batching and making views happen here.

    Args:
        views: Augmented copies of every sample in a batch, V. Losses without labels need two or more.
        batch_size: Samples a batch, B. A training set smaller than this is one batch.
        augmentation: How a view differs from its sample. None: RandomAffine for images, FeatureDropout for vectors.
        test_fraction: Part of the samples held out for evaluation, unless the source says itself which they are.
        split_seed: Seed of the stratified split. It is not the run's seed, so that runs are compared on the same test.

    Raises:
        ValueError: No view, no batch, or a test_fraction outside (0, 1).

    Memory:
        All samples stay in memory; a batch holds B·V inputs.
    """

    def __init__(
        self,
        *,
        views: int = 2,
        batch_size: int = 128,
        augmentation: Augmentation | None = None,
        test_fraction: float = 0.25,
        split_seed: int = 0,
    ) -> None:
        super().__init__()
        if views < 1:
            raise ValueError(
                f"expected views of at least 1, got {views}: contrast needs 2 unless labels give positives"
            )
        if batch_size < 2:
            raise ValueError(f"expected batch_size of at least 2, got {batch_size}: contrast is between samples")
        if not 0 < test_fraction < 1:
            raise ValueError(f"expected test_fraction between 0 and 1, got {test_fraction}: 0.25 is usual")
        self.views = views
        self.batch_size = batch_size
        self.test_fraction = test_fraction
        self.split_seed = split_seed
        self._augmentation = augmentation

    @abstractmethod
    def load(self) -> Samples:
        """Load every sample; called once, when the samples are first needed."""

    @cached_property
    def _parts(self) -> tuple[Samples, Samples]:
        return self.load().split(self.test_fraction, self.split_seed)

    @property
    def train_samples(self) -> Samples:
        """The samples to train on."""
        return self._parts[0]

    @property
    def test_samples(self) -> Samples:
        """The samples held out."""
        return self._parts[1]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """One input's shape: (channels, height, width) for an image, (F,) for a vector."""
        return tuple(self.train_samples.inputs.shape[1:])

    @property
    def num_train_samples(self) -> int:
        """How many samples there are to train on; a batch's sample_index is below it."""
        return len(self.train_samples)

    @property
    def num_classes(self) -> int:
        """How many classes there are, C."""
        return len(self.train_samples.class_names)

    @property
    def augmentation(self) -> Augmentation:
        """The augmentation in force."""
        if self._augmentation is None:
            self._augmentation = RandomAffine() if len(self.input_shape) == 3 else FeatureDropout()
        return self._augmentation

    def make_views(self, inputs: Float[Tensor, "b ..."]) -> Float[Tensor, "b v ..."]:
        """Augment every input V times; the sample itself is not among its views.

        Args:
            inputs: (B, ...).

        Returns:
            Views, (B, V, ...).
        """
        return torch.stack([self.augmentation(inputs) for _ in range(self.views)], dim=1)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Shuffled batches of the training samples; an incomplete last batch is left to the next epoch's shuffle."""
        size = min(self.batch_size, len(self.train_samples))
        dataset = IndexedSamples(self.train_samples)
        return DataLoader(dataset, batch_size=size, shuffle=True, drop_last=True, collate_fn=_as_fetched)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:  # noqa: ARG002 - Lightning names it
        """Make the views where the batch already is, on the device that trains."""
        return {**batch, "inputs": self.make_views(batch["inputs"])}


def _as_fetched(batch: Any) -> Batch:
    return batch
