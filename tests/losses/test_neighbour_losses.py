"""Hard negatives: a double loop of the paper, gradients, precision; KCL: what it draws."""

import itertools
import math

import pytest
import torch
from operator_checks import check_same, passed_weights
from torch.nn.functional import normalize

import likewise as lw
from cases import in_pairs

BACKENDS = ["dense", "tiled"]
DOUBLE = torch.float64


def embeddings(*shape, dtype=DOUBLE):
    return torch.randn(*shape, dtype=dtype)


def batch_of(views, samples=6):
    """Return leaf embeddings of one view, (N, D), or several, (B, V, D), and their rows, all first views first."""
    leaf = embeddings(samples, views, 4) if views > 1 else embeddings(samples, 4)
    leaf.requires_grad_()
    return leaf, torch.cat(leaf.unbind(dim=1)) if views > 1 else leaf


def hard_loop(z, temperature, beta, prior):
    """Return the hard-negative row losses, −log(e^{s} / (e^{s} + G)), from G itself, not its logarithm."""
    z, half = normalize(z, dim=1), len(z) // 2
    losses = []
    for i in range(len(z)):
        partner = (i + half) % len(z)
        positive = torch.exp(z[i] @ z[partner] / temperature)
        negatives = [torch.exp(z[i] @ z[u] / temperature) for u in range(len(z)) if u not in (i, partner)]
        n = len(negatives)
        weights = [e**beta for e in negatives]
        hard = sum(w * e for w, e in zip(weights, negatives, strict=True)) / (sum(weights) / n)
        estimate = (hard - prior * n * positive) / (1 - prior)
        least = torch.as_tensor(n * math.exp(-1 / temperature), dtype=DOUBLE)
        losses.append(torch.log(positive + torch.maximum(estimate, least)) - torch.log(positive))
    return losses


@in_pairs(backend=BACKENDS, beta=[0.0, 1.0, 2.5], prior=[0.0, 0.1, 0.6], temperature=[0.02, 0.5])
def test_hard_negative_is_the_double_loop(backend, beta, prior, temperature):
    """Loss, rows and gradients, also through the weights, where the bound is active and where it is not."""
    leaf, rows = batch_of(2)
    expected = torch.stack(hard_loop(rows, temperature, beta, prior))
    mean, none = (
        lw.HardNegativeLoss(temperature=temperature, beta=beta, class_prior=prior, backend=backend, reduction=r)
        for r in ("mean", "none")
    )
    torch.testing.assert_close(none(leaf), expected)
    check_same(mean(*leaf.unbind(dim=1)), expected.mean(), leaf)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hard_negative_at_a_low_temperature(backend):
    """In float32 at τ = 0.003, where e^{2s} has left the range, loss and gradient are those of float64."""
    exact, rows = batch_of(2)
    leaf = exact.detach().float().requires_grad_()
    expected = sum(hard_loop(rows, 0.003, 1.0, 0.1)) / len(rows)
    loss = lw.HardNegativeLoss(temperature=0.003, backend=backend)(leaf)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    mine, theirs = torch.autograd.grad(loss, leaf)[0], torch.autograd.grad(expected, exact)[0]
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-3, atol=1e-3)


def test_hard_negative_without_its_parameters_is_nt_xent():
    """β = 0 and τ⁺ = 0: NT-Xent."""
    batch = embeddings(7, 2, 5)
    loss = lw.HardNegativeLoss(temperature=0.3, beta=0, class_prior=0)(batch)
    torch.testing.assert_close(loss, lw.NTXentLoss(temperature=0.3)(batch))


def drawn_by(criterion, *batch):
    """Return the positives that a loss samples, (N, R)."""
    return passed_weights(criterion, *batch)[1]["positives"].dense().bool()


