"""Both directions from one product: every backend against a float64 oracle."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_checks import DOUBLE, unit

import likewise as lw
from likewise import pairs
from likewise.operator import ContrastSpec, Push, evaluate, tiles


def both_directions(queries, references, *, push, temperature, backend="auto"):
    """Return the log-sum-exp of each query over the references, and of each reference over the queries."""
    found = evaluate(
        ContrastSpec((Push(push),), both_ways=True), queries, (references,), temperature=temperature, backend=backend
    )
    return found.logsums[0], found.columns[0]


def clustered(n, d, dtype=DOUBLE):
    """Return two rows per sample like those of a trained encoder: close to each other, and in eight clusters."""
    centres = unit(8, d)[torch.arange(n) % 8] * 2
    samples = centres + unit(n, d)
    return tuple(torch.nn.functional.normalize(samples + unit(n, d) / 4, dim=1).to(dtype) for _ in range(2))


def plain(queries, references, push, temperature):
    """Return both directions by the plain dense formula in the rows' own dtype."""
    logits = queries @ references.T / temperature + push.dense(queries.dtype).log()
    return torch.logsumexp(logits, dim=1), torch.logsumexp(logits, dim=0)


def values_and_gradients(formula, operands, push, temperature, upstreams, **options):
    """Return both directions, and the gradients of rows and temperature for these upstreams (None: unused output)."""
    leaves = [operand.clone().requires_grad_() for operand in operands]
    tau = torch.tensor(temperature, dtype=leaves[0].dtype, requires_grad=True)
    values = formula(*leaves, push=push, temperature=tau, **options)
    total = sum((v * u.to(v)).sum() for v, u in zip(values, upstreams, strict=True) if u is not None)
    return *(v.detach() for v in values), *torch.autograd.grad(total, [*leaves, tau])


@pytest.mark.parametrize("temperature", [0.003, 0.1])
@pytest.mark.parametrize("tile", [3, 512])
@pytest.mark.parametrize("used", ["both", "rows", "columns"])
def test_both_ways_are_the_plain_formula(backend, temperature, tile, used, monkeypatch):
    """Values and gradients match the oracle for upstreams that differ between rows, for both outputs or one."""
    monkeypatch.setattr(tiles, "TILE", tile)
    upstreams = [torch.randn(7, dtype=DOUBLE), torch.randn(8, dtype=DOUBLE)]
    if used != "both":
        upstreams[used == "rows"] = None
    rows = unit(7, 5), unit(8, 5)
    weights = torch.rand(7, 8) * (torch.rand(7, 8) > 0.3)
    for push in (pairs.AllPairs(7, 8), pairs.NotSelf(7, 8), pairs.Explicit(weights), pairs.AllPairs(7, 8) * 1e-3):
        expected = values_and_gradients(plain, rows, push, temperature, upstreams)
        given = values_and_gradients(both_directions, rows, push, temperature, upstreams, backend=backend)
        torch.testing.assert_close(given, expected, rtol=1e-10, atol=1e-10 / temperature**2)
    for leaf in range(3):  # as far as only one of rows, references and τ is learned
        z, v, tau = (*rows, torch.tensor(temperature, dtype=DOUBLE))
        leaves = [x.clone().requires_grad_(k == leaf) for k, x in enumerate((z, v, tau))]
        values = both_directions(*leaves[:2], push=push, temperature=leaves[2], backend=backend)
        total = sum((value * u).sum() for value, u in zip(values, upstreams, strict=True) if u is not None)
        (alone,) = torch.autograd.grad(total, leaves[leaf])
        torch.testing.assert_close(alone, expected[2 + leaf], rtol=1e-10, atol=1e-10 / temperature**2)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 30), st.integers(0, 30), st.integers(1, 9), st.sampled_from([0.003, 0.03, 1.0]), st.integers(0, 999)
)
def test_ragged_sizes(n, r, tile, temperature, seed):
    """Any sizes and tiles give the same as the one-way operator for each direction."""
    torch.manual_seed(seed)
    queries, references, push = unit(n, 4), unit(r, 4), pairs.AllPairs(n, r)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE", tile)
        rows, columns = both_directions(queries, references, push=push, temperature=temperature, backend="tiled")
    one = lw.log_sum_exp(queries, references, push=push, temperature=temperature, backend="dense")
    other = lw.log_sum_exp(references, queries, push=push.T, temperature=temperature, backend="dense")
    torch.testing.assert_close(rows, one)
    torch.testing.assert_close(columns, other)


def rounded(result, dtype):
    """Return a result as the caller sees it: operands in low precision receive a gradient in the same dtype."""
    return (result.to(dtype) if result.ndim == 2 else result).double()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "temperature"),
    [
        *((torch.float32, temperature) for temperature in (0.003, 0.01, 0.2)),
        *((torch.bfloat16, temperature) for temperature in (0.003, 0.05, 1.0)),
        (torch.float16, 0.05),
    ],
)
def test_error_is_within_twice_that_of_the_plain_formula(backend, dtype, temperature):
    """Over several samples of clustered features, values and gradients have at most twice the plain formula's error."""
    temperature = float(torch.tensor(temperature))
    n = 250 if backend == "auto" else 600  # one matrix, and several tiles
    push, names = pairs.AllPairs(n, n), ("rows", "columns", "queries", "references", "temperature")
    mine, theirs = torch.zeros(2, len(names), dtype=DOUBLE)
    for draw in range(3):
        torch.manual_seed(draw)
        operands = clustered(n, 32, dtype)
        upstreams = torch.rand(2, n, dtype=DOUBLE) / n
        exact = values_and_gradients(plain, [rows.double() for rows in operands], push, temperature, upstreams)
        wide = [rows.float() for rows in operands]
        usual = values_and_gradients(plain, wide, push, temperature, upstreams)
        ours = values_and_gradients(both_directions, wide, push, temperature, upstreams, backend=backend)
        mine += torch.stack([(rounded(x, dtype) - y).norm() for x, y in zip(ours, exact, strict=True)])
        theirs += torch.stack([(rounded(x, dtype) - y).norm() for x, y in zip(usual, exact, strict=True)])
        theirs[-1] += torch.finfo(torch.float32).eps * exact[-1].abs() / 2  # luck may round one number without error
    assert (mine <= 2 * theirs).all(), dict(zip(names, zip(mine.tolist(), theirs.tolist(), strict=True), strict=True))


@pytest.mark.parametrize("temperature", [0.001, 0.1])
def test_empty_rows_and_columns_are_minus_infinity_without_gradient(backend, temperature, monkeypatch):
    """Rows and columns without any pair are −inf and have no gradient, whatever the upstream."""
    monkeypatch.setattr(tiles, "TILE", 2)
    z, v = unit(4, 3).requires_grad_(), unit(5, 3).requires_grad_()
    allowed = torch.ones(4, 5)
    allowed[2], allowed[:, 1] = 0, 0
    for push in (pairs.Explicit(allowed), pairs.Explicit(allowed * 0.5)):
        rows, columns = both_directions(z, v, push=push, temperature=temperature, backend=backend)
        assert torch.isneginf(rows).tolist() == [False, False, True, False]
        assert torch.isneginf(columns).tolist() == [False, True, False, False, False]
        for value in (1.0, torch.inf):
            upstreams = torch.zeros(4, dtype=DOUBLE), torch.zeros(5, dtype=DOUBLE)
            upstreams[0][2] = upstreams[1][1] = value
            gradients = torch.autograd.grad((rows, columns), (z, v), upstreams, retain_graph=True)
            assert all(gradient.abs().sum() == 0 for gradient in gradients)
