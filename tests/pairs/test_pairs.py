"""Pair weights: every class and expression agrees with its own matrix, written down by a double loop."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_checks import check_same
from torch import Tensor

import likewise as lw
from cases import in_pairs
from likewise import pairs
from likewise.pairs import weight as weight_module
from likewise.pairs.explicit import Listed

CPU = torch.device("cpu")
ONE = torch.tensor([[1, 0]])
DOUBLE = torch.float64


class Twin(NamedTuple):
    """A weight, and what it should be."""

    weight: pairs.PairWeight
    matrix: Tensor


def integers(draw, count):
    return torch.tensor(draw(st.lists(st.sampled_from([-7, 0, 1, 2, 10**12]), min_size=count, max_size=count))).long()


def numbers(draw, count, low=-2):
    values = st.lists(st.integers(low, 3), min_size=count, max_size=count)
    return torch.tensor(draw(values), dtype=DOUBLE) / 2


def multi_hot(draw, count):
    values = st.lists(st.booleans(), min_size=3 * count, max_size=3 * count)
    return torch.tensor(draw(values), dtype=torch.bool).view(count, 3)


def loop(n, r, value):
    return torch.tensor([[float(value(i, j)) for j in range(r)] for i in range(n)], dtype=DOUBLE).reshape(n, r)


@st.composite
def placed(draw, anchors, references):
    """Draw anchors that are some of the references, and where these begin; or leave them as they are."""
    n, r = len(anchors), len(references)
    if n > r or draw(st.booleans()):
        return anchors, None
    offset = draw(st.integers(0, r - n))
    return references[offset : offset + n], offset


@st.composite
def sets(draw, n, r, depth=2):
    """Draw a set of pairs and its matrix."""
    simple = ["class", "self", "all", "none", "mask", "labels", "below"]
    kind = draw(st.sampled_from([*simple, "and", "or", "not"] if depth else simple))
    if kind in ("and", "or"):
        one, other = draw(sets(n, r, depth - 1)), draw(sets(n, r, depth - 1))
        both, either = (one.matrix * other.matrix), torch.maximum(one.matrix, other.matrix)
        return Twin(one.weight & other.weight, both) if kind == "and" else Twin(one.weight | other.weight, either)
    if kind == "not":
        one = draw(sets(n, r, depth - 1))
        return Twin(~one.weight, 1 - one.matrix)
    if kind == "class":
        key = integers(draw, n)
        if n == r and draw(st.booleans()):
            return Twin(pairs.SameClass(key), loop(n, r, lambda i, j: key[i] == key[j]))
        other = integers(draw, r)
        key, offset = draw(placed(key, other))
        return Twin(pairs.SameClass(key, other, offset=offset), loop(n, r, lambda i, j: key[i] == other[j]))
    if kind == "self":
        offset = draw(st.integers(0, 3))
        return Twin(pairs.NotSelf(n, r, offset), loop(n, r, lambda i, j: i + offset != j))
    if kind == "below":
        (one, other), given = vectors(draw, n, r)
        limits = (integers(draw, n) % 5).to(DOUBLE)
        return Twin(pairs.Below(*given, limits=limits), loop(n, r, lambda i, j: one[i] @ other[j] <= limits[i]))
    if kind == "mask":
        mask = multi_hot(draw, 3)
        rows = torch.tensor(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))).long()
        columns = rows if n == r else torch.arange(r) % 3
        return Twin(pairs.Explicit(mask, rows, columns), loop(n, r, lambda i, j: mask[rows[i], columns[j]]))
    if kind == "labels":
        one = multi_hot(draw, n)
        other = torch.ones(r, 3, dtype=torch.bool).triu() if n != r else one
        one, offset = draw(placed(one, other)) if n != r else (one, None)
        twin = pairs.SharesLabel(one, None if other is one else other, offset=offset)
        return Twin(twin, loop(n, r, lambda i, j: (one[i] & other[j]).any()))
    if kind == "all":
        return Twin(pairs.AllPairs(n, r), torch.ones(n, r, dtype=DOUBLE))
    return Twin(pairs.NoPairs(n, r), torch.zeros(n, r, dtype=DOUBLE))


def vectors(draw, n, r):
    """Draw small whole numbers for anchors and references, whose products are exact, and how a weight is given them."""
    one = torch.stack([integers(draw, n) % 4, integers(draw, n) % 3 - 1], dim=1).to(DOUBLE)
    if n == r and draw(st.booleans()):
        return (one, one), (one,)
    other = torch.stack([integers(draw, r) % 3 - 1, integers(draw, r) % 4], dim=1).to(DOUBLE)
    return (one, other), (one, other)


@st.composite
def label_weights(draw, n, r):
    """Draw a weight of label sets and its matrix, label by label."""
    one, other = multi_hot(draw, n), multi_hot(draw, r)
    given = (one,) if n == r and draw(st.booleans()) else (one, other)
    other = given[-1]
    worth = numbers(draw, 3 * n, low=0).view(n, 3) if draw(st.booleans()) else None
    a = torch.ones(n, 3, dtype=DOUBLE) if worth is None else worth
    alike = torch.tensor([[1, 0.5, 0.25], [0.5, 1, 0], [0.25, 0, 1]], dtype=DOUBLE)
    both = [[[alike[c, d] for c in range(3) if y[c] for d in range(3) if v[d]] for v in other] for y in one]
    kind = draw(st.sampled_from(["overlap", "jaccard", "mean", "max", "unlike", "explicit"]))
    union = loop(n, r, lambda i, j: (one[i] | other[j]).sum())
    overlap = loop(n, r, lambda i, j: (a[i] * (one[i] & other[j])).sum())
    if kind == "explicit":
        return Twin(1 - pairs.Explicit(overlap / 8), 1 - overlap / 8)
    if kind == "jaccard" and worth is None and draw(st.booleans()):
        return Twin(1 - pairs.Jaccard(*given), 1 - overlap / union.clamp(min=1))
    if kind in ("overlap", "jaccard"):
        make = pairs.Overlap if kind == "overlap" else pairs.Jaccard
        return Twin(make(*given, worth=worth), overlap / union.clamp(min=1) if kind == "jaccard" else overlap)
    make, of = (pairs.MaxSimilarity, max) if kind == "max" else (pairs.MeanSimilarity, lambda s: sum(s) / len(s))
    weight = make(one, alike, *given[1:])
    matrix = loop(n, r, lambda i, j: of(both[i][j]) if both[i][j] else 0)
    return Twin(1 - weight, 1 - matrix) if kind == "unlike" else Twin(weight, matrix)


@st.composite
def weights(draw, n, r, depth=2):
    """Draw a weight and its matrix."""
    simple = ["set", "labels", "vectors"]
    derived = ["scale", "number", "sum", "product", "mean", "transpose", "concat"]
    kind = draw(st.sampled_from(simple + derived if depth else simple))
    if kind == "set":
        return draw(sets(n, r))
    if kind == "labels":
        return draw(label_weights(n, r))
    if kind == "vectors":
        (one, other), given = vectors(draw, n, r)
        return Twin(pairs.LowRank(*given), loop(n, r, lambda i, j: one[i] @ other[j]))
    if kind == "concat":
        cut = draw(st.integers(0, r))
        one, other = draw(weights(n, cut, depth - 1)), draw(weights(n, r - cut, depth - 1))
        return Twin(pairs.concat([one.weight, other.weight]), torch.cat([one.matrix, other.matrix], dim=1))
    if kind == "transpose":
        one = draw(weights(r, n, depth - 1))
        return Twin(one.weight.T, one.matrix.T)
    if kind == "mean":
        one = draw(sets(n, r))
        return Twin(one.weight.mean_over_row(), one.matrix / one.matrix.sum(1, keepdim=True).clamp(min=1))
    one = draw(weights(n, r, depth - 1))
    if kind == "scale":
        u, v = numbers(draw, n), numbers(draw, r)
        return Twin(one.weight.scale(u, v), u[:, None] * one.matrix * v)
    if kind == "number":
        return Twin(-0.5 * one.weight, -0.5 * one.matrix)
    other = draw(weights(n, r, depth - 1))
    if kind == "sum":
        return Twin(one.weight + other.weight, one.matrix + other.matrix)
    return Twin(one.weight * other.weight, one.matrix * other.matrix)


@st.composite
def twins(draw):
    n, r = draw(st.integers(0, 7)), draw(st.integers(0, 7))
    return draw(weights(n, r if draw(st.booleans()) else n))


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(twins(), st.integers(1, 4), st.integers(1, 9))
def test_tiles_rows_and_products_agree_with_the_matrix(twin, tile, step):
    """Tiles of any size, row sums, support, and products with W and Wᵀ are those of the matrix."""
    weight, matrix = twin
    n, r = weight.shape
    assert (n, r) == matrix.shape
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_module, "STREAM", tile)
        for rows in weight_module.blocks(n, step):
            for columns in weight_module.blocks(r, tile):
                part = weight.tile(rows, columns, DOUBLE, CPU)
                close(part, matrix[rows, columns])
                value = weight.constant(rows, columns)
                assert value is None or (part == value).all()
                exponentials, logits = torch.rand_like(part), torch.rand_like(part)
                expected = exponentials * matrix[rows, columns], logits + matrix[rows, columns].log()
                weight.weigh(exponentials, rows, columns, logits=False)
                close(exponentials, expected[0])
                if weight.is_nonnegative:
                    weight.weigh(logits, rows, columns, logits=True)
                    torch.testing.assert_close(logits, expected[1])
        close(weight.row_sum(DOUBLE), matrix.sum(dim=1))
        if weight.is_nonnegative:
            assert torch.equal(weight.support(), (matrix != 0).any(dim=1))
        x = torch.randn(r, 3, dtype=DOUBLE, requires_grad=True)
        g = torch.randn(n, 3, dtype=DOUBLE)
        product = weight @ x
        close(product, matrix @ x)
        product.backward(g)
        close(x.grad, matrix.T @ g)
        close(weight.T.dense(DOUBLE), matrix.T)
        close(weight.T @ g, matrix.T @ g)


@settings(max_examples=100, deadline=None)
@given(twins())
def test_flags_tell_the_truth(twin):
    """is_set, is_nonnegative, is_symmetric and symmetric_at are never true for a matrix without the property."""
    weight, matrix = twin
    assert not weight.is_set or ((matrix == 0) | (matrix == 1)).all()
    assert not weight.is_nonnegative or (matrix >= 0).all()
    assert not weight.is_symmetric or torch.equal(matrix, matrix.T)
    if weight.symmetric_at is not None:
        among_themselves = matrix[:, weight.symmetric_at : weight.symmetric_at + len(matrix)]
        assert torch.equal(among_themselves, among_themselves.T)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_jaccard_by_label_is_its_row_sum_label_by_label(seed, tile):
    """Each label's part of the row sum, and how many references share a label, whatever the tiles."""
    generator = torch.Generator().manual_seed(seed)
    one, other = (torch.rand(count, 4, generator=generator) < 0.4 for count in (6, 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_module, "STREAM", tile)
        sums, counts = pairs.Jaccard(one, other).by_label(DOUBLE, CPU)
    for i, y in enumerate(one):
        shared = [v for v in other if (y & v).any()]
        expected = sum((y & v) / (y | v).sum().double() for v in shared) if shared else torch.zeros(4, dtype=DOUBLE)
        close(sums[i], expected)
        assert counts[i] == len(shared)


def test_rows_of_a_symmetric_weight_know_their_place():
    """Through every operation, except with another place or a factor of references."""
    keys = torch.tensor([0, 1, 0, 2, 1])
    same = pairs.SameClass(keys[1:3], keys, offset=1)
    push = pairs.NotSelf(2, 5, 1)
    for weight in (same, push, same & push, ~same, ~(same & push), same * 0.5 + push, (same & push).mean_over_row()):
        assert weight.factors(DOUBLE, CPU).symmetric_at == 1 or weight.symmetric_at == 1
    assert (same & pairs.NotSelf(2, 5, 2)).symmetric_at is None
    assert pairs.SameClass(keys[1:3], keys).symmetric_at is None
    assert same.scale(references=torch.ones(5)).factors(DOUBLE, CPU).symmetric_at is None


def test_weights_that_cancel_have_no_support():
    """The sum of a weight and its negative has no support, however much each part has."""
    weight = pairs.SameClass(torch.tensor([0, 1, 0])) * 0.5
    assert not (weight + weight * -1).support().any()
    assert (weight + weight).support().all()


def test_rows_without_pairs_have_no_support_after_scaling():
    """A difference of scaled class sums leaves no rounding error in a row without positives."""
    labels = torch.tensor([0, 0, 0, 1])
    scaled = (pairs.SameClass(labels) & pairs.NotSelf(4)).scale(references=torch.tensor([0.1, 0.2, 0.3, 0.7]))
    assert scaled.row_sum()[3] == 0
    assert not scaled.support()[3]
    assert scaled.mean_over_row().row_sum().tolist() == [1, 1, 1, 0]


def test_a_weight_that_is_scaled_without_gradients_is_constant():
    with torch.no_grad():
        scaled = pairs.AllPairs(2, 2).scale(anchors=torch.ones(2, requires_grad=True))
        assert scaled.mean_over_row().row_sum().tolist() == [1, 1]
    assert not scaled.is_learned
    assert scaled.learned() == []


def test_tiny_weights_have_support():
    """A weight too small for float32 is a weight."""
    tiny = pairs.Explicit(torch.full((1, 2), 1e-50, dtype=DOUBLE))
    assert tiny.support().all()
    assert tiny.mean_over_row().row_sum(DOUBLE) == 1
    close(tiny.mean_over_row().dense(DOUBLE), torch.full((1, 2), 0.5, dtype=DOUBLE))


def test_row_sums_are_copies():
    """Modifying returned row sums does not change later ones."""
    weight = pairs.NotSelf(3)
    weight.row_sum().zero_()
    weight.support().zero_()
    assert weight.row_sum().tolist() == [2, 2, 2]
    assert weight.support().all()


def test_known_row_sums_are_not_computed(monkeypatch):
    """A weight with known row sums returns them, and its support, in any dtype, whatever was computed before."""
    weight = pairs.Overlap(torch.tensor([[1, 0, 1], [0, 0, 0]]), torch.ones(4, 3))
    assert weight.row_sum().tolist() == [8, 0]  # cached, and not to be taken over
    assert weight.support().tolist() == [True, False]
    sums = torch.tensor([0, 5])  # not the true ones, so that it shows which are taken
    known = weight.with_row_sums(sums)
    assert torch.equal(known.T.row_sum(), weight.dense().sum(dim=0))  # its transpose has its own
    sums.zero_()  # what came in may change
    monkeypatch.setattr(pairs.Overlap, "tile", lambda *_: pytest.fail("a tile was computed"))
    monkeypatch.setattr(pairs.Overlap, "product", lambda *_: pytest.fail("a product was computed"))
    monkeypatch.setattr(pairs.Overlap, "_support", lambda *_: pytest.fail("a support was computed"))
    assert torch.equal(known.row_sum(), torch.tensor([0.0, 5.0]))
    assert torch.equal(known.row_sum(DOUBLE), torch.tensor([0, 5], dtype=DOUBLE))
    assert known.row_sum(device="meta").device.type == "meta"
    assert known.support().tolist() == [False, True]
    assert known.support("meta").device.type == "meta"
    assert known.mean_over_row().support().tolist() == [False, True]
    assert weight.row_sum().tolist() == [8, 0]  # the weight itself is as it was
    assert isinstance(known, pairs.Overlap)


def test_equal_stays_closed_form(monkeypatch):
    """Expressions of keys under &, |, ~, +, numbers, scale and row means never compute a tile for sums and products."""
    monkeypatch.setattr(pairs.KeySet, "tile", lambda *_: pytest.fail("a tile was computed"))
    labels, samples = torch.arange(6) % 3, torch.arange(6) // 2
    either = pairs.SameClass(labels) | pairs.SameSample(samples)
    expression = (
        (pairs.SameClass(labels) * ~pairs.SameSample(samples)) * 2 + either + pairs.NotSelf(6).scale(torch.rand(6))
    )
    weight = (expression + (pairs.SameClass(labels) & pairs.NotSelf(6)).mean_over_row()).mean_over_row()
    x = torch.randn(6, 2, requires_grad=True)
    (weight @ x).sum().backward()
    assert torch.allclose(weight.row_sum(), torch.ones(6))
    assert x.grad is not None


def test_sections_receive_their_own_gradient():
    """A product over sections gives a gradient only to those that require one."""
    weight = pairs.concat([pairs.NotSelf(3), pairs.AllPairs(3, 2)])
    first, second = torch.randn(3, 4), torch.randn(2, 4, requires_grad=True)
    (weight @ (first, second)).sum().backward()
    assert second.grad is not None
    torch.testing.assert_close(second.grad, torch.full((2, 4), 3.0))


class Column(pairs.PairWeight):
    """One's own, whose tiles lack columns."""

    def __init__(self, shape):
        super().__init__(shape, is_set=False, is_nonnegative=True, symmetric_at=None)

    def tile(self, rows, columns, dtype, device):
        del columns
        return torch.ones(rows.stop - rows.start, 1, dtype=dtype, device=device)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: pairs.SameClass(torch.rand(3)), ValueError, "integer"),
        (lambda: pairs.SameClass(torch.ones(3, 2).long()), ValueError, "SharesLabel"),
        (lambda: pairs.SameClass(torch.arange(2), torch.arange(4), offset=1), ValueError, "own values from 1 on"),
        (lambda: pairs.SharesLabel(torch.tensor([[0, 2]])), ValueError, "zeros and ones"),
        (lambda: pairs.SharesLabel(torch.ones(2, 3), torch.ones(2, 4)), ValueError, "3 and 4"),
        (lambda: pairs.Jaccard(ONE, worth=torch.ones(2, 3)), ValueError, r"worth .* \(1, 2\), got shape \(2, 3\)"),
        (lambda: pairs.LowRank(ONE), ValueError, "anchors to be floating vectors"),
        (lambda: pairs.LowRank(torch.ones(2, 3), torch.ones(2, 4)), ValueError, r"references .* shape \(n, 3\), got"),
        (lambda: pairs.LowRank(torch.full((2, 3), torch.nan)), ValueError, "anchors to be finite, got NaN"),
        (lambda: pairs.Overlap(ONE, worth=-torch.ones(1, 2)), ValueError, "worth that is finite and ≥ 0"),
        (lambda: pairs.MeanSimilarity(ONE, torch.ones(3, 3)), ValueError, r"similarity as .* 2 labels .* got"),
        (lambda: pairs.MaxSimilarity(ONE, torch.full((2, 2), torch.nan)), ValueError, r"similarity within \[0, 1\]"),
        (lambda: 2 - pairs.MeanSimilarity(ONE, torch.eye(2)), TypeError, "1 - a set or a similarity"),
        (lambda: 1 - pairs.Explicit(torch.tensor([[1.5]])), TypeError, "1 - a set"),
        (lambda: pairs.Explicit(torch.ones(1, 1, requires_grad=True)), ValueError, r"requires a gradient: .detach\(\)"),
        (lambda: pairs.AllPairs(2, 2) * 0.5 | pairs.NotSelf(2), TypeError, r"sets .* \| .* use \+"),
        (lambda: pairs.AllPairs(2, 2) and pairs.NotSelf(2), TypeError, "expected &, .* or ~ .* got AllPairs"),
        (lambda: pairs.NotSelf(2) | 1, TypeError, r"another pair weight for \|, got int"),
        (lambda: pairs.NotSelf(2) | pairs.NotSelf(3), ValueError, "same shape"),
        (lambda: pairs.AllPairs(2, 2).with_row_sums(torch.ones(3)), ValueError, r"each of 2 anchors, got shape \(3,\)"),
        (lambda: pairs.AllPairs(1, 2).with_row_sums(-torch.ones(1)), ValueError, "finite and ≥ 0"),
        (lambda: (pairs.AllPairs(1, 2) * -1).with_row_sums(torch.ones(1)), ValueError, "weights ≥ 0, got Scaled"),
        (lambda: pairs.Explicit(torch.tensor([[1.0, torch.nan]])), ValueError, "NaN"),
        (lambda: pairs.Explicit(torch.ones(3)), ValueError, "matrix"),
        (lambda: pairs.Explicit(torch.ones(2, 2), rows=torch.tensor([2])), ValueError, "from 0 to 1, got 2 to 2"),
        (lambda: pairs.NotSelf(-1), ValueError, "n=-1"),
        (lambda: pairs.NotSelf("3"), ValueError, "integers of at least 0, got str"),
        (lambda: pairs.Explicit("x"), ValueError, "weights as a matrix of numbers, got str"),
        (lambda: Column((3, 2)).dense(), ValueError, r"tile of Column\(3, 2\) of shape \(3, 2\), got \(3, 1\)"),
        (lambda: pairs.AllPairs(2, -3), ValueError, "-3"),
        (lambda: pairs.AllPairs(2, 2).scale(torch.ones(3)), ValueError, "2 anchors"),
        (lambda: pairs.AllPairs(2, 2).scale(torch.tensor([1, torch.inf])), ValueError, "finite"),
        (lambda: pairs.AllPairs(2, 2) + pairs.AllPairs(2, 3), ValueError, "same shape"),
        (lambda: pairs.AllPairs(2, 2) * 0.5 & pairs.NotSelf(2), TypeError, "use \\*"),
        (lambda: ~(pairs.AllPairs(2, 2) * 0.5), TypeError, "a set of pairs .* got ~"),
        (lambda: pairs.AllPairs(2, 2) * float("nan"), ValueError, "finite number .*got nan"),
        (lambda: pairs.Explicit(torch.ones(2, 2), rows=torch.ones(2).bool()), ValueError, "vector of integers"),
        (lambda: (pairs.AllPairs(2, 2) * -1).mean_over_row(), ValueError, "negative"),
        (lambda: pairs.concat([]), ValueError, "none"),
        (lambda: pairs.concat([pairs.AllPairs(2, 2), pairs.AllPairs(3, 2)]), ValueError, "same anchors"),
        (lambda: pairs.AllPairs(2, 2) @ torch.ones(3, 1), ValueError, "got 3"),
    ],
)
def test_bad_weights_are_refused_with_a_remedy(make, error, message):
    """The message says what was expected and what came."""
    with pytest.raises(error, match=message):
        make()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 12), st.integers(0, 4))
