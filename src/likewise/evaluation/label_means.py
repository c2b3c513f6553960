"""Metrics of labels as weighted means over samples, whose intervals stay honest where a label has few positives.

Average precision is a mean over the samples with the label, and F1 one over the samples that have it or are predicted
to. Where these are few, pseudo-values vary less than the metric does: those of a label with one sample don't vary at
all. So deviations of a label are enlarged by n/(n - 1), at most 2, in their variance, where n samples count; and a mean
over labels has 1/n of the variance between the labels on top, which no more than replaces what n = 1 hides. Both change
no mean, and vanish where samples are many. See `weighted` for the interval.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.evaluation.label_metrics import average_precisions, f1

MOST_ENLARGED = 2  # times the variance
FEWEST = 5  # samples that count, for a difference of two predictors


@final
@dataclass(frozen=True)
class Mean:
    """A mean over labels.

    Args:
        values: One pseudo-value a sample, (M,).
        count: How many samples of equal weight would vary as much: 1/Σ w².
    """

    values: Float[Tensor, " m"]
    count: float


@final
@dataclass(frozen=True)
class LabelMetric:
    """A metric of every label.

    Args:
        values: Pseudo-values, (M, L).
        weights: How much each sample counts, (M, L); a label's weights sum to 1.
    """

    values: Float[Tensor, "m l"]
    weights: Float[Tensor, "m l"]

    @classmethod
    def precision(cls, scores: Float[Tensor, "m l"], labels: Bool[Tensor, "m l"]) -> "LabelMetric":
        """Return the average precision; see `average_precisions`.

        Example:
            >>> scores, labels = torch.tensor([[0.9], [0.8], [0.7]]), torch.tensor([[True], [False], [True]])
            >>> LabelMetric.precision(scores, labels).weights.flatten()
            tensor([0.5000, 0.0000, 0.5000], dtype=torch.float64)
        """
        values = torch.cat([values for _, _, values in average_precisions(scores, labels)], dim=1)
        return cls(values, labels.double() / labels.sum(dim=0).clamp(min=1))

    @classmethod
    def f1(cls, predicted: Bool[Tensor, "m l"], labels: Bool[Tensor, "m l"], *, micro: bool = False) -> "LabelMetric":
        """Return the F1 of each label, or of all decisions together as of one label; see `f1`."""
        named = predicted.double() + labels.double()
        named = named.sum(dim=1, keepdim=True) if micro else named
        return cls(f1(predicted, labels, micro=micro)[1], named / named.sum(dim=0).clamp(min=1))

    def over(self, labels: Bool[Tensor, " l"] | None = None) -> Mean:
        """Return the mean over some labels, or over all.

        Args:
            labels: Which labels, (L,); each has a sample that counts.

        Example:
            >>> labels = torch.eye(3, 2).bool()
            >>> mean = LabelMetric.precision(torch.tensor([[0.9, 0.9], [0.2, 0.1], [0.1, 0.5]]), labels).over()
            >>> round(mean.values.mean().item(), 4), mean.count
            (0.6667, 2.0)
        """
        values, weights = (of if labels is None else of[:, labels] for of in (self.values, self.weights))
        found = values.mean(dim=0)
        counts = weights.square().sum(dim=0).clamp(min=1 / len(values)).reciprocal()
        enlarged = (counts / (counts - 1).clamp(min=0)).clamp(max=MOST_ENLARGED).sqrt()
        shares = counts.rsqrt()
        between = shares * (found - (shares * found).sum() / shares.sum())
        each = found + (values - found) * enlarged + len(values) * weights * between
        return Mean(each.mean(dim=1), 1 / float(weights.mean(dim=1).square().sum().clamp(min=1 / len(values))))
