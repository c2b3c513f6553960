"""Predictions of samples: a class or labels of each, with probabilities, and how unlike the training data it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from likewise.evaluation.novelty import UNLIKE_SHARE

MAX_SHOWN = 5  # samples in the repr


@final
@dataclass(frozen=True)
class Predictions:
    """The predictions for M samples; see `Model.predict`.

    Args:
        ids: What each sample is called, (M,).
        names: The classes or labels that may be predicted, C of them.
        scores: The probability of each class or label, (M, C); by label prototypes the cosine.
        sets: Which labels are predicted, (M, L); None for classes.
        unlike: The share of held-out samples that are nearer to the training data, (M,), as `NoveltyScore` has it. None
            where the run keeps no features.
        probabilities: Whether the scores are probabilities.
        trained_on: Whether each sample has the features of a training sample, (M,). None as above.
    """

    ids: Sequence[str]
    names: tuple[str, ...]
    scores: Float[NDArray[np.floating[Any]], "m c"]
    sets: Bool[NDArray[np.bool_], "m l"] | None = None
    unlike: Float[NDArray[np.float64], " m"] | None = None
    probabilities: bool = True
    trained_on: Bool[NDArray[np.bool_], " m"] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        first = zip(self.ids[:MAX_SHOWN], self.labels[:MAX_SHOWN], strict=True)
        shown = [f"{name}: {self._words(label)}" for name, label in first]
        return f"Predictions({len(self):,}: {', '.join(shown)}{', ...' if len(self) > MAX_SHOWN else ''})"

    @property
    def labels(self) -> list[Any]:
        """The class of each sample, or the list of its labels, the likeliest first."""
        if self.sets is None:
            return [self.names[number] for number in self.scores.argmax(axis=1).tolist()]
        ranked = zip(np.argsort(-self.scores, axis=1, kind="stable").tolist(), self.sets.tolist(), strict=True)
        return [[self.names[label] for label in order if mask[label]] for order, mask in ranked]

    @property
    def probability(self) -> list[Any]:
        """The probability of the class of each sample, or the list of those of its labels, in their order."""
        if self.sets is None:
            return self.scores.max(axis=1).tolist()
        ranked = zip(-np.sort(-np.where(self.sets, self.scores, -np.inf), axis=1), self.sets.sum(axis=1), strict=True)
        return [row[:count].tolist() for row, count in ranked]

    @property
    def unlike_training(self) -> list[bool] | None:
        """Whether each sample is farther from the training data than 95 % of held-out samples are."""
        return None if self.unlike is None else (self.unlike > UNLIKE_SHARE).tolist()

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The columns of a table: id, class or labels, probability, second choice, and how unlike."""
        what, stated = "class" if self.sets is None else "labels", "probability" if self.probabilities else "score"
        table: dict[str, list[Any]] = {"id": list(self.ids), what: self.labels, stated: self.probability}
        if self.sets is None and len(self.names) > 1:
            second = np.argsort(-self.scores, axis=1, kind="stable")[:, 1]
            table["second"] = [self.names[number] for number in second.tolist()]
            table[f"second_{stated}"] = np.take_along_axis(self.scores, second[:, None], axis=1)[:, 0].tolist()
        if self.unlike is not None and self.unlike_training is not None:
            table |= {"unlike": self.unlike.tolist(), "unlike_training": self.unlike_training}
        return table

    @staticmethod
    def _words(label: Any) -> str:
        return " + ".join(label) or "no label" if isinstance(label, list) else label