def test_lists_of_pairs_are_their_matrix(seed, n, r, k):
    """Tiles, products, sums and what the tiles of the operator ask of lists of references, some of them cut short."""
    generator = torch.Generator().manual_seed(seed)
    k = min(k, r)
    index = torch.rand(n, r, generator=generator).argsort(dim=1)[:, :k].T
    index = index.masked_fill(torch.rand(k, n, generator=generator) < 0.3, r)
    matrix = torch.zeros(n, r + 1, dtype=DOUBLE).scatter_(1, index.T, 1)[:, :r]
    weight = Listed(index, r)
    assert torch.equal(weight.dense(DOUBLE), matrix)
    assert torch.equal(weight.row_sum(DOUBLE), matrix.sum(dim=1))
    assert torch.equal(weight.support(), matrix.sum(dim=1) > 0)
    x, y = (torch.randn(count, 3, dtype=DOUBLE, generator=generator) for count in (r, n))
    torch.testing.assert_close(weight @ x, matrix @ x)
    torch.testing.assert_close(weight.T @ y, matrix.T @ y)
    rows, columns = slice(n // 3, n // 2 + 1), slice(r // 4, r)
    part, tile = matrix[rows, columns], torch.randn(n, r, dtype=DOUBLE, generator=generator)[rows, columns]
    assert torch.equal(weight.tile(rows, columns, DOUBLE, CPU), part)
    torch.testing.assert_close(weight.sums(tile, rows, columns), (part * tile).sum(dim=1))
    added, force = tile.clone(), torch.randn(n, dtype=DOUBLE, generator=generator)[rows]
    weight.add(added, rows, columns, force)
    torch.testing.assert_close(added, tile + force[:, None] * part)


def test_a_pull_is_split_by_section():
    """What is cheap within tiles stays there; the parts are over the same sections, and their sum is the pull."""
    labels = torch.tensor([[1, 0], [1, 1], [0, 1]])
    pull = pairs.concat([pairs.Jaccard(labels), pairs.Explicit(labels.float())])
    within, beside = pull.split()
    assert within.within_tiles
    assert within.constant(slice(0, 3), slice(0, 3)) == 0
    assert torch.equal(within.dense() + beside.dense(), pull.dense())
    assert pairs.concat([pairs.AllPairs(3, 2), pairs.NotSelf(3)]).split().beside is None


def unit(n, d=5, seed=0):
    return torch.nn.functional.normalize(
        torch.randn(n, d, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)), dim=1
    )


