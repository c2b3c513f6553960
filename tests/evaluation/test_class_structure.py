"""Finer classes within a coarse one, against loops and all orders; k-means' clusters, by scikit-learn's measures."""

from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from likewise.data import Superclasses
from likewise.evaluation import Clustering, FeatureParts, Features, WithinClass, applicable
from likewise.evaluation.class_structure import PRECISION, PRECISIONS, _chances
from likewise.evaluation.feature_files import load_features, save_features
from likewise.evaluation.features import joined
from likewise.evaluation.knn import KS
from likewise.runs.scores import Group

# a coarse class of three finer ones, one of two, and one of one
WITHIN = Superclasses(torch.tensor([0, 1, 0, 2, 1, 0]), ("animal", "plant", "stone"))
NAMES = ("cat", "oak", "dog", "flint", "rose", "cow")
METRICS = ("precision@1", "MAP@R", "accuracy")


def _part(count, part, seed=0, classes=None):
    rng = np.random.default_rng([seed, count])
    classes = rng.integers(0, 6, count) if classes is None else np.asarray(classes)
    vectors = np.random.default_rng(9).normal(size=(6, 5))[classes] + rng.normal(size=(count, 5))
    rows = torch.arange(count)
    return Features(torch.tensor(vectors).float(), torch.tensor(classes), NAMES, rows, part, within=WITHIN)


def _parts(seed=0):
    return FeatureParts(_part(300, "train", seed), _part(90, "validation", seed), _part(120, "test", seed))


def _units(features):
    vectors = features.vectors.double().numpy()
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _precisions_by_loop(test):
    """precision@1 and MAP@R of each sample that has an answer, in a loop over queries."""
    units, classes = _units(test), test.labels.tolist()
    coarse = [int(WITHIN.numbers[label]) for label in classes]
    found = {}
    for row, own in enumerate(classes):
        others = [other for other in range(len(classes)) if other != row and coarse[other] == coarse[row]]
        right = sum(classes[other] == own for other in others)
        if right == 0 or len({classes[other] for other in others} | {own}) < 2:
            continue
        others.sort(key=lambda other: -float(units[row] @ units[other]))
        hits = [classes[other] == own for other in others]
        mean = sum(hits[j] * sum(hits[: j + 1]) / (j + 1) for j in range(right)) / right
        found[row] = (float(hits[0]), mean)
    return found


def _accuracy_by_loop(train, part, k, weights):
    """Whether the k nearest training samples of its coarse class name each sample's class."""
    ours, theirs = _units(part), _units(train)
    known, right = train.labels.numpy(), {}
    for row, own in enumerate(part.labels.tolist()):
        among = np.flatnonzero(WITHIN.numbers.numpy()[known] == int(WITHIN.numbers[own]))
        if len(set(known[among].tolist())) < 2:
            continue
        similarities = theirs[among] @ ours[row]
        near = np.argsort(-similarities)[:k]
        alike = similarities[near]
        votes = 1 + 1e-6 * alike if weights == "uniform" else np.exp((alike - alike[0]) / 0.07)
        right[row] = float(np.bincount(known[among[near]], votes, 6).argmax() == own)
    return right


def test_it_agrees_with_a_loop_over_queries():
    parts = _parts()
    result = WithinClass()(*parts)
    expected = _precisions_by_loop(parts.test)
    for place, metric in enumerate(METRICS[:2]):
        outcomes = next(one for one in result.outcomes if one.metric == metric)
        assert outcomes.rows.tolist() == list(expected)
        assert outcomes.values.tolist() == pytest.approx([of[place] for of in expected.values()], abs=1e-6)
        assert result[metric].value == pytest.approx(np.mean([of[place] for of in expected.values()]), abs=1e-6)
    for group, name in enumerate(("animal", "plant")):
        own = [of[1] for row, of in expected.items() if int(WITHIN.numbers[parts.test.labels[row]]) == group]
        subset = [one for one in result.scores if one.group == Group("superclass", name)]
        score = next(one for one in subset if str(one.metric) == "MAP@R")
        assert (score.value, score.count) == (pytest.approx(np.mean(own), abs=1e-6), len(own))
    assert {one.group.name for one in result.scores} == {"", "animal", "plant"}  # stone has one finer class


@pytest.mark.parametrize("refit", [False, True])
def test_neighbours_are_of_the_coarse_class_and_chosen_on_validation(refit):
    train, validation, test = parts = _parts()
    score = WithinClass()(*parts, refit=refit)["accuracy"]
    chosen = score.settings["k"], score.settings["weights"]
    settings = [(k, weights) for weights in ("uniform", "similarity") for k in KS]
    found = {of: np.mean(list(_accuracy_by_loop(train, validation, *of).values())) for of in settings}
    assert found[chosen] == pytest.approx(max(found.values()))
    right = list(_accuracy_by_loop(joined(train, validation) if refit else train, test, *chosen).values())
    assert (score.value, score.count) == (pytest.approx(np.mean(right)), len(right))


@pytest.mark.parametrize(("right", "total"), [(1, 2), (2, 4), (4, 6)])
def test_chance_is_the_mean_over_all_orders(right, total):
    classes = [0] * (right + 1) + [2] * (total - right)
    test = _part(len(classes), "test", classes=classes)
    mine = []
    for order in set(permutations([True] * right + [False] * (total - right))):
        mean = sum(order[j] * sum(order[: j + 1]) / (j + 1) for j in range(right)) / right
        mine.append((order[0], mean))
    found = _chances(test)
    assert [float(found[of][0]) for of in (PRECISION, PRECISIONS)] == pytest.approx(np.mean(mine, axis=0))


