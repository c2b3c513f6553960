"""Evaluations of frozen features, and the intervals of what they find."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from likewise.evaluation import Accuracy, Proportion, knn, linear, paired_difference


@pytest.fixture
def blobs():
    """Three overlapping classes: training features and labels, test features and labels."""
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(3, 5, generator=generator)

    def draw(count):
        labels = torch.arange(count) % 3
        return centres[labels] + 2 * torch.randn(count, 5, generator=generator), labels

    return *draw(90), *draw(60)


@pytest.mark.parametrize(
    ("correct", "count", "low", "high"),
    [(0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (81, 263, 0.25529, 0.36621), (1, 29, 0.00611, 0.17177)],
)
def test_wilson_interval_has_the_published_bounds(correct, count, low, high):
    assert Proportion(correct, count).interval == pytest.approx((low, high), abs=1e-4)


def test_a_proportion_of_nothing_is_refused():
    for counts in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="correct <= count"):
            Proportion(*counts)


def test_per_class_counts_add_up_to_the_overall_count():
    predictions, labels = torch.tensor([0, 1, 2, 2, 0, 1]), torch.tensor([0, 1, 2, 1, 2, 1])
    accuracy = Accuracy(predictions, labels)
    assert {label: (share.correct, share.count) for label, share in accuracy.per_class.items()} == {
        0: (1, 1),
        1: (2, 3),
        2: (1, 2),
    }
    assert (accuracy.overall.correct, accuracy.overall.count) == (4, 6)


def test_a_paired_difference_counts_disagreements_only_and_has_a_mirror():
    labels = torch.zeros(20, dtype=torch.long)
    first, second = Accuracy((torch.arange(20) < 3).long(), labels), Accuracy((torch.arange(20) > 14).long(), labels)
    there, back = paired_difference(first, second), paired_difference(second, first)
    assert (there.gained, there.lost, there.value) == (5, 3, 0.1)
    assert there.interval == pytest.approx((-back.interval[1], -back.interval[0]))
    # (5 - 3)/22 and z * sqrt(5.5 + 3.5 - 2**2/22)/22, by hand
    assert there.interval == pytest.approx((0.090909 - 0.264550, 0.090909 + 0.264550), abs=1e-5)


def test_a_paired_difference_needs_the_same_samples():
    with pytest.raises(ValueError, match="same samples"):
        paired_difference(
            Accuracy(torch.tensor([0]), torch.tensor([0])), Accuracy(torch.tensor([0]), torch.tensor([1]))
        )


def test_knn_is_the_vote_by_inverse_distance_among_unit_vectors(blobs):
    train, train_labels, test, _ = blobs
    unit = [torch.nn.functional.normalize(rows) for rows in (test, train)]
    distances, nearest = torch.cdist(*unit).topk(5, largest=False)
    votes = torch.zeros(len(test), 3).scatter_add_(1, train_labels[nearest], 1 / distances)
    assert torch.equal(knn(*blobs, neighbors=5).predictions, votes.argmax(1))


def test_all_vote_where_there_are_fewer_than_asked_for(blobs):
    assert torch.equal(knn(*blobs, neighbors=1000).predictions, knn(*blobs, neighbors=90).predictions)


def test_knn_does_not_see_the_length_of_a_feature(blobs):
    train, train_labels, test, test_labels = blobs
    scaled = knn(train, train_labels, test * torch.linspace(0.1, 9, len(test))[:, None], test_labels)
    assert torch.equal(scaled.predictions, knn(*blobs).predictions)


def test_linear_probe_is_logistic_regression_on_standardised_features(blobs):
    train, train_labels, test, _ = (part.double().numpy() for part in blobs)
    scaler = StandardScaler().fit(train)
    twin = LogisticRegression(max_iter=5000).fit(scaler.transform(train), train_labels)
    assert linear(*blobs).predictions.tolist() == twin.predict(scaler.transform(test)).tolist()


def test_linear_probe_does_not_see_the_unit_of_a_feature(blobs):
    train, train_labels, test, test_labels = blobs
    unit, shift = torch.tensor([1e-3, 1, 50, 1e3, 7]), torch.arange(5)
    other = linear(train * unit + shift, train_labels, test * unit + shift, test_labels)
    assert torch.equal(other.predictions, linear(*blobs).predictions)


def _with(blobs, place, value):
    return [value if index == place else part for index, part in enumerate(blobs)]


@pytest.mark.parametrize("evaluate", [knn, linear])
def test_features_that_do_not_fit_are_refused(blobs, evaluate):
    train, train_labels, test, _ = blobs
    for place, value, words in [
        (1, train_labels[1:], "one label a row"),
        (0, train * torch.nan, "finite train_features"),
        (2, test[:, 1:], "one length, got 5 and 4"),
        (1, torch.zeros_like(train_labels), "at least 2 classes"),
        (1, train_labels.float(), "integers"),
    ]:
        with pytest.raises(ValueError, match=words):
            evaluate(*_with(blobs, place, value))


def test_settings_without_meaning_are_refused(blobs):
    with pytest.raises(ValueError, match="neighbors of at least 1, got 0"):
        knn(*blobs, neighbors=0)
    with pytest.raises(ValueError, match="inverse_penalty"):
        linear(*blobs, inverse_penalty=0)
