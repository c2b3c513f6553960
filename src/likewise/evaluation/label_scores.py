"""Scores of predicted label sets: what every evaluation reports where samples have label sets."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.evaluation.features import Features
from likewise.evaluation.intervals import of_share, student, weighted
from likewise.evaluation.label_metrics import FEWEST, LabelMetric, Mean, best_thresholds, ranking
from likewise.scores import ALL, FREQUENCIES, Group, Metric, Outcomes, Result, Score

HALF = 0.5  # the threshold of probabilities that nobody chose
MICRO, MACRO, F1 = Metric("micro-F1"), Metric("macro-F1"), Metric("F1")
MICRO_AT_HALF, MACRO_AT_HALF = (Metric(f"{name}-F1 at {HALF}", shown=False) for name in ("micro", "macro"))
MEAN_PRECISION, PRECISION = Metric("mAP", selects=True), Metric("average precision")
HAMMING = Metric("Hamming loss", better="lower", shown=False)
LRAP, COVERAGE = Metric("LRAP", shown=False), Metric("coverage error", "plain", "lower", shown=False)
THIRDS = FREQUENCIES[3:]


@final
@dataclass(frozen=True)
class Predicted:
    """Scores of every label, (M, L), the higher, the likelier, or probabilities; with the true label sets."""

    scores: Float[Tensor, "m l"]
    features: Features
    probabilities: bool = True

    @property
    def sets(self) -> Bool[Tensor, "m l"]:
        """The true label sets."""
        return self.features.sets


@final
@dataclass(frozen=True)
class Thresholds:
    """Above which scores labels are predicted: a common one for the highest micro-F1, and each label's own for its F1.

    `unknown` counts the labels of which validation has no sample: their own is the common one.
    """

    common: float
    own: Float[Tensor, " l"]
    unknown: int = 0

    @classmethod
    def chosen(cls, validation: Predicted) -> "Thresholds":
        """Choose the thresholds on validation; where it is empty they are 0.5."""
        labels = validation.scores.shape[1]
        if not bool(validation.sets.any()):
            return cls(HALF, torch.full((labels,), HALF, dtype=torch.float64), labels)
        common = float(best_thresholds(validation.scores.reshape(-1, 1), validation.sets.reshape(-1, 1)))
        own = best_thresholds(validation.scores, validation.sets)
        return cls(common, own.nan_to_num(common), int(own.isnan().sum()))


def label_set_scores(
    evaluation: str,
    predicted: Predicted,
    validation: Predicted,
    training: Int[Tensor, " l"],
    settings: Mapping[str, Any] | None = None,
) -> Result:
    """Score predicted label sets.

    - micro-F1 and macro-F1 by thresholds chosen on validation: one for all labels for micro-F1, one for each label for
      macro-F1. Where scores are probabilities, both at 0.5 too.
    - mAP: mean over labels of the average precision.
    - Hamming loss: the share of wrong decisions, at 0.5, or at the common threshold where scores aren't probabilities.
    - LRAP and coverage: see `ranking`; samples without a label are left out.

    Labels that no test sample has are left out of means over labels. macro-F1 and mAP also of the third of labels with
    the most training samples (head), of the middle third, and of the tail; F1 and average precision of every label.

    Intervals are over the samples' pseudo-values, which are the outcomes: those of mAP and F1 by `weighted`, which
    allows for labels of few samples, the others Student's. Thresholds are taken as given. A score in which fewer than 5
    samples count has no outcomes.
    """
    return _Scoring(evaluation, predicted, Thresholds.chosen(validation), training, settings or {}).found()


def mean_precision_score(evaluation: str, predicted: Predicted, settings: Mapping[str, Any] | None = None) -> Score:
    """Score predicted label sets by mAP alone, by which settings are chosen."""
    scoring = _Scoring(evaluation, predicted, Thresholds(HALF, torch.empty(0)), torch.empty(0), settings or {})
    scoring.add_mean_precision()
    return scoring.scores[0]


@final
@dataclass
class _Scoring:
    """Scores and outcomes as they come."""

    evaluation: str
    predicted: Predicted
    thresholds: Thresholds
    training: Tensor
    settings: Mapping[str, Any]
    scores: list[Score] = field(default_factory=list[Score])
    outcomes: list[Outcomes] = field(default_factory=list[Outcomes])

    def found(self) -> Result:
        """Make all scores."""
        sets, scores, thresholds = self.predicted.sets, self.predicted.scores, self.thresholds
        common, own = scores.double() > thresholds.common, scores > thresholds.own
        threshold = {"threshold": thresholds.common}
        self._add(MICRO, LabelMetric.f1(common, sets, micro=True).over(), settings=threshold)
        unknown = f", for {thresholds.unknown} of them that of micro-F1" if thresholds.unknown else ""
        each = LabelMetric.f1(own, sets)
        self._over_labels(MACRO, each, f"a threshold for each label{unknown}")
        self._over_thirds(MACRO, F1, each)
        decided = scores > HALF if self.predicted.probabilities else common
        if self.predicted.probabilities:
            self._add(MICRO_AT_HALF, LabelMetric.f1(decided, sets, micro=True).over())
            self._over_labels(MACRO_AT_HALF, LabelMetric.f1(decided, sets))
        self._over_thirds(MEAN_PRECISION, PRECISION, self.add_mean_precision())
        wrong = (decided != sets).double().mean(dim=1)
        self._add(HAMMING, wrong, settings={"threshold": HALF} if self.predicted.probabilities else threshold)
        for metric, values in zip((LRAP, COVERAGE), ranking(scores, sets), strict=True):
            self._add(metric, values)
        return Result(tuple(self.scores), outcomes=tuple(self.outcomes))

    def add_mean_precision(self) -> LabelMetric:
        """Add mAP, and return each label's average precision."""
        precisions = LabelMetric.precision(self.predicted.scores, self.predicted.sets)
        self._over_labels(MEAN_PRECISION, precisions)
        return precisions

    def _over_labels(self, metric: Metric, of_one: LabelMetric, note: str = "") -> None:
        """Add the mean over labels that occur."""
        occurring = self.predicted.sets.any(dim=0)
        absent = int((~occurring).sum())
        absence = f"{absent} of {len(occurring)} labels not in this part" if absent else ""
        if bool(occurring.any()):
            self._add(metric, of_one.over(occurring), note, absence)

    def _over_thirds(self, metric: Metric, metric_of_one: Metric, of_one: LabelMetric) -> None:
        """Add the means over labels of each third, and each label's own."""
        occurring = self.predicted.sets.any(dim=0)
        for group, third in self._thirds():
            if bool((third & occurring).any()):
                self._add(metric, of_one.over(third & occurring), group=group)
        for label in occurring.nonzero().flatten():
            named = Group("label", self.predicted.features.names[int(label)])
            self._add(metric_of_one, of_one.over(torch.arange(len(occurring)) == label), group=named)

    def _thirds(self) -> Iterator[tuple[Group, Bool[Tensor, " l"]]]:
        """Yield the thirds of the labels by how often they occur in training, the most frequent first."""
        count = len(self.training)
        if count < len(THIRDS):
            return
        place = self.training.argsort(descending=True, stable=True).argsort()
        for number, group in enumerate(THIRDS):
            yield group, place * len(THIRDS) // count == number

    def _add(
        self,
        metric: Metric,
        found: Mean | Float[Tensor, " m"],
        *notes: str,
        group: Group = ALL,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a mean over labels, or of one value a sample; of all samples together also its outcomes."""
        features = self.predicted.features
        values = found.values if isinstance(found, Mean) else found
        known = ~values.isnan()
        if not bool(known.any()):
            return
        left = f"{int((~known).sum())} samples without a label left out" if not bool(known.all()) else ""
        mean = float(values[known].mean())
        most = float(features.sets.shape[1]) if metric == COVERAGE else 1.0
        if isinstance(found, Mean):
            low, high = weighted(values, found.count)
        elif metric == COVERAGE:
            low, high = student(values[known])
            low, high = max(0.0, low), min(most, high)
        else:
            low, high = of_share(student(values[known]), mean, int(known.sum()))
        where = (features.kind, features.part, group)
        chosen = {**self.settings, **(settings or {})}
        said = tuple(filter(None, (*notes, left)))
        mean = min(max(mean, 0.0), most)  # rounding
        self.scores.append(
            Score(
                self.evaluation,
                metric,
                mean,
                min(low, mean),
                max(high, mean),
                int(known.sum()),
                *where,
                settings=chosen,
                notes=said,
            )
        )
        few = isinstance(found, Mean) and found.count < FEWEST
        if group == ALL and not few:
            rows, own = features.numbers[known], values[known].float()
            self.outcomes.append(Outcomes(self.evaluation, metric.name, rows, own, features.kind, features.part))
