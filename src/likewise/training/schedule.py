"""Schedules: the factor of the learning rate over the training."""

import math
import warnings
from abc import ABC, abstractmethod
from typing import final

from likewise.instantiate import Described, describe
from likewise.runs.scores import format_count

MAX_WARMUP_SHARE = 0.5  # largest fraction of a training for the warm-up


class Schedule(Described, ABC):
    """Abstract: a factor for all learning rates at each step."""

    def __repr__(self) -> str:
        """Describe the schedule by its settings."""
        return describe(self)

    @abstractmethod
    def factor(self, epoch: float, share: float) -> float:
        """Return the factor after `epoch` epochs, at the fraction `share` of the training.

        The fraction is of the training's steps, or of its time if that ends it sooner.
        """

    def within(self, steps: int, of_epoch: int) -> "Schedule":
        """Return the schedule for a training of `steps` steps, `of_epoch` in each epoch; by default this one."""
        del steps, of_epoch
        return self


@final
class Cosine(Schedule):
    r"""A linear warm-up to 1, then half a cosine from 1 to `end`.

    $$
    \eta(s) = e + (1 - e) \, \frac{1 + \cos \pi \frac{s - w}{1 - w}}{2}
    $$

    at the fraction s of the training, after a warm-up over the fraction w: at most half. A longer warm-up is shortened,
    with a warning if the training has a number of steps.

    Args:
        warmup_epochs: Epochs of warm-up, in which the factor rises to 1. SupContrast uses 10 for batches over 256.
        warmup_share: The warm-up as a fraction of the training, if it is not given in epochs.
        warmup_start: The factor at the first step, if there is a warm-up.
        end: The factor at the end, e.

    Raises:
        ValueError: A number is negative, or the fraction is above one half.

    Source:
        Loshchilov, Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017, equation 5, without restarts.

    Example:
        >>> schedule = Cosine(warmup_epochs=2)
        >>> [round(schedule.factor(epoch, epoch / 10), 3) for epoch in (0, 1, 2, 5, 10)]
        [0.0, 0.5, 1.0, 0.691, 0.0]
    """

    def __init__(
        self, warmup_epochs: float = 0.0, warmup_start: float = 0.0, end: float = 0.0, *, warmup_share: float = 0.0
    ) -> None:
        for name, value in (("warmup_epochs", warmup_epochs), ("warmup_start", warmup_start), ("end", end)):
            if not 0 <= value < math.inf:
                raise ValueError(f"expected {name} of at least 0, got {value}: 0 switches it off")
        if not 0 <= warmup_share <= MAX_WARMUP_SHARE:
            raise ValueError(f"expected warmup_share from 0 to {MAX_WARMUP_SHARE}, got {warmup_share}: 0.1 is usual")
        self.warmup_epochs = warmup_epochs
        self.warmup_share = warmup_share
        self.warmup_start = warmup_start
        self.end = end

    def factor(self, epoch: float, share: float) -> float:
        if self.warmup_epochs:
            warmed = max(epoch / self.warmup_epochs, share / MAX_WARMUP_SHARE)
        else:
            warmed = share / self.warmup_share if self.warmup_share else math.inf
        if warmed < 1:
            return self.warmup_start + (1 - self.warmup_start) * warmed
        warmup = share / warmed
        after = min((share - warmup) / (1 - warmup), 1.0)
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * after)) / 2

    def within(self, steps: int, of_epoch: int) -> "Schedule":
        if 0 < self.warmup_share * steps < 1:  # its only step would have a rate of 0
            return Cosine(self.warmup_epochs, self.warmup_start, self.end).within(steps, of_epoch)
        most = int(steps * MAX_WARMUP_SHARE) / of_epoch
        if self.warmup_epochs <= most:
            return self
        warnings.warn(
            f"a warm-up of {self.warmup_epochs:g} epoch{'s' * (self.warmup_epochs != 1)} is longer than half of the "
            f"training, {format_count(steps, 'step')}: it takes {int(steps * MAX_WARMUP_SHARE) or 'none'} of them; "
            "lower --schedule.warmup_epochs, or train longer",
            stacklevel=2,
        )
        return Cosine(most, self.warmup_start, self.end, warmup_share=self.warmup_share)


@final
class Constant(Schedule):
    """The constant factor 1.

    Example:
        >>> Constant().factor(3.0, 0.5)
        1.0
    """

    def factor(self, epoch: float, share: float) -> float:
        return 1.0


@final
class Steps(Schedule):
    """A factor, multiplied by a number at given epochs.

    Args:
        epochs: The epochs, in increasing order.
        by: The number, or one for each epoch.

    Raises:
        ValueError: The epochs do not increase, or the number of factors differs.

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
                f"expected increasing epochs and one number or one for each, got {epochs} and {by}: sort the epochs"
            )

    def factor(self, epoch: float, share: float) -> float:
        return math.prod((by for at, by in zip(self.epochs, self.by, strict=True) if epoch >= at), start=1.0)
