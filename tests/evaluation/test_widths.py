"""The first features alone: each width's scores are those of features that have no others."""

from dataclasses import replace

import pytest
import torch

from likewise.data import Digits
from likewise.evaluation import KNN, CrossModalRetrieval, Features, Retrieval, Widths

NAMES = ("lily", "rose", "tulip")


def part(seed, kind="test", counterparts=None):
    """Make features of three classes, which the first tell better than the later."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(30) % 3
    vectors = torch.randn(30, 8, generator=generator) + 3 * torch.eye(8)[labels]
    return Features(vectors, labels, NAMES, part=kind, counterparts=counterparts)


def first(features, width):
    """Return features of which only the first are left."""
    beside = None if features.counterparts is None else first(features.counterparts, width)
    return replace(features, vectors=features.vectors[:, :width].clone(), counterparts=beside)


@pytest.mark.parametrize("of", [None, Retrieval(at=3), KNN(4)], ids=str)
def test_scores_are_those_of_features_that_are_cut(of):
    train, test = part(0, "train"), part(1)
    found = Widths([8, 2], of)(train, train, test)
    assert len({score.metric.name for score in found.scores}) == len(found.scores)
    for width in (2, 8):
        alone = (of or Retrieval())(first(train, width), first(train, width), first(test, width))
        for score in alone.headline:
            ours = found[f"{score.metric}, first {width}"]
            assert (ours.value, ours.low, ours.high) == (score.value, score.low, score.high)
            assert not ours.metric.selects
    assert {one.metric for one in found.outcomes} >= {score.metric.name for score in found.headline[:2]}


def test_pairs_are_cut_on_both_sides():
    parts = [part(seed, kind, part(seed + 5, kind)) for seed, kind in enumerate(("train", "validation", "test"))]
    found = Widths([3])(*parts)
    alone = CrossModalRetrieval()(*(first(of, 3) for of in parts))
    for score in alone.headline:
        assert found[f"{score.metric}, first 3"].value == score.value


def test_widths_that_are_none_are_told():
    test = part(0)
    with pytest.raises(ValueError, match="widths of at least 1, got 0"):
        Widths([0, 4])
    with pytest.raises(ValueError, match="of the run's own samples, got Retrieval"):
        Widths([4], Retrieval(among=Digits()))
    with pytest.raises(ValueError, match="it needs 16 features, and there are 8"):
        Widths([16])(test, test, test)
