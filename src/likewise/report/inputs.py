"""Raw inputs of a run's samples, to be shown next to their features."""

import math

from jaxtyping import Float
from torch import Tensor

from likewise.evaluation import Features
from likewise.evaluation.raw import LONGEST
from likewise.report.subject import Subject


def raw_vectors(subject: Subject, features: Features) -> Float[Tensor, "n d"] | None:
    """Return the inputs of samples as vectors; None where there are none, or they are too long to say anything.

    Args:
        subject: The run.
        features: The samples' features.
    """
    if subject.parts is None or math.prod(subject.parts.test.input_shape) > LONGEST:
        return None
    inputs = subject.inputs_of(features.part, features.numbers)
    return None if inputs is None else inputs.flatten(1)


def how_many(some: int, count: int) -> str:
    """Say how many of the test samples are shown.

    Example:
        >>> how_many(30, 30), how_many(1000, 2000)
        ('All 30 test samples', '1,000 of 2,000 test samples')
    """
    return f"{some:,} of {count:,} test samples" if some < count else f"All {count:,} test samples"
