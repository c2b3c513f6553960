"""Predictors of classes and label sets, scores of predictions, and the evaluation of a run's own classifier."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.evaluation.evaluation import Evaluation, ScoreCollector, needs_seen_labels
from likewise.evaluation.features import Bar, FeatureParts, Features, silent
from likewise.evaluation.intervals import mean_within, of_share, share, student, weighted_mean_interval
from likewise.evaluation.label_metrics import MIN_SAMPLES, LabelMetric, Mean, best_thresholds, ranking
from likewise.runs.scores import ALL, FREQUENCIES, Group, Metric, Result, Score

ACCURACY = Metric("accuracy", selects=True)
MANY_SAMPLES = 100  # a class with more training samples has many
FEW_SAMPLES = 20  # a class with fewer has few
HALF = 0.5  # the default threshold of probabilities
MIN_LABEL_PROBABILITY = 0.05  # of a predicted label
MICRO, MACRO, F1 = Metric("micro-F1"), Metric("macro-F1"), Metric("F1")
MICRO_AT_HALF, MACRO_AT_HALF = (Metric(f"{name}-F1 at {HALF}", shown=False) for name in ("micro", "macro"))
MEAN_PRECISION, PRECISION = Metric("mAP", selects=True), Metric("average precision")
HAMMING = Metric("Hamming loss", better="lower", shown=False)
LRAP, COVERAGE = Metric("LRAP", shown=False), Metric("coverage error", "plain", "lower", shown=False)
THIRDS = FREQUENCIES[3:]


@final
@dataclass(frozen=True)
class Predicted:
    """The predictions for samples: classes, (M,), or scores of labels, (M, L), higher for more likely ones."""

    values: Int[Tensor, " m"] | Float[Tensor, "m l"]
    features: Features  # with the true labels
    probabilities: bool = True  # whether scores of labels are probabilities

    @property
    def sets(self) -> Bool[Tensor, "m l"]:
        """The true label sets."""
        return self.features.sets


def score_predictions(
    evaluation: str,
    predicted: Predicted,
    chosen_by: Predicted,
    training: Int[Tensor, " c"],
    settings: Mapping[str, Any] | None = None,
) -> Result:
    """Score predicted classes by `accuracy`, and label sets by `label_set_scores`, with thresholds from `chosen_by`."""
    if predicted.features.label_kind == "classes":
        return accuracy(evaluation, predicted.values, predicted.features, training, settings)
    return label_set_scores(evaluation, predicted, chosen_by, training, settings)


def selecting_score(evaluation: str, predicted: Predicted, settings: Mapping[str, Any] | None = None) -> Score:
    """Score predictions only by the metric for choosing settings: accuracy, or mAP."""
    collector = ScoreCollector(evaluation, predicted.features, settings)
    if predicted.features.label_kind == "classes":
        collector.add(ACCURACY, *share(predicted.values == predicted.features.classes))
    else:
        _LabelScoring(collector, predicted).add_mean_precision()
    return collector.scores[0]


def accuracy(
    evaluation: str,
    predictions: Int[Tensor, " m"],
    test: Features,
    training: Int[Tensor, " c"],
    settings: Mapping[str, Any] | None = None,
) -> Result:
    """Compare predicted classes, (M,), with the true ones: 0 or 1 per sample, with Wilson's intervals.

    Scores are for all samples, each occurring class, and classes with many, medium and few training samples (Z. Liu et
    al., Large-Scale Long-Tailed Recognition in an Open World, 2019), if at least two of these groups occur. `training`
    is the number of training samples of each class, (C,).
    """
    collector = ScoreCollector(evaluation, test, settings)
    right = predictions == test.classes
    for group, rows in _groups(test, training):
        collector.add(ACCURACY, *share(right[rows]), group=group)
    collector.add_outcomes(ACCURACY.name, right)
    collector.add_outcomes("prediction", predictions)
    return collector.result()


def frequency(training: Int[Tensor, " c"]) -> dict[Group, Tensor]:
    """Return masks, (C,), of the classes with many (over 100), medium, and few (under 20) training samples."""
    many, few = training > MANY_SAMPLES, training < FEW_SAMPLES
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


def label_set_scores(
    evaluation: str,
    predicted: Predicted,
    validation: Predicted,
    training: Int[Tensor, " l"],
    settings: Mapping[str, Any] | None = None,
) -> Result:
    """Score predicted label sets.

    - micro-F1 and macro-F1 with thresholds chosen on validation: one for all labels for micro-F1, one for each label
      for macro-F1. If scores are probabilities, both also at 0.5.
    - mAP: mean over labels of the average precision.
    - Hamming loss: the share of wrong decisions, at 0.5, or at the common threshold where scores aren't probabilities.
    - LRAP and coverage: see `ranking`; samples without a label are left out.

    Labels without a test sample are left out of means over labels. macro-F1 and mAP are also given for the third of
    labels with most training samples (head), the middle third and the tail; F1 and average precision for each label.

    Intervals are over the samples' pseudo-values, which are the outcomes: by `weighted_mean_interval` for mAP and F1,
    to allow for labels with few samples, Student's for the others. Thresholds are held fixed. A score with fewer than 5
    contributing samples has no outcomes.
    """
    collector = ScoreCollector(evaluation, predicted.features, settings)
    _LabelScoring(collector, predicted).add_all(Thresholds.choose(validation), training)
    return collector.result()


@final
@dataclass(frozen=True)
class Thresholds:
    """Score thresholds for predicting labels: a common one for the highest micro-F1, and each label's own for its F1.

    `unknown` counts the labels without a validation sample: their own threshold is the common one. `few` marks the
    labels with fewer than 5, whose own threshold is unreliable.
    """

    common: float
    own: Float[Tensor, " l"]
    few: Bool[Tensor, " l"]
    unknown: int = 0

    @property
    def to_predict(self) -> Float[Tensor, " l"]:
        """Each label's own threshold, or the common one for labels with few validation samples."""
        return self.own.where(~self.few, self.common)

    @classmethod
    def choose(cls, validation: Predicted) -> "Thresholds":
        """Choose the thresholds on validation; without a labelled sample there, they are 0.5."""
        labels = validation.values.shape[1]
        if not bool(validation.sets.any()):
            half = torch.full((labels,), HALF, dtype=torch.float64)
            return cls(HALF, half, torch.ones(labels, dtype=torch.bool), labels)
        common = float(best_thresholds(validation.values.reshape(-1, 1), validation.sets.reshape(-1, 1)))
        per_label, few = best_thresholds(validation.values, validation.sets), validation.sets.sum(dim=0) < MIN_SAMPLES
        return cls(common, per_label.nan_to_num(common), few, int(per_label.isnan().sum()))


