"""The geometry of an embedding, against its definition pair by pair."""

import itertools
import math

import pytest
import torch

from likewise.diagnostics import alignment, collapsed, similarity_histogram, two_dimensional_map, uniformity, unit_rows

pytestmark = pytest.mark.slow


@pytest.fixture
def embedding(monkeypatch):
    """Features with their classes, and tiles smaller than both."""
    monkeypatch.setattr(unit_rows, "TILE", 4)
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(11, 4, generator=generator), torch.arange(11) % 3


def _pairs(features):
    units = torch.nn.functional.normalize(features.double())
    for i, j in itertools.permutations(range(len(units)), 2):
        yield i, j, float((units[i] - units[j]).square().sum())


def test_alignment_is_the_mean_squared_distance_within_classes(embedding):
    features, labels = embedding
    distances = [distance for i, j, distance in _pairs(features) if labels[i] == labels[j]]
    assert alignment(features, labels) == pytest.approx(sum(distances) / len(distances), rel=1e-10)


def test_uniformity_is_the_logarithm_of_the_mean_potential(embedding):
    features, _ = embedding
    potentials = [math.exp(-2 * distance) for _, _, distance in _pairs(features)]
    assert uniformity(features) == pytest.approx(math.log(sum(potentials) / len(potentials)), rel=1e-10)


def test_geometry_without_a_pair_is_nan():
    assert math.isnan(alignment(torch.eye(2), torch.tensor([0, 1])))
    assert math.isnan(uniformity(torch.eye(2)[:1]))


def test_a_zero_feature_counts_as_a_point_at_the_origin():
    features = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    assert alignment(features, torch.tensor([0, 0])) == pytest.approx(1.0)
    assert uniformity(features) == pytest.approx(-2.0)


def test_histogram_counts_every_pair_once_by_its_kind(embedding):
    features, labels = embedding
    edges, positive, negative = similarity_histogram(features, labels, bins=7)
    counts = torch.zeros(2, 7)
    for i, j, distance in _pairs(features):
        place = int(torch.bucketize(torch.tensor(1 - distance / 2).double(), edges, right=True)) - 1
        counts[int(labels[i] == labels[j]), min(place, 6)] += 1
    assert torch.allclose(torch.stack([negative, positive]).float(), counts / counts.sum(1, keepdim=True))


@pytest.mark.parametrize("method", ["tsne", "pca"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (2, 2), (5, 1), (9, 4)])
def test_a_map_has_two_finite_coordinates_and_repeats_itself(method, shape):
    features = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    places = two_dimensional_map(features, method)
    assert places.shape == (shape[0], 2)
    assert torch.isfinite(places).all()
    assert torch.equal(places, two_dimensional_map(features, method))


def test_pca_keeps_distances_in_the_plane():
    angles = torch.linspace(0, 3, 9)
    circle = torch.stack([angles.cos(), torch.zeros(9), angles.sin()], dim=1)
    places = two_dimensional_map(circle, "pca")
    assert torch.allclose(torch.cdist(places, places), torch.cdist(circle, circle).double(), atol=1e-5)


def test_collapsed_features_lie_on_one_point():
    """On equal features t-SNE, started from PCA, divides by their spread, 0, and the process dies."""
    one = torch.rand(1, 16, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(1000, 16, generator=torch.Generator().manual_seed(1))
    for features in (one.repeat(1000, 1), 0 * noise, one + 1e-7 * noise, one * noise[:, :1].abs()):
        for method in ("tsne", "pca"):
            assert torch.equal(two_dimensional_map(features, method), torch.zeros(1000, 2).double())
        assert collapsed(features)
    assert not collapsed(one)


@pytest.mark.parametrize("distinct", [2, 5])
def test_duplicates_lie_on_one_point_and_others_do_not(distinct):
    rows = torch.randperm(80, generator=torch.Generator().manual_seed(0)) % distinct
    features = torch.randn(distinct, 8, generator=torch.Generator().manual_seed(1))[rows]
    places = two_dimensional_map(features)
    assert torch.isfinite(places).all()
    together = (places.unsqueeze(1) == places).all(dim=2)
    assert torch.equal(together, rows.unsqueeze(1) == rows)
    assert not collapsed(features)
