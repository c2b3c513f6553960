"""Weights that learn: gradients against the dense formula in float64, in every expression, and what is refused."""

from unittest.mock import patch

import pytest
import torch
from operator_checks import DOUBLE, check_same
from torch.nn.functional import normalize

import likewise as lw
from likewise import pairs
from likewise.operator import ContrastSpec, Push, evaluate
from likewise.pairs import weight as weights_module

N, R, K = 9, 11, 3
CLASSES, OTHERS = torch.arange(N) % 3, torch.arange(R) % 3


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Let a pass over all pairs take several tiles."""
    monkeypatch.setattr(weights_module, "STREAM", 4)


def leaves(noise=1.0, dtype=DOUBLE):
    """Return rows of both sides around three directions, vectors of both sides, and a temperature."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=DOUBLE)

    centers = draw(3, 5)
    q, v = (normalize(centers[of] + noise * draw(len(of), 5), dim=1) for of in (CLASSES, OTHERS))
    a, b = draw(N, K).softmax(dim=1), draw(R, K).softmax(dim=1)
    return [x.to(dtype).requires_grad_() for x in (q, v, a, b, torch.tensor(0.2 if noise == 1 else 0.05))]


def row_mean(w):
    total = w.sum(dim=1, keepdim=True)
    return w / total.masked_fill(total == 0, torch.inf)


def same(dtype):
    return (CLASSES[:, None] == OTHERS).to(dtype)


SAME = pairs.SameClass(CLASSES, OTHERS)


def weights(a, b):
    """Return pull and push of every kind, made of vectors."""
    w = pairs.LowRank(a, b)
    return {
        "both": (w, w),
        "row means": (w.mean_over_row(), w),
        "a mean and a constant": ((w * 2.0).mean_over_row(), SAME + ~SAME),
        "a constant and a mean": (SAME.mean_over_row(), w.mean_over_row()),
        "products, sums, complements": ((SAME * w).mean_over_row(), w * ~SAME + SAME * 0.5),
        "scales that learn": (w.scale(anchors=a[:, 0], references=b[:, 1]) * 0.5, SAME.scale(anchors=a[:, 1]) + ~SAME),
        "a transpose": (pairs.LowRank(b, a).T, w),
        "sections": (
            pairs.concat([pairs.LowRank(a, b[:4]), pairs.AllPairs(N, R - 4)]),
            pairs.concat([pairs.AllPairs(N, 4), pairs.LowRank(a, b[4:])]),
        ),
    }


def matrices(a, b):
    """Return the same as matrices."""
    w = a @ b.T
    same, ones = (CLASSES[:, None] == OTHERS).to(w), torch.ones_like(w)
    first = torch.arange(R) < 4
    return {
        "both": (w, w),
        "row means": (row_mean(w), w),
        "a mean and a constant": (row_mean(w), ones),
        "a constant and a mean": (row_mean(same), row_mean(w)),
        "products, sums, complements": (row_mean(w * same), w * (1 - same) + same * 0.5),
        "scales that learn": (w * a[:, :1] * b[:, 1] * 0.5, same * a[:, 1:2] + 1 - same),
        "a transpose": (w, w),
        "sections": (w.where(first, 1), w.where(~first, 1)),
    }


KINDS = list(weights(torch.ones(N, K), torch.ones(R, K)))


def ours(kind, given, reduction="none", backend="tiled"):
    q, v, a, b, tau = given
    pull, push = weights(a, b)[kind]
    sections = (v[:4], v[4:]) if kind == "sections" else v
    return lw.contrast(q, sections, pull=pull, push=push, temperature=tau, reduction=reduction, backend=backend)


def plain(kind, given, reduction="none"):
    q, v, a, b, tau = given
    s = q @ v.T / tau
    pull, push = matrices(a, b)[kind]
    losses = pull.sum(dim=1) * torch.logsumexp(s + push.log(), dim=1) - (pull * s).sum(dim=1)
    return losses if reduction == "none" else getattr(losses, reduction)()


