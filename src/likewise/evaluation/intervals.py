"""95 % intervals of shares, means, medians, means over classes and paired differences, and bootstrap samples."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.runs.scores import Outcomes, places_of

Z_95 = 1.959963984540054  # the standard normal's 97.5 % quantile
RESAMPLES = 1000  # of a bootstrap
NO_WIDTH = 1e-9  # of an interval; a narrower one is due to rounding
BLOCK = 2**22  # indices of resamples at a time: 32 MiB


def wilson(correct: float, count: float) -> tuple[float, float]:
    """Return Wilson's score interval of a share, good for small counts and shares near 0 or 1.

        (p + z²/2n ± z·sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n)

    p is `correct`, for classes the sum of their shares, divided by the `count`, n (E. B. Wilson, Probable Inference,
    the Law of Succession, and Statistical Inference, 1927).
    """
    if not 0 <= correct <= count or count == 0:
        raise ValueError(f"expected 0 <= correct <= count and a count above 0, got {correct} of {count}")
    n, p, square = count, correct / count, Z_95**2
    centre = p + square / (2 * n)
    spread = Z_95 * math.sqrt(p * (1 - p) / n + square / (4 * n * n))
    scale = 1 + square / n
    low, high = (centre - spread) / scale, (centre + spread) / scale
    return max(0.0, min(low, p)), min(1.0, max(high, p))


def share(right: Bool[Tensor, " m"], groups: Int[Tensor, " m"] | None = None) -> tuple[float, float, float, int]:
    """Return the share of right samples, Wilson's interval, and the number of samples.

    Samples of one group depend on each other: the interval is then for the effective sample size of `independent`.
    """
    mean, count = int(right.sum()) / len(right), len(right)
    size = count if groups is None else independent(right, groups)
    return mean, *wilson(mean * size, size), count


def independent(right: Bool[Tensor, " m"], groups: Int[Tensor, " m"]) -> float:
    """Return the effective sample size: the number of independent samples that would estimate the share as well.

        (p(1 - p)/v + 1) · (t_{n-1}/t_{C-1})²,   v the variance of p in `over_classes`, t the 97.5 % quantiles

    and at most n, its value if each sample is a group. Where all samples agree, v is 0, and it is the number of groups
    C (E. L. Korn and B. I. Graubard, Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data, 1998).
    """
    size, count, p = len(right), len(groups.unique()), float(right.double().mean())
    low, high = over_classes(right, groups)
    if high - low < NO_WIDTH or count < 2:
        return count
    variance = ((high - low) / 2 / _t(count - 1)) ** 2
    return min(size, (p * (1 - p) / variance + 1) * (_t(size - 1) / _t(count - 1)) ** 2)


def mean_within(values: Float[Tensor, " m"], most: float = 1.0) -> tuple[float, float, float, int]:
    """Return the mean of numbers from 0 to `most`, Student's interval within this range, and their count."""
    low, high = student(values)
    return float(values.mean()), max(0.0, low), min(most, high), len(values)


def student(values: Sequence[float] | Float[Tensor, " m"]) -> tuple[float, float]:
    """Return Student's t interval of a mean, mean ± t·s/sqrt(m); for one value, without spread, it is infinite."""
    numbers = torch.as_tensor(values, dtype=torch.float64)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return -math.inf, math.inf
    spread = _t(len(numbers) - 1) * float(numbers.std()) / math.sqrt(len(numbers))
    return mean - spread, mean + spread


