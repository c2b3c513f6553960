"""The structure of classes: agreement with k-means clusters, and separation of finer classes in coarser ones."""

from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.evaluation.evaluation import Evaluation, ScoreCollector
from likewise.evaluation.features import Bar, FeatureParts, Features, joined, silent
from likewise.evaluation.intervals import of_share, student
from likewise.evaluation.knn import KNN, KS, WEIGHTS, Setting
from likewise.evaluation.retrieval import Retrieval, add_mean
from likewise.runs.scores import ALL, Group, Metric, Result, format_count

PRECISION, PRECISIONS, ACCURACY = Metric("precision@1"), Metric("MAP@R"), Metric("accuracy")
BINARY_METRICS = {PRECISION, ACCURACY}
SUPERCLASS = "superclass"
"""The kind of score group for a class that the encoder was trained on."""
LEFT_OUT = {
    False: "in a class of one finer class, or with no other of the finer class",
    True: "in a class of one finer class",
}
ROUNDING = 1e-9  # relative
STARTS = 10  # of k-means


@final
class WithinClass(Evaluation):
    """Tell the finer classes within each training class apart, by neighbours in this class alone.

    For a query of finer class f in the coarse class c, the N other test samples of c are ranked by cosine similarity. R
    of them are in f. With hit_j = 1 if the j-th nearest is in f,

        precision@1 = hit_1,   MAP@R = 1/R Σ_{j≤R} hit_j · (1/j Σ_{i≤j} hit_i)

    as in `Retrieval`, and accuracy is as in `KNN` among the training samples of c, with k and weights chosen on
    validation for all classes together. All are means over samples, in total and per coarse class. An encoder that
    keeps only the coarse classes is as good as chance, which is given for each metric:

        precision@1:  R/N,   MAP@R:  1/N Σ_{j≤R} (1 + (j - 1)(R - 1)/(N - 1)) / j

    means over all orders; for accuracy, chance always names the most frequent finer class of c in training. Samples of
    coarse classes with one finer class are left out, as are samples with no other of their finer class. Intervals are
    as in `Retrieval`.

    Memory:
        O((M + N)·D) for one coarse class, and one tile of similarities.

    Example:
        >>> from likewise.data import Superclasses
        >>> vectors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0], [1.0, 0.2], [1.0, 0.2]])
        >>> within = Superclasses(torch.tensor([0, 0, 1]), ("animal", "plant"))
        >>> test = Features(vectors, torch.tensor([0, 0, 1, 1, 2, 2]), ("cat", "dog", "oak"), within=within)
        >>> [(str(score.metric), score.value, score.notes[0]) for score in WithinClass()(test, test, test).headline]
        [('precision@1', 1.0, 'chance 33.3 %'), ('MAP@R', 1.0, 'chance 33.3 %'), ('accuracy', 1.0, 'chance 50 %')]
    """

    name: ClassVar[str] = "within class"

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        test = parts.test
        if test.within is None:
            return "it needs finer classes than those trained on (--data.fine_label), and there are none"
        if not bool((_others(test) > 0).any()):
            return "it needs a class with two finer ones in the test part, two samples of one, and there is none"
        return None

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        train, validation, test = parts
        values = _ranking_metrics(test, progress)
        chances = _chances(test)
        settings: dict[str, int | str] = {}
        if parts.closed and train.within is not None:
            k, weights = _choose_settings(train, validation)
            settings = {"k": k, "weights": weights}
            learned = joined(train, validation) if refit else train
            values[ACCURACY] = _right(learned, test, [(k, weights)])[k, weights]
            chances[ACCURACY] = _most_frequent(learned, test)
        unseen, coarse = len(train) > 0 and not parts.closed, coarse_of(test)
        collector = ScoreCollector(self.name, test)
        names = () if test.within is None else test.within.names
        for metric, value in values.items():
            known = ~value.isnan()
            groups = [(Group(SUPERCLASS, name), coarse == n) for n, name in enumerate(names)]
            for group, among in ((ALL, known), *groups):
                rows = (known & among).nonzero().flatten()
                if len(rows) == 0:
                    continue
                classes = test.groups[rows] if unseen else None
                lost = f"{format_count(len(test) - len(rows), 'sample')} left out, {LEFT_OUT[metric == ACCURACY]}"
                chance = f"chance {100 * float(chances[metric][rows].mean()):.3g} %"
                notes = (chance, lost) if group == ALL and len(rows) < len(test) else (chance,)
                details = {"group": group, "settings": settings if metric == ACCURACY else None, "notes": notes}
                add_mean(collector, metric, value[rows], classes, binary=metric in BINARY_METRICS, **details)
            if bool(known.any()):
                collector.add_outcomes(metric.name, value, known)
        return collector.result()