@pytest.mark.parametrize("backend", ["dense", "tiled"])
@pytest.mark.parametrize(("reduction", "noise"), [("none", 1.0), ("sum", 0.01), ("mean", 0.01)])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind, reduction, backend, noise):
    """Values and the gradients of rows, vectors and τ, whatever the weights are combined with."""
    given = leaves(noise)
    found, expected = ours(kind, given, reduction, backend), plain(kind, given, reduction)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.linspace(-1, 2, N, dtype=DOUBLE) if reduction == "none" else torch.tensor(1.5, dtype=DOUBLE)
    check_same(found, expected, given, upstream, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["both", "row means", "products, sums, complements"])
def test_tight_clusters_in_float32(kind):
    """The error of the vectors' gradients is within twice that of the plain formula."""
    exact, single = leaves(0.01), leaves(0.01, torch.float32)
    truth = torch.autograd.grad(plain(kind, exact, "sum"), exact[2:4])
    found = torch.autograd.grad(ours(kind, single, "sum"), single[2:4])
    usual = torch.autograd.grad(plain(kind, single, "sum"), single[2:4])
    for x, one, other in zip(truth, found, usual, strict=True):
        assert (one - x).norm() <= 2 * (other - x).norm() + 1e-6 * x.norm()


def test_negative_powers_both_directions_and_pairwise_sums():
    """A log-sum-exp of any power, its columns, and a sum of a function: all that the operator knows."""
    q, v, a, b, tau = given = leaves()
    w = pairs.LowRank(a, b)
    pushes = (Push(w, 1.0), Push(w * SAME, -1.0))
    for backend in ("dense", "tiled"):
        s = normalize(q, dim=1) @ normalize(v, dim=1).T / tau
        found = evaluate(
            ContrastSpec(pushes, normalize=True, both_ways=True), q * 2, (v * 3,), temperature=tau, backend=backend
        )
        inside = (a @ b.T) * same(DOUBLE)
        expected = [((a @ b.T) * s.exp()).sum(dim=k).log() for k in (1, 0)]
        expected += [(inside * (-s).exp()).sum(dim=k).log() for k in (1, 0)]
        values = [found.logsums[0], found.columns[0], found.logsums[1], found.columns[1]]
        torch.testing.assert_close(values, expected, rtol=1e-11, atol=1e-8)
        sums = (sum((x * (k + 1)).sum() for k, x in enumerate(terms)) for terms in (values, expected))
        check_same(*sums, given, rtol=1e-9, atol=1e-9)
        found = lw.pairwise_sum(
            q, v, weight=w * -1.5, function="softplus", temperature=tau, sign=-1, bias=0.3, backend=backend
        )
        expected = (-1.5 * (a @ b.T) * torch.nn.functional.softplus(0.3 - q @ v.T / tau)).sum(dim=1)
        check_same(found, expected, given, rtol=1e-9, atol=1e-9)


def test_coefficients_and_an_attraction_alone():
    """With coefficients of one's own the row sums do not count; an attraction has a gradient also where losses have."""
    q, v, a, b, tau = leaves()
    c, w = torch.linspace(0.5, 2, N, dtype=DOUBLE), pairs.LowRank(a, b)
    found = lw.contrast(q, v, pull=w, push=SAME, temperature=tau, coefficient=c)
    s = q @ v.T / tau
    expected = c * torch.logsumexp(s.masked_fill(same(DOUBLE) == 0, -torch.inf), dim=1) - (a @ b.T * s).sum(dim=1)
    check_same(found, expected, (a, b))
    outcome = evaluate(ContrastSpec((Push(SAME),), w, (None,)), q, (v,), temperature=tau)
    torch.testing.assert_close(torch.autograd.grad(outcome.attraction.sum(), a)[0], s @ b)


