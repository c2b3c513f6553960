"""Accuracy of predicted classes: overall, by class, and by how many training samples a class has."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.evaluation.features import Features
from likewise.evaluation.intervals import wilson
from likewise.scores import ALL, FREQUENCIES, Group, Metric, Outcomes, Result, Score

ACCURACY = Metric("accuracy", selects=True)
MANY = 100  # more training samples than this: many
FEW = 20  # fewer than this: few


def accuracy(
    evaluation: str,
    predictions: Int[Tensor, " m"],
    test: Features,
    training: Int[Tensor, " c"],
    settings: Mapping[str, Any] | None = None,
) -> Result:
    """Compare predicted classes, (M,), with the true ones: 0 or 1 a sample, with Wilson's intervals.

    Scores are of all samples, of each class that occurs, and of classes with many, medium and few training samples,
    where there are at least two of these. `training` has how many each class has, (C,).

    Source:
        Many, medium and few: Z. Liu et al., Large-Scale Long-Tailed Recognition in an Open World, 2019.
    """
    right = predictions == test.classes
    scores: list[Score] = []
    for group, rows in _groups(test, training):
        count, correct = int(rows.sum()), int(right[rows].sum())
        low, high = wilson(correct, count)
        where = (test.kind, test.part, group)
        scores.append(Score(evaluation, ACCURACY, correct / count, low, high, count, *where, settings=settings or {}))
    outcomes = (
        Outcomes(evaluation, metric, test.numbers, values.float(), test.kind, test.part)
        for metric, values in ((ACCURACY.name, right), ("prediction", predictions))
    )
    return Result(tuple(scores), outcomes=tuple(outcomes))


def frequency(training: Int[Tensor, " c"]) -> dict[Group, Tensor]:
    """Name the classes with many (over 100), medium, and few (under 20) training samples: masks (C,)."""
    many, few = training > MANY, training < FEW
    return dict(zip(FREQUENCIES, (many, ~many & ~few, few), strict=False))


def _groups(test: Features, training: Tensor) -> Iterator[tuple[Group, Tensor]]:
    classes = test.classes
    yield ALL, torch.ones(len(test), dtype=torch.bool)
    tail = {name: chosen[classes] for name, chosen in frequency(training).items()}
    occurring = {name: rows for name, rows in tail.items() if bool(rows.any())}
    if len(occurring) > 1:
        yield from occurring.items()
    for label in classes.unique().tolist():
        yield Group("class", test.names[label]), classes == label
