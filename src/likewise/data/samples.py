"""Samples in memory: inputs with a class each, checked once, split once, fetched a whole batch at a time."""

from dataclasses import dataclass
from typing import TypedDict, final

import torch
from jaxtyping import Bool, Float, Int
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.utils.data import Dataset


class Batch(TypedDict):
    """What a training step receives.

    Attributes:
        inputs: Views, (B, V, ...); before the views are made, (B, ...).
        labels: Classes, (B,).
        sample_index: Each sample's row in the training set, (B,); a loss that keeps state per sample asks for it.
    """

    inputs: Float[Tensor, "b ..."]
    labels: Int[Tensor, "b"]
    sample_index: Int[Tensor, "b"]


@final
@dataclass(frozen=True)
class Samples:
    """Inputs and their classes.

    Args:
        inputs: Images (N, channels, height, width) or vectors (N, F), finite.
        labels: Classes (N,), integers from 0 to C - 1.
        class_names: The C names, in the classes' order.
        test: Which samples are held out, (N,); None leaves the choice to a stratified split.

    Raises:
        ValueError: Lengths disagree, an input is not finite, or fewer than two classes occur.

    Example:
        >>> samples = Samples(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1]), ("cat", "dog"))
        >>> samples[torch.tensor([0, 3])].labels
        tensor([0, 1])
    """

    inputs: Float[Tensor, "n ..."]
    labels: Int[Tensor, "n"]
    class_names: tuple[str, ...]
    test: Bool[Tensor, "n"] | None = None

    def __post_init__(self) -> None:
        """Check what every user of the samples relies on."""
        for name, rows in (("labels", self.labels), ("test", self.test)):
            if rows is not None and rows.shape != self.inputs.shape[:1]:
                raise ValueError(
                    f"expected {name} of shape ({len(self.inputs)},), one per input, got {tuple(rows.shape)}: "
                    f"drop the inputs or the {name} that have no partner"
                )
        if not torch.isfinite(self.inputs).all():
            bad = int((~torch.isfinite(self.inputs.flatten(1))).any(dim=1).sum())
            raise ValueError(f"expected finite inputs, got NaN or infinity in {bad} of {len(self.inputs)}: clean them")

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.labels)

    def __getitem__(self, rows: Tensor) -> "Samples":
        """Take the rows given by a mask or by indices."""
        return Samples(self.inputs[rows], self.labels[rows], self.class_names)

    def split(self, test_fraction: float, split_seed: int) -> tuple["Samples", "Samples"]:
        """Part the samples into training and test: by the mask where there is one, else stratified by class.

        Args:
            test_fraction: The part held out, between 0 and 1; unused when the samples carry a mask.
            split_seed: Seed of the shuffle; the same seed gives the same split.

        Returns:
            The training samples and the test samples.

        Raises:
            ValueError: One class only, a class too small to be on both sides, or a mask that leaves a side empty.

        Example:
            >>> samples = Samples(torch.zeros(8, 3), torch.tensor([0, 1] * 4), ("cat", "dog"))
            >>> [len(part) for part in samples.split(0.25, split_seed=0)]
            [6, 2]
        """
        counts = torch.bincount(self.labels, minlength=len(self.class_names))
        if int((counts > 0).sum()) < 2:
            raise ValueError(
                f"expected at least 2 classes, got 1 ({self.class_names[int(counts.argmax())]!r}) "
                f"in {len(self)} samples: contrast and evaluation both need a second class"
            )
        test = self._stratified(counts, test_fraction, split_seed) if self.test is None else self.test
        unseen = set(self.labels[test].tolist()) - set(self.labels[~test].tolist())
        if unseen or not test.any():
            lost = ", ".join(self.class_names[label] for label in sorted(unseen))
            what = f"no training sample for {lost}" if unseen else "no test sample"
            raise ValueError(f"expected a test mask with every class in training, got {what}: change the mask")
        return self[~test], self[test]

    def _stratified(self, counts: Tensor, test_fraction: float, split_seed: int) -> Tensor:
        smallest = int(counts.argmin())
        held_out = round(len(self) * test_fraction)
        if counts[smallest] < 3 or not len(counts) <= held_out <= len(self) - 2 * len(counts):
            raise ValueError(
                f"expected at least 3 samples of every class, 2 to train and 1 to test, got {int(counts[smallest])} of "
                f"{self.class_names[smallest]!r} and test_fraction={test_fraction} of {len(self)} samples: "
                "add samples, drop the class or change test_fraction"
            )
        rows = torch.arange(len(self))
        _, held = train_test_split(
            rows.numpy(), test_size=held_out, stratify=self.labels.numpy(), random_state=split_seed
        )
        return torch.isin(rows, torch.from_numpy(held))


@final
class IndexedSamples(Dataset[Batch]):
    """Samples as PyTorch's loader fetches them: a batch is one indexing operation, not B of them.

    Args:
        samples: What to fetch from.

    Example:
        >>> samples = Samples(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1]), ("cat", "dog"))
        >>> IndexedSamples(samples).__getitems__([2, 0])["labels"]
        tensor([1, 0])
    """

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.samples)

    def __getitem__(self, row: int) -> Batch:
        """Fetch one sample, as a batch of one."""
        return self.__getitems__([row])

    def __getitems__(self, rows: list[int]) -> Batch:
        """Fetch one batch."""
        index = torch.tensor(rows)
        return Batch(inputs=self.samples.inputs[index], labels=self.samples.labels[index], sample_index=index)
