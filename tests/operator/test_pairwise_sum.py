"""Pairwise sums: every backend against sums written row by row in float64, and what bad input is told."""

import math

import pytest
import torch
from operator_checks import DOUBLE, check_same

import likewise as lw
from likewise import pairs
from likewise.operator import ContrastSpec, Push, evaluate, spec, tiles

FUNCTIONS = {
    "softplus": lambda a: torch.logaddexp(a, torch.zeros((), dtype=a.dtype)),
    "hinge": lambda a: a.clamp(min=0),
    "squared hinge": lambda a: a.clamp(min=0) ** 2,
}


def rows(n, noise, seed=0):
    """Return rows of length 1 around four directions, some of them equal."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(4, 6, generator=generator, dtype=DOUBLE)
    z = centers[torch.arange(n) % 4] + noise * torch.randn(n, 6, generator=generator, dtype=DOUBLE)
    z[n // 2] = z[0]
    return torch.nn.functional.normalize(z, dim=1)


def oracle(z, v, push, tau):
    """Return the sums, one row after another."""
    weights, f = push.weight.dense(DOUBLE), FUNCTIONS[push.function]
    found = []
    for i, one in enumerate(z):
        similarities = torch.stack([one @ other for other in v]) / tau
        found.append((weights[i] * f(push.power * similarities + push.bias)).sum())
    return torch.stack(found)


def weights(n, r, among_itself):
    """Return weights of every kind: sets, symmetric or not, constants, scales, negative ones."""
    a, b = torch.arange(n) % 4, torch.arange(r) % 4
    if among_itself:
        same, other = pairs.SameClass(a) & pairs.NotSelf(n), ~pairs.SameClass(a)
    else:
        same, other = pairs.SameClass(a, b), ~pairs.SameClass(a, b)
    scale = torch.linspace(0, 2, n, dtype=DOUBLE)
    return [same, other * 0.5, pairs.AllPairs(n, r) * 0.25, other.scale(anchors=scale), same.mean_over_row() * -1]


@pytest.mark.parametrize(
    ("backend", "tile", "noise"), [("dense", 512, 1.0), ("tiled", 3, 1.0), ("tiled", 3, 0.01), ("auto", 512, 0.01)]
)
@pytest.mark.parametrize("among_itself", [True, False], ids=["itself", "references"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_sums_and_gradients(function, among_itself, backend, tile, noise, monkeypatch):
    """Values and the gradients of rows, τ and bias, also with tiles in which a weight is constant."""
    monkeypatch.setattr(tiles, "TILE", tile)
    z = rows(9, noise).requires_grad_()
    v = z if among_itself else rows(7, noise, seed=1).requires_grad_()
    tau, bias = torch.tensor([0.2], dtype=DOUBLE, requires_grad=True), torch.tensor(-0.7, dtype=DOUBLE).requires_grad_()
    leaves = (z, tau, bias) if among_itself else (z, v, tau, bias)
    upstream = torch.randn(9, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
    for sign, weight in [(s, w) for s in (1, -1) for w in weights(9, len(v), among_itself)]:
        push = Push(weight, sign, function, bias)
        expected = oracle(z, v, push, tau)
        found = lw.pairwise_sum(
            z, None if among_itself else v, weight=weight, function=function, temperature=tau, sign=sign, bias=bias,
            backend=backend,
        )  # fmt: skip
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        check_same(found, expected, leaves, upstream, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("normalize", [True, False])
def test_several_sums_and_sections(normalize):
    """Sums of different powers over two sections in one visit, each with its count of f'."""
    z, queue = (rows(n, 0.3, seed) * 1.5 for n, seed in ((11, 0), (40, 1)))
    z.requires_grad_()
    push = pairs.concat([pairs.NotSelf(11), pairs.AllPairs(11, 40)])
    pushes = (Push(push, 2.0, "hinge", -0.5), Push(push, -1.0, "softplus", 0.1))
    for backend in ("dense", "tiled"):
        u, w = (torch.nn.functional.normalize(x, dim=1) if normalize else x for x in (z, queue))
        outcome = evaluate(ContrastSpec(pushes, normalize=normalize), z, (z, queue), temperature=0.3, backend=backend)
        expected = [oracle(u, torch.cat([u, w]), push, 0.3) for push in pushes]
        torch.testing.assert_close(outcome.logsums, tuple(expected), rtol=1e-12, atol=1e-8)
        check_same(torch.stack(outcome.logsums), torch.stack(expected), z)
        steps = (2.0 * (u @ torch.cat([u, w]).T) / 0.3 - 0.5 > 0) * push.dense(DOUBLE)
        assert torch.equal(outcome.counts[0], steps.sum(dim=1))


@pytest.mark.parametrize("backend", ["dense", "tiled"])
def test_slopes_are_computed_only_where_they_are_wanted(backend, monkeypatch):
    """For the gradient of a bias, and of a hinge as its count; without them a forward takes no derivative at all."""
    learned = torch.zeros((), requires_grad=True)
    pushes = [Push(pairs.NotSelf(3), 1.0, *of) for of in (("hinge",), ("softplus", learned))]
    counts = evaluate(
        ContrastSpec(tuple(pushes)), torch.eye(3), (torch.eye(3),), temperature=1.0, backend=backend
    ).counts
    assert [of.tolist() for of in counts] == [[0.0] * 3, [1.0] * 3]  # f'(0) is 0, and 1/2 for each of two pairs
    for function in ("softplus", "squared hinge"):
        monkeypatch.setitem(spec.SHAPES, function, spec.SHAPES[function]._replace(slope=None))
        for bias in (0.5, learned.detach()):
            assert (lw.pairwise_sum(torch.eye(3), weight=pairs.NotSelf(3), function=function, temperature=1.0,
                                    bias=bias, backend=backend) >= 0).all()  # fmt: skip


def test_large_arguments_lose_nothing():
    """Pairs that are settled keep their tiny terms, and far ones their exact size."""
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    settled = lw.pairwise_sum(z, weight=~pairs.SameSample(torch.arange(2)), function="softplus", temperature=0.05)
    assert settled.tolist() == pytest.approx([math.exp(-20)] * 2, rel=1e-6)
    far = lw.pairwise_sum(z, weight=~pairs.NotSelf(2), function="softplus", temperature=1e-4)
    assert far.tolist() == pytest.approx([1e4] * 2)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"function": "relu"}, "one of softplus, hinge, squared hinge, got 'relu'"),
        ({"sign": 2}, "expected sign to be 1 or -1, got 2"),
        ({"bias": math.nan}, "expected bias to be a finite number"),
        ({"bias": torch.zeros(2)}, r"a tensor of it of shape \(\) or \(1,\), got tensor"),
        ({"weight": pairs.NotSelf(4)}, "weight for 3 queries by 3 references"),
    ],
)
def test_bad_input_is_told(wrong, told):
    good = {"weight": pairs.NotSelf(3), "function": "hinge", "temperature": 1.0}
    with pytest.raises(ValueError, match=told):
        lw.pairwise_sum(torch.eye(3), **(good | wrong))


def test_a_second_derivative_is_refused():
    z, bias = torch.eye(3, requires_grad=True), torch.zeros((), requires_grad=True)
    for backend in ("dense", "tiled"):
        found = lw.pairwise_sum(
            z, weight=pairs.NotSelf(3), function="softplus", temperature=1.0, bias=bias, backend=backend
        )
        with pytest.raises(RuntimeError, match="second derivatives"):
            torch.autograd.grad(found.sum(), z, create_graph=True)
