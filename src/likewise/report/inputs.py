"""Inputs of a run's samples, and the order of samples, as sections show them."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.evaluation import Features
from likewise.evaluation.raw import LONGEST
from likewise.report.subject import Subject

LETTERS = 240  # of a text


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


def inputs_as_words(subject: Subject, features: Features, letters: int = LETTERS) -> list[str]:
    """Return the beginnings of samples' texts in one line each; empty where samples are no texts.

    Args:
        subject: The run.
        features: The samples' features.
        letters: Of a text.
    """
    lines = (" ".join(text.split()) for text in subject.texts_of(features.part, features.numbers) or ())
    return [line if len(line) <= letters else f"{line[: letters - 1]}…" for line in lines]


def order_by_share(features: Features, seed: int = 0) -> Int[Tensor, " n"]:
    """Return an order of which any beginning has about the same share of every class; random within classes.

    Example:
        >>> features = Features(torch.eye(6), torch.tensor([0, 0, 0, 0, 1, 1]))
        >>> [sorted(features.classes[order_by_share(features)[:n]].tolist()) for n in (3, 6)]
        [[0, 0, 1], [0, 0, 0, 0, 1, 1]]
    """
    shuffled = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
    if features.label_kind != "classes":
        return shuffled
    classes = features.classes[shuffled]
    sorted_by_class = classes.argsort(stable=True)
    counts = torch.bincount(classes, minlength=len(features.names))
    firsts = counts.cumsum(0) - counts
    ranks = torch.empty(len(classes), dtype=torch.double)
    ranks[sorted_by_class] = torch.arange(len(classes)).double() - firsts[classes[sorted_by_class]]
    return shuffled[((ranks + 0.5) / counts[classes]).argsort(stable=True)]


def order_by_class(features: Features, seed: int = 0) -> Int[Tensor, " n"]:
    """Return an order that takes class by class, classes and samples at random.

    Example:
        >>> features = Features(torch.eye(6), torch.tensor([0, 1, 2, 0, 1, 2]))
        >>> len(set(features.classes[order_by_class(features)[:2]].tolist()))
        1
    """
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(features), generator=generator)
    place = torch.randperm(len(features.names), generator=generator)
    return shuffled[place[features.classes[shuffled]].argsort(stable=True)]


def how_many(some: int, count: int) -> str:
    """Say how many of the test samples are shown.

    Example:
        >>> how_many(30, 30), how_many(1000, 2000)
        ('All 30 test samples', '1,000 of 2,000 test samples')
    """
    return f"{some:,} of {count:,} test samples" if some < count else f"All {count:,} test samples"