def coarse_of(part: Features) -> Int[Tensor, " n"]:
    """Return the coarse class of each sample, (N,)."""
    return part.as_trained().classes


def _several(part: Features) -> Bool[Tensor, " s"]:
    if part.within is None:
        return torch.zeros(0, dtype=torch.bool)
    return torch.bincount(part.within.numbers[part.counts > 0], minlength=len(part.within.names)) > 1


def _others(part: Features) -> Int[Tensor, " n"]:
    """Count the right answers of each sample, (N,): others of its class, or 0 if that is alone in the coarse class."""
    return (part.counts[part.classes] - 1).where(_several(part)[coarse_of(part)], 0)


def _ranking_metrics(test: Features, progress: Bar) -> dict[Metric, Tensor]:
    """Return precision@1 and MAP@R of each sample within its coarse class, (M,); NaN without a right answer."""
    values = {metric: torch.full((len(test),), torch.nan, dtype=torch.float64) for metric in (PRECISION, PRECISIONS)}
    coarse, answered = coarse_of(test), _others(test) > 0
    for number in progress(coarse[answered].unique().tolist(), f"{WithinClass.name}, retrieval"):
        rows = (coarse == number).nonzero().flatten()
        scores = Retrieval().each(test[rows])
        for metric, value in values.items():
            value[rows] = scores[metric.name]
    return values


def _chances(test: Features) -> dict[Metric, Tensor]:
    """Return each sample's precision@1 and MAP@R on average over all orders, (M,)."""
    right, total = _others(test), torch.bincount(coarse_of(test))[coarse_of(test)] - 1
    places = torch.arange(1, int(right.max()) + 1).double()
    harmonic = torch.cat([torch.zeros(1).double(), (1 / places).cumsum(0)])[right]  # Σ 1/j of j ≤ R
    # Σ (1 + (j - 1) a) / j = a R + (1 - a) Σ 1/j, with a = (R - 1)/(N - 1)
    again = (right - 1) / (total - 1).clamp(min=1).double()
    means = (again * right + (1 - again) * harmonic) / total.clamp(min=1)
    return {PRECISION: right / total.clamp(min=1).double(), PRECISIONS: means}


def _choose_settings(train: Features, validation: Features) -> Setting:
    settings: list[Setting] = [(k, weighting) for weighting in WEIGHTS for k in KS]
    shares = {setting: float(right.nanmean()) for setting, right in _right(train, validation, settings).items()}
    known = {setting: share for setting, share in shares.items() if share == share}  # noqa: PLR0124 - NaN if none
    return max(known, key=lambda setting: known[setting], default=settings[0])


def _right(train: Features, part: Features, settings: list[Setting]) -> dict[Setting, Float[Tensor, " m"]]:
    """Return 1 where each sample's neighbours in its coarse class name its class, else 0, (M,); NaN if left out."""
    hits = {setting: torch.full((len(part),), torch.nan, dtype=torch.float64) for setting in settings}
    ks, kinds = (list(dict.fromkeys(column)) for column in zip(*settings, strict=True))
    ours, theirs, several = coarse_of(part), coarse_of(train), _several(train)
    for number in ours.unique().tolist():
        if not several[number]:
            continue
        rows = (ours == number).nonzero().flatten()
        learned = train[(theirs == number).nonzero().flatten()]
        for some, setting, votes in KNN().votes(learned, part.vectors[rows], ks, kinds):
            hits[setting][rows[some]] = (votes.argmax(dim=1).cpu() == part.classes[rows[some]]).double()
    return hits


def _most_frequent(train: Features, test: Features) -> Float[Tensor, " m"]:
    theirs = coarse_of(train)
    most = {n: int(train.classes[theirs == n].bincount().argmax()) for n in theirs.unique().tolist()}
    return (torch.tensor([most.get(n, -1) for n in coarse_of(test).tolist()]) == test.classes).double()


