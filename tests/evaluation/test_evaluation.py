"""Evaluations of frozen features, against loops of their own, and the intervals of what they find."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import likewise.evaluation
from likewise.data import Parts, Samples
from likewise.evaluation import (
    KNN,
    FeatureParts,
    Features,
    LinearProbe,
    Outcomes,
    Retrieval,
    applicable,
    features_of_file,
    logistic_regression,
    paired_difference,
    raw_features,
)
from likewise.evaluation.intervals import over_classes, student, wilson
from likewise.evaluation.logistic_regression import LogisticRegression as Regression
from likewise.evaluation.predictions import accuracy
from made_runs import blobs

pytestmark = pytest.mark.slow


@pytest.fixture
def parts():
    return FeatureParts(blobs(90, "train", 1), blobs(45, "validation", 2), blobs(60, "test", 3))


def overall(found):
    return next(score for score in found.scores if str(score.group) == "all")


def test_wilson_interval_has_the_published_bounds_and_students_is_that_of_a_t_test():
    published = {(0, 10): (0.0, 0.27753), (10, 10): (0.72247, 1.0), (81, 263): (0.25529, 0.36621)}
    for (correct, count), bounds in published.items():
        assert wilson(correct, count) == pytest.approx(bounds, abs=1e-4)
    with pytest.raises(ValueError, match="correct <= count"):
        wilson(11, 10)
    values = [0.91, 0.93, 0.88, 0.95, 0.9]
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert student(values) == pytest.approx((expected.low, expected.high))
    assert student([0.5]) == (-math.inf, math.inf)


def test_a_paired_difference_counts_disagreements_only_and_has_a_mirror():
    rows = torch.arange(20)
    first, second = (Outcomes("kNN", "accuracy", rows, right.float()) for right in (rows >= 3, rows <= 14))
    there, back = paired_difference(first, second), paired_difference(second, first)
    assert (there.gained, there.lost, there.count) == (5, 3, 20)
    assert there.value == pytest.approx(0.1)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))
    # (5 - 3)/22 and z * sqrt(5.5 + 3.5 - 2**2/22)/22, by hand
    assert (there.low, there.high) == pytest.approx((0.090909 - 0.264550, 0.090909 + 0.264550), abs=1e-5)


def test_a_paired_difference_is_on_the_samples_that_both_have():
    first = Outcomes("kNN", "accuracy", torch.tensor([7, 2, 9]), torch.tensor([1.0, 0.0, 1.0]))
    second = Outcomes("kNN", "accuracy", torch.tensor([9, 4, 7]), torch.tensor([0.0, 1.0, 1.0]))
    difference = paired_difference(first, second)
    assert (difference.count, difference.gained, difference.lost, difference.value) == (2, 1, 0, 0.5)
    with pytest.raises(ValueError, match="in common"):
        paired_difference(first, Outcomes("kNN", "accuracy", torch.tensor([1]), torch.tensor([0.0])))


def test_a_paired_difference_of_precisions_is_a_paired_t_test_and_of_unseen_classes_over_classes():
    generator = torch.Generator().manual_seed(0)
    classes, rows, order = torch.arange(40) % 4, torch.arange(40), torch.randperm(40, generator=generator)
    first, second = (torch.rand(40, generator=generator) + of * classes for of in (0.2, 0.0))
    ours, theirs = Outcomes("r", "MAP@R", rows, first), Outcomes("r", "MAP@R", rows[order], second[order])
    difference = paired_difference(ours, theirs)
    expected = stats.ttest_rel(first.double().numpy(), second.double().numpy()).confidence_interval(0.95)
    assert (difference.low, difference.high) == pytest.approx((expected.low, expected.high))
    difference = paired_difference(ours, theirs, classes)
    means = [float((first - second)[classes == c].mean()) for c in range(4)]
    assert (difference.low, difference.high) == pytest.approx(np.clip(student(means), -1, 1), rel=1e-5)


def test_classes_are_scored_and_a_long_tail_by_the_number_of_training_samples():
    test = Features(torch.zeros(8, 1), torch.arange(4).repeat_interleave(2), tuple("abcd"))
    right = torch.tensor([0, 0, 1, 3, 2, 2, 0, 0])
    found = accuracy("kNN", right, test, torch.tensor([101, 100, 20, 19]))
    scores = {str(score.group): (round(score.value * score.count), score.count) for score in found.scores}
    groups = {"all": (5, 8), "many": (2, 2), "medium": (3, 4), "few": (0, 2)}
    assert scores == groups | {"class a": (2, 2), "class b": (1, 2), "class c": (2, 2), "class d": (0, 2)}


@pytest.mark.parametrize("weights", ["uniform", "similarity"])
@pytest.mark.parametrize(("k", "classes"), [(1, 3), (2, 60), (7, 3), (7, 60), (90, 3)])
def test_knn_is_a_vote_among_the_most_similar(classes, k, weights):
    train, test = blobs(90, "train", 1, classes=classes), blobs(60, "test", 2, classes=classes)
    expected = []
    for query in test.vectors.double():
        similarity = [float(query @ of / query.norm() / of.norm()) for of in train.vectors.double()]
        votes = [0.0] * classes
        for row in sorted(range(len(train)), key=lambda row: -similarity[row])[:k]:
            weight = 1 + 1e-6 * similarity[row] if weights == "uniform" else math.exp(similarity[row] / 0.07)
            votes[int(train.labels[row])] += weight
        expected.append(votes.index(max(votes)))
    found = KNN(k, weights)(train, test, test)
    prediction = next(one for one in found.outcomes if one.metric == "prediction")
    assert prediction.values.long().tolist() == expected


def test_knn_takes_what_is_best_on_validation(parts):
    found = KNN()(*parts)
    chosen = next(score for score in found.candidates if score.settings == overall(found).settings)
    assert chosen.value == max(score.value for score in found.candidates)
    assert {score.part for score in found.candidates} == {"validation"}
    assert overall(KNN(**overall(found).settings)(*parts)).value == overall(found).value


def objective(features, penalty, weight, bias):
    """Return the probe's objective, in float64, sample by sample."""
    vectors = features.vectors.double()
    units = (vectors - vectors.mean(0)) / vectors.std(0, correction=0)
    logits = units @ weight + bias
    return float(
        -sum(logits[i].log_softmax(0)[label] for i, label in enumerate(features.labels.tolist())) / len(units)
        + penalty / 2 * weight.square().sum()
    )


