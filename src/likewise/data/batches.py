"""Batches: which samples meet in a step, and the views that are made of them on the device that trains."""

import hashlib
from abc import ABC, abstractmethod
from typing import NamedTuple, NotRequired, TypedDict, final

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from likewise.data.augmentation import Augmentation, Draw, usual_augmentation
from likewise.data.samplers import Sampler, Shuffled
from likewise.data.samples import Samples

FITTED_ON = 4096  # samples that an augmentation looks at


class Share(NamedTuple):
    """Which of a global batch's samples a process holds, and the seed of what is random about them."""

    seed: int
    """Of this step, the same on every process."""
    samples: int
    """In the global batch, B."""
    first: int = 0
    """Of those held here."""

    def draw(self, views: int, held: int, device: torch.device) -> Draw:
        """Return the random numbers for V views of each of the samples held here, sample by sample."""
        own = slice(self.first * views, (self.first + held) * views)
        return Draw(self.seed, self.samples * views, own, device)


class Batch(TypedDict):
    """What a training step receives.

    Attributes:
        inputs: Views, (B, V, ...); before the views are made, (B, ...).
        sample_index: Each sample's row in the training part, (B,).
        labels: Classes (B,) or label sets (B, L); not there if the data has none.
        share: What of the global batch this is, for whatever is random.
    """

    inputs: Shaped[Tensor, "b ..."]
    sample_index: Int[Tensor, " b"]
    labels: NotRequired[Tensor]
    share: NotRequired[Share]


class Batches(ABC):
    """Abstract: how samples become batches.

    Attributes:
        batch_size: Samples a batch, B, of all processes together.
    """

    batch_size: int

    @abstractmethod
    def order(self, samples: Samples, *, seed: int, epoch: int) -> Int[Tensor, "batches b"]:
        """Return the rows of every batch of an epoch; the same for the same arguments."""

    @abstractmethod
    def on_device(self, batch: Batch) -> Batch:
        """Make of a batch of samples what training takes, where the batch already is."""

    def fit(self, samples: Samples) -> None:  # noqa: B027 - most batches need no look
        """Look at the training part, once before training."""


@final
class Views(Batches):
    """Views of every sample: B samples, each augmented V times; the sample itself is not among its views.

    Args:
        views: Views of a sample, V. Losses without labels need two or more.
        batch_size: Samples a batch, B, of all processes together. A training part that is smaller is one batch.
        sampler: Which samples meet. None: Shuffled.
        augmentation: How a view differs from its sample. None: SimCLRViews for images of three channels, RandomAffine
            for others, FeatureDropout for vectors.

    Raises:
        ValueError: No view, or fewer than two samples.

    Memory:
        B·V inputs, as floats.

    Example:
        >>> samples = Samples(torch.rand(8, 1, 6, 6))
        >>> batches = Views(batch_size=4)
        >>> rows = batches.order(samples, seed=0, epoch=0)
        >>> rows.shape
        torch.Size([2, 4])
        >>> batch = Batch(inputs=samples.inputs[rows[0]], sample_index=rows[0], share=Share(seed=1, samples=4))
        >>> batches.fit(samples)
        >>> batches.on_device(batch)["inputs"].shape
        torch.Size([4, 2, 1, 6, 6])
    """

    def __init__(
        self,
        views: int = 2,
        batch_size: int = 128,
        sampler: Sampler | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        if views < 1:
            raise ValueError(
                f"expected views of at least 1, got {views}: contrast needs 2 unless labels give positives"
            )
        if batch_size < 2:
            raise ValueError(f"expected batch_size of at least 2, got {batch_size}: contrast is between samples")
        self.views = views
        self.batch_size = batch_size
        self.sampler = Shuffled() if sampler is None else sampler
        self.augmentation = augmentation

    def order(self, samples: Samples, *, seed: int, epoch: int) -> Int[Tensor, "batches b"]:
        """Return the rows of every batch of an epoch; an incomplete last batch is left to the next epoch."""
        return self.sampler.order(samples, self.batch_size, seed=seed, epoch=epoch)

    def fit(self, samples: Samples) -> None:
        """Choose an augmentation if none was given, and let it look at some of the training part."""
        if self.augmentation is None:
            self.augmentation = usual_augmentation(samples.input_shape)
        self.augmentation.fit(some_inputs(samples, FITTED_ON))

    def on_device(self, batch: Batch) -> Batch:
        """Return the batch with V views of each input, (B, V, ...)."""
        inputs = batch["inputs"]
        share = batch.get("share") or Share(int(torch.randint(2**62, ())), len(inputs))
        if self.augmentation is None:
            raise ValueError("expected an augmentation or the training part to choose one by, got neither: call fit")
        repeated = inputs.repeat_interleave(self.views, dim=0)
        views = self.augmentation(repeated, share.draw(self.views, len(inputs), inputs.device))
        return {**batch, "inputs": views.unflatten(0, (len(inputs), self.views))}


def some_inputs(samples: Samples, count: int) -> Tensor:
    """Return at most so many inputs, evenly spread over the samples.

    Example:
        >>> some_inputs(Samples(torch.arange(10.0).unsqueeze(1)), 3).flatten().tolist()
        [0.0, 4.0, 9.0]
    """
    rows = torch.linspace(0, max(len(samples) - 1, 0), min(count, len(samples)), dtype=torch.float64).long()
    return samples.inputs[rows]


def mixed(*numbers: int) -> int:
    """Mix numbers to a seed below 2^63, such that other numbers give another seed.

    Example:
        >>> mixed(0, 1) == mixed(0, 1), mixed(0, 1) == mixed(1, 0)
        (True, False)
    """
    digest = hashlib.blake2b(" ".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