def test_chance_of_the_accuracy_is_the_most_frequent_class_in_training():
    train = _part(30, "train", classes=[0] * 18 + [2] * 6 + [1] * 2 + [4] * 4)
    test = _part(20, "test", classes=[0] * 5 + [2] * 5 + [1] * 7 + [4] * 3)
    notes = WithinClass()(train, test[torch.arange(0)], test)["accuracy"].notes
    assert notes[0] == f"chance {100 * (5 + 3) / 20:.3g} %"


def test_samples_without_an_answer_are_left_out_and_of_new_classes_there_are_no_neighbours():
    classes = [0, 0, 2, 1, 1, 4, 3, 3, 3]  # a dog and a rose alone, and flints without another class of stone
    test = _part(9, "test", classes=classes)
    result = WithinClass()(_part(60, "train"), _part(30, "validation"), test)
    precision, accuracy = result["precision@1"], result["accuracy"]
    told = "5 samples left out, in a class of one finer class, or with no other of the finer class"
    assert (precision.count, precision.notes[1]) == (4, told)
    assert (accuracy.count, accuracy.notes[1]) == (6, "3 samples left out, in a class of one finer class")
    train = Features(torch.randn(20, 5), torch.arange(20) % 2, ("x", "y"), part="train", within=None)
    new = WithinClass()(train, test, _part(120, "test"))
    assert [str(one.metric) for one in new.headline] == ["precision@1", "MAP@R"]
    assert new["precision@1"].classes == 5  # over which its interval is


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (Features(torch.eye(4), torch.tensor([0, 0, 1, 1])), "finer classes than those trained on"),
        (_part(3, "test", classes=[0, 2, 5]), "a class with two finer ones in the test part, two samples of one"),
    ],
)
def test_what_it_needs_is_said(test, words):
    with pytest.raises(ValueError, match=f"WithinClass does not apply: it needs {words}"):
        WithinClass()(test, test, test)


def test_it_is_made_where_there_is_a_second_labelling_and_kept_with_features(tmp_path):
    parts = _parts()
    assert "within class" in [one.name for one in applicable(parts)]
    plain = FeatureParts(*(Features(of.vectors, of.labels, NAMES, part=of.part) for of in parts))
    assert "within class" not in [one.name for one in applicable(plain)]
    save_features(tmp_path / "features.npz", parts)
    again = WithinClass()(*load_features(tmp_path / "features.npz"))
    assert [one.value for one in again.scores] == [one.value for one in WithinClass()(*parts).scores]


def blobs(noise, seed=0, classes=5, each=60):
    draw = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    return draw.normal(size=(classes, 8))[labels] + noise * draw.normal(size=(len(labels), 8)), labels


def clustered(x, y, **options):
    test = Features(torch.from_numpy(x).float(), torch.from_numpy(y))
    return Clustering(**options)(test, test, test)


def clusters_of(x, count):
    """The clusters that k-means finds of the unit rows."""
    unit = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    return KMeans(count, n_init=10, random_state=0).fit_predict(unit)


@pytest.mark.parametrize(("noise", "clusters"), [(0.8, None), (0.3, 9), (30.0, 9)])
def test_measures_are_scikit_learns(noise, clusters):
    x, y = blobs(noise)
    own = clusters_of(x, clusters or 5)
    scores = clustered(x, y, clusters=clusters)
    assert scores["NMI"].value == pytest.approx(normalized_mutual_info_score(y, own), abs=1e-9)
    assert scores["AMI"].value == pytest.approx(adjusted_mutual_info_score(y, own), abs=1e-9)
    assert scores["AMI"].settings == {"clusters": clusters or 5}
    for score, outcomes in zip(scores.scores, scores.outcomes, strict=True):
        assert score.low <= score.value <= score.high
        assert float(outcomes.values.double().mean()) == pytest.approx(score.value, abs=1e-6)


def test_intervals_are_as_wide_as_those_of_resampled_samples():
    """The same clusters, other samples: the delta method's standard error beside the bootstrap's."""
    x, y = blobs(0.8, each=100)
    scores = clustered(x, y)
    own, draw = clusters_of(x, 5), np.random.default_rng(1)
    for name, measure in (("NMI", normalized_mutual_info_score), ("AMI", adjusted_mutual_info_score)):
        again = [measure(y[rows], own[rows]) for rows in (draw.integers(len(y), size=len(y)) for _ in range(200))]
        width = scores[name].high - scores[name].low
        assert width == pytest.approx(2 * 1.96 * np.std(again), rel=0.2)


def test_what_cannot_be_clustered_is_told():
    x, y = blobs(1.0)
    sets = np.eye(5, dtype=bool)[y]
    for make, told in (
        (lambda: Clustering(1), "expected clusters of at least 2, got 1"),
        (lambda: clustered(x, np.zeros_like(y)), "two classes in the test part, and there is 1"),
        (lambda: clustered(x, y, clusters=1000), "a test sample for each of 1000 clusters, and there are 300"),
        (lambda: clustered(x, sets), "needs classes, and there are label sets"),
    ):
        with pytest.raises(ValueError, match=told):
            make()
    scores = clustered(*blobs(0.01))  # clusters that are the classes have an interval
    assert [scores[name].value for name in ("NMI", "AMI")] == pytest.approx([1, 1])
    assert 0.9 < scores["AMI"].low < 1 == scores["AMI"].high
