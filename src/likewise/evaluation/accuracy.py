"""Accuracy of predicted classes: overall, by class, and by how many training samples a class has."""

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.evaluation.features import Features
from likewise.evaluation.intervals import wilson
from likewise.scores import Found, Outcomes, Score

MANY = 100  # more training samples than this: many
FEW = 20  # fewer than this: few


def accuracy(
    evaluation: str, predictions: Int[Tensor, " m"], test: Features, training: Int[Tensor, " c"], choices: str = ""
) -> Found:
    """Compare predicted classes with the true ones.

    Args:
        evaluation: Who predicted.
        predictions: Predicted classes, (M,).
        test: The samples, with their true classes.
        training: How many training samples each class has, (C,).
        choices: The settings of the predictor.

    Returns:
        Scores of all samples, of each class that occurs, and of classes with many, medium and few training samples
        where there are at least two of these; with Wilson's intervals. Outcomes "accuracy", 0 or 1, and "prediction".

    Source:
        Many, medium and few: Z. Liu et al., Large-Scale Long-Tailed Recognition in an Open World, 2019.

    Example:
        >>> test = Features(torch.eye(3), torch.tensor([0, 1, 1]), ("cat", "dog"))
        >>> found = accuracy("kNN", torch.tensor([0, 1, 0]), test, torch.tensor([150, 5]))
        >>> [(score.subset, round(score.value, 2)) for score in found.scores]
        [('all', 0.67), ('many', 1.0), ('few', 0.5), ('class cat', 1.0), ('class dog', 0.5)]
    """
    right = predictions == test.classes
    scores: list[Score] = []
    for subset, rows in _subsets(test, training):
        count, correct = int(rows.sum()), int(right[rows].sum())
        low, high = wilson(correct, count)
        where = (test.kind, test.part, subset)
        scores.append(Score(evaluation, "accuracy", correct / count, low, high, count, *where, choices=choices))
    outcomes = (
        Outcomes(evaluation, metric, test.numbers, values.float(), test.kind, test.part)
        for metric, values in (("accuracy", right), ("prediction", predictions))
    )
    return Found(tuple(scores), outcomes=tuple(outcomes))


def frequency(training: Int[Tensor, " c"]) -> dict[str, Tensor]:
    """Name the classes with many (over 100), medium, and few (under 20) training samples: masks (C,).

    Example:
        >>> frequency(torch.tensor([500, 100, 20, 3]))["medium"]
        tensor([False,  True,  True, False])
    """
    many, few = training > MANY, training < FEW
    return {"many": many, "medium": ~many & ~few, "few": few}


def _subsets(test: Features, training: Tensor) -> Iterator[tuple[str, Tensor]]:
    classes = test.classes
    yield "all", torch.ones(len(test), dtype=torch.bool)
    tail = {name: chosen[classes] for name, chosen in frequency(training).items()}
    occurring = {name: rows for name, rows in tail.items() if bool(rows.any())}
    if len(occurring) > 1:
        yield from occurring.items()
    for label in classes.unique().tolist():
        yield f"class {test.names[label]}", classes == label
