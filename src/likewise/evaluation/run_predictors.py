"""The predictors of a run, from its saved classifiers or its training features, and their predictions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, final, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from likewise.evaluation.evaluation import needs_seen_labels
from likewise.evaluation.feature_files import load_features
from likewise.evaluation.features import FeatureParts, Features, joined, labelled_validation
from likewise.evaluation.knn import KNN, TEMPERATURE, NeighbourPredictor, Weights
from likewise.evaluation.linear import LinearPredictor
from likewise.evaluation.out_of_distribution import UNLIKE_SHARE, NoveltyScore
from likewise.evaluation.predictions import Predictor
from likewise.instantiate import instantiate
from likewise.runs import Run
from likewise.runs.scores import ENCODER

MAX_SHOWN = 5  # samples in the repr
By = Literal["probe", "own", "knn"]
DEFAULT_NEIGHBOURS: tuple[int, Weights] = (20, "similarity")  # their number and weights
LABELLED_REMEDY = "give labelled samples to predict by with among (likewise predict RUN INPUT --among SOURCE)"


@final
@dataclass(frozen=True)
class Predictions:
    """The predictions for M samples; see `Model.predict`.

    Args:
        ids: The ID of each sample, (M,).
        names: The C possible classes or labels.
        scores: The probability of each class or label, (M, C); for label prototypes the cosine.
        sets: A mask of the predicted labels, (M, L); None for classes.
        unlike: The share of held-out samples nearer to the training data, (M,); see `NoveltyScore`. None if the run
            keeps no features.
        probabilities: Whether the scores are probabilities.
        trained_on: A mask of samples with the features of a training sample, (M,). None if `unlike` is None.
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
        shown = list[str]()
        for name, label in zip(self.ids[:MAX_SHOWN], self.labels[:MAX_SHOWN], strict=True):
            shown.append(f"{name}: {(' + '.join(label) or 'no label') if isinstance(label, list) else label}")
        return f"Predictions({len(self):,}: {', '.join(shown)}{', ...' if len(self) > MAX_SHOWN else ''})"

    @property
    def labels(self) -> list[Any]:
        """The class of each sample, or the list of its labels, most likely first."""
        if self.sets is None:
            return [self.names[number] for number in self.scores.argmax(axis=1).tolist()]
        ranked = zip(np.argsort(-self.scores, axis=1, kind="stable").tolist(), self.sets.tolist(), strict=True)
        return [[self.names[label] for label in order if mask[label]] for order, mask in ranked]

    @property
    def probability(self) -> list[Any]:
        """The probability of each sample's class, or the list of its labels' probabilities, in the same order."""
        if self.sets is None:
            return self.scores.max(axis=1).tolist()
        ranked = zip(-np.sort(-np.where(self.sets, self.scores, -np.inf), axis=1), self.sets.sum(axis=1), strict=True)
        return [row[:count].tolist() for row, count in ranked]

    @property
    def unlike_training(self) -> list[bool] | None:
        """Whether each sample is farther from the training data than 95 % of held-out samples."""
        return None if self.unlike is None else (self.unlike > UNLIKE_SHARE).tolist()

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The columns of a table: id, class or labels, probability, second choice, and unlikeness."""
        what, stated = "class" if self.sets is None else "labels", "probability" if self.probabilities else "score"
        table: dict[str, list[Any]] = {"id": list(self.ids), what: self.labels, stated: self.probability}
        if self.sets is None and len(self.names) > 1:
            second = np.argsort(-self.scores, axis=1, kind="stable")[:, 1]
            table["second"] = [self.names[number] for number in second.tolist()]
            table[f"second_{stated}"] = np.take_along_axis(self.scores, second[:, None], axis=1)[:, 0].tolist()
        if self.unlike is not None and self.unlike_training is not None:
            table |= {"unlike": self.unlike.tolist(), "unlike_training": self.unlike_training}
        return table


@final
class RunPredictors:
    """A run's predictors from features, each loaded at its first use; the data is not needed.

    Args:
        run: The run. None: there is only an exported encoder.
        probe: The linear probe exported with the encoder.
    """

    def __init__(self, run: Run | None, probe: LinearPredictor | None = None) -> None:
        self._run, self._probe = run, probe
        self._last: tuple[By | None, Features | None, Predictor] | None = None

    @property
    def run(self) -> Run:
        """The run.

        Raises:
            ValueError: There is only an exported encoder.
        """
        if self._run is None:
            got = "an exported encoder" + (" with a probe alone" if self._probe else " without a probe")
            raise ValueError(f"expected a run to predict by, got {got}: name it, or export with --classifier probe")
        return self._run

    @cached_property
    def features(self) -> FeatureParts | None:
        """The run's features as evaluated, for pairs each input of the first side once; None if it keeps none."""
        if self._run is None or not self.run.embeddings.is_file():
            return None
        return FeatureParts(*(part.unique() for part in load_features(self.run.embeddings)))

    @cached_property
    def refit(self) -> bool:
        """Whether the final fit included the validation part."""
        return bool((self.run.metadata.get("parts") or {}).get("split", {}).get("init_args", {}).get("refit", False))

    @cached_property
    def unlikeness(self) -> NoveltyScore | None:
        """The score of unlikeness to the training data; None without training or held-out samples."""
        features = self.features
        if features is None or not len(features.train):
            return None
        if not len(features.test) + (0 if self.refit else len(features.validation)):
            return None
        return NoveltyScore(features, refit=self.refit)

    def predictor(self, by: By | None = None, among: Features | None = None) -> Predictor:
        """Return a predictor.

        Args:
            by: "probe", the linear probe; "own", the classifier or prototypes trained with the encoder; or "knn". None:
                the first that the run has.
            among: Labelled samples; the nearest 20 of them predict, weighted by similarity.

        Raises:
            ValueError: The run has no such classifier, or no labels.
        """
        if by is not None and by not in get_args(By):
            raise ValueError(f"expected by as one of {', '.join(get_args(By))}, got {by!r}")
        if among is not None:
            if by not in {None, "knn"}:
                raise ValueError(f"expected by='knn' with among, got {by!r}: neighbours alone predict by other samples")
            if among.label_kind is None:
                raise ValueError("expected labelled samples as among, got none with a label: name a source with labels")
            return NeighbourPredictor.of(among, *DEFAULT_NEIGHBOURS)
        if self._probe is not None and by in {None, "probe"}:
            return self._probe
        files = {"probe": self.run.probe, "own": self.run.classifier}
        first = next((name for name, file in files.items() if file.is_file()), "knn") if by is None else by
        if first == "knn":
            return self._neighbours(explicit=by is not None)
        if not files[first].is_file():
            raise ValueError(self._missing(first))
        return LinearPredictor.load(files[first], lambda: instantiate(self.run.metadata["parts"]["head"], nn.Module))

    def predictions(
        self, features: Float[Tensor, "m d"], ids: Sequence[str], by: By | None = None, among: Features | None = None
    ) -> Predictions:
        """Predict the class or labels of M samples, with the given `ids`, and their unlikeness to the training data.

        Raises:
            ValueError: The run has no such classifier, or no labels; or the features have another length or aren't
                finite.
        """
        wrong = (~torch.isfinite(features).all(dim=1)).nonzero().flatten()
        if len(wrong):
            raise ValueError(f"expected finite features, got NaN or infinity of {ids[int(wrong[0])]}: check its input")
        if self._last is None or self._last[0] != by or self._last[1] is not among:
            self._last = by, among, self.predictor(by, among)
        predictor = self._last[2]
        scores, limits = predictor.scores(features), predictor.limits
        sets = None if limits is None else (scores > limits).numpy()
        novelty = (None, None)
        if self.unlikeness is not None:
            novelty = tuple(tensor.numpy() for tensor in self.unlikeness.compared(features.float()))
        return Predictions(ids, predictor.names, scores.numpy(), sets, novelty[0], predictor.probabilities, novelty[1])

    def _neighbours(self, *, explicit: bool) -> NeighbourPredictor:
        features, why = self.features, "it keeps no features"
        if features is not None:
            unlabelled = features.train.label_kind is None
            why = "it has no labels" if unlabelled else None if explicit else needs_seen_labels(features)
        if features is None or why is not None:
            expected = "expected a run that has learned classes or labels"
            raise ValueError(f"{expected}, got {self.run.folder}: {why}; {LABELLED_REMEDY}")
        train, validation, _ = features
        chosen: tuple[int, Weights, float] = (*DEFAULT_NEIGHBOURS, TEMPERATURE)
        for score in self.run.scores:
            if score.evaluation == KNN.name and score.features == ENCODER and score.part == "test":
                settings = score.settings
                chosen = settings["k"], settings["weights"], settings.get("temperature", TEMPERATURE)
        learned = joined(train, validation) if self.refit else train
        made = NeighbourPredictor.of(learned, *chosen)
        if made.thresholds is None:
            return made
        apart = NeighbourPredictor.of(train, *chosen, labelled_validation(validation))
        return replace(made, thresholds=apart.thresholds, few=apart.few)

    def _missing(self, by: str) -> str:
        run = self.run
        if by == "own":
            got = f"got {run.folder}, which has no {run.classifier.name}: predict by probe or knn"
            return f"expected a run that trained a classifier or label prototypes, {got}"
        why = None if self.features is None else needs_seen_labels(self.features)
        remedy = f"{why}; {LABELLED_REMEDY}" if why else f"likewise evaluate {run.folder} makes it"
        return f"expected a run with a linear probe, got {run.folder}, which has no {run.probe.name}: {remedy}"