@pytest.mark.parametrize("penalty", [1.0, 1e-4])
def test_the_probe_reaches_the_minimum_that_another_solver_finds(penalty, monkeypatch):
    train = blobs(150, "train", 1)
    vectors = train.vectors.double()
    mean, deviation = vectors.mean(0), vectors.std(0, correction=0)
    twin = LogisticRegression(C=1 / (penalty * 150), max_iter=100_000, tol=1e-10)
    twin.fit(((vectors - mean) / deviation).numpy(), train.labels.numpy())
    best = objective(train, penalty, torch.from_numpy(twin.coef_.T), torch.from_numpy(twin.intercept_))
    probe = Regression(train).fit(penalty, 1e-9)
    weight = probe.weight * deviation[:, None]
    assert objective(train, penalty, weight, probe.bias + mean @ probe.weight) == pytest.approx(best, rel=1e-6)
    for remembered in (logistic_regression.MAX_HISTORY_NUMBERS, 1):  # as many classes: in float32, with few steps kept
        monkeypatch.setattr(logistic_regression, "MAX_HISTORY_NUMBERS", remembered)
        path, tolerance = Regression(train), LinearProbe().tolerance
        for start in (None, path.fit(1e-1, tolerance)):  # a warm start is no reason to stop
            usual = path.fit(penalty, tolerance, start)
            weight, bias = usual.weight * deviation[:, None], usual.bias + mean @ usual.weight
            assert 0 <= objective(train, penalty, weight, bias) / best - 1 + 1e-6 <= 0.01


def test_the_path_goes_on_beyond_the_end_that_is_best(parts):
    weak = LinearProbe(penalties=(1e-2, 1e-3))(*parts)
    assert [score.settings["penalty"] for score in weak.candidates] == pytest.approx([0.1, 1e-2, 1e-3])
    assert overall(weak).settings["penalty"] == 1e-2
    even = LinearProbe(penalties=(1e-7, 1e-8))(*parts)  # equally accurate: others would not be more so
    assert [score.settings["penalty"] for score in even.candidates] == [1e-7, 1e-8]


