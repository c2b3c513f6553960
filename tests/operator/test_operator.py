"""The operator: every backend against a float64 oracle computed pair by pair."""

import gc
import itertools
import math
import subprocess
import sys
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_checks import BACKENDS, DOUBLE, check_same, sup_con_pairs, unit
from torch.autograd import forward_ad

import likewise as lw
from likewise import pairs
from likewise.operator import ContrastSpec, Push, evaluate, tiles


def oracle(queries, references, pull, push, temperature, coefficient=None):
    """Return the losses of the equation, computed one pair after another."""
    losses = []
    weights, repulsions = pull.dense(DOUBLE), push.dense(DOUBLE)
    for i, z in enumerate(queries):
        s = [(z @ v) / temperature for v in references]
        repelled = [s[u] + math.log(repulsions[i, u]) for u in range(len(s)) if repulsions[i, u] > 0]
        if not repelled or not weights[i].any():
            losses.append(queries.sum() * 0)
            continue
        c = weights[i].sum() if coefficient is None else coefficient[i]
        losses.append(
            c * torch.logsumexp(torch.stack(repelled), 0) - sum(w * x for w, x in zip(weights[i], s, strict=True))
        )
    return torch.stack(losses)


def plain(queries, pull, push, temperature):
    """Return the losses by the plain dense formula in the queries' own dtype."""
    similarity = queries @ queries.T / temperature
    weights = pull.dense(similarity.dtype)
    repulsion = torch.logsumexp(similarity + push.dense(similarity.dtype).log(), dim=1)
    return weights.sum(dim=1) * repulsion - (weights * similarity).sum(dim=1)


@pytest.mark.parametrize("temperature", [0.003, 0.1, 1.0])
@pytest.mark.parametrize("tile", [3, 512])
def test_contrast_is_the_equation(backend, temperature, tile, monkeypatch):
    """Losses and all gradients match the oracle for any weights, with upstream gradients of any sign."""
    monkeypatch.setattr(tiles, "TILE", tile)
    labels = torch.tensor([0, 1, 0, 2, 0, 1, 3])
    queries, references = unit(7, 5), unit(6, 5)
    explicit = torch.rand(7, 6) * (torch.rand(7, 6) > 0.4)
    explicit[2] = 0
    cases = [
        (None, *sup_con_pairs(labels)),
        (None, pairs.SameClass(labels), pairs.AllPairs(7, 7) + pairs.SameClass(labels) * 0.5),
        (None, *sup_con_pairs(torch.zeros(7).long())),
        (references, pairs.Explicit(torch.randn(7, 6)), pairs.Explicit(explicit)),
        (references, pairs.Explicit(explicit).mean_over_row(), pairs.NotSelf(7, 6, 1)),
        (references, pairs.SameClass(labels, labels[:6]).scale(explicit[:, 0], explicit[0]), pairs.AllPairs(7, 6)),
    ]
    for given_references, pull, push in cases:
        shape = (1,) if tile == 3 else ()
        z, tau = queries.clone().requires_grad_(), torch.full(shape, temperature, dtype=DOUBLE, requires_grad=True)
        others = () if given_references is None else (given_references.clone().requires_grad_(),)
        expected = oracle(z, *(others or (z,)), pull, push, tau.sum())
        losses = lw.contrast(z, *others, pull=pull, push=push, temperature=tau, backend=backend)
        torch.testing.assert_close(losses, expected, rtol=1e-11, atol=1e-11)
        upstream = torch.randn(7, dtype=DOUBLE)
        leaves, bounds = (z, tau, *others), {"rtol": 1e-9, "atol": 1e-9 / temperature**2}
        gradients = torch.autograd.grad(expected, leaves, upstream)
        torch.testing.assert_close(torch.autograd.grad(losses, leaves, upstream), gradients, **bounds)
        for leaf, gradient in zip(leaves, gradients, strict=True):  # where only one of them is learned
            zs, taus, *vs = (x if x is leaf else x.detach() for x in leaves)
            alone = lw.contrast(zs, *vs, pull=pull, push=push, temperature=taus, backend=backend)
            torch.testing.assert_close(torch.autograd.grad(alone, leaf, upstream)[0], gradient, **bounds)


