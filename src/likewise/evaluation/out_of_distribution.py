"""Out-of-distribution detection: telling other data from test samples, and novelty scores of new samples."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.data import Samples, Source
from likewise.data.samples import some_rows
from likewise.evaluation.encoding import MAX_PART_NUMBERS, encoded_as, why_not_fitting, words_of
from likewise.evaluation.evaluation import Evaluation, ScoreCollector
from likewise.evaluation.features import Bar, FeatureParts, Features, joined, silent
from likewise.evaluation.intervals import Z_95, bootstrap_indices, wilson
from likewise.evaluation.nearest import nearest
from likewise.runs.scores import RAW, Metric, Result

CHUNK = 2**12  # samples in float64 at a time
NEIGHBOUR = 50  # k of the distance to the k-th nearest training sample, for large classes
KEPT_PERCENT = 95  # of the inside samples below the threshold of `false_positives`
RATE = f"FPR at {KEPT_PERCENT} % TPR"
MAX_FEATURES = 4096  # with more, the D x D covariance costs too much
MAX_HELD_OUT = 1000  # held-out samples whose distances are measured: a share is then known to 1.4 points
UNLIKE_SHARE = KEPT_PERCENT / 100
ROUNDING = 1e-3  # relative to its length, of a feature recomputed in other batches or on another device


@final
class OutOfDistribution(Evaluation):
    """Tell test samples from samples of other data by their distance from the training samples.

    - kNN distance: to the k-th nearest training sample, with L2-normalised features.
    - Mahalanobis distance: to the nearest class mean, with a covariance common to all classes; for training samples
      with one class each and at most 4,096 features.

    Each has two scores: the AUROC with DeLong's interval, and the false-positive rate at 95 % true positives, the share
    of outside samples nearer than the threshold that keeps 95 % of test samples, with a bootstrap interval. Nothing is
    chosen on validation, and there are no outcomes per sample, as both scores depend on test and outside samples.

    Args:
        outside: The source of the other samples: inputs for the run's encoder, or vectors of the features' length if
            there is no encoder. All parts are used.
        k: The rank of the training neighbour, at most the number of training samples. None: chosen by `neighbour_of`.
        most: The maximum number of outside samples, drawn at random. None: all.
        seed: Seed of the draw and of the bootstrap.

    Raises:
        ValueError: k or most is below its minimum; or, in a call, most outside samples are training samples.

    Memory:
        Features of the outside samples, one tile of similarities, and O(D²) in float64.

    Source:
        Y. Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, 2022; K. Lee et al., A Simple Unified
        Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks, 2018; false-positive rate: S.
        Liang, Y. Li and R. Srikant, Enhancing the Reliability of Out-of-Distribution Image Detection, 2018.

    Example:
        >>> class Far(Source):
        ...     def load(self):
        ...         return Samples(torch.tensor([[-9.0, -9.0], [-8.0, -9.0]]))
        >>> part = Features(torch.rand(40, 2), torch.arange(40) % 2)
        >>> OutOfDistribution(Far())(part, part, part)["AUROC, kNN distance"].value
        1.0
    """

    name: ClassVar[str] = "out of distribution"

    def __init__(self, outside: Source, *, k: int | None = None, most: int | None = 10_000, seed: int = 0) -> None:
        if k is not None and k < 1:
            raise ValueError(f"expected k of at least 1, got {k}")
        if most is not None and most < 2:
            raise ValueError(f"expected most of at least 2, got {most}")
        self.outside = outside
        self.k = k
        self.most = most
        self.seed = seed

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        if len(parts.train) == 0:
            return "it needs a training part to measure distances to, and there is none"
        if len(parts.test) < 2:
            return f"it needs at least 2 test samples, and there are {len(parts.test)}"
        samples = self.outside.load()
        if len(samples) < 2:
            return f"it needs at least 2 outside samples, and there are {len(samples)}"
        why = why_not_fitting(parts.test, samples)
        return why and f"it needs outside {why}"

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        train, validation, test = parts
        outside_features = self._encode_outside(test)
        known = {row.tobytes() for row in train.vectors.float().numpy()}
        same = sum(row.tobytes() in known for row in outside_features.float().numpy())
        if same > len(outside_features) / 2:
            got = f"{same:,} of {len(outside_features):,} from {words_of(self.outside)} that are training samples"
            raise ValueError(f"expected outside samples of other data, got {got}: name another source")
        learned = joined(train, validation) if refit else train
        k, doing = min(self.k or neighbour_of(learned), len(learned)), f"{self.name}, neighbours"
        by_neighbours = partial(neighbour_distances, train=learned.vectors, k=k, progress=progress, doing=doing)
        measures: list[tuple[str, Mapping[str, Any], Callable[[Tensor], Tensor]]] = [("kNN", {"k": k}, by_neighbours)]
        if learned.label_kind == "classes" and learned.vectors.shape[1] <= MAX_FEATURES:
            measures.append(("Mahalanobis", {}, Mahalanobis(learned).distances))
        collector = ScoreCollector(self.name, test)
        for measure, settings, distances in measures:
            inside, outside = distances(test.vectors), distances(outside_features)
            protocol = {"outside samples": len(outside), "outside": words_of(self.outside)}
            details = {"settings": settings, "protocol": protocol}
            both, passing = len(inside) + len(outside), false_positives(inside, outside, self.seed)
            collector.add(Metric(f"AUROC, {measure} distance"), *auroc(inside, outside), both, **details)
            collector.add(Metric(f"{RATE}, {measure} distance", better="lower"), *passing, len(outside), **details)
        return collector.result()

    def _encode_outside(self, test: Features) -> Tensor:
        """Return the features of the outside samples, (N, D), or of a random subset."""
        samples: Samples = self.outside.load()
        most = len(samples) if self.most is None else self.most
        if test.kind == RAW:
            most = min(most, max(2, MAX_PART_NUMBERS // max(1, test.vectors.shape[1])))
        if len(samples) > most:
            samples = samples[some_rows(len(samples), most, self.seed)]
        vectors, _ = encoded_as(test, samples, "outside samples")
        return Features(vectors, None, part="outside").vectors  # checks that they are finite


def neighbour_of(train: Features) -> int:
    """Return the k of the kNN distance: 50, or half the mean class size if that is less.

    Farther neighbours are in other classes, and say nothing about a sample's distance from its own class.
    """
    if train.label_kind != "classes":
        return NEIGHBOUR
    return max(1, min(NEIGHBOUR, len(train) // (2 * int((train.counts > 0).sum()))))


def neighbour_distances(
    vectors: Float[Tensor, "m d"],
    train: Float[Tensor, "n d"],
    k: int,
    *,
    progress: Bar = silent,
    doing: str = "neighbours",
) -> Float[Tensor, " m"]:
    """Return the cosine distance to the k-th nearest training sample, or to the last one, on the CPU."""
    neighbours = nearest(vectors, train, k, progress=progress, doing=doing)
    return torch.cat([torch.zeros(0), *(1 - similarities[:, -1].cpu() for _, similarities, _ in neighbours)])


@final
class Mahalanobis:
    """Distances to class means under the covariance within classes, in float64.

        d(x)² = min_c (x - μ_c)ᵀ Σ⁻¹ (x - μ_c)
        Σ = (1 - α) S + α·tr(S)/D · I,   S = 1/N Σ_i (x_i - μ_{y_i})(x_i - μ_{y_i})ᵀ

    With many features or constant ones, S has no inverse. It is therefore shrunk towards a multiple of the identity, by
    the α of Ledoit and Wolf (A Well-Conditioned Estimator for Large-Dimensional Covariance Matrices, 2004), which tends
    to 0 as the number of samples grows.
    """

    def __init__(self, train: Features) -> None:
        classes, members = train.classes.unique(return_inverse=True)
        vectors, members = train.vectors, members.to(train.vectors.device)
        width = vectors.shape[1]
        means = vectors.new_zeros(len(classes), width, dtype=torch.float64)
        for some, labels in zip(vectors.split(CHUNK), members.split(CHUNK), strict=True):
            means.index_add_(0, labels, some.double())
        means /= torch.bincount(members, minlength=len(classes)).unsqueeze(1)
        scatter, fourth = vectors.new_zeros(width, width, dtype=torch.float64), 0.0
        for some, labels in zip(vectors.split(CHUNK), members.split(CHUNK), strict=True):
            away = some.double() - means[labels]
            scatter += away.T @ away / len(vectors)
            fourth += float(away.square().sum(dim=1).square().sum())
        self._centre = means.mean(dim=0)
        self._factor = torch.linalg.cholesky(_shrunk(scatter, fourth, len(vectors)))
        self._means = self._whitened(means)

    def distances(self, vectors: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """Return the distance to the nearest class mean, (M,), float64 on the CPU."""
        lengths = self._means.square().sum(dim=1)
        distances: list[Tensor] = []
        for some in vectors.split(CHUNK):
            white = self._whitened(some.double())
            closest = torch.addmm(lengths, white, self._means.T, alpha=-2).amin(dim=1)
            distances.append((closest + white.square().sum(dim=1)).clamp(min=0).sqrt().cpu())
        return torch.cat(distances) if distances else torch.zeros(0, dtype=torch.float64)

    def _whitened(self, vectors: Tensor) -> Tensor:
        """Return L⁻¹(x - centre) of each vector, Σ = L Lᵀ."""
        return torch.linalg.solve_triangular(self._factor, (vectors - self._centre).T, upper=False).T


def _shrunk(scatter: Tensor, fourth: float, count: int) -> Tensor:
    """Shrink a covariance towards a multiple of the identity; `fourth` is Σ ‖x‖⁴ of its centred samples."""
    width = len(scatter)
    variance = float(scatter.trace()) / width
    eye = torch.eye(width, dtype=scatter.dtype, device=scatter.device)
    if variance == 0:  # every sample is its class's mean
        return eye
    squares = float(scatter.square().sum())
    away = squares - width * variance**2
    noise = (fourth / count - squares) / count
    share = min(1.0, max(noise, 0.0) / away) if away > 0 else 1.0
    return (1 - max(share, 1e-12)) * scatter + max(share, 1e-12) * variance * eye


def auroc(inside: Float[Tensor, " m"], outside: Float[Tensor, " n"]) -> tuple[float, float, float]:
    """Return the area under the ROC curve, with outside samples as positives, and DeLong's 95 % interval.

        AUROC = 1/mn Σ_ij ([x_i < y_j] + ½[x_i = y_j]) = mean of v_j,   v_j = share of x below y_j, ties half
        variance = var(u)/m + var(v)/n,   u_i = share of y above x_i, ties half

    x are the numbers of inside samples, y of outside samples, at least 2 each; the area is exact with ties. The
    interval is symmetric in the logit of the AUROC, and stays within [0, 1]. Where the variance is 0, as for perfect
    separation, it is Wilson's for min(m, n) independent pairs. The variance is from E. R. DeLong, D. M. DeLong and D.
    L. Clarke-Pearson, Comparing the Areas under Two or More Correlated Receiver Operating Characteristic Curves, 1988.
    """
    above, below = 1 - _below(outside, inside), _below(inside, outside)
    area = float(below.mean())
    deviation = math.sqrt(float(above.var()) / len(above) + float(below.var()) / len(below))
    if deviation == 0 or not 0 < area < 1:
        pairs = min(len(inside), len(outside))
        low, high = wilson(round(area * pairs), pairs)
        return area, min(low, area), max(high, area)
    middle, reach = math.log(area / (1 - area)), Z_95 * deviation / (area * (1 - area))
    low, high = ((1 + math.tanh(logit / 2)) / 2 for logit in (middle - reach, middle + reach))
    return area, low, high


def false_positives(
    inside: Float[Tensor, " m"], outside: Float[Tensor, " n"], seed: int = 0
) -> tuple[float, float, float]:
    """Return the share of outside samples within a threshold that keeps 95 % of inside samples, and its 95 % interval.

        FPR = share of y ≤ t,   t the smallest x that at least 95 % of all x don't exceed

    The interval is Wilson's at this threshold, widened to the percentiles of 1,000 bootstrap samples of x, inside, and
    y, outside, each with its own threshold.
    """
    rank = -(-KEPT_PERCENT * len(inside) // 100)
    passing = int((outside <= inside.kthvalue(rank).values).sum())
    again = bootstrap_indices(len(inside), len(outside), seed=seed)
    passed = (
        outside[outside_index] <= inside[inside_index].kthvalue(rank, dim=1, keepdim=True).values
        for inside_index, outside_index in again
    )
    shares = torch.cat([some.double().mean(dim=1) for some in passed])
    low, high = wilson(passing, len(outside))
    least, most = (float(shares.quantile(share)) for share in (0.025, 0.975))
    return passing / len(outside), min(low, least), max(high, most)


def _below(values: Tensor, limits: Tensor) -> Tensor:
    """Return the share of values below each limit, with ties counted half, float64."""
    ordered = values.sort().values
    limits = limits.contiguous()
    fewer, most = (torch.searchsorted(ordered, limits, right=right) for right in (False, True))
    return (fewer + most).double() / (2 * len(values))


@final
class NoveltyScore:
    """A score of new samples: the share of held-out samples that are nearer to the training samples than the new one.

        share = |{i held out: d_i < d}| / (H + 1),   d the distance to the k-th nearest training sample, or to the last

    The shares of samples like the training data are uniformly distributed: at most 5 % of them are above 0.95. With
    fewer than 20 held-out samples, none is. The distance is the kNN distance of `OutOfDistribution`.

    Args:
        parts: Features of a run. The held-out samples are the validation part, or, if it is empty or was used in the
            fit, the test part; at most 1,000 of them, drawn at random.
        refit: Whether the fit included the validation part.
        seed: Seed of the draw.

    Raises:
        ValueError: There are no training or no held-out samples.

    Memory:
        The training features, and one tile of similarities.

    Source:
        Y. Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, 2022; shares: V. Vovk, A. Gammerman
        and G. Shafer, Algorithmic Learning in a Random World, 2005.

    Example:
        >>> from likewise.evaluation import Features
        >>> near = Features(torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2]]), None)
        >>> NoveltyScore(FeatureParts(near, near, near))(torch.tensor([[-1.0, 0.0], [1.0, 0.1]])).tolist()
        [0.75, 0.0]
    """

    def __init__(self, parts: FeatureParts, *, refit: bool = False, seed: int = 0) -> None:
        train, validation, test = parts
        learned = joined(train, validation) if refit else train
        held_out = validation if len(validation) and not refit else test
        if not len(learned) or not len(held_out):
            got = f"got {len(learned)} and {len(held_out)}: evaluate embeddings with parts"
            raise ValueError(f"expected training and held-out samples, {got}")
        some = held_out.vectors[some_rows(len(held_out), MAX_HELD_OUT, seed)]
        self._train = learned.vectors.float()
        self._k = neighbour_of(learned)
        self._inside = neighbour_distances(some.float(), self._train, self._k).sort().values

    def __call__(self, vectors: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """Return the shares, (M,), float64."""
        return self.compared(vectors)[0]

    def compared(self, vectors: Float[Tensor, "m d"]) -> tuple[Float[Tensor, " m"], Bool[Tensor, " m"]]:
        """Return the shares, (M,), and a mask of samples equal to a training sample up to rounding, (M,)."""
        neighbours = [(values[:, -1], places[:, 0]) for _, values, places in nearest(vectors, self._train, self._k)]
        last, first = map(torch.cat, zip(*neighbours, strict=True)) if neighbours else (vectors[:, 0], torch.arange(0))
        apart = (vectors - self._train[first]).norm(dim=1)
        shares = torch.searchsorted(self._inside, 1 - last).double() / (len(self._inside) + 1)
        return shares, apart <= ROUNDING * vectors.norm(dim=1)