def test_equal_similarities_give_chance_whatever_the_order_of_the_data():
    """A collapsed encoder: in the data's own order, by class, the first of equals would be right."""
    test = Features(torch.ones(400, 8), torch.arange(10).repeat_interleave(40))
    assert all(of(test, test, test).scores[0].value < 0.2 for of in (Retrieval(), KNN(1)))


@pytest.mark.parametrize(("third", "groups"), [("z", 3), ("x, turned 90°", 2)])
def test_unseen_classes_have_an_interval_over_classes_of_which_turns_are_one(third, groups):
    train, test = blobs(30, "train", 1), blobs(60, "test", 2)
    unseen = Features(test.vectors, test.labels, ("x", "y", third))
    seen, other = (Retrieval()(train, train, of) for of in (test, unseen))
    value = next(one for one in other.outcomes if one.metric == "MAP@R").values
    assert [score.value for score in seen.scores] == [score.value for score in other.scores]
    assert other.scores[2].classes == groups
    bounds = np.clip(over_classes(value, test.labels % groups), 0, 1)
    assert (other.scores[2].low, other.scores[2].high) == pytest.approx(bounds)


def test_classes_that_agree_exactly_do_not_tell_how_others_differ():
    """Where two classes are all right the interval is Wilson's of two; of a difference of 0, Agresti and Min's."""
    train = Features(torch.eye(2), torch.tensor([0, 1]), ("a", "b"))
    test = Features(torch.eye(2).repeat_interleave(8, dim=0), torch.arange(2).repeat_interleave(8), ("x", "y"))
    found = Retrieval()(train, train, test)
    expected = stats.binomtest(2, 2).proportion_ci(method="wilson")
    for score in found.scores:
        assert (score.value, score.low, score.high) == pytest.approx((1, *expected))
    difference = paired_difference(found.outcomes[0], found.outcomes[0], test.labels)
    assert (difference.low, difference.high) == pytest.approx((-1.96 / 4, 1.96 / 4), abs=1e-3)
    worse = replace(found.outcomes[0], values=found.outcomes[0].values - 0.25)
    difference = paired_difference(found.outcomes[0], worse, test.labels)
    assert difference.value == 0.25
    assert difference.low < 0
    assert difference.high > 0.25


def names(evaluations):
    return [evaluation.name for evaluation in evaluations]


def test_what_applies_follows_from_the_labels(parts):
    train, validation, test = parts
    none = Features(test.vectors, None)
    sets = Features(test.vectors, torch.ones(60, 2, dtype=torch.bool))
    unseen = Features(test.vectors, test.labels, ("x", "y", "z"))
    assert names(applicable(parts)) == ["kNN", "linear probe", "retrieval"]
    assert names(applicable(FeatureParts(train, validation, unseen))) == ["retrieval", "few-shot"]
    assert names(applicable(FeatureParts(train[torch.arange(0)], validation, test))) == ["retrieval"]
    assert applicable(FeatureParts(none, none, none)) == []
    assert names(applicable(FeatureParts(sets, sets, sets))) == ["retrieval"]  # of labels that all have


def test_what_does_not_apply_is_refused_when_it_is_asked_for(parts):
    unseen = Features(parts.test.vectors, parts.test.labels, ("x", "y", "z"))
    classes = r"does not apply: it needs test classes .*those that apply: Retrieval"
    alone, one = (Features(torch.rand(3, 2), labels) for labels in (torch.arange(3), torch.zeros(3, dtype=torch.long)))
    for test, evaluation, told in (
        (unseen, KNN(), classes),
        (unseen, LinearProbe(), classes),
        (alone, Retrieval(), "a class with 2 test samples, and every class has 1"),
        (one, Retrieval(), "at least 2 classes"),
    ):
        with pytest.raises(ValueError, match=told):
            applicable(parts._replace(test=test), [evaluation])


