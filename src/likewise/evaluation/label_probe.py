"""The linear probe of label sets: a logistic regression for each label, each with its own penalty."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from likewise.evaluation.features import Features, Progress, joined, that_chooses
from likewise.evaluation.label_fitting import LabelFitting, LabelProbes
from likewise.evaluation.label_scores import Predicted, label_set_scores, mean_precision_score
from likewise.scores import Result, Score

WIDEST = (1e-6, 1e3)  # where the path ends, whatever validation prefers; weaker ones take hundreds of passes
RARE = 5  # samples of a label in validation; with fewer, its choices are those of all labels


@final
@dataclass(frozen=True)
class LabelPath:
    """A path of penalties, on which validation chooses one for each label.

    The penalty with the lowest cross-entropy on validation wins: that of the label, or the mean over all labels where
    fewer than 5 validation samples have the label, or fewer than 5 don't. Labels for which the first or last of the
    path wins are fitted beyond it, by factors of 10.

    Args:
        penalties: The path, per sample; one: nothing is chosen.
        tolerance: See `LabelFitting.fit`.
    """

    penalties: Sequence[float]
    tolerance: float

    def evaluated(
        self, name: str, train: Features, validation: Features, test: Features, *, refit: bool, progress: Progress
    ) -> Result:
        """Choose the penalties on validation, and predict the test part."""
        both = joined(train, validation) if refit else train
        validation = that_chooses(validation)
        fitting = LabelFitting(train.vectors, train.sets, one_unit=train.one_unit)
        best, candidates = self._chosen(name, fitting, validation, progress)
        chosen_by = Predicted(best.probes.logits(validation.vectors).sigmoid(), validation)
        probes = best.probes
        if refit:
            fitting = LabelFitting(both.vectors, both.sets, one_unit=both.one_unit)
            probes = fitting.fit(best.penalties, self.tolerance, probes)
        predicted = Predicted(probes.logits(test.vectors).sigmoid(), test)
        found = label_set_scores(name, predicted, chosen_by, train.frequencies, best.settings)
        own = (mean_precision_score(name, chosen_by, best.settings),) if len(validation) else ()
        return replace(found, candidates=(*candidates, *own))

    def _chosen(
        self, name: str, fitting: LabelFitting, validation: Features, progress: Progress
    ) -> tuple["_Best", tuple[Score, ...]]:
        """Fit the path, from the strongest penalty to the weakest, and beyond where that is best."""
        best, probes, candidates = None, None, list[Score]()
        path = sorted(self.penalties, reverse=True)
        for penalty in progress(path, f"{name}, penalties"):
            probes = fitting.fit(penalty, self.tolerance, probes)
            best = _Best.of(penalty, probes, validation) if best is None else best.than(penalty, probes, validation)
            if len(validation):
                predicted = Predicted(probes.logits(validation.vectors).sigmoid(), validation)
                candidates.append(mean_precision_score(name, predicted, {"penalty": penalty}))
        if best is None:
            raise ValueError("expected at least one of penalties, got none: leave them out for the usual path")
        if len(path) > 1 and len(validation):
            best = self._beyond(path[0], 10, fitting, best, validation)
            best = self._beyond(path[-1], 0.1, fitting, best, validation)
        return best, tuple(candidates)

    def _beyond(
        self, edge: float, factor: float, fitting: LabelFitting, best: "_Best", validation: Features
    ) -> "_Best":
        """Go on beyond an end of the path with the labels for which it is best."""
        rare = _rare(validation)
        while bool((labels := best.penalties == edge).any()) and WIDEST[0] <= edge * factor <= WIDEST[1]:
            edge *= factor
            fitted = torch.ones_like(labels) if bool((labels & rare).any()) else labels  # the mean is over all labels
            best = best.than(edge, fitting.fit(edge, self.tolerance, best.probes, fitted), validation, labels)
        return best


@final
@dataclass(frozen=True)
class _Best:
    """The probe of each label that is best on validation so far.

    Args:
        penalties: Its penalty, (L,).
        probes: The probes.
        losses: The cross-entropy that it is chosen by, (L,).
    """

    penalties: Float[Tensor, " l"]
    probes: LabelProbes
    losses: Float[Tensor, " l"]

    @classmethod
    def of(cls, penalty: float, probes: LabelProbes, validation: Features) -> "_Best":
        losses = _cross_entropy(probes, validation)
        return cls(torch.full_like(losses, penalty), probes, losses)

    def than(
        self, penalty: float, probes: LabelProbes, validation: Features, labels: Bool[Tensor, " l"] | None = None
    ) -> "_Best":
        """Return the better of these and others; of equals, these."""
        losses = _cross_entropy(probes, validation)
        better = losses < self.losses if labels is None else (losses < self.losses) & labels
        return _Best(
            torch.where(better, penalty, self.penalties),
            self.probes.replaced(probes, better),
            torch.where(better, losses, self.losses),
        )

    @property
    def settings(self) -> dict[str, float | str]:
        """The penalties, as scores have them."""
        low, middle, high = (float(self.penalties.quantile(of, interpolation="nearest")) for of in (0, 0.5, 1))
        return {"penalty": low if low == high else f"{low:.6g} to {high:.6g}, median {middle:.6g}"}


def _cross_entropy(probes: LabelProbes, validation: Features) -> Float[Tensor, " l"]:
    """Return the cross-entropy by which each label's penalty is chosen, (L,), float64; zero without samples."""
    labels = validation.sets.double()
    logits = probes.logits(validation.vectors).double()
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(dim=0)
    losses /= max(1, len(validation))
    return torch.where(_rare(validation), losses.mean(), losses)


def _rare(validation: Features) -> Bool[Tensor, " l"]:
    """Tell which labels are too rare in validation, or too frequent, to choose for themselves."""
    counts = validation.sets.sum(dim=0)
    return (counts < RARE) | (len(validation) - counts < RARE)
