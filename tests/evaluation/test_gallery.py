"""Retrieval among a gallery of one's own, as plain loops rank it, and by the first features alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import likewise as lw
from likewise.data import Arrays, Digits, Samples, Source
from likewise.evaluation import KNN, CrossModalRetrieval, Features, Retrieval, Widths
from likewise.workflows import Silent

NAMES = ("lily", "rose", "tulip")


class Shop(Source):
    """Vectors with their classes, which are called as the test's, in another order, and one that is not there."""

    def __init__(self, seed=1, width=4, names=("rose", "violet", "lily", "tulip")):
        self.seed, self.width, self.names = seed, width, names

    def load(self):
        generator = torch.Generator().manual_seed(self.seed)
        labels = torch.arange(40) % len(self.names) if self.names else None
        return Samples(torch.randn(40, self.width, generator=generator), labels, tuple(self.names))


def test_features_are_ranked_among_it():
    generator = torch.Generator().manual_seed(0)
    test = Features(torch.randn(30, 4, generator=generator), torch.arange(30) % 3, NAMES, part="test")
    train = Features(torch.randn(9, 4, generator=generator), torch.arange(9) % 3, NAMES)
    found = Retrieval(at=5, among=Shop())(train, train, test)
    shop = Shop().load()
    unit = torch.nn.functional.normalize
    first, precision = [], []
    for vector, label in zip(test.vectors, test.classes, strict=True):
        order = (unit(shop.inputs) @ unit(vector, dim=0)).argsort(descending=True)
        hits = [shop.names[shop.labels[row]] == NAMES[label] for row in order]
        first.append(float(hits[0]))
        precision.append(sum(hits[:5]) / 5)
    assert found["precision@1"].value == pytest.approx(np.mean(first))
    assert found["precision@5"].value == pytest.approx(np.mean(precision))
    assert found["precision@1"].protocol["gallery"] == "Shop, 40 samples"


def test_what_is_no_gallery_is_told():
    part = Features(torch.randn(12, 4), torch.arange(12) % 3, NAMES)
    for shop, told in (
        (Shop(width=3), r"a gallery of inputs of shape \(4,\), and those of the source are \(3,\)"),
        (Shop(names=()), "a gallery with classes, and its labels are none"),
        (Shop(names=("oak", "elm")), "a test sample with a right answer in the gallery, and there is none"),
    ):
        with pytest.raises(ValueError, match=told):
            Retrieval(among=shop)(part, part, part)


def test_label_sets_are_compared_by_name():
    """A gallery whose labels come in another order, one of which the queries lack, is ranked as by their names."""
    drawing = np.random.default_rng(0)
    sets, shown = drawing.random((12, 3)) < 0.4, drawing.random((30, 4)) < 0.4
    vectors, others = drawing.normal(size=(12, 4)), drawing.normal(size=(30, 4))

    class Sets(Source):
        def load(self):
            return Samples(torch.tensor(others).float(), torch.tensor(shown), ("c", "b", "new", "a"))

    part = Features(torch.tensor(vectors).float(), torch.tensor(sets), ("a", "b", "c"))
    result = Retrieval(among=Sets())(part, part, part)
    named = [{name for name, has in zip("abc", row, strict=True) if has} for row in sets]
    among = [{name for name, has in zip(("c", "b", "new", "a"), row, strict=True) if has} for row in shown]
    first, at_ten, gains = [], [], []
    discount = 1 / np.log2(np.arange(2, 12))
    for vector, labels in zip(vectors, named, strict=True):
        if not labels:
            continue
        cosines = others @ vector / np.linalg.norm(others, axis=1)
        order = np.argsort(-cosines)[:10]
        alike = np.array([len(labels & near) / len(labels | near) for near in among])
        first.append(bool(labels & among[order[0]]))
        at_ten.append(alike[order].mean())
        gains.append(alike[order] @ discount / (np.sort(alike)[::-1][:10] @ discount))
    assert result["precision@1"].value == pytest.approx(np.mean(first))
    assert result["Jaccard@10"].value == pytest.approx(np.mean(at_ten))
    assert result["nDCG@10"].value == pytest.approx(np.mean(gains))


@pytest.mark.slow
def test_a_run_encodes_it(tmp_path):
    generator = np.random.default_rng(0)
    data, other = ((generator.random((size, 8, 8)).astype(np.float32), np.arange(size) % 3) for size in (60, 24))
    np.savez(tmp_path / "shop.npz", images=other[0], labels=other[1])
    among = {"evaluations": "Retrieval", "evaluations.among": "Arrays"}
    among["evaluations.among.path"] = str(tmp_path / "shop.npz")
    run = lw.train(data=data, encoder="ConvNet", epochs=1, report=False, runs=str(tmp_path), progress=Silent(), **among)
    model, test = lw.load(run), lw.data.parts_of_run(run)[0].test
    encoded = Arrays(tmp_path / "shop.npz").load().inputs.numpy()
    direct = Retrieval().rank(model.encode(test.inputs.numpy()), test.labels, model.encode(encoded), other[1])
    assert run.scores["retrieval", "precision@1"].value == pytest.approx(direct["precision@1"].value)


def part_of(seed, kind="test", counterparts=None):
    """Make features of three classes, which the first tell better than the later."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(30) % 3
    vectors = torch.randn(30, 8, generator=generator) + 3 * torch.eye(8)[labels]
    return Features(vectors, labels, NAMES, part=kind, counterparts=counterparts)


def cut(features, width):
    """Return features of which only the first are left."""
    beside = None if features.counterparts is None else cut(features.counterparts, width)
    return replace(features, vectors=features.vectors[:, :width].clone(), counterparts=beside)


@pytest.mark.parametrize("of", [None, KNN(4)], ids=str)
def test_scores_are_those_of_features_that_are_cut(of):
    train, test = part_of(0, "train"), part_of(1)
    found = Widths([8, 2], of)(train, train, test)
    assert len({score.metric.name for score in found.scores}) == len(found.scores)
    for width in (2, 8):
        alone = (of or Retrieval())(cut(train, width), cut(train, width), cut(test, width))
        for score in alone.headline:
            ours = found[f"{score.metric}, first {width}"]
            assert (ours.value, ours.low, ours.high) == (score.value, score.low, score.high)
            assert not ours.metric.selects
    assert {one.metric for one in found.outcomes} >= {score.metric.name for score in found.headline[:2]}


def test_pairs_are_cut_on_both_sides():
    parts = [part_of(seed, kind, part_of(seed + 5, kind)) for seed, kind in enumerate(("train", "validation", "test"))]
    found = Widths([3])(*parts)
    alone = CrossModalRetrieval()(*(cut(of, 3) for of in parts))
    for score in alone.headline:
        assert found[f"{score.metric}, first 3"].value == score.value


def test_widths_that_are_none_are_told():
    test = part_of(0)
    with pytest.raises(ValueError, match="widths of at least 1, got 0"):
        Widths([0, 4])
    with pytest.raises(ValueError, match="of the run's own samples, got Retrieval"):
        Widths([4], Retrieval(among=Digits()))
    with pytest.raises(ValueError, match="it needs 16 features, and there are 8"):
        Widths([16])(test, test, test)
