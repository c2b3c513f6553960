"""What features look like as a whole, spectrum, hubs, distances, hardest pairs; and a loss that came down; by loops."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from likewise.data.augmentation.augmentation import Draw
from likewise.diagnostics import (
    alignment,
    anchor_gradients,
    class_distances,
    collapsed,
    descent,
    effective_rank,
    hardest_pairs,
    hubness,
    similarity_histogram,
    singular_values,
    spread,
    two_dimensional_map,
    uniformity,
)
from likewise.diagnostics.hard_pairs import NONE
from likewise.models import ConvNet


def clusters(count, classes, noise, seed=0, width=16):
    """Tight classes with a long tail: of class c about count/(c+1) samples."""
    generator = torch.Generator().manual_seed(seed)
    shares = 1 / torch.arange(1, classes + 1).double()
    labels = torch.multinomial(shares, count, replacement=True, generator=generator)
    centres = torch.randn(classes, width, generator=generator)
    return centres[labels] + noise * torch.randn(count, width, generator=generator), labels


def cosines(features):
    units = features.double() / features.double().norm(dim=1, keepdim=True)
    return [[float(one @ other) for other in units] for one in units]


def test_arrays_are_as_good_as_tensors():
    """As embeddings.npz has them; names of classes are refused with the way to number them."""
    features, labels = clusters(30, 4, 0.3)
    of_features = (singular_values, effective_rank, spread, collapsed, uniformity, hubness, two_dimensional_map)
    for function in of_features:
        found, expected = function(features.numpy()), function(features)
        assert repr(found) == repr(expected)
    of_both = (alignment, partial(class_distances, classes=4), similarity_histogram, hardest_pairs, anchor_gradients)
    for function in of_both:
        found, expected = function(features.numpy(), labels.numpy()), function(features, labels)
        assert repr(found) == repr(expected)
        with pytest.raises(ValueError, match="expected labels as a tensor or an array of numbers, got ndarray: number"):
            function(features.numpy(), labels.numpy().astype(str))


@pytest.mark.parametrize("noise", [1e-3, 0.3, 3.0])
def test_singular_values_are_those_of_the_centred_unit_rows(noise):
    features, _ = clusters(40, 5, noise)
    units = features.double() / features.double().norm(dim=1, keepdim=True)
    expected = torch.linalg.svdvals(units - units.mean(dim=0)) / math.sqrt(40)
    found = singular_values(features)
    assert torch.allclose(found, expected, atol=1e-7)
    assert float(found.square().sum()) == pytest.approx(spread(features), rel=1e-6)
    assert spread(features) == pytest.approx(1 - float(units.mean(dim=0).square().sum()), rel=1e-9)
    shares = expected / expected.sum()
    assert effective_rank(features) == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares.tolist())), rel=1e-4)


def test_classes_as_points_have_one_direction_fewer_than_there_are():
    assert effective_rank(torch.eye(7).repeat(5, 1)) == pytest.approx(6)
    wide = torch.eye(7).repeat(1, 9)
    assert effective_rank(wide) == pytest.approx(6)
    assert len(singular_values(wide)) == 7


def test_one_direction_has_rank_0_whatever_the_rounding():
    features = torch.full((500, 8), 0.3) * torch.rand(500, 1, generator=torch.Generator().manual_seed(0)) * 1e3
    assert effective_rank(features + 1e-7) == 0
    assert effective_rank(torch.zeros(0, 3)) == effective_rank(torch.zeros(3, 3)) == 0
    assert spread(torch.zeros(0, 3)) == 0


@pytest.mark.parametrize("k", [1, 5, 100])
def test_hubs_are_counted(k):
    features, _ = clusters(50, 4, 0.5)
    table = cosines(features)
    expected = [0] * 50
    for i, row in enumerate(table):
        others = sorted((j for j in range(50) if j != i), key=lambda j, row=row: -row[j])
        for j in others[:k]:
            expected[j] += 1
    found = hubness(features, k)
    assert found.occurrences.tolist() == expected
    assert found.never == expected.count(0) / 50
    mean = sum(expected) / 50
    deviation = math.sqrt(sum((of - mean) ** 2 for of in expected) / 50)
    third = sum((of - mean) ** 3 for of in expected) / 50
    assert found.skewness == pytest.approx(third / deviation**3 if deviation else 0, rel=1e-9)


def test_hubs_of_few_samples_and_bad_k():
    assert hubness(torch.ones(1, 3)).occurrences.tolist() == [0]
    assert hubness(torch.zeros(0, 3)).never == 0
    with pytest.raises(ValueError, match="expected k of at least 1, got 0"):
        hubness(torch.eye(3), 0)


@pytest.mark.parametrize("noise", [1e-4, 0.5])
def test_class_distances_are_means_over_pairs(noise):
    features, labels = clusters(40, 5, noise)
    sums, counts = torch.zeros(2, 7, 7).double().unbind()
    for i, j in itertools.permutations(range(40), 2):
        one, other = (of.double() / of.double().norm() for of in (features[i], features[j]))
        sums[labels[i], labels[j]] += (one - other).square().sum()
        counts[labels[i], labels[j]] += 1
    found = class_distances(features, labels, 7)
    assert torch.equal(found.isnan(), counts == 0)
    assert torch.allclose(found, sums / counts, rtol=1e-6, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize(
    ("kind", "tile"), [(kind, tile) for kind in ("classes", "label sets") for tile in (1, 7, 2**21)]
)
def test_the_hardest_pairs_are_those_of_a_loop(kind, tile, monkeypatch):
    monkeypatch.setattr("likewise.diagnostics.hard_pairs.TILE", 60 * tile)
    features, classes = clusters(60, 9, 0.7)
    sets = torch.rand(60, 6, generator=torch.Generator().manual_seed(1)) < 0.2
    labels = classes if kind == "classes" else sets
    table = cosines(features)
    found = hardest_pairs(features, labels)
    for i, row in enumerate(table):
        same = [bool((labels[i] & labels[j]).any() if labels.ndim == 2 else labels[i] == labels[j]) for j in range(60)]
        positives = [j for j in range(60) if same[j] and j != i]
        negatives = [j for j in range(60) if not same[j] and j != i]
        for others, indices, values, choose in (
            (positives, found.positives, found.positive_similarities, min),
            (negatives, found.negatives, found.negative_similarities, max),
        ):
            if not others:
                assert indices[i] == NONE
                assert values[i].isnan()
                continue
            expected = choose(others, key=lambda j, row=row: row[j])
            assert values[i] == pytest.approx(row[expected], abs=1e-5)
            assert row[int(indices[i])] == pytest.approx(row[expected], abs=1e-5)
            assert int(indices[i]) in others


def test_pairs_of_a_gallery_are_the_hardest_and_share_no_sample():
    features, labels = clusters(80, 5, 0.7)
    found = hardest_pairs(features, labels)
    table = cosines(features)
    for pairs, sign, same in ((found.positive_pairs(10), 1, True), (found.negative_pairs(10), -1, False)):
        assert len(set(pairs.flatten().tolist())) == 20
        assert all((labels[i] == labels[j]) == same for i, j in pairs.tolist())
        values = [sign * table[i][j] for i, j in pairs.tolist()]
        assert values == sorted(values)
        hardest_of_all = min(
            sign * table[i][j] for i, j in itertools.combinations(range(80), 2) if (labels[i] == labels[j]) == same
        )
        assert values[0] == pytest.approx(hardest_of_all, abs=1e-6)


@pytest.mark.parametrize(
    "labels", [torch.zeros(6, dtype=torch.long), torch.arange(6), torch.zeros(6, 3, dtype=torch.bool)]
)
def test_without_positives_or_negatives_there_are_no_pairs(labels):
    found = hardest_pairs(torch.eye(6), labels)
    alone = labels.ndim == 2 or len(labels.unique()) == 6
    assert len(found.positive_pairs(5)) == (0 if alone else 1)  # all are equally hard: the first, with any other
    assert len(found.negative_pairs(5)) == (1 if alone else 0)
    assert hardest_pairs(torch.zeros(0, 2), labels[:0]).positive_pairs(5).shape == (0, 2)


def test_features_that_are_not_finite_or_no_rows_or_without_labels_are_refused():
    for measure in (singular_values, effective_rank, spread, uniformity, hubness, two_dimensional_map):
        with pytest.raises(ValueError, match="got NaN or infinity: look at the encoder"):
            measure(torch.tensor([[1.0, math.nan]]))
        with pytest.raises(ValueError, match=r"expected features \(N, D\)"):
            measure(torch.ones(3))
    for measure in (alignment, similarity_histogram, hardest_pairs):
        with pytest.raises(ValueError, match="one label a row"):
            measure(torch.eye(3), torch.zeros(2).long())


@pytest.mark.parametrize("method", ["pca", "tsne", pytest.param("umap", marks=pytest.mark.slow)])
def test_a_map_that_begins_at_another_one_is_turned_like_it(method):
    if method == "umap":
        pytest.importorskip("umap", reason="umap-learn is not installed", exc_type=ImportError)
    features, labels = clusters(120, 4, 0.1)
    first = two_dimensional_map(features, method)
    turned = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)  # mirrored
    again = two_dimensional_map(features @ torch.linalg.qr(torch.randn(16, 16)).Q, method, start=first @ turned)
    centres = [torch.stack([of[labels == label].mean(dim=0) for label in range(4)]) for of in (first @ turned, again)]
    centred = [of - of.mean(dim=0) for of in centres]
    similarity = (centred[0] * centred[1]).sum() / (centred[0].norm() * centred[1].norm())
    assert similarity > 0.8


@pytest.fixture
def in_double():
    """Let tensors be float64 where nothing else is asked for, as a script of somebody's may."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("in_double")