@pytest.mark.parametrize(("views", "k"), [(1, 1), (1, 6), (2, 2), (2, 3), (3, 1), (3, 6)])
def test_kcl_picks_one_view_of_each_of_k_other_samples(views, k):
    """Positives are all other views, and one view each of min(k, n − 1) samples of the class, never the anchor."""
    labels = torch.tensor([0, 1, 0, 2, 1, 0, 0, 0])
    criterion = lw.KCLLoss(k=k, reduction="none")
    for _ in range(10):
        drawn = drawn_by(criterion, batch_of(views, 8)[0], labels)
        for i, row in enumerate(drawn):
            samples = [int(p) % 8 for p in row.nonzero()]
            others = [sample for sample in samples if sample != i % 8]
            assert not row[i]
            assert len(samples) - len(others) == views - 1
            assert len(set(others)) == len(others) == min(k, int((labels == labels[i % 8]).sum()) - 1)
            assert all(labels[sample] == labels[i % 8] for sample in others)


def test_kcl_picks_every_subset_and_every_view_equally_often():
    """With 4 other samples and k = 2, all 6 pairs occur equally often, and so do both views of each sample."""
    classes, draws = 240, 1200
    criterion, batch = lw.KCLLoss(k=2, reduction="none"), embeddings(5 * classes, 2, 3)
    pairs = dict.fromkeys(itertools.combinations(range(1, 5), 2), 0)
    second_views = 0
    drawn = drawn_by(criterion, batch, torch.arange(5 * classes) // 5)
    for anchor in range(draws):
        others = [int(p) for p in drawn[anchor].nonzero() if int(p) % draws != anchor]
        pairs[tuple(sorted((p - anchor) % 5 for p in others))] += 1
        second_views += sum(p >= draws for p in others)
    assert sum((count - draws / 6) ** 2 / (draws / 6) for count in pairs.values()) < 20.5  # χ² of 5 degrees, 0.1 %
    assert abs(second_views - draws) < 3.3 * math.sqrt(draws / 2)


def test_kcl_is_reproducible_by_the_seed():
    """The global seed determines the sample, and another call samples anew."""
    batch, labels = embeddings(30, 2, 4), torch.zeros(30, dtype=torch.int64)
    criterion = lw.KCLLoss(k=3)
    torch.manual_seed(1)
    first, second = criterion(batch, labels), criterion(batch, labels)
    torch.manual_seed(1)
    assert torch.equal(criterion(batch, labels), first)
    assert not torch.equal(first, second)


def test_kcl_with_all_of_the_class_is_sup_con():
    """One view, and k at least the size of each class: every other row of the class is a positive."""
    batch, labels = embeddings(20, 4), torch.arange(20) % 4
    torch.testing.assert_close(lw.KCLLoss(k=4)(batch, labels), lw.SupConLoss()(batch, labels))


@pytest.mark.parametrize("name", ["BCLLoss", "ProxyNCALoss", "PaCoLoss"])
def test_every_anchor_has_a_class(name):
    """With one view of each class every row is active, by its prototype or, not counted in PaCo, its centre."""
    others = embeddings(4, 3 if name != "PaCoLoss" else 4)
    criterion = getattr(lw, name)()
    criterion(embeddings(4, 3), torch.arange(4), others)
    assert criterion.last["active_anchors"] == 4
    assert criterion.last["positives_per_anchor"].tolist() == [0 if name == "PaCoLoss" else 1] * 4


def test_representations_name_the_parameters():
    assert repr(lw.BCELoss(positive_weight=2)) == "BCELoss(positive_weight=2.0)"
    assert repr(lw.KCLLoss(k=3)).startswith("KCLLoss(k=3, temperature=0.1, reduction=")
    assert repr(lw.ProxyNCALoss()).startswith(f"ProxyNCALoss(temperature={1 / 18}, ")
    assert repr(lw.PaCoLoss()).startswith("PaCoLoss(alpha=0.05, temperature=0.2, ")
    assert repr(lw.HardNegativeLoss()).startswith("HardNegativeLoss(temperature=0.5, beta=1.0, class_prior=0.1, ")
