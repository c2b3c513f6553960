"""The kernels against a float64 oracle: on a GPU where there is one, else in Triton's interpreter, in small tiles."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import likewise as lw
from likewise import pairs
from likewise.operator import backends

pytest.importorskip("triton", reason="Triton is not installed: it has no wheel for this platform")

from likewise.operator.triton import launches, tuning  # noqa: E402 - imported only where Triton is

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DOUBLE = torch.float64
PRECISIONS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=["whole", "split"], autouse=True)
def _small_tiles(request, monkeypatch):
    """Take tiles of 16 and 32 rows, so that small problems have tiles inside, on the diagonal and at the edge."""
    monkeypatch.setattr(tuning, "tiles", lambda *_, **__: tuning.Tiles(16, 32, 4, 2))
    if request.param == "split":
        monkeypatch.setattr(tuning, "splits", lambda _programs, walked, _device: min(3, walked))


def clustered(n, d, dtype=torch.float32, clusters=5, spread=0.3, seed=0):
    """Return unit rows around a few centres: errors that cancel among random rows do not among these."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(clusters, d, dtype=DOUBLE, generator=generator)
    centres = torch.nn.functional.normalize(centres, dim=1)
    rows = centres[torch.arange(n) % clusters] + spread * torch.randn(n, d, dtype=DOUBLE, generator=generator) / d**0.5
    return torch.nn.functional.normalize(rows, dim=1).to(DEVICE, dtype)


def sets(n, labels, seed=0, share=0.1):
    return torch.rand(n, labels, generator=torch.Generator().manual_seed(seed)) < share


def weighted(s, push):
    """Return the log-sum-exp of each row of a matrix of similarities, −inf where push is empty."""
    weights = push.dense(s.dtype, s.device)
    logits = torch.where(weights > 0, s + weights.log(), -torch.inf)
    empty = ~(weights > 0).any(dim=1)
    return torch.logsumexp(logits.masked_fill(empty[:, None], 0), dim=1).masked_fill(empty, -torch.inf), logits


def plain(queries, sections, push, temperature, upstream, half=None):
    """Return the value and the gradients to queries, sections and τ by the dense formula, written out.

    With a half precision, the weights are rounded to it before they are multiplied, as tensor cores ask for.
    """
    sections = [queries if v is queries else v.to(queries.dtype) for v in sections]
    lse, logits = weighted(queries @ torch.cat(sections).T / temperature, push)
    empty = lse == -torch.inf
    upstream = upstream.to(lse).masked_fill(empty, 0)
    drawn = (logits - lse.masked_fill(empty, torch.inf)[:, None]).exp() * upstream[:, None]

    def product(weights, rows):
        if half is not None:
            scale = 2.0**13 / upstream.abs().max()
            weights = (weights * scale).to(half).to(rows.dtype) / scale
        return weights @ rows / temperature

    if sections[0] is queries and len(sections) == 1:
        both = product(drawn + drawn.T, queries)
        return [lse, both], -(queries * product(drawn, queries)).sum() / temperature
    starts = [0]
    for v in sections:
        starts.append(starts[-1] + len(v))
    parts = [drawn[:, a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)]
    own = sum(product(part, v) for part, v in zip(parts, sections, strict=True))
    if sections[0] is queries:
        own = own + product(parts[0].T, queries)
    gradients = [product(part.T, queries) for part, v in zip(parts, sections, strict=True) if v is not queries]
    slope = -(drawn * (queries @ torch.cat(sections).T)).sum() / temperature**2
    return [lse, own, *gradients], slope


def kernels(queries, others, push, temperature, upstream, *, among_themselves, constant=()):
    """Return what `plain` returns, by the kernels and autograd."""
    queries = queries.clone().requires_grad_()
    others = [v.clone().requires_grad_(k not in constant) for k, v in enumerate(others)]
    tau = torch.tensor(temperature, device=DEVICE, requires_grad=True)
    sections = (*([queries] if among_themselves else []), *others)
    lse = lw.log_sum_exp(queries, sections, push=push, temperature=tau, backend="triton")
    learned = [queries, tau, *(v for v in others if v.requires_grad)]
    of_queries, slope, *gradients = torch.autograd.grad(lse, learned, upstream)
    whole = iter(gradients)
    return [lse, of_queries, *(next(whole) if v.requires_grad else None for v in others)], slope


def check(queries, others, push, temperature, *, among_themselves=True, constant=()):
    """Hold values and gradients to within twice the error of the plain formula of the same operand and precision."""
    upstream = torch.randn(len(queries), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    half = None if queries.dtype == torch.float32 else queries.dtype

    def with_self(rows):
        return [*([rows] if among_themselves else []), *others]

    double = queries.to(DOUBLE)
    exact, true_slope = plain(double, with_self(double), push, temperature, upstream)
    single = queries.to(torch.float32)
    usual, _ = plain(single, with_self(single), push, temperature, upstream, half)
    ours, slope = kernels(
        queries, others, push, temperature, upstream, among_themselves=among_themselves, constant=constant
    )
    empty = exact[0] == -torch.inf
    assert torch.equal(ours[0] == -torch.inf, empty)
    usual[0], ours[0], exact[0] = (x.masked_fill(empty, 0) for x in (usual[0], ours[0], exact[0]))
    errors = []
    for k, (mine, theirs, true) in enumerate(zip(ours, usual, exact, strict=True)):
        if mine is None:
            continue
        theirs = theirs if half is None or k == 0 else theirs.to(half)  # its gradient arrives in its own dtype
        error, allowed = (mine.to(DOUBLE) - true).norm(), (theirs.to(DOUBLE) - true).norm()
        errors.append(allowed)
        assert error <= 2 * allowed, f"output {k}: {error:.2e}, the plain formula {allowed:.2e} of {true.norm():.2e}"
    lengths = double.norm()
    assert (slope.to(DOUBLE) - true_slope).abs() <= 2 * errors[1] * lengths / temperature


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("temperature", [0.003, 0.01, 0.1, 1.0])
@pytest.mark.parametrize(("n", "d"), [(150, 20), (97, 64)])
def test_a_batch_among_itself(dtype, temperature, n, d):
    """Every pair, all but an anchor itself, one class, another class, a shared label: values and all gradients."""
    rows = clustered(n, d, dtype)
    labels = torch.arange(n) % 7
    for push in (
        pairs.NotSelf(n),
        pairs.SameClass(labels) & pairs.NotSelf(n),
        ~pairs.SameClass(labels),
        pairs.SharesLabel(sets(n, 70)) & pairs.NotSelf(n),
    ):
        check(rows, (), push, temperature)