def test_sections_with_and_without_gradient(backend, monkeypatch):
    """Several sections give the same as their concatenation; only those that require a gradient receive one."""
    monkeypatch.setattr(tiles, "TILE", 4)
    queries, keys, queue = unit(6, 5).requires_grad_(), unit(6, 5).requires_grad_(), unit(9, 5)
    own = pairs.SameSample(torch.arange(6), torch.arange(6))
    pull = pairs.concat([own, pairs.NoPairs(6, 9)])
    push = pairs.concat([pairs.AllPairs(6, 6), pairs.AllPairs(6, 9) * 0.5])
    losses = lw.contrast(queries, (keys, queue), pull=pull, push=push, temperature=0.2, backend=backend)
    expected = oracle(queries, torch.cat([keys, queue]), pull, push, 0.2)
    check_same(losses, expected, (queries, keys))


@pytest.mark.parametrize("section", [0, 1, 2])
def test_a_costly_pull_is_not_evaluated_again_for_sections_without_gradient(section, monkeypatch):
    """Jaccard weights come as products: the backward makes those of one section alone, and they are exact."""
    sets = torch.rand(6, 4) < 0.5
    references = [torch.rand(n, 4) < 0.5 for n in (5, 9, 7)]
    queries, rows = unit(6, 5).requires_grad_(), [unit(len(of), 5) for of in references]
    rows[section].requires_grad_()
    pull = pairs.concat([pairs.Jaccard(sets, of) for of in references])
    push = pairs.AllPairs(6, 21)
    losses = lw.contrast(queries, tuple(rows), pull=pull, push=push, temperature=0.2, backend="tiled")
    expected = oracle(queries, torch.cat(rows), pull, push, 0.2)
    made, tile = [], pairs.Jaccard.tile
    monkeypatch.setattr(pairs.Jaccard, "tile", lambda self, *of: (made.append(self.shape), tile(self, *of))[1])
    found = torch.autograd.grad(losses.sum(), [queries, rows[section]])
    assert made == [(6, len(references[section]))]
    torch.testing.assert_close(found, torch.autograd.grad(expected.sum(), [queries, rows[section]]))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.sampled_from([0.01, 0.03, 0.2, 1.0]), st.integers(0, 10**6))