def test_what_a_page_needs_is_float32_whatever_torchs_default_dtype_is():
    """Features, their hardest pairs by classes and by sets, and the random numbers of views."""
    images, labels = torch.randn(9, 1, 8, 8, dtype=torch.float32), torch.arange(9) % 3
    features = ConvNet((1, 8, 8), width=4).encode(images)
    assert features.dtype == torch.float32
    for own in (labels, functional.one_hot(labels)):
        found = hardest_pairs(features, own)
        assert found.positive_similarities.dtype == found.negative_similarities.dtype == torch.float32
    drawn = Draw(7, rows=4)
    assert drawn.uniform(2).dtype == drawn.normal(2).dtype == torch.float32


NOISE = {
    "even": lambda rng, steps: rng.normal(size=steps),
    "long tails": lambda rng, steps: rng.standard_t(3, size=steps),
    "often zero": lambda rng, steps: rng.exponential(size=steps) * (rng.random(steps) < 0.3),
    "few values": lambda rng, steps: rng.integers(0, 2, size=steps).astype(float),
}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize(("steps", "size"), [(100, 0.0), (270, -40.0)])
def test_noise_is_no_descent(noise, steps, size):
    rng = np.random.default_rng(steps)  # of its own: what a test finds may not depend on which others ran before it
    fell = sum(descent((size + 0.3 * NOISE[noise](rng, steps)).tolist()).fell for _ in range(400))
    assert fell <= 400 * (0.05 if noise == "often zero" else 0.025)  # of 6,000 each 0.032 and at most 0.015 were found


