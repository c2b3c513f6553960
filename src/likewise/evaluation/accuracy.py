"""Accuracy as counts, with the interval that the counts allow."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Z_95 = 1.959963984540054  # the standard normal's 97.5 % quantile


@final
@dataclass(frozen=True)
class Proportion:
    """A share of a count.

    Args:
        correct: How many are.
        count: Out of how many.

    Raises:
        ValueError: The counts are no part and whole.

    Example:
        >>> share = Proportion(correct=98, count=100)
        >>> share.value, [round(bound, 4) for bound in share.interval]
        (0.98, [0.93, 0.9945])
    """

    correct: int
    count: int

    def __post_init__(self) -> None:
        """Check the counts."""
        if not 0 <= self.correct <= self.count or self.count == 0:
            raise ValueError(f"expected 0 <= correct <= count and a count above 0, got {self.correct} of {self.count}")

    @property
    def value(self) -> float:
        """The share, between 0 and 1."""
        return self.correct / self.count

    @property
    def interval(self) -> tuple[float, float]:
        r"""Wilson's score interval at 95 %: good for small counts and shares near 1, where the normal one is not.

            (p + z²/2n ± z·sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n)

        Source:
            E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference, 1927.
        """
        n, p, square = self.count, self.value, Z_95**2
        centre = p + square / (2 * n)
        spread = Z_95 * math.sqrt(p * (1 - p) / n + square / (4 * n * n))
        scale = 1 + square / n
        return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


@final
@dataclass(frozen=True)
class Accuracy:
    """Predictions beside the truth.

    Args:
        predictions: Predicted classes, (M,).
        labels: True classes, (M,).

    Raises:
        ValueError: The lengths disagree, or there is no sample.

    Example:
        >>> accuracy = Accuracy(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]))
        >>> accuracy.overall.value, accuracy.per_class[0].value
        (0.6666666666666666, 0.5)
    """

    predictions: Int[Tensor, "m"]
    labels: Int[Tensor, "m"]

    def __post_init__(self) -> None:
        """Check that every prediction has its truth."""
        if self.predictions.shape != self.labels.shape or self.labels.ndim != 1 or len(self.labels) == 0:
            raise ValueError(
                f"expected predictions and labels of one shape (M,), got {tuple(self.predictions.shape)} "
                f"and {tuple(self.labels.shape)}: give one prediction a label"
            )

    @property
    def correct(self) -> Bool[Tensor, "m"]:
        """Which predictions are right."""
        return self.predictions == self.labels

    @property
    def overall(self) -> Proportion:
        """The share of right predictions."""
        return Proportion(int(self.correct.sum()), len(self.labels))

    @property
    def per_class(self) -> dict[int, Proportion]:
        """The share of right predictions among the samples of each class that occurs."""
        shares = {}
        for label in self.labels.unique().tolist():
            chosen = self.correct[self.labels == label]
            shares[label] = Proportion(int(chosen.sum()), len(chosen))
        return shares


@final
@dataclass(frozen=True)
class Difference:
    """One accuracy less another on the same samples.

    Args:
        value: The difference.
        interval: Its 95 % interval.
        gained: Samples that only the first has right.
        lost: Samples that only the second has right.
    """

    value: float
    interval: tuple[float, float]
    gained: int
    lost: int


def paired_difference(first: Accuracy, second: Accuracy) -> Difference:
    """Compare two predictors on the same samples.

    With b samples that only the first has right, c that only the second, n in all, and half a sample added to each
    of the four cells (n' = n + 2):

        d = (b - c) / n',   d ± z·sqrt(b' + c' - (b - c)²/n') / n'

    Args:
        first: The accuracy to compare.
        second: What to compare it with.

    Returns:
        The plain difference (b - c)/n, and the interval around d.

    Raises:
        ValueError: The two are not on the same samples.

    Source:
        A. Agresti and Y. Min, Simple improved confidence intervals for comparing matched proportions, 2005.

    Example:
        >>> labels = torch.zeros(100, dtype=torch.long)
        >>> worse = Accuracy((torch.arange(100) < 10).long(), labels)
        >>> better = Accuracy((torch.arange(100) < 1).long(), labels)
        >>> difference = paired_difference(better, worse)
        >>> difference.gained, difference.lost, [round(bound, 3) for bound in difference.interval]
        (9, 0, [0.03, 0.147])
    """
    if not torch.equal(first.labels, second.labels):
        raise ValueError("expected two accuracies on the same samples, got different labels: evaluate both on one test")
    gained = int((first.correct & ~second.correct).sum())
    lost = int((second.correct & ~first.correct).sum())
    n = len(first.labels) + 2
    centre = (gained - lost) / n
    spread = Z_95 * math.sqrt(gained + lost + 1 - (gained - lost) ** 2 / n) / n
    interval = (max(-1.0, centre - spread), min(1.0, centre + spread))
    return Difference((gained - lost) / len(first.labels), interval, gained, lost)