@in_pairs(k=[1, 3, 20], farthest=[False, True], separate=[False, True], tile=[1024, 4])
def test_hardest_is_the_sorted_similarities(k, farthest, separate, tile, monkeypatch):
    """The first k in order among the pairs of a set, in tiles; fewer, or none, where there are not as many."""
    monkeypatch.setattr(weight_module, "STREAM", tile)
    z, v = unit(11), unit(9, seed=1) if separate else unit(11)
    among = pairs.Equal(torch.arange(11) % 4, torch.arange(len(v)) % 5)
    found = pairs.Hardest(z, among, k, references=v if separate else None, farthest=farthest)
    dense = found.dense(DOUBLE)
    for i in range(11):
        mine = among.dense()[i].nonzero().flatten().tolist()
        order = sorted(mine, key=lambda r: float(z[i] @ v[r]), reverse=not farthest)[:k]
        assert sorted(order) == dense[i].nonzero().flatten().tolist()
        expected = [float(z[i] @ v[r]) for r in order] + [torch.inf if farthest else -torch.inf] * (k - len(order))
        torch.testing.assert_close(found.similarities[i], torch.tensor(expected, dtype=DOUBLE))
    assert found.row_sum().tolist() == dense.sum(dim=1).tolist()
    assert not found.similarities.requires_grad