def test_features_that_do_not_fit_are_refused():
    labels = torch.arange(3)
    for given, told in (
        ((torch.zeros(3, 2), labels[:2]), "one label for each of 3 test features, got 2"),
        ((torch.tensor([[1.0], [math.nan]]), labels[:2]), "NaN or infinity in 1 of 2"),
        ((torch.zeros(3), labels), r"features \(N, D\)"),
        ((torch.zeros(3, 2), torch.zeros(3)), "integers"),
        ((torch.zeros(3, 1), labels, ("a", "b")), "labels from 0 to 1"),
        ((torch.zeros(3, 1), labels - 1, ("a", "b")), "got -1 to 1"),
        ((np.eye(4, dtype=np.float32), ["a", "a", "b", "b"]), "test labels as numbers, got <U1: number classes from 0"),
    ):
        with pytest.raises(ValueError, match=told):
            Features(*given)


def test_settings_without_meaning_are_refused():
    for make, told in (
        (lambda: KNN(0), "k of at least 1, got 0"),
        (lambda: KNN(2.5), "k of at least 1, got 2.5"),
        (lambda: KNN(weights="distance"), "one of uniform, similarity"),
        (lambda: KNN(temperature=0), "temperature above 0"),
        (lambda: LinearProbe(0), "penalty above 0"),
        (lambda: LinearProbe(penalties=()), "at least one of penalties"),
        (lambda: LinearProbe(tolerance=-1), "tolerance above 0"),
    ):
        with pytest.raises(ValueError, match=told):
            make()


def test_classes_of_any_integer_and_arrays_are_taken(parts):
    train, validation, test = (Features(of.vectors.numpy(), of.labels.to(torch.uint8), of.names) for of in parts)
    for evaluation in (KNN(5, "uniform"), LinearProbe(1e-2), Retrieval()):
        assert evaluation(train, validation, test).scores == evaluation(*parts[:2], parts.test).scores


def test_raw_inputs_are_a_subset_of_known_rows(monkeypatch):
    monkeypatch.setattr("likewise.evaluation.encoding.MAX_PART_NUMBERS", 31)
    images = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1).expand(20, 1, 2, 2)
    samples = Samples(images, torch.arange(20) % 2, ("a", "b"), rows=torch.arange(100, 120))
    raw = raw_features(Parts(samples, samples, samples))
    assert {len(part) for part in raw} == {7}
    torch.testing.assert_close(raw.test.vectors[:, 0] * 255, raw.test.rows.float() - 100)
    assert raw.test.labels.tolist() == (raw.test.rows % 2).tolist()
    long = Samples(torch.zeros(2, 3 * 65 * 64), torch.arange(2), ("a", "b"))
    assert raw_features(Parts(long, long, long)) is None