def median(
    values: Float[Tensor, " m"], least: float, most: float, groups: Int[Tensor, " m"] | None = None
) -> tuple[float, float, float, int]:
    """Return the median of numbers, an interval between two of them, and their count.

        from the j-th smallest to the j-th largest,   j the largest with P(B < j) ≤ 2.5 %,   B binomial of m and 1/2

    With fewer than 6 numbers there is no such j: the interval is from `least` to `most`, the range of the numbers. For
    numbers in groups, j/m is from the effective sample size of the share up to the median; see `independent`. The
    source is W. R. Thompson, On confidence ranges for the median and other expectation distributions, 1936.
    """
    from scipy.stats import binom  # noqa: PLC0415 - comes with scikit-learn, and takes a second to import

    ordered, count = values.double().sort().values, len(values)
    middle = float(ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    size = count if groups is None else max(1, round(independent(values <= middle, groups)))
    rank = int(binom.ppf(0.025, size, 0.5)) * count // size
    bounds = (float(ordered[rank - 1]), float(ordered[-rank])) if rank else (float(least), float(most))
    return middle, *bounds, count


def weighted_mean_interval(values: Float[Tensor, " m"], count: float) -> tuple[float, float]:
    """Return the interval of a weighted mean of numbers from 0 to 1, valid for few numbers and means near 0 or 1.

    It is the interval of the same mean with two more ones and two more zeros. With mean x and standard error s of the
    values, one pseudo-value per sample, and effective sample size n, 1/Σ w² for weights that sum to 1:

        x' = (n·x + 2)/(n + 4),   x' ± z·sqrt(n²s² + n(x - x')² + 2x'² + 2(1 - x')²)/(n + 4)

    Sources: for shares, A. Agresti and B. A. Coull, Approximate is better than "exact" for interval estimation of
    binomial proportions, 1998; for n, L. Kish, Survey Sampling, 1965.
    """
    numbers = values.double()
    mean = min(max(float(numbers.mean()), 0.0), 1.0)
    variance = float(numbers.var(correction=0)) / len(numbers)
    centre = (count * mean + 2) / (count + 4)
    added = count * (mean - centre) ** 2 + 2 * centre**2 + 2 * (1 - centre) ** 2
    spread = Z_95 * math.sqrt(count**2 * variance + added) / (count + 4)
    return max(0.0, min(centre - spread, mean)), min(1.0, max(centre + spread, mean))


def over_classes(values: Float[Tensor, " m"], classes: Int[Tensor, " m"]) -> tuple[float, float]:
    """Return the interval of a mean over samples whose classes are themselves a sample of all classes.

        m̄ ± t·sqrt(C/(C - 1) · Σ_c (Σ_{i∈c} (x_i - m̄))²) / n,   C classes, n samples

    Where classes differ, it is wider than the interval over samples: other classes would have given another mean. The
    source of the cluster-robust variance is K.-Y. Liang and S. L. Zeger, Longitudinal data analysis using generalized
    linear models, 1986.
    """
    mean = float(values.double().mean())
    groups, members = classes.unique(return_inverse=True)
    count = len(groups)
    if count < 2:
        return -math.inf, math.inf
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, members, values.double() - mean)
    spread = _t(count - 1) * math.sqrt(count / (count - 1) * float(sums.square().sum())) / len(values)
    return mean - spread, mean + spread


def of_share(bounds: tuple[float, float], mean: float, count: int) -> tuple[float, float]:
    """Return the interval of a share, clipped to [0, 1]; Wilson's where exact agreement leaves it without width."""
    low, high = wilson(mean * count, count) if bounds[1] - bounds[0] < NO_WIDTH else bounds
    return max(0.0, low), min(1.0, high)


def mean_share(values: Float[Tensor, " m"], groups: Int[Tensor, " m"] | None = None) -> tuple[float, float, float, int]:
    """Return the mean of shares, its interval over samples or over groups of them, and the number of shares."""
    mean, size = float(values.mean()), len(values) if groups is None else len(groups.unique())
    bounds = student(values) if groups is None else over_classes(values, groups)
    return mean, *of_share(bounds, mean, size), len(values)