@final
class _LabelScoring:
    def __init__(self, collector: ScoreCollector, predicted: Predicted) -> None:
        self._collector = collector
        self._predicted = predicted
        self._occurring = predicted.sets.any(dim=0)

    def add_all(self, thresholds: Thresholds, training: Tensor) -> None:
        sets, scores, probabilities = self._predicted.sets, self._predicted.values, self._predicted.probabilities
        common, per_label = scores.double() > thresholds.common, scores > thresholds.own
        threshold = {"threshold": thresholds.common}
        self._add(MICRO, LabelMetric.f1(common, sets, micro=True).over(), settings=threshold)
        unknown = f", for {thresholds.unknown} of them that of micro-F1" if thresholds.unknown else ""
        each = LabelMetric.f1(per_label, sets)
        self._over_labels(MACRO, each, f"a threshold for each label{unknown}")
        self._over_groups(MACRO, F1, each, training)
        decided = scores > HALF if probabilities else common
        if probabilities:
            self._add(MICRO_AT_HALF, LabelMetric.f1(decided, sets, micro=True).over())
            self._over_labels(MACRO_AT_HALF, LabelMetric.f1(decided, sets))
        self._over_groups(MEAN_PRECISION, PRECISION, self.add_mean_precision(), training)
        wrong = (decided != sets).double().mean(dim=1)
        self._add(HAMMING, wrong, settings={"threshold": HALF} if probabilities else threshold)
        for metric, values in zip((LRAP, COVERAGE), ranking(scores, sets), strict=True):
            self._add(metric, values)

    def add_mean_precision(self) -> LabelMetric:
        precisions = LabelMetric.precision(self._predicted.values, self._predicted.sets)
        self._over_labels(MEAN_PRECISION, precisions)
        return precisions

    def _over_labels(self, metric: Metric, of_one: LabelMetric, note: str = "") -> None:
        absent = int((~self._occurring).sum())
        absence = f"{absent} of {len(self._occurring)} labels not in this part" if absent else ""
        if bool(self._occurring.any()):
            self._add(metric, of_one.over(self._occurring), note, absence)

    def _over_groups(self, metric: Metric, metric_of_one: Metric, of_one: LabelMetric, training: Tensor) -> None:
        rank, count = training.argsort(descending=True, stable=True).argsort(), len(training)
        for number, group in enumerate(THIRDS if count >= len(THIRDS) else ()):
            third = (rank * len(THIRDS) // count == number) & self._occurring
            if bool(third.any()):
                self._add(metric, of_one.over(third), group=group)
        for label in self._occurring.nonzero().flatten():
            named = Group("label", self._predicted.features.names[int(label)])
            self._add(metric_of_one, of_one.over(torch.arange(len(self._occurring)) == label), group=named)

    def _add(
        self,
        metric: Metric,
        statistic: Mean | Float[Tensor, " m"],
        *notes: str,
        group: Group = ALL,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a mean over labels, or over samples with one value each; for all samples together, also its outcomes."""
        mean_of, values = (statistic, statistic.values) if isinstance(statistic, Mean) else (None, statistic)
        known = ~values.isnan()
        if not bool(known.any()):
            return
        known_values = values[known]
        left = f"{int((~known).sum())} samples without a label left out" if not bool(known.all()) else ""
        mean, most = float(known_values.mean()), float(self._predicted.sets.shape[1]) if metric == COVERAGE else 1.0
        if mean_of is not None:
            low, high = weighted_mean_interval(values, mean_of.count)
        elif metric == COVERAGE:
            _, low, high, _ = mean_within(known_values, most)
        else:
            low, high = of_share(student(known_values), mean, len(known_values))
        mean = min(max(mean, 0.0), most)  # rounding
        bounds = min(low, mean), max(high, mean)
        all_notes = tuple(filter(None, (*notes, left)))
        self._collector.add(metric, mean, *bounds, len(known_values), group=group, settings=settings, notes=all_notes)
        if group == ALL and not (mean_of is not None and mean_of.count < MIN_SAMPLES):
            self._collector.add_outcomes(metric.name, values, known)


@dataclass(frozen=True)
class Predictor(ABC):
    """Abstract: a predictor of classes or label sets from new features.

    Args:
        by: Name of the predictor, such as "linear probe".
        names: The classes or labels, C of them.
        width: The length of a feature vector.
        thresholds: The scores above which labels are predicted, (L,); None for classes.
        probabilities: Whether its scores are probabilities, as they always are for classes.
        few: The number of labels with the common threshold, having fewer than 5 validation samples each.
    """

    by: str
    names: tuple[str, ...]
    width: int
    thresholds: Float[Tensor, " l"] | None = field(default=None, kw_only=True)
    probabilities: bool = field(default=True, kw_only=True)
    few: int = field(default=0, kw_only=True)

    def __str__(self) -> str:
        return self.by

    @property
    def limits(self) -> Float[Tensor, " l"] | None:
        """The scores above which labels are predicted, (L,); of probabilities, at least `MIN_LABEL_PROBABILITY`."""
        limits = self.thresholds
        return limits.clamp(min=MIN_LABEL_PROBABILITY) if limits is not None and self.probabilities else limits

    def scores(self, vectors: Float[Tensor, "m d"]) -> Float[Tensor, "m c"]:
        """Return the probabilities of the classes, (M, C), which sum to 1, or the scores of the labels, (M, L)."""
        if vectors.ndim != 2 or vectors.shape[1] != self.width:
            got = f"got {tuple(vectors.shape)}: encode the inputs with the encoder of this run"
            raise ValueError(f"expected features (M, {self.width}), as the {self.by} learned from, {got}")
        return self._scores(vectors)

    @abstractmethod
    def _scores(self, vectors: Tensor) -> Tensor: ...

    def _with_thresholds(self, scores: Float[Tensor, "v l"], validation: Features) -> Self:
        chosen = Thresholds.choose(Predicted(scores, validation, self.probabilities))
        return replace(self, thresholds=chosen.to_predict, few=int(chosen.few.sum()))


@final
class OwnClassifier(Evaluation):
    """Predict classes or label sets with the run's own classifier, end to end, without further learning.

    A run with a loss on logits has a linear classifier; a run with label prototypes predicts by the cosine of an
    embedding and a prototype. The class with the highest score is predicted. For label sets, the sigmoid of a logit is
    a probability, but a cosine is not; see `label_set_scores`.

    Example:
        >>> part = Features(torch.eye(2), torch.tensor([0, 1]), predictions=torch.tensor([[2.0, 0.0], [1.0, 0.0]]))
        >>> OwnClassifier()(part, part, part).scores[0].value
        0.5
    """

    name: ClassVar[str] = "own classifier"

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        if parts.test.predictions is None:
            return "it needs a run that trained a classifier or label prototypes, and this one has none"
        if parts.test.within is not None:
            coarser = len(parts.test.within.names)
            return f"it needs a classifier of the classes evaluated, and this run's is of {coarser} that they lie in"
        return needs_seen_labels(parts)

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        del refit, progress
        train, validation, test = parts
        chosen_by = _own(validation) if len(validation) else Predicted(test.predicted[:0], validation)
        result = score_predictions(self.name, _own(test), chosen_by, train.frequencies)
        return replace(result, candidates=(selecting_score(self.name, chosen_by),) if len(validation) else ())


def _own(features: Features) -> Predicted:
    if features.label_kind == "classes":
        return Predicted(features.predicted.argmax(dim=1), features)
    if features.logits:  # in float64 only logits above 36 become equal
        return Predicted(features.predicted.double().sigmoid(), features)
    return Predicted(features.predicted, features, probabilities=False)