def test_raw_inputs_of_large_images_are_means_of_their_pixels():
    images = torch.randint(256, (3, 3, 128, 192), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    samples = Samples(images, torch.arange(3) % 2, ("a", "b"))
    raw = raw_features(Parts(samples, samples, samples))
    blocks = images.double().view(3, 3, 64, 2, 64, 3).mean(dim=(3, 5))
    torch.testing.assert_close(raw.test.vectors.double(), blocks.flatten(1) / 255, atol=0.5 / 255 + 1e-6, rtol=0)


def test_vectors_are_standardised_by_the_training_part_and_images_are_not():
    scale = torch.tensor([1e-3, 1.0, 1e4, 0.0])
    inputs = torch.randn(60, 4) * scale + torch.tensor([5.0, 0.0, -2e4, 7.25])
    rows = torch.arange(60)
    samples = Samples(inputs, rows % 2, ("a", "b"))
    train, validation, test = (samples[own] for own in rows.split([30, 10, 20]))
    test.inputs[:, 3] += 1  # constant in training only
    raw = raw_features(Parts(train, validation, test))
    scaler = StandardScaler().fit(train.inputs.double().numpy())
    for of, part in zip(raw, (train, validation, test), strict=True):
        expected = torch.from_numpy(scaler.transform(part.inputs.double().numpy())).float()
        torch.testing.assert_close(of.vectors[:, :3], expected[:, :3], rtol=1e-4, atol=1e-3)
        assert not of.vectors[:, 3].any()
    torch.testing.assert_close(raw.test.origin.encode(test.inputs), raw.test.vectors)  # other data, by the same numbers
    images = Samples(inputs.view(60, 1, 2, 2), rows % 2, ("a", "b"))
    assert torch.equal(raw_features(Parts(images, images, images)).test.vectors, inputs)


@pytest.fixture
def file(tmp_path):
    def save(**arrays):
        np.savez(tmp_path / "mine.npz", **arrays)
        return tmp_path / "mine.npz"

    return save


def test_test_samples_alone_and_test_classes_of_their_own_stay_as_they_are(file):
    sets = np.random.default_rng(0).random((12, 3)) < 0.5
    alone = features_of_file(file(features=np.eye(12), labels=sets, parts=["test"] * 12))
    assert (len(alone.train), len(alone.validation)) == (0, 0)
    assert np.array_equal(alone.test.sets.numpy(), sets)
    assert names(applicable(alone)) == ["retrieval"]
    labels = np.repeat(["a", "b", "x", "y"], 5)
    parts = features_of_file(file(features=np.eye(20), labels=labels, parts=np.repeat(["train", "test"], 10)))
    assert (parts.train.names, parts.test.names, len(parts.validation)) == (("a", "b"), ("x", "y"), 0)
    alone = features_of_file(file(features=np.eye(4), labels=[0, 0, 1, 1], parts=["test"] * 4))
    assert names(applicable(alone)) == ["retrieval", "few-shot"]


BARE = {"train_features": np.eye(3), "test_features": np.eye(3)}
NAMED = BARE | {"train_labels": [0, 1, 0], "test_labels": [0, 1, 0]}
SETS = BARE | {"train_labels": np.eye(3)[:, :2] > 0, "test_labels": np.eye(3)[:, :2] > 0}


def test_parts_have_the_names_of_their_classes_and_labels(file):
    """Numbers or words, in the order that they have."""
    parts = features_of_file(file(**NAMED, train_names=np.array([10, 9]), test_names=["9", "10"]))
    assert parts.test.names == ("10", "9")
    assert [parts.test.names[label] for label in parts.test.labels] == ["9", "10", "9"]
    rows = parts.train.vectors.argmax(dim=1).tolist()
    assert [parts.train.names[label] for label in parts.train.labels] == [("10", "9", "10")[row] for row in rows]
    sets = features_of_file(file(**SETS, train_names=["sky", "sea"], test_names=["sky", "sea"]))
    assert sets.test.names == ("sky", "sea")


def test_array_files_that_are_not_as_expected_are_refused(file):
    for arrays, told in (
        ({"x": [1]}, r"expected 'features' \(N, D\) and 'labels'.* got x"),
        ({"features": np.eye(3)}, "'labels'.* got features"),
        ({"features": np.eye(3), "labels": [1, 2]}, "one label for each of 3 features, got 2"),
        ({"features": np.eye(3), "labels": [1, 1, 1]}, "at least 2 classes"),
        ({"features": np.eye(3), "labels": [1, 2, 3]}, "retrieval"),
        ({"test_features": np.eye(3)}, "no test_labels"),
        (dict(NAMED, test_features=np.eye(4)[:3]), "one length"),
        (NAMED | {"train_names": ["a", "b"]}, "expected test_names next to train_names, got none"),
        (NAMED | {"train_names": "a", "test_names": ["a", "b"]}, r"expected train_names \(C,\), got \(\)"),
        (NAMED | {"train_names": ["a", "b"], "test_names": ["a"]}, "test_labels as integers from 0 to 0"),
        (SETS | {"test_labels": np.eye(3) > 0}, r"expected test_labels like train_labels, \(3, 2\), got \(3, 3\)"),
        (SETS | {"train_names": ["a", "b"], "test_names": ["b", "a"]}, "2 test_names, the same in all parts"),
    ):
        with pytest.raises(ValueError, match=told):
            features_of_file(file(**arrays))


def test_a_bare_array_lacks_labels_and_an_error_says_how_to_save_them(tmp_path):
    np.save(tmp_path / "mine.npy", np.eye(4))
    with pytest.raises(ValueError, match=r"got .*mine.npy, which has one array: .*savez\('mine.npz', features="):
        likewise.evaluate(tmp_path / "mine.npy", runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
