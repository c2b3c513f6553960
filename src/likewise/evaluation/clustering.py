"""Clustering: do k-means' clusters of the features agree with the classes?"""

from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.evaluation.evaluation import Evaluation, ScoreCollector
from likewise.evaluation.features import Bar, FeatureParts, silent
from likewise.evaluation.intervals import of_share, student
from likewise.runs.scores import Metric, Result

ROUNDING = 1e-9  # relative
STARTS = 10  # of k-means


@final
class Clustering(Evaluation):
    """Cluster the test samples by k-means, without their labels, and compare the clusters with the classes.

    Features are L2-normalised. With I the mutual information of clusters and classes, H their entropies, and E the mean
    of I over all ways of exchanging the samples,

        NMI = I / M,   AMI = (I - E) / (M - E),   M = (H_classes + H_clusters) / 2

    NMI grows with the number of clusters, also of random ones; AMI is 0 for these. Nothing is chosen. Intervals are
    over samples, with the clusters as they were found: Student's, of what each sample adds to the measure.

    Args:
        clusters: How many there are. None: as many as the test part has classes.
        seed: Seed of the ten starts, of which the best is taken.

    Raises:
        ValueError: `clusters` is below 2.

    Memory:
        O(N·D), and what scikit-learn takes.

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
        from sklearn.cluster import KMeans  # noqa: PLC0415 - not loaded where nothing is clustered
        from sklearn.metrics import adjusted_mutual_info_score  # noqa: PLC0415 - likewise

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
    """Return NMI and AMI, and what each sample adds: the measure, and its derivative in the sample's weight."""
    (known, groups), (_, assignments) = (labels.unique(return_inverse=True) for labels in (classes, clusters))
    table = torch.zeros(len(known), int(assignments.max()) + 1, dtype=torch.float64)
    table.index_put_((groups, assignments), torch.ones(1, dtype=torch.float64), accumulate=True)
    shares = table / len(classes)
    rows, columns = shares.sum(dim=1)[groups], shares.sum(dim=0)[assignments]
    information, entropy = (shares[groups, assignments] / rows / columns).log(), -(rows * columns).log() / 2
    shared, middle = float(information.mean()), float(entropy.mean())  # over samples: I and M
    normalized = shared / middle
    away = information - shared - normalized * (entropy - middle)
    lacking = middle - shared  # 0, but for rounding, where clusters are the classes: then every derivative is 0
    rest = middle if lacking < ROUNDING * middle else lacking / (1 - adjusted)  # M - E, with E taken as it is
    adjusted_away = information - shared - adjusted * (entropy - middle)
    return (normalized, adjusted), (normalized + away / middle, adjusted + adjusted_away / rest)