def test_tile_size_changes_nothing(n, tile, temperature, seed):
    """Any tile size gives the same losses and gradients, with the triangle and without it."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.nn.functional.normalize(torch.randn(n, 4, dtype=DOUBLE, generator=generator), dim=1)
    pull, push = sup_con_pairs(torch.randint(0, 3, (n,), generator=generator))
    results = []
    for size in (tile, 512):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tiles, "TILE", size)
            leaf = z.clone().requires_grad_()
            losses = lw.contrast(leaf, pull=pull, push=push, temperature=temperature, backend="tiled")
            results.append((losses, torch.autograd.grad(losses.sum(), leaf)[0]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-9, atol=1e-9 / temperature)


def losses_and_gradient(formula, operand, pull, push, temperature, **options):
    leaf = operand.clone().requires_grad_()
    losses = formula(leaf, pull=pull, push=push, temperature=temperature, **options)
    losses.mean().backward()
    return losses.detach().double(), leaf.grad.double()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "temperature", "classes"),
    [
        (dtype, temperature, (1, 10, 200)[(i + j) % 3])
        for i, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16))
        for j, temperature in enumerate((0.01, 0.05, 1.0))
    ],
)
def test_error_is_within_twice_that_of_the_plain_formula(backend, dtype, temperature, classes):
    """Over several samples, losses and gradients have at most twice the error of the plain formula in float32."""
    mine, theirs = torch.zeros(2, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE)
    n = 250 if backend == "auto" else 600  # one matrix, and several tiles
    for seed in range(4):
        torch.manual_seed(seed)
        weights = *sup_con_pairs(torch.arange(n) % classes), temperature
        operand = unit(n, 32, dtype)
        exact = losses_and_gradient(plain, operand.double(), *weights)
        usual = losses_and_gradient(plain, operand.float(), *weights)
        ours = losses_and_gradient(lw.contrast, operand, *weights, backend=backend)
        rounded = usual[0], usual[1].to(dtype).double()  # a low-precision operand receives a rounded gradient
        mine += torch.stack([(x - y).norm() for x, y in zip(ours, exact, strict=True)])
        theirs += torch.stack([(x - y).norm() for x, y in zip(rounded, exact, strict=True)])
    assert (mine <= 2 * theirs).all(), (mine, theirs)


def test_same_input_same_bits(backend):
    """Forward and backward give the same bits each time, also a backward that is repeated."""
    z = unit(900, 16, torch.float32).requires_grad_()
    pull, push = sup_con_pairs(torch.randint(0, 7, (900,)))
    one, other = (lw.contrast(z, pull=pull, push=push, temperature=0.1, backend=backend) for _ in range(2))
    assert torch.equal(one, other)
    gradient, *again = (torch.autograd.grad(x.mean(), z, retain_graph=True)[0] for x in (one, one, other))
    assert all(torch.equal(gradient, repeated) for repeated in again)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_lengths_of_any_size(backend, scale):
    """Embeddings that are not normalised are also exact, beyond the range of e^s."""
    z = torch.randn(20, 4, dtype=DOUBLE) * scale
    pull, push = sup_con_pairs(torch.arange(20) % 3)
    losses = lw.contrast(z.float(), pull=pull, push=push, temperature=0.1, backend=backend)
    expected = oracle(z.float().double(), z.float().double(), pull, push, 0.1)
    assert torch.isfinite(losses).all()
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-5 * max(10 * scale**2, 1))


def test_excluded_pairs_may_overflow(backend):
    """A similarity outside the range of its dtype does no harm where push is 0."""
    z = torch.eye(3) * 1e20
    for push in (pairs.NotSelf(3), pairs.Explicit(1 - torch.eye(3)), pairs.Explicit((1 - torch.eye(3)) * 0.5)):
        lse = lw.log_sum_exp(z, push=push, temperature=1.0, backend=backend)
        torch.testing.assert_close(lse, push.row_sum().log())


@pytest.mark.parametrize("case", ["complement", "one long row", "all but one class"])
def test_sums_taken_from_sums_do_not_cancel(backend, case):
    """A difference of class sums, or of a class sum and a long row, has at most twice the plain formula's error."""
    z, labels = unit(1500, 16, torch.float32), torch.zeros(1500).long()
    labels[:2] = 1
    pull = (~pairs.SameClass(labels)).mean_over_row()
    if case == "one long row":
        z[0] *= 1e4
        pull = (pairs.SameClass(torch.arange(1500) % 750) & pairs.NotSelf(1500)).mean_over_row()
    elif case == "all but one class":
        pull = (~pairs.SharesLabel(torch.nn.functional.one_hot(labels))).mean_over_row()
    weights = pull, pairs.NotSelf(1500), 0.1
    exact, usual = (plain(rows, *weights).double() for rows in (z.double(), z))
    mine = lw.contrast(z, pull=pull, push=weights[1], temperature=0.1, backend=backend).double()
    assert (mine - exact).norm() <= 2 * (usual - exact).norm()


def test_empty_rows_are_minus_infinity_without_gradient(backend, monkeypatch):
    """log_sum_exp is −inf where push is empty, without gradient, whatever the upstream."""
    monkeypatch.setattr(tiles, "TILE", 2)
    z, others = unit(5, 3).requires_grad_(), unit(5, 3)
    others_of_class = pairs.SameClass(torch.tensor([0, 0, 1, 2, 2])) & pairs.NotSelf(5)
    scaled = pairs.NotSelf(5).scale(anchors=torch.tensor([1.0, 2.0, 0.0, 0.5, 1.0]))
    pushes = others_of_class, pairs.Explicit(others_of_class.dense() * 0.5), scaled
    for push, references in itertools.product(pushes, (None, others)):
        lse = lw.log_sum_exp(z, references, push=push, temperature=0.1, backend=backend)
        assert torch.isneginf(lse).tolist() == [False, False, True, False, False]
        for value in (1.0, torch.inf):
            upstream = torch.tensor([0.0, 0.0, value, 0.0, 0.0], dtype=DOUBLE)
            (gradient,) = torch.autograd.grad(lse, z, upstream, retain_graph=True)
            assert gradient.abs().sum() == 0


