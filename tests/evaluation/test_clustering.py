"""k-means' clusters and the classes: scikit-learn's measures, and intervals by an independent bootstrap."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from likewise.evaluation import Clustering, Features, evaluate


def blobs(noise, seed=0, classes=5, each=60):
    draw = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    return draw.normal(size=(classes, 8))[labels] + noise * draw.normal(size=(len(labels), 8)), labels


def found(x, y, **options):
    test = Features(torch.from_numpy(x).float(), torch.from_numpy(y))
    return Clustering(**options)(test, test, test)


@pytest.mark.parametrize(("noise", "clusters"), [(0.8, None), (0.3, 9), (30.0, 9)])
def test_measures_are_scikit_learns(noise, clusters):
    x, y = blobs(noise)
    unit = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    own = KMeans(clusters or 5, n_init=10, random_state=0).fit_predict(unit)
    scores = found(x, y, clusters=clusters)
    assert scores["NMI"].value == pytest.approx(normalized_mutual_info_score(y, own), abs=1e-9)
    assert scores["AMI"].value == pytest.approx(adjusted_mutual_info_score(y, own), abs=1e-9)
    assert scores["AMI"].settings == {"clusters": clusters or 5}
    for score, outcomes in zip(scores.scores, scores.outcomes, strict=True):
        assert score.low <= score.value <= score.high
        assert float(outcomes.values.double().mean()) == pytest.approx(score.value, abs=1e-6)


def test_intervals_are_as_wide_as_those_of_resampled_samples():
    """The same clusters, other samples: the delta method's standard error beside the bootstrap's."""
    x, y = blobs(0.8, each=100)
    scores = found(x, y)
    unit = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    own, draw = KMeans(5, n_init=10, random_state=0).fit_predict(unit), np.random.default_rng(1)
    for name, measure in (("NMI", normalized_mutual_info_score), ("AMI", adjusted_mutual_info_score)):
        again = [measure(y[rows], own[rows]) for rows in (draw.integers(len(y), size=len(y)) for _ in range(200))]
        width = scores[name].high - scores[name].low
        assert width == pytest.approx(2 * 1.96 * np.std(again), rel=0.2)


def test_what_cannot_be_clustered_is_told():
    x, y = blobs(1.0)
    sets = np.eye(5, dtype=bool)[y]
    for make, told in (
        (lambda: Clustering(1), "expected clusters of at least 2, got 1"),
        (lambda: found(x, np.zeros_like(y)), "two classes in the test part, and there is 1"),
        (lambda: found(x, y, clusters=1000), "a test sample for each of 1000 clusters, and there are 300"),
        (lambda: evaluate(x, sets, x, sets, evaluations=Clustering()), "needs classes, and there are label sets"),
    ):
        with pytest.raises(ValueError, match=told):
            make()
    scores = found(*blobs(0.01))  # clusters that are the classes have an interval
    assert [scores[name].value for name in ("NMI", "AMI")] == pytest.approx([1, 1])
    assert 0.9 < scores["AMI"].low < 1 == scores["AMI"].high