def over_classes_of_episodes(values: Float[Tensor, " e"], classes: Int[Tensor, "e n"]) -> tuple[float, float] | None:
    r"""Return the interval of a mean over episodes of a few classes each, themselves a sample of all classes.

    With C classes, m̄ the mean, m̄_c that of episodes with class c, and p the share of episodes with a class, averaged
    over classes, leaving class c out would change the mean by −p/(1 − p)·(m̄_c − m̄). The jackknife's variance is

    $$
    \frac{C - 1}{C} \sum_c \Bigl( \frac{p}{1 - p} (\bar m_c - \bar m) \Bigr)^2
    $$

    less its part due to drawing finitely many episodes; this part of the mean's own variance is added. Student's
    quantile has C − 1 degrees of freedom. With N different classes in every episode p is N/C; a repeated class counts
    once. None where every episode has all classes, and none can be left out. The delete-one jackknife is from B. Efron
    and C. Stein, The jackknife estimate of variance, 1981.
    """
    values = values.double()
    episodes = len(values)
    occurring, members = classes.unique(return_inverse=True)
    count = len(occurring)
    pairs = (torch.arange(episodes).unsqueeze(1) * count + members).unique()  # each episode with each of its classes
    if len(pairs) == episodes * count or episodes < 2:
        return None
    mean, spread = float(values.mean()), float(values.var())
    times = torch.bincount(pairs % count, minlength=count).double()
    zeros = torch.zeros(count, dtype=torch.float64)
    away = (zeros.index_add(0, pairs % count, values[pairs // count]) / times - mean).square().sum()
    by_chance = spread * (1 / times - 1 / episodes).clamp(min=0).sum()
    p = len(pairs) / (episodes * count)
    factor = (count - 1) / count * (p / (1 - p)) ** 2
    variance = factor * max(0.0, float(away - by_chance)) + spread / episodes
    half = _t(count - 1) * math.sqrt(variance)
    return mean - half, mean + half


def bootstrap_indices(*counts: int, seed: int = 0, times: int = RESAMPLES) -> Iterator[tuple[Int[Tensor, "b n"], ...]]:
    """Yield bootstrap samples in batches of about 2²² indices, (b, count) for each set.

    Each set is resampled to its own size, with replacement and independently; the seed fixes the samples.
    """
    generator = torch.Generator().manual_seed(seed)
    block = max(1, BLOCK // max(1, sum(counts)))
    for start in range(0, times, block):
        some = min(block, times - start)
        yield tuple(torch.randint(count, (some, count), generator=generator) for count in counts)


@final
@dataclass(frozen=True)
class Difference:
    """The difference of two means on the same samples.

    Args:
        value: The difference.
        low: Lower end of its 95 % interval.
        high: Upper end.
        count: The number of common samples.
        gained: Samples for which the first is better.
        lost: Samples for which the second is better.
        classes: The number of classes or groups that the interval is over; None for samples or episodes.
    """

    value: float
    low: float
    high: float
    count: int
    gained: int
    lost: int
    classes: int | None = None


def paired_difference(first: Outcomes, second: Outcomes, classes: Int[Tensor, " m"] | None = None) -> Difference:
    """Compare two predictors on their common samples.

    For outcomes of 0 or 1, with b samples that only the first predicts right, c that only the second does, n in all,
    and half a sample added to each of the four cells (n' = n + 2):

        d = (b - c)/n',   d ± z·sqrt(b + c + 1 - (b - c)²/n') / n'

    Other outcomes have Student's interval of the differences. With classes, groups of queries or episodes of known
    classes, all are over these; if every episode has all classes, over the differences of classes' shares, or from -1
    to 1 if these are unknown. Where all agree exactly, it is that of as many outcomes of 0 or 1.

    Args:
        first: The outcomes to compare.
        second: The outcomes to compare with.
        classes: The class of each of the first's samples, (m,), if other classes might have been tested.

    Raises:
        ValueError: The two share no sample.

    Source:
        A. Agresti and Y. Min, Simple improved confidence intervals for comparing matched proportions, 2005.

    Example:
        >>> rows = torch.arange(100)
        >>> better, worse = (Outcomes("kNN", "accuracy", rows, (rows >= wrong).float()) for wrong in (1, 10))
        >>> difference = paired_difference(better, worse)
        >>> difference.gained, difference.lost, round(difference.low, 3), round(difference.high, 3)
        (9, 0, 0.03, 0.147)
    """
    positions = places_of(first.rows, second.rows)
    here, there = (positions >= 0).nonzero().flatten(), positions[positions >= 0]
    if len(here) == 0:
        raise ValueError("expected two outcomes with samples in common, got none: evaluate both on one test part")
    known = ~(first.values[here].isnan() | second.values[there].isnan())
    here, there = here[known], there[known]
    ours, theirs = first.values[here].double(), second.values[there].double()
    apart = ours - theirs
    gained, lost = int((apart > 0).sum()), int((apart < 0).sum())
    value = float(apart.mean()) if len(apart) else math.nan
    drawn = None if first.classes is None else first.classes[here]
    if drawn is not None and drawn.ndim == 1:
        classes, drawn = (first.classes if len(drawn.unique()) < len(drawn) else None), None
    if classes is not None:
        low, high = over_classes(apart, classes[here])
        groups = len(classes[here].unique())
    elif drawn is not None:
        low, high = over_classes_of_episodes(apart, drawn) or _of_shares(first, second, (here, there), drawn)
        groups = len(drawn.unique())
    else:
        binary = bool((torch.cat([ours, theirs]).unique().unsqueeze(1) == torch.tensor([0.0, 1.0])).any(1).all())
        low, high = _matched_interval(gained, lost, len(apart)) if binary else student(apart)
        return Difference(value, low, high, len(apart), gained, lost)
    if high - low < NO_WIDTH:
        low, high = _matched_interval(max(0.0, value) * groups, max(0.0, -value) * groups, groups)
    return Difference(value, max(-1.0, low), min(1.0, high), len(apart), gained, lost, groups)


def _of_shares(
    first: Outcomes, second: Outcomes, places: tuple[Tensor, Tensor], classes: Int[Tensor, "e n"]
) -> tuple[float, float]:
    if first.shares is None or second.shares is None:  # the differences of classes are unknown
        return -math.inf, math.inf
    apart = first.shares[places[0]].double() - second.shares[places[1]].double()
    return over_classes(apart.flatten(), classes.flatten())


def _matched_interval(gained: float, lost: float, count: int) -> tuple[float, float]:
    n = count + 2
    centre = (gained - lost) / n
    spread = Z_95 * math.sqrt(gained + lost + 1 - (gained - lost) ** 2 / n) / n
    return max(-1.0, centre - spread), min(1.0, centre + spread)


@cache
def _t(degrees: int) -> float:
    from scipy.special import stdtrit  # noqa: PLC0415 - comes with scikit-learn; a quarter of scipy.stats' import

    return float(stdtrit(degrees, 0.975))