@pytest.mark.parametrize("temperature", [0.001, 0.1])
def test_inactive_anchors_give_zero(backend, temperature):
    """An anchor without positives, or with an empty push or one that is scaled by zero, has loss 0 and no gradient."""
    z, c = unit(4, 3).requires_grad_(), torch.ones(4)
    pull = pairs.Explicit(torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]]).double())
    empty = pairs.Explicit(torch.tensor([[0, 1, 1, 1], [1, 0, 1, 0], [1, 1, 0, 1], [0, 0, 0, 0]]).double())
    for push in (empty, pairs.NotSelf(4).scale(anchors=torch.tensor([1.0, 2.0, 0.5, 0.0]))):
        losses = lw.contrast(z, pull=pull, push=push, temperature=temperature, coefficient=c, backend=backend)
        assert losses[2:].tolist() == [0, 0]
        inactive, every = torch.tensor([[0.0, 0.0, 1.0, 1.0], [1.0] * 4], dtype=DOUBLE)
        assert torch.autograd.grad(losses, z, inactive, retain_graph=True)[0].abs().sum() == 0
        assert torch.autograd.grad(losses, z, every)[0].isfinite().all()


@pytest.mark.parametrize(("n", "r"), [(0, 0), (0, 3), (3, 0)])
@pytest.mark.parametrize("temperature", [0.001, 1.0])
def test_nothing_to_contrast(backend, n, r, temperature):
    """Without queries there are no losses; without references they are zero, also beyond the range of e^s."""
    queries, references = torch.randn(n, 2, requires_grad=True), torch.randn(r, 2)
    every = pairs.AllPairs(n, r)
    losses = lw.contrast(queries, references, pull=every, push=every, temperature=temperature, backend=backend)
    assert losses.tolist() == [0.0] * n
    assert torch.equal(torch.autograd.grad(losses.sum(), queries)[0], torch.zeros(n, 2))


@pytest.mark.parametrize("rows", [60, 600])
def test_autocast_is_off_inside(backend, rows):
    """Forward and backward compute in float32, whichever of the two is within autocast."""
    z = unit(rows, 16, torch.float32)
    pull, push = sup_con_pairs(torch.arange(rows) % 9)
    results = []
    for forward, backward in ((False, False), (True, False), (False, True)):
        leaf = z.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=forward):
            losses = lw.contrast(leaf, pull=pull, push=push, temperature=0.1, backend=backend)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=backward):
            losses.mean().backward()
        results.append((losses, leaf.grad))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=0)


def test_mixed_dtypes_promote():
    """fp16 keys and fp32 queries are contrasted in fp32; float64 takes precedence."""
    queries, keys = unit(3, 4, torch.float32), unit(3, 4, torch.float16)
    own = pairs.SameSample(torch.arange(3), torch.arange(3))
    losses = lw.contrast(queries, keys, pull=own, push=pairs.AllPairs(3, 3), temperature=0.1)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(
        losses, oracle(queries.double(), keys.double(), own, pairs.AllPairs(3, 3), 0.1).float(), rtol=1e-5, atol=1e-5
    )
    assert lw.contrast(queries.double(), keys, pull=own, push=own, temperature=0.1).dtype == DOUBLE