def test_products_sums_and_matrices_of_a_weight():
    """What a weight gives by itself has its gradient, too: weight @ references, row sums, all weights."""
    q, v, a, b, _ = leaves()
    w, m = pairs.LowRank(a, b) * SAME, (a @ b.T) * same(DOUBLE)
    for one, other in [
        ((w @ v).square().sum(), (m @ v).square().sum()),
        ((w.T @ q).square().sum(), (m.T @ q).square().sum()),
        (w.row_sum(DOUBLE).square().sum(), m.sum(dim=1).square().sum()),
        (w.dense(DOUBLE).square().sum(), m.square().sum()),
    ]:
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(*(torch.autograd.grad(x, (a, b), retain_graph=True) for x in (one, other)))


def test_rows_without_pairs_have_no_gradient():
    """An anchor of weights that are all zero is inactive: its vectors get zeros, not NaN."""
    q, v, a, b, tau = leaves()
    with torch.no_grad():
        a[0] = 0
    for mean in (True, False):
        w = pairs.LowRank(a, b)
        loss = lw.contrast(q, v, pull=w.mean_over_row() if mean else w, push=w, temperature=tau, reduction="mean")
        found = torch.autograd.grad(loss, [q, v, a, b])
        assert all(x.isfinite().all() for x in found)
        assert torch.equal(found[2][0], torch.zeros(K, dtype=DOUBLE))
        assert found[2][1].abs().sum() > 0
    total = lw.log_sum_exp(q, v, push=pairs.LowRank(a, b), temperature=tau).sum()  # −∞, whose slope is none either
    assert torch.equal(torch.autograd.grad(total, a)[0][0], torch.zeros(K, dtype=DOUBLE))


def test_pairs_that_are_left_out_do_not_overflow():
    """e^{s − lse} of a pair outside the push is beyond the range, times 0: zero, not NaN."""
    z, a = torch.eye(6).requires_grad_(), torch.rand(6, K).requires_grad_()
    push = pairs.LowRank(a) * pairs.Explicit(1 - torch.eye(6))
    loss = lw.contrast(z, pull=pairs.AllPairs(6, 6), push=push, temperature=0.005, reduction="mean")
    assert torch.autograd.grad(loss, a)[0].isfinite().all()


class Smooth(pairs.PairWeight):
    """How far each pair is below the anchor's limit in the guide's eyes, smoothly."""

    def __init__(self, guide, limits, width):
        super().__init__((len(guide), len(guide)), is_set=False, is_nonnegative=True, symmetric_at=None)
        self.guide, self.limits, self.width = guide, limits, width

    def tile(self, rows, columns, dtype, device):
        similarities = self.guide[rows] @ self.guide[columns].T
        return torch.sigmoid((self.limits[rows, None] - similarities) / self.width).to(device, dtype)


class Gated(pairs.PairWeight):
    """A weight from a small network of both classes."""

    def __init__(self, net):
        super().__init__((N, R), is_set=False, is_nonnegative=True, symmetric_at=None)
        self.net = net

    def tile(self, rows, columns, dtype, device):
        of_pairs = torch.stack(torch.broadcast_tensors(CLASSES[rows, None], OTHERS[columns]), dim=2)
        return self.net(of_pairs.to(device, dtype)).squeeze(2).exp()


@pytest.mark.parametrize("backend", ["dense", "tiled"])
def test_weights_of_ones_own(backend):
    """A tile that torch can differentiate is enough, also of a module: no declaration, and no matrix."""
    q, v, _, _, tau = leaves()
    limits = torch.full((N,), 0.3, dtype=DOUBLE, requires_grad=True)
    guide = normalize(q.detach().flip(1), dim=1).requires_grad_()
    off = torch.eye(N, dtype=DOUBLE) == 0
    push = Smooth(guide, limits, 0.1) * pairs.NotSelf(N)
    found = lw.contrast(q, pull=push.mean_over_row(), push=push, temperature=tau, reduction="mean", backend=backend)
    m, s = torch.sigmoid((limits[:, None] - guide @ guide.T) / 0.1) * off, q @ q.T / tau
    expected = ((m * s.exp()).sum(dim=1).log() - (row_mean(m) * s).sum(dim=1)).mean()
    check_same(found, expected, (q, guide, limits))
    net = torch.nn.Linear(2, 1, dtype=DOUBLE)
    found = lw.log_sum_exp(q, v, push=Gated(net), temperature=tau, backend=backend).sum()
    dense = Gated(net).dense(DOUBLE)
    expected = torch.logsumexp(q @ v.T / tau + dense.log(), dim=1).sum()
    check_same(found, expected, list(net.parameters()))