@final
class Clustering(Evaluation):
    """Cluster the test samples by k-means, without their labels, and compare the clusters with the classes.

    Features are L2-normalised. With I the mutual information of clusters and classes, H their entropies, and E the mean
    of I over all permutations of the samples,

        NMI = I / M,   AMI = (I - E) / (M - E),   M = (H_classes + H_clusters) / 2

    NMI grows with the number of clusters, even random ones; AMI is 0 for random clusters. Nothing is chosen. Intervals
    are Student's, over each sample's contribution to the measure, with the clusters held fixed.

    Args:
        clusters: The number of clusters. None: the number of classes in the test part.
        seed: Seed of the ten starts; the best one is used.

    Raises:
        ValueError: `clusters` is below 2.

    Memory:
        O(N·D), and scikit-learn's own memory.

    Source:
        N. X. Vinh, J. Epps, J. Bailey, Information Theoretic Measures for Clusterings Comparison, 2010; scikit-learn.

    Example:
        >>> from likewise.evaluation import Features
        >>> test = Features(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]), torch.tensor([0, 0, 1, 1]))
        >>> [(str(score.metric), round(score.value, 6)) for score in Clustering()(test, test, test).headline]
        [('NMI', 1.0), ('AMI', 1.0)]
    """

    name: ClassVar[str] = "clustering"

    def __init__(self, clusters: int | None = None, seed: int = 0) -> None:
        if clusters is not None and clusters < 2:
            raise ValueError(f"expected clusters of at least 2, got {clusters}: leave it out for one a class")
        self.clusters, self.seed = clusters, seed

    def why_not_applicable(self, parts: FeatureParts) -> str | None:
        test = parts.test
        if test.label_kind != "classes":
            return f"it needs classes, and there are {test.label_kind or 'no labels'}"
        classes = int((test.counts > 0).sum())
        if classes < 2:
            return f"it needs two classes in the test part, and there {'is 1' if classes else 'are none'}"
        if (self.clusters or 0) > len(test):
            return f"it needs a test sample for each of {self.clusters} clusters, and there are {len(test)}"
        return None

    def evaluate(self, parts: FeatureParts, *, refit: bool = False, progress: Bar = silent) -> Result:
        from sklearn.cluster import KMeans  # noqa: PLC0415 - loaded only for clustering
        from sklearn.metrics import adjusted_mutual_info_score  # noqa: PLC0415 - as above

        del refit
        test = parts.test
        count = self.clusters or int((test.counts > 0).sum())
        means: Any = KMeans(count, n_init=STARTS, random_state=self.seed)  # pyright: ignore[reportArgumentType]
        vectors = torch.nn.functional.normalize(test.vectors.cpu().float()).numpy()
        (clusters,) = (
            torch.from_numpy(means.fit_predict(vectors)).long() for _ in progress(range(1), f"{self.name}, k-means")
        )
        adjusted = float(adjusted_mutual_info_score(test.classes.numpy(), clusters.numpy()))
        collector = ScoreCollector(self.name, test, {"clusters": count})
        for name, value, values in zip(("NMI", "AMI"), *_nmi_and_ami(test.classes, clusters, adjusted), strict=True):
            bounds = student(values)
            bounds = of_share(bounds, value, len(values)) if value >= 0 else bounds
            collector.add(Metric(name), value, *bounds, len(values))
            collector.add_outcomes(name, values)
        return collector.result()


def _nmi_and_ami(
    classes: Int[Tensor, " n"], clusters: Int[Tensor, " n"], adjusted: float
) -> tuple[tuple[float, float], tuple[Float[Tensor, " n"], Float[Tensor, " n"]]]:
    """Return NMI and AMI, and pseudo-values of samples: the measure plus its derivative in the sample's weight."""
    (known, groups), (_, assignments) = (labels.unique(return_inverse=True) for labels in (classes, clusters))
    table = torch.zeros(len(known), int(assignments.max()) + 1, dtype=torch.float64)
    table.index_put_((groups, assignments), torch.ones(1, dtype=torch.float64), accumulate=True)
    shares = table / len(classes)
    rows, columns = shares.sum(dim=1)[groups], shares.sum(dim=0)[assignments]
    information, entropy = (shares[groups, assignments] / rows / columns).log(), -(rows * columns).log() / 2
    shared, middle = float(information.mean()), float(entropy.mean())  # over samples: I and M
    normalized = shared / middle
    away = information - shared - normalized * (entropy - middle)
    lacking = middle - shared  # 0, except for rounding, if clusters are the classes: then every derivative is 0
    rest = middle if lacking < ROUNDING * middle else lacking / (1 - adjusted)  # M - E, with E held fixed
    adjusted_away = information - shared - adjusted * (entropy - middle)
    return (normalized, adjusted), (normalized + away / middle, adjusted + adjusted_away / rest)