def test_the_triangle_is_taken_where_it_is_safe(monkeypatch):
    """Queries as references with a symmetric set use the triangle only while 2·max|s| < 80."""
    taken = []
    original = tiles.TiledProblem.__init__

    def note(self, *arguments):
        original(self, *arguments)
        taken.append(self.is_triangle)

    monkeypatch.setattr(tiles.TiledProblem, "__init__", note)
    monkeypatch.setattr(tiles, "TILE", 4)
    z = unit(6, 3, torch.float32)
    for temperature, push, expected in [
        (0.0251, pairs.NotSelf(6), True),
        (0.0249, pairs.NotSelf(6), False),
        (0.1, pairs.NotSelf(6) * 0.5, True),
        (0.1, pairs.NotSelf(6).scale(references=torch.arange(6)), False),
        (0.1, pairs.Explicit(torch.ones(6, 6).triu()), False),
        (0.1, pairs.Explicit(torch.ones(6, 6)), True),
    ]:
        taken.clear()
        lw.log_sum_exp(z, push=push, temperature=temperature, backend="tiled")
        assert taken == [expected]


def test_reductions_are_over_active_rows(backend):
    """The mean excludes inactive rows, whose zeros look the same as losses of 0."""
    z, labels = unit(8, 3).requires_grad_(), torch.tensor([0, 0, 0, 1, 1, 2, 3, 4])
    pull, push = sup_con_pairs(labels)

    def reduced(reduction):
        return lw.contrast(z, pull=pull, push=push, temperature=0.3, reduction=reduction, backend=backend)

    rows = reduced("none")
    torch.testing.assert_close(reduced("sum"), rows.sum())
    torch.testing.assert_close(reduced("mean"), rows.sum() / 5)
    for reduction, share in (("sum", 1), ("mean", 5)):
        check_same(reduced(reduction), reduced("none").sum() / share, z)


@pytest.mark.parametrize("temperature", [0.002, 0.01, 0.2])
@pytest.mark.parametrize("normalize", [False, True])
def test_several_pushes_with_powers_both_ways(temperature, normalize):
    """Each push has its own log-sum-exp of e^{power·s}, over rows and columns, with all gradients."""
    weights = torch.rand(7, 9) * (torch.rand(7, 9) > 0.3)
    for pushes in (
        (Push(pairs.AllPairs(7, 9), 2.0), Push(pairs.NotSelf(7, 9), 0.5)),
        (Push(pairs.Explicit(weights)), Push(pairs.NotSelf(7, 9), 1.5)),
        (Push(pairs.AllPairs(7, 9)), Push(pairs.NotSelf(7, 9))),
        (Push(pairs.AllPairs(7, 9), -2.0), Push(pairs.NotSelf(7, 9), 0.5)),
        (Push(pairs.Explicit(weights)), Push(pairs.NotSelf(7, 9), -1.5)),
    ):
        results = []
        for backend in BACKENDS:
            z, v, tau = unit(7, 4) * 1.2, unit(9, 4), torch.tensor(temperature, dtype=DOUBLE)
            if backend == "dense":
                leaves = [leaf.requires_grad_() for leaf in (z, v, tau)]
            else:
                leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
            found = evaluate(
                ContrastSpec(pushes, pairs.Explicit(weights), normalize=normalize, both_ways=True),
                leaves[0],
                (leaves[1],),
                temperature=leaves[2],
                backend=backend,
            )
            parts = [*found.logsums, *found.columns, found.attraction]
            upstream = [torch.linspace(-1, 1, len(part), dtype=DOUBLE) for part in parts]
            results.append([part.detach() for part in parts] + list(torch.autograd.grad(parts, leaves, upstream)))
        for found in results[1:]:
            torch.testing.assert_close(found, results[0], rtol=1e-9, atol=1e-9 / temperature**2)


@pytest.mark.parametrize("temperature", [0.001, 0.2])
@pytest.mark.parametrize("backend", ["tiled", "auto"])
def test_a_negative_power_is_that_of_opposite_references(temperature, backend, monkeypatch):
    """In a triangle, relative to maxima, and with weights that are no set."""
    monkeypatch.setattr(tiles, "TILE", 4)
    z = unit(11, 4).requires_grad_()
    for weight in (pairs.NotSelf(11), pairs.Explicit(torch.rand(11, 11, dtype=DOUBLE))):
        problem = ContrastSpec((Push(weight, -1.0),))
        found = evaluate(problem, z, (z,), temperature=temperature, backend=backend).logsums[0]
        expected = lw.log_sum_exp(z, -z, push=weight, temperature=temperature, backend="dense")
        torch.testing.assert_close(found, expected)
        size = float(torch.autograd.grad(expected.sum(), z, retain_graph=True)[0].abs().max())
        check_same(found, expected, z, torch.linspace(-1, 1, 11, dtype=DOUBLE), rtol=1e-9, atol=1e-9 * size)