class Step(pairs.PairWeight):
    """A hard threshold of a vector that requires a gradient."""

    def __init__(self, levels):
        super().__init__((N, R), is_set=True, is_nonnegative=True, symmetric_at=None)
        self.levels = levels

    def tile(self, rows, columns, dtype, device):
        return (self.levels[rows, None] > 0).to(device, dtype).expand(-1, columns.stop - columns.start)


def test_what_cannot_be_differentiated_is_told():
    """No gradient is left out in silence: sets, given row sums, rings, second derivatives, changes in place."""
    q, v, a, b, tau = leaves()
    w, limits = pairs.LowRank(a, b), torch.zeros(N, dtype=DOUBLE)
    for guide, keys, t in [(a, b.detach(), limits), (a.detach(), b, limits), (a.detach(), b.detach(), a[:, 0])]:
        with pytest.raises(ValueError, match=r"a guide without gradient.*\.detach\(\)"):
            pairs.Below(guide, keys, limits=t)
    with pytest.raises(ValueError, match="row sums of a constant weight"):
        w.with_row_sums(torch.ones(N))
    with pytest.raises(RuntimeError, match="constant ones"):
        lw.log_sum_exp(q, v, push=Step(a[:, 0]), temperature=tau).sum().backward()
    loss = lw.contrast(q, v, pull=w, push=w, temperature=tau, reduction="mean", backend="dense")
    with pytest.raises(RuntimeError, match="first derivatives"):
        torch.autograd.grad(loss, q, create_graph=True)
    loss = lw.contrast(q.detach(), v, pull=w, push=w, temperature=0.2, reduction="mean")
    with torch.no_grad():
        b[0] += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_weight_is_used_again():
    """A weight of parameters is made once and used in every step: its sums are those of today."""
    q, v, a, b, _ = leaves()
    w = pairs.LowRank(a, b)
    for _ in range(2):
        loss = lw.contrast(q, v, pull=w, push=SAME, temperature=0.2, reduction="mean")
        expected = lw.contrast(q, v, pull=pairs.LowRank(a.detach(), b.detach()), push=SAME, temperature=0.2)
        assert torch.allclose(loss, expected.mean())
        loss.backward()
        with torch.no_grad():
            a.mul_(1.5)
    with torch.no_grad():
        assert not lw.contrast(q, v, pull=w, push=SAME, temperature=0.2).requires_grad


def test_constant_weights_take_no_other_way():
    """Without a gradient nothing is evaluated beside the engine."""
    q, v, a, b, tau = (x.detach() for x in leaves())
    with patch("likewise.operator.backends._with_weights", side_effect=AssertionError):
        w = pairs.LowRank(a, b)
        lw.contrast(q.requires_grad_(), v, pull=w.mean_over_row(), push=w * SAME, temperature=tau).sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_vectors_in_other_precisions(dtype):
    """Gradients come in the vectors' dtype, also under autocast; there they are rounded, once for each use."""
    q, v, *_ = leaves(dtype=torch.float32)
    a, b = torch.rand(N, K).to(dtype).requires_grad_(), torch.rand(R, K).to(dtype).requires_grad_()
    with torch.autocast("cpu"):
        lw.contrast(q, v, pull=pairs.LowRank(a, b).mean_over_row(), push=SAME, temperature=0.2).sum().backward()
    one, two = a.detach().float().requires_grad_(), b.detach().float().requires_grad_()
    lw.contrast(q, v, pull=pairs.LowRank(one, two).mean_over_row(), push=SAME, temperature=0.2).sum().backward()
    for x, y in ((a, one), (b, two)):
        assert x.grad.dtype == dtype
        assert torch.allclose(x.grad.float(), y.grad, rtol=1e-2, atol=4e-2 if dtype == torch.bfloat16 else 1e-5)