def test_a_constant_loss_and_one_that_rises_while_a_queue_fills_did_not_fall():
    assert descent([np.log(255)] * 100) == (np.log(255), np.log(255), 0.0, False)
    filling = np.log(np.minimum(128 * np.arange(1, 271), 4096)) + 0.01 * np.random.default_rng(0).normal(size=270)
    assert not descent(filling.tolist()).fell


def test_a_descent_of_less_than_a_thousandth_is_none_however_regular():
    assert not descent(np.linspace(5.5, 5.4951, 200).tolist()).fell
    assert descent(np.linspace(5.5, 5.48, 200).tolist()).fell


@pytest.mark.parametrize("steps", [100, 3000])
def test_what_learns_falls_at_once_or_late_below_zero_and_after_a_rise(steps):
    at = np.linspace(0, 1, steps)
    curves = {
        "at once": 3.4 + 2.1 * np.exp(-50 * at),
        "late": 5.5 - 2.0 * (at > 0.85),
        "below zero": -1.0 - 2.0 * at,
        "after a rise": 7.0 - 3.0 * np.abs(at - 0.3),
    }
    rng = np.random.default_rng(steps)
    for name, curve in curves.items():
        assert descent((curve + 0.06 * rng.normal(size=steps)).tolist()).fell, name


def test_the_numbers_are_those_of_a_plain_loop():
    losses = [*np.linspace(6, 4, 95), *np.random.default_rng(0).normal(4, 0.1, size=42)]
    tenths, start = [], 0
    for number in range(10):
        width = len(losses) // 10 + (number < len(losses) % 10)
        tenths.append(sum(losses[start : start + width]) / width)
        start += width
    steps = [(later - earlier) ** 2 for earlier, later in itertools.pairwise(losses[13:])]
    found = descent(losses)
    assert found[:3] == pytest.approx((max(tenths), tenths[-1], (sum(steps) / len(steps) / 2) ** 0.5))


def test_a_handful_of_steps_cannot_tell():
    assert descent([]) is None
    assert descent([5.5, 3.0] * 9) is None
