"""Schedules: by what a learning rate is multiplied as training goes on."""

import math
from abc import ABC, abstractmethod
from typing import final


class Schedule(ABC):
    """Abstract: a factor for every learning rate, step by step."""

    @abstractmethod
    def factor(self, epoch: float, share: float) -> float:
        """Return the factor.

        Args:
            epoch: Epochs done, with fractions.
            share: The part of the training that is done, from 0 to 1: of its steps, or of its time if that is short.
        """


@final
class Cosine(Schedule):
    r"""From 1 to the end on half a cosine, after a linear warm-up.

    $$
    \eta(s) = e + (1 - e) \, \frac{1 + \cos \pi s}{2}
    $$

    at the share s of the training. In the warm-up the factor goes in a straight line from its start to what the cosine
    is at the warm-up's end.

    Args:
        warmup_epochs: Epochs of warm-up. SupContrast has 10 where a batch is over 256.
        warmup_start: The factor at the first step, if there is a warm-up.
        end: The factor at the end.

    Raises:
        ValueError: A number is negative.

    Source:
        Loshchilov, Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017, equation 5, without restarts.

    Example:
        >>> schedule = Cosine(warmup_epochs=2)
        >>> [round(schedule.factor(epoch, epoch / 10), 3) for epoch in (0, 1, 2, 5, 10)]
        [0.0, 0.452, 0.905, 0.5, 0.0]
    """

    def __init__(self, warmup_epochs: float = 0.0, warmup_start: float = 0.0, end: float = 0.0) -> None:
        for name, value in (("warmup_epochs", warmup_epochs), ("warmup_start", warmup_start), ("end", end)):
            if not 0 <= value < math.inf:
                raise ValueError(f"expected {name} of at least 0, got {value}: 0 is without")
        self.warmup_epochs = warmup_epochs
        self.warmup_start = warmup_start
        self.end = end

    def factor(self, epoch: float, share: float) -> float:
        """Return the factor."""
        if epoch >= self.warmup_epochs:
            return self._cosine(share)
        part = epoch / self.warmup_epochs
        there = self._cosine(min(share / part, 1.0) if part else 0.0)
        return self.warmup_start + (there - self.warmup_start) * part

    def _cosine(self, share: float) -> float:
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * min(share, 1.0))) / 2


@final
class Constant(Schedule):
    """Always 1.

    Example:
        >>> Constant().factor(3.0, 0.5)
        1.0
    """

    def factor(self, epoch: float, share: float) -> float:
        """Return 1."""
        del epoch, share
        return 1.0


@final
class Steps(Schedule):
    """Multiplied anew at each of some epochs.

    Args:
        epochs: The epochs, in their order.
        by: By what, at each of them: one number, or one for each.

    Raises:
        ValueError: The epochs do not rise, or there are not as many numbers.

    Example:
        >>> schedule = Steps([60, 80], 0.1)
        >>> [round(schedule.factor(epoch, 0.0), 3) for epoch in (59, 60, 80)]
        [1.0, 0.1, 0.01]
    """

    def __init__(self, epochs: list[float], by: float | list[float] = 0.1) -> None:
        self.epochs = list(epochs)
        self.by = [by] * len(epochs) if isinstance(by, int | float) else list(by)
        if sorted(set(self.epochs)) != self.epochs or len(self.by) != len(self.epochs):
            raise ValueError(
                f"expected epochs that rise and one number or one for each, got {epochs} and {by}: sort them"
            )

    def factor(self, epoch: float, share: float) -> float:
        """Return the product of what has been reached."""
        del share
        return math.prod((by for at, by in zip(self.epochs, self.by, strict=True) if epoch >= at), start=1.0)
