"""Whether a training's loss came down, or only varied from step to step."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

TENTHS = 10
FEWEST = 20  # values: two in each tenth
ERRORS = 3.0  # standard errors that a fall must exceed; by chance 1 training in 100 does, 3 with skewed steps
LEAST = 0.001  # of the loss; a smaller fall does not count, however regular


class Descent(NamedTuple):
    """How far a loss came down."""

    highest: float
    """The mean of the tenth of the steps in which it was highest."""
    last: float
    """The mean of the last tenth."""
    noise: float
    """How much it varies between one step and the next, after the first tenth, as a standard deviation."""
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
        losses: The loss of each step, in order.

    Returns:
        None where there are fewer than 20 steps, which can't tell.

    Example:
        >>> descent([5.5, 5.4] * 50).fell, descent([5.5 - 0.01 * step for step in range(100)]).fell
        (False, True)
    """
    if len(losses) < FEWEST:
        return None
    values = torch.tensor(losses, dtype=torch.float64)
    means = torch.stack([tenth.mean() for tenth in values.tensor_split(TENTHS)])
    noise = math.sqrt(float(values[len(values) // TENTHS :].diff().square().mean()) / 2)
    highest, last = float(means.max()), float(means[-1])
    error = noise * math.sqrt(2 * TENTHS / len(values))
    return Descent(highest, last, noise, highest - last > max(ERRORS * error, LEAST * abs(highest)))