def test_a_pull_below_the_diagonal_alone_is_not_lost(monkeypatch):
    """If a tile of the triangle has neither pull nor push, its mirror image may still have a pull."""
    monkeypatch.setattr(tiles, "TILE", 4)
    z, key = unit(12, 4).requires_grad_(), torch.arange(12)
    pull = pairs.Equal(key, key + 4 + 100 * (key >= 8))  # anchor i pulls reference i − 4
    push = pairs.SameClass(key // 4)
    losses = lw.contrast(z, pull=pull, push=push, temperature=0.5, backend="tiled")
    expected = oracle(z, z, pull, push, 0.5)
    check_same(losses, expected, z)


def test_a_power_beside_references_without_gradient():
    """The gradient of a section that is visited once includes the power of the push."""
    z, v = unit(4, 3).requires_grad_(), unit(6, 3)
    problem = ContrastSpec((Push(pairs.AllPairs(4, 6), 2.0),))
    for backend in ("tiled", "auto"):
        found, expected = (evaluate(problem, z, (v,), temperature=0.5, backend=way) for way in (backend, "dense"))
        check_same(found.logsums[0], expected.logsums[0], z)


def test_a_gradient_with_create_graph_is_that_without():
    """Even if one input depends on another, or a section occurs twice."""
    z, own = unit(4, 3).requires_grad_(), pairs.SameSample(torch.arange(4))
    v = unit(4, 3).requires_grad_()
    for sections, pull, push in (
        ((2 * z,), own, pairs.AllPairs(4, 4)),
        ((v, v), pairs.concat([own, own]), pairs.concat([pairs.AllPairs(4, 4), own])),
    ):
        losses = lw.contrast(z, sections, pull=pull, push=push, temperature=0.7, backend="dense")
        for leaf in (z,) if len(sections) == 1 else (z, v):
            first = torch.autograd.grad(losses.sum(), leaf, retain_graph=True)[0]
            again = torch.autograd.grad(losses.sum(), leaf, create_graph=True)[0]
            torch.testing.assert_close(first, again.detach())


def test_what_the_caller_changes_before_the_backward_changes_nothing(backend):
    """The caller may modify a coefficient it passed and counts it received."""
    z, coefficient = unit(6, 3).requires_grad_(), torch.rand(6, dtype=DOUBLE)
    pull, push = sup_con_pairs(torch.arange(6) % 2)
    gradients = []
    for change in (False, True):
        given, loss = coefficient.clone(), lw.SupConLoss(backend=backend)
        losses = lw.contrast(z, pull=pull, push=push, temperature=0.2, coefficient=given, backend=backend)
        total = losses.sum() + loss(z, torch.arange(6) % 2)
        if change:
            given.mul_(3)
            for value in loss.last.values():
                value.mul_(10)
        gradients.append(torch.autograd.grad(total, z)[0])
    assert torch.equal(*gradients)


def test_a_graph_has_no_reference_cycle(backend):
    """A step's tensors are freed with its loss, without the garbage collector."""
    z, tau = torch.randn(30, 4, requires_grad=True), torch.tensor(0.1, requires_grad=True)
    pull, push = sup_con_pairs(torch.arange(30) % 3)
    gc.collect()
    gc.disable()
    try:
        found = evaluate(
            ContrastSpec((Push(push),), pull, coefficients=(None,)), z, (z,), temperature=tau, backend=backend
        )
        node = weakref.ref(found.losses.grad_fn)
        found.losses.sum().backward()
        assert node() is not None
        del found
        assert node() is None
    finally:
        gc.enable()


def test_dense_has_a_second_derivative():
    """The second derivative matches finite differences."""
    z = unit(4, 3).requires_grad_()
    pull, push = sup_con_pairs(torch.tensor([0, 0, 1, 1]))
    tau = torch.tensor(0.7, dtype=DOUBLE, requires_grad=True)

    def losses(z, tau):
        return lw.contrast(z, pull=pull, push=push, temperature=tau, backend="dense")

    assert torch.autograd.gradgradcheck(losses, (z, tau))


def forwarded(loss, z):
    with forward_ad.dual_level():
        return loss(forward_ad.make_dual(z, torch.ones_like(z)))


@pytest.mark.filterwarnings("ignore")  # of torch's own, that it traces
@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (lambda loss, z: torch.func.grad(loss)(z), "torch.func"),
        (lambda loss, z: torch.func.vmap(loss)(z[None]), "torch.func"),
        (lambda loss, z: torch.func.jvp(loss, (z,), (z,)), "torch.func"),
        (forwarded, "forward-mode AD"),
        (lambda loss, z: torch.export.export(loss, (z,)), "torch.export"),
        (lambda loss, z: torch.jit.trace(lambda rows: loss(rows), (z,)), "torch.jit.trace"),
    ],
)
def test_unsupported_transforms_are_refused(transform, name):
    """The error names the transform and what to use instead."""
    z = torch.randn(6, 2, 4)
    with pytest.raises(RuntimeError, match=f"got .*{name}: ") as error:
        transform(lw.NTXentLoss(), z)
    assert "differentiates backward" in str(error.value)


