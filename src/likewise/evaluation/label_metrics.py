"""Metrics of label sets as means over samples: average precision, F1, thresholds, rankings, with ties handled exactly.

A metric such as F1 is not a mean over samples, but a smooth function θ(w) of the weights of M samples. Its
pseudo-values θ + M·∂θ/∂w_i, at w = 1, have mean θ, and their standard error is the standard error of θ: the
infinitesimal jackknife (B. Efron, The Jackknife, the Bootstrap and Other Resampling Plans, 1982, chapter 6). Every
metric here therefore gives one value per sample, and intervals and paired differences are computed as for means.

Average precision is a mean over the samples with the label, F1 over those that have it or are predicted to. With few
such samples, pseudo-values vary less than the metric: with one, they don't vary at all. The variance of a label with n
such samples is therefore multiplied by n/(n - 1), at most 2. A mean over labels also gets 1/n of the variance between
labels, no more than the variance hidden at n = 1. Neither correction changes a mean, and both vanish for many samples.
See `weighted_mean_interval` for the interval.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

NUMBERS = 2**22  # scores sorted at a time: 32 MiB in float64
MAX_ENLARGEMENT = 2  # of the variance, as a factor
MIN_SAMPLES = 5  # contributing samples, for comparing two predictors


def average_precisions(scores: Float[Tensor, "m l"], labels: Bool[Tensor, "m l"]) -> Float[Tensor, "m l"]:
    """Return pseudo-values of each label's average precision, which is their mean over samples, float64.

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
        # the change of AP with a sample's weight: as a positive itself, and in A and B of all positives below it
        own_change = positive * (precision - average_precision)
        gained = _from(positive / above, first)
        lost = _from(positive * precision / above, first)
        change = (own_change + positive * gained - lost) / positives
        columns.append(torch.empty_like(change).scatter_(1, order, average_precision + count * change).T)
    return torch.cat(columns, dim=1)


def ranking(
    scores: Float[Tensor, "m l"], labels: Bool[Tensor, "m l"]
) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """Return each sample's label ranking average precision, and its coverage: the rank of its last label.

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
    """Return the threshold of highest F1 above which each label is predicted; NaN for a label without a sample.

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
    """A mean over labels: its pseudo-values, (M,), and Kish's effective sample size, 1/Σ w²."""

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
        """Return the F1 of each label, or a single one of all decisions together.

            F1 = 2·TP / (2·TP + FP + FN)

        A label that is neither predicted nor true gets 0.
        """
        right, named = (predicted & labels).double(), predicted.double() + labels.double()
        if micro:
            right, named = right.sum(dim=1, keepdim=True), named.sum(dim=1, keepdim=True)
        total = named.sum(dim=0).clamp(min=1)
        scores = 2 * right.sum(dim=0) / total
        return cls(scores + len(labels) * (2 * right - scores * named) / total, named / total)

    def over(self, labels: Bool[Tensor, " l"] | None = None) -> Mean:
        """Return the mean over some or all labels, each with a contributing sample."""
        values, weights = (matrix if labels is None else matrix[:, labels] for matrix in (self.values, self.weights))
        of_each = values.mean(dim=0)
        sizes = _effective_sizes(weights)
        bessel = (sizes / (sizes - 1).clamp(min=0)).clamp(max=MAX_ENLARGEMENT)
        shares = sizes.rsqrt()  # for 1/n of the variance between labels, around a mean with the same weights
        between = shares * (of_each - (shares * of_each).sum() / shares.sum())
        means = (of_each + (values - of_each) * bessel.sqrt() + len(values) * weights * between).mean(dim=1)
        return Mean(means, float(_effective_sizes(weights.mean(dim=1, keepdim=True))))


def _effective_sizes(weights: Float[Tensor, "m l"]) -> Float[Tensor, " l"]:
    """Return the effective sample size of each label: Kish's 1/Σ w²."""
    return weights.square().sum(dim=0).clamp(min=1 / len(weights)).reciprocal()


def _ties(ordered: Float[Tensor, "k m"]) -> tuple[Tensor, Tensor]:
    falling = (-ordered).contiguous()
    return torch.searchsorted(falling, falling), torch.searchsorted(falling, falling, right=True)


def _from(values: Tensor, first: Tensor) -> Tensor:
    return values.flip(1).cumsum(dim=1).flip(1).gather(1, first)


def jaccard(first: Bool[Tensor, "... l"], second: Bool[Tensor, "... l"]) -> Float[Tensor, "..."]:
    """Return the Jaccard similarity of label sets: common labels divided by all labels; 0 for two empty sets."""
    both, either = (first & second).sum(dim=-1).double(), (first | second).sum(dim=-1)
    return both / either.clamp(min=1)
