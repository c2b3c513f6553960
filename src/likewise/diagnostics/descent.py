"""The descent of a training's loss: whether it came down, or only varied from step to step."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

TENTHS = 10
MIN_STEPS = 20  # two in each tenth
MIN_ERRORS = 3.0  # standard errors of a fall; by chance 1 training in 100 does, 3 with skewed steps
MIN_FALL = 0.001  # as a part of the loss; a smaller fall does not count, however regular


class Descent(NamedTuple):
    """The descent of a loss."""

    highest: float
    """The mean of the tenth of the steps in which it was highest."""
    last: float
    """The mean of the last tenth."""
    noise: float
    """The standard deviation of its variation from one step to the next, after the first tenth."""
    fell: bool
    """Whether the difference is more than chance, and than a thousandth."""


def descent(losses: Sequence[float]) -> Descent | None:
    r"""Compare a loss at the end with where it was highest; it falls in every training that learns.

    $$
    m_{\max} - m_{10} > \max\bigl(3\, \sigma \sqrt{2 / n},\ 0.001\, |m_{\max}|\bigr), \qquad
    \sigma^2 = \tfrac12\, \mathrm{mean}\, (\ell_{t+1} - \ell_t)^2
    $$

    with the means m of tenths of n steps each. The highest is compared, not the first: while a queue fills, a loss over
    its keys rises, whether anything is learned or not; and σ is that of the steps after the first tenth.

    Args:
        losses: The loss of each step, in order. Fewer than 20 can't tell: then None is returned.

    Example:
        >>> descent([5.5, 5.4] * 50).fell, descent([5.5 - 0.01 * step for step in range(100)]).fell
        (False, True)
    """
    if len(losses) < MIN_STEPS:
        return None
    values = torch.tensor(losses, dtype=torch.float64)
    means = torch.stack([tenth.mean() for tenth in values.tensor_split(TENTHS)])
    noise = math.sqrt(float(values[len(values) // TENTHS :].diff().square().mean()) / 2)
    highest, last = float(means.max()), float(means[-1])
    error = noise * math.sqrt(2 * TENTHS / len(values))
    return Descent(highest, last, noise, highest - last > max(MIN_ERRORS * error, MIN_FALL * abs(highest)))