COMPILED = """
import torch, likewise as lw
torch.manual_seed(0)
z, labels = torch.randn(40, 2, 8), torch.arange(40) % 7
for loss, arguments, fullgraph in (
    (lw.SupConLoss(), (z, labels), False),
    (lw.InfoNCELoss(symmetric=True, backend="dense"), (z[:, 0], z[:, 1]), True),
):
    results = []
    for call in (loss, torch.compile(loss, fullgraph=fullgraph)):
        leaf = arguments[0].clone().requires_grad_()
        value = call(leaf, *arguments[1:])
        results.append((value.detach(), torch.autograd.grad(value, leaf)[0]))
    torch.testing.assert_close(*results)
"""


@pytest.mark.process
@pytest.mark.slow
def test_compiled_losses_are_the_losses():
    """torch.compile of a loss with Inductor gives its value and gradient; dense in both directions as one graph."""
    # In a separate process: tests check shapes at run time, with code that cannot be compiled.
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr


Z, ALL = torch.ones(3, 2), pairs.AllPairs(3, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature to be a positive number .*got 0"),
        ({"temperature": math.nan}, "positive number .*got nan"),
        ({"temperature": math.inf}, "positive number .*got inf"),
        ({"temperature": torch.tensor([0.1, 0.1])}, r"of shape \(\) or \(1,\), got shape \(2,\)"),
        (
            {"temperature": torch.tensor(-0.1)},
            'positive number.*got -0.1.*temperature="learned"; else learn its logarithm',
        ),
        ({"push": pairs.AllPairs(3, 4)}, "push for 3 queries by 3 references"),
        ({"pull": None}, "pull to be a pair weight, got NoneType"),
        ({"pull": pairs.AllPairs(2, 3)}, "pull for 3 queries by 3 references"),
        ({"push": ALL * -1.0}, "push to have weights ≥ 0"),
        ({"backend": "fast"}, "backend to be one of auto, dense, tiled, triton, got 'fast'"),
        ({"references": torch.ones(3, 5)}, "2 features"),
        ({"references": ()}, "empty tuple"),
        ({"queries": torch.ones(3)}, "floating rows of features"),
        ({"queries": torch.tensor([[1.0, 1.0], [1.0, torch.nan], [1.0, 1.0]])}, "queries to be finite.*the first at 1"),
        ({"references": torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, torch.inf]])}, "references to be finite"),
        ({"coefficient": torch.ones(2)}, "coefficient to be one value for each query"),
        ({"coefficient": [1.0, 1.0, 1.0]}, "coefficient to be a tensor, got list"),
        ({"coefficient": torch.tensor([1.0, torch.nan, 1.0])}, "coefficient to be finite, got NaN"),
        ({"queries": [1.0]}, "queries to be a tensor, got list"),
        ({"queries": torch.ones(3, 2).to(torch.float8_e4m3fn)}, "queries to have a floating dtype.*float8"),
        ({"references": torch.ones(3, 2).to_sparse()}, "references to be a dense"),
        ({"reduction": "average"}, "reduction to be one of mean, sum, none, got 'average'"),
    ],
)
def test_bad_input_is_refused_with_a_remedy(change, message):
    """The message says what was expected and what came."""
    arguments = {"queries": Z, "pull": ALL, "push": ALL, "temperature": 0.1} | change
    with pytest.raises(ValueError, match=message):
        lw.contrast(arguments.pop("queries"), arguments.pop("references", None), **arguments)


