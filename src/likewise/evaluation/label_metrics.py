"""Metrics of label sets as means over samples: average precision, F1, thresholds, rankings, with ties handled exactly.

A metric such as F1 is no mean over samples, but a smooth function θ(w) of how much each of M samples weighs. Its
pseudo-values θ + M·∂θ/∂w_i, at w = 1, have θ as their mean, and their standard error is that of θ: the infinitesimal
jackknife (B. Efron, The Jackknife, the Bootstrap and Other Resampling Plans, 1982, chapter 6). So every metric here
gives one value a sample, and intervals and paired differences are those of means.

Average precision is a mean over the samples with the label, and F1 one over the samples that have it or are predicted
to. Where these are few, pseudo-values vary less than the metric does: those of a label with one sample don't vary at
all. So deviations of a label are enlarged by n/(n - 1), at most 2, in their variance, where n samples count; and a mean
over labels has 1/n of the variance between the labels on top, which no more than replaces what n = 1 hides. Both change
no mean, and vanish where samples are many. See `weighted_mean_interval` for the interval.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

NUMBERS = 2**22  # scores sorted at a time: 32 MiB in float64
MAX_ENLARGEMENT = 2  # of the variance, a factor
MIN_SAMPLES = 5  # samples that count, for a difference of two predictors


def average_precisions(scores: Float[Tensor, "m l"], labels: Bool[Tensor, "m l"]) -> Float[Tensor, "m l"]:
    """Return pseudo-values of the average precision of each label, whose mean over samples it is, float64.

        AP = 1/P Σ_{j positive} A_j / B_j,   B_j = |{i: s_i ≥ s_j}|,  A_j = |{i positive: s_i ≥ s_j}|

    A label without a sample gets NaN.
    """
    count, columns = len(scores), list[Tensor]()
    step = max(1, NUMBERS // max(1, count))
    for some, targets in zip(scores.split(step, dim=1), labels.split(step, dim=1), strict=True):
        ordered, order = some.T.double().sort(dim=1, descending=True)
        positive = targets.T.gather(1, order).double()
        positives = positive.sum(dim=1, keepdim=True)
        first, end = _ties(ordered)
        above = end.double()
        precision = positive.cumsum(dim=1).gather(1, end - 1) / above
        average_precision = (positive * precision).sum(dim=1, keepdim=True) / positives
        # how AP changes where a sample weighs more: as a positive itself, and in A and B of all positives below it
        own_change = positive * (precision - average_precision)
        gained = _from(positive / above, first)
        lost = _from(positive * precision / above, first)
        change = (own_change + positive * gained - lost) / positives
        columns.append(torch.empty_like(change).scatter_(1, order, average_precision + count * change).T)
    return torch.cat(columns, dim=1)


def ranking(
    scores: Float[Tensor, "m l"], labels: Bool[Tensor, "m l"]
) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """Return each sample's label ranking average precision, and its coverage: how far down its last label stands.

    NaN for samples without a label.
    """
    precisions, depths = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0, dtype=torch.float64)]
    rows = max(1, NUMBERS // max(1, scores.shape[1]))
    for some, targets in zip(scores.split(rows), labels.split(rows), strict=True):
        ordered, order = some.double().sort(dim=1, descending=True)
        relevant = targets.gather(1, order).double()
        _, end = _ties(ordered)
        precision = relevant.cumsum(dim=1).gather(1, end - 1) / end
        precisions.append((relevant * precision).sum(dim=1) / relevant.sum(dim=1))
        depths.append(torch.where(targets.any(dim=1), (relevant * end).amax(dim=1), torch.nan))
    return torch.cat(precisions), torch.cat(depths)


def best_thresholds(scores: Float[Tensor, "v l"], labels: Bool[Tensor, "v l"]) -> Float[Tensor, " l"]:
    """Return the threshold of each label above which it is predicted for the highest F1; NaN for one without a sample.

    It lies halfway between two scores; below the lowest score it is the next smaller float.
    """
    thresholds = [torch.zeros(0, dtype=torch.float64)]
    step = max(1, NUMBERS // max(1, len(scores)))
    for some, targets in zip(scores.split(step, dim=1), labels.split(step, dim=1), strict=True):
        ordered, order = some.T.double().sort(dim=1, descending=True)
        positive = targets.T.gather(1, order).double()
        _, end = _ties(ordered)
        quality = 2 * positive.cumsum(dim=1).gather(1, end - 1) / (end + positive.sum(dim=1, keepdim=True))
        last = end.gather(1, quality.argmax(dim=1, keepdim=True)) - 1
        lowest = ordered.gather(1, last)
        below = ordered.gather(1, (last + 1).clamp(max=ordered.shape[1] - 1))
        none = torch.nextafter(lowest, torch.full_like(lowest, -torch.inf))
        threshold = torch.where(last + 1 < ordered.shape[1], (lowest + below) / 2, none).squeeze(1)
        thresholds.append(torch.where(targets.any(dim=0), threshold, torch.nan))
    return torch.cat(thresholds)


@final
@dataclass(frozen=True)
class Mean:
    """A mean over labels: pseudo-values, (M,), and how many samples of equal weight would vary as much, 1/Σ w²."""

    values: Float[Tensor, " m"]
    count: float


@final
@dataclass(frozen=True)
class LabelMetric:
    """A metric of every label: pseudo-values and weights of samples, both (M, L); the weights of a label sum to 1."""

    values: Float[Tensor, "m l"]
    weights: Float[Tensor, "m l"]

    @classmethod
    def precision(cls, scores: Float[Tensor, "m l"], labels: Bool[Tensor, "m l"]) -> "LabelMetric":
        """Return the average precision; see `average_precisions`."""
        return cls(average_precisions(scores, labels), labels.double() / labels.sum(dim=0).clamp(min=1))

    @classmethod
    def f1(cls, predicted: Bool[Tensor, "m l"], labels: Bool[Tensor, "m l"], *, micro: bool = False) -> "LabelMetric":
        """Return the F1 of each label, or of all decisions together as of one label.

            F1 = 2·TP / (2·TP + FP + FN)

        A label that is neither predicted nor true has 0.
        """
        right, named = (predicted & labels).double(), predicted.double() + labels.double()
        if micro:
            right, named = right.sum(dim=1, keepdim=True), named.sum(dim=1, keepdim=True)
        total = named.sum(dim=0).clamp(min=1)
        scores = 2 * right.sum(dim=0) / total
        return cls(scores + len(labels) * (2 * right - scores * named) / total, named / total)

    def over(self, labels: Bool[Tensor, " l"] | None = None) -> Mean:
        """Return the mean over some labels, each of which has a sample that counts, or over all."""
        values, weights = (matrix if labels is None else matrix[:, labels] for matrix in (self.values, self.weights))
        of_each = values.mean(dim=0)
        sizes = _effective_sizes(weights)
        bessel = (sizes / (sizes - 1).clamp(min=0)).clamp(max=MAX_ENLARGEMENT)
        shares = sizes.rsqrt()  # 1/n of the variance between labels is put on top, around a mean weighted alike
        between = shares * (of_each - (shares * of_each).sum() / shares.sum())
        means = (of_each + (values - of_each) * bessel.sqrt() + len(values) * weights * between).mean(dim=1)
        return Mean(means, float(_effective_sizes(weights.mean(dim=1, keepdim=True))))


def _effective_sizes(weights: Float[Tensor, "m l"]) -> Float[Tensor, " l"]:
    """Return how many samples of equal weight would vary as much, of each label: Kish's 1/Σ w²."""
    return weights.square().sum(dim=0).clamp(min=1 / len(weights)).reciprocal()


def _ties(ordered: Float[Tensor, "k m"]) -> tuple[Tensor, Tensor]:
    falling = (-ordered).contiguous()
    return torch.searchsorted(falling, falling), torch.searchsorted(falling, falling, right=True)


def _from(values: Tensor, first: Tensor) -> Tensor:
    return values.flip(1).cumsum(dim=1).flip(1).gather(1, first)


def jaccard(first: Bool[Tensor, "... l"], second: Bool[Tensor, "... l"]) -> Float[Tensor, "..."]:
    """Return how alike label sets are: labels that both have, of those that either has; 0 for two empty sets."""
    both, either = (first & second).sum(dim=-1).double(), (first | second).sum(dim=-1)
    return both / either.clamp(min=1)