Z, NOT_SELF = unit(4), pairs.NotSelf(4)
K, AMONG = "k to be an integer of at least 1, got ", "among to be a set .* of 4 anchors and 4 references, got "


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: pairs.Hardest(Z, NOT_SELF, 0), K + "0"),
        (lambda: pairs.Hardest(Z, NOT_SELF, 1.5), K + "1.5"),
        (lambda: pairs.Hardest(Z, pairs.NotSelf(3)), AMONG + r"NotSelf\(3, 3\)"),
        (lambda: pairs.Hardest(Z, NOT_SELF * 2.0), AMONG + r"Scaled\(4, 4\)"),
        (lambda: pairs.Hardest(Z, torch.eye(4)), AMONG + "Tensor: build a set"),
        (lambda: pairs.Hardest(Z * torch.nan, NOT_SELF), "queries to be finite"),
        (lambda: pairs.Hardest(Z, NOT_SELF, references=Z[:, :2]), "references to be .* width of the queries'"),
        (lambda: pairs.Hardest(Z.tolist(), NOT_SELF), "queries to be a tensor, got list"),
        (lambda: pairs.Below(Z, limits=0.5), "limits as a tensor, one for each of 4 anchors, got float"),
        (lambda: pairs.Below(Z, limits=Z[:2, 0]), r"limits as .*, got torch.Size\(\[2\]\)"),
        (lambda: pairs.Below(Z, limits=Z[:, 0] * torch.nan), "limits that are numbers or infinite, got NaN"),
    ],
)
def test_what_cannot_be_mined_is_refused(make, told):
    with pytest.raises(ValueError, match=told):
        make()


def test_hardest_needs_no_autocast():
    """Similarities under autocast are those without."""
    z = unit(40).float()
    expected = pairs.Hardest(z, pairs.NotSelf(40), 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pairs.Hardest(z, pairs.NotSelf(40), 3).similarities, expected.similarities)


@pytest.mark.parametrize("backend", ["dense", "tiled"])
def test_batch_hard_is_the_triplet_loss_of_the_hardest_pairs(backend):
    """Pull the farthest positive, push it and the nearest negative: the soft triplet loss, gradients too."""
    z, labels = unit(40).requires_grad_(), torch.arange(40) % 6
    same = pairs.SameClass(labels)
    near, far = pairs.Hardest(z, ~same), pairs.Hardest(z, same & pairs.NotSelf(40), farthest=True)
    options = {"temperature": 0.2, "backend": backend}
    found = lw.contrast(z, pull=far, push=near | far, **options)
    p, n = (of.dense().argmax(dim=1) for of in (far, near))
    expected = lw.TripletLoss(temperature=0.2, normalize=False, reduction="none")(z, z[p], z[n])
    check_same(found, expected, z)