COUNT = """
from benchmarks.small_steps import calls, steps
step = steps(128)["likewise"]
for _ in range(3): step()
print(sum(calls(step)[event] for event in ("call", "c_call")))
"""


@pytest.mark.process
def test_a_small_step_makes_few_calls():
    """Below 500 rows a step's calls are its time; at 128 rows there were 797, and there are 579."""
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 650


def test_an_infinite_upstream_gradient_leaves_inactive_rows_alone():
    """A scaled loss that overflows gives rows without positives the gradient 0, in one tile as in many, never NaN."""
    z = torch.randn(5, 3, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 2])
    pull = (pairs.SameClass(labels) & pairs.NotSelf(5)).mean_over_row()
    everyone_but_the_last = pairs.SameClass(torch.tensor([0, 0, 0, 0, 1]))
    push = everyone_but_the_last & pairs.NotSelf(5)
    loss = lw.contrast(z, pull=pull, push=push, temperature=1.0, reduction="mean")
    (gradient,) = torch.autograd.grad(loss, z, torch.tensor(torch.inf))
    assert torch.equal(gradient[4], torch.zeros(3))
    assert not torch.isfinite(gradient[:4]).any()


@pytest.mark.parametrize("backend", ["tiled", "auto"])
def test_what_a_pull_is_made_of_may_change_before_the_backward(backend):
    """The temperature's gradient has the row sums of the forward, also where that had no need of them."""
    found = []
    for change in (False, True):
        torch.manual_seed(0)
        z, v, a, b = (torch.rand(6, 3, dtype=DOUBLE) for _ in range(4))
        z.requires_grad_()
        tau = torch.tensor(0.5, dtype=DOUBLE, requires_grad=True)
        problem = ContrastSpec(
            (Push(pairs.AllPairs(6, 6)),), pairs.LowRank(a, b), (torch.ones(6),), "sum", normalize=True
        )
        loss = evaluate(problem, z, (v,), temperature=tau, backend=backend).losses
        if change:
            a.mul_(3)
        found.append(torch.autograd.grad(loss, (z, tau)))
    torch.testing.assert_close(*found)


class Kept(pairs.PairWeight):
    """A weight whose tiles are parts of its own matrix."""

    def __init__(self, matrix):
        super().__init__(tuple(matrix.shape), is_set=False, is_nonnegative=True, symmetric_at=None)
        self.matrix = matrix

    def tile(self, rows, columns, dtype, device):
        return self.matrix[rows, columns].to(device, dtype)


def test_a_weight_of_ones_own_may_change_before_the_backward_of_one_matrix():
    """The gradient is that of the values at the forward, although its tiles are its own memory."""
    z, weights = unit(6, 3).requires_grad_(), torch.rand(6, 6, dtype=DOUBLE)
    pull, push = Kept(weights), Kept(weights.flip(0))
    loss = lw.contrast(z, pull=pull, push=push, temperature=0.5, reduction="sum")
    (expected,) = torch.autograd.grad(loss, z, retain_graph=True)
    for matrix in (weights, push.matrix):
        matrix.zero_()
    torch.testing.assert_close(torch.autograd.grad(loss, z)[0], expected)
