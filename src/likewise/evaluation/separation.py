"""How well a number tells samples of one kind from those of another: AUROC and the false-positive rate."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.evaluation.intervals import Z_95, resampled, wilson

KEPT = 95  # percent of the inside samples below the threshold of `false_positives`


def auroc(inside: Float[Tensor, " m"], outside: Float[Tensor, " n"]) -> tuple[float, float, float]:
    """Area under the ROC curve, exact with ties, with DeLong's 95 % interval: is the number larger for outside samples?

        AUROC = 1/mn Σ_ij ([x_i < y_j] + ½[x_i = y_j]) = mean of v_j,   v_j = share of x below y_j, ties half
        variance = var(u)/m + var(v)/n,   u_i = share of y above x_i, ties half

    x are the numbers of inside samples, y those of outside samples, at least 2 each. The interval is symmetric in the
    logit of the AUROC, so that it stays within [0, 1]. Where the variance is 0, as for perfect separation, it is
    Wilson's for min(m, n) independent pairs.

    Source:
        E. R. DeLong, D. M. DeLong and D. L. Clarke-Pearson, Comparing the Areas under Two or More Correlated Receiver
        Operating Characteristic Curves, 1988.
    """
    above, below = 1 - _below(outside, inside), _below(inside, outside)
    area = float(below.mean())
    deviation = math.sqrt(float(above.var()) / len(above) + float(below.var()) / len(below))
    if deviation == 0 or not 0 < area < 1:
        pairs = min(len(inside), len(outside))
        low, high = wilson(round(area * pairs), pairs)
        return area, min(low, area), max(high, area)
    middle, reach = math.log(area / (1 - area)), Z_95 * deviation / (area * (1 - area))
    return area, _share(middle - reach), _share(middle + reach)


def false_positives(
    inside: Float[Tensor, " m"], outside: Float[Tensor, " n"], seed: int = 0
) -> tuple[float, float, float]:
    """Share of outside samples that pass a threshold which 95 % of the inside samples pass, with a 95 % interval.

        FPR = share of y ≤ t,   t the smallest x that at least 95 % of all x don't exceed

    The interval is Wilson's at this threshold, widened to the percentiles of 1,000 bootstrap samples of both x, inside,
    and y, outside, in which the threshold varies too.
    """
    place = -(-KEPT * len(inside) // 100)
    passing = int((outside <= inside.kthvalue(place).values).sum())
    shares = torch.cat(
        [
            (outside[others] <= inside[own].kthvalue(place, dim=1, keepdim=True).values).double().mean(dim=1)
            for own, others in resampled(len(inside), len(outside), seed=seed)
        ]
    )
    low, high = wilson(passing, len(outside))
    return (
        passing / len(outside),
        min(low, float(shares.quantile(0.025))),
        max(high, float(shares.quantile(0.975))),
    )


def _below(values: Tensor, limits: Tensor) -> Tensor:
    """Return for each limit the share of values below it, ties half, float64."""
    ordered = values.sort().values
    limits = limits.contiguous()
    fewer, most = (torch.searchsorted(ordered, limits, right=right) for right in (False, True))
    return (fewer + most).double() / (2 * len(values))


def _share(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit > 0 else math.exp(logit) / (1 + math.exp(logit))
