"""The kernels against a float64 oracle: on a GPU if there is one, else in Triton's interpreter with small tiles."""

import itertools

import numpy as np
import pytest
import torch
from operator_checks import DOUBLE, outcome_of

import likewise as lw
from likewise import pairs
from likewise.operator import ContrastSpec, Push, backends, evaluate
from likewise.operator.spec import LocalAnchors
from loss_table import LOSSES, draw
from loss_table import evaluate as evaluated

pytest.importorskip("triton", reason="Triton is not installed: it has no wheel for this platform")

from triton import OutOfResources
from triton.runtime import interpreter

from likewise.operator.triton import fused, launches, tuning
from likewise.operator.triton import weights as weights_module
from likewise.operator.triton.operands import Operand, precision
from likewise.operator.triton.weights import plans

pytestmark = pytest.mark.triton

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
SEEDED = torch.Generator()
PRECISIONS = [torch.float32, torch.bfloat16, torch.float16]


def in_every_precision(names, cases, *, by_turns=False):
    """Take cases in float32 and a half precision by turns, on a GPU in both; ``by_turns``: each in one of the three."""
    given = [] if by_turns and not GPU else [(torch.float32, *case) for case in cases]
    for turn, case in enumerate(cases):
        once = PRECISIONS[turn % 3] if by_turns else PRECISIONS[1 + turn % 2]
        given += [(half, *case) for half in (PRECISIONS[1:] if GPU else [once])]
    return pytest.mark.parametrize(("dtype", *names), given)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """In the interpreter, use tiles of 32 and 16 rows, so that small problems have every kind; a GPU uses its own."""
    if not GPU:
        monkeypatch.setattr(tuning, "tiles", lambda *_, **__: tuning.Tiles(32, 16, 4, 2))


@pytest.fixture(autouse=True)
def _one_order(monkeypatch):
    """In the interpreter, add up 16 terms of a product exactly and then in float32, as tensor cores do, in one order.

    The interpreter's own product is that of BLAS, whose order depends on the tile's shape, on some processors so that
    the backward's product is not the forward's: of rows of length 90 that is seen in every gradient.
    """

    def dot(_self, a, b, d, *_):
        total = d.data
        for first in range(0, a.data.shape[1], 16):
            columns, rows = a.data[:, first : first + 16], b.data[first : first + 16]
            total = (total + columns.astype(np.float64) @ rows.astype(np.float64)).astype(d.data.dtype)
        return interpreter.TensorHandle(total, d.dtype.scalar)

    if not GPU:
        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


@pytest.fixture
def splits(monkeypatch):
    """Split the loop over tiles among several programs, whose sums are combined; by default it is one."""
    monkeypatch.setattr(tuning, "splits", lambda _programs, walked, _device, **_: min(3, walked))


def clustered(n, d, dtype=torch.float32, clusters=5, spread=0.3, seed=0):
    """Return unit rows around a few centres: errors that cancel for random rows do not cancel for these."""
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
    parts = drawn.split([len(v) for v in sections], dim=1)
    own = sum(product(part, v) for part, v in zip(parts, sections, strict=True))
    if sections[0] is queries:
        own = own + product(parts[0].T, queries)
    gradients = [product(part.T, queries) for part, v in zip(parts, sections, strict=True) if v is not queries]
    slope = -(drawn * (queries @ torch.cat(sections).T)).sum() / temperature**2
    return [lse, own, *gradients], slope


def kernels(queries, others, push, temperature, upstream, *, among_themselves, constant=()):
    """Return the same as `plain`, computed by the kernels and autograd."""
    queries = queries.clone().requires_grad_()
    others = [v.clone().requires_grad_(k not in constant) for k, v in enumerate(others)]
    tau = torch.tensor([temperature], device=DEVICE, requires_grad=True)  # (1,); other tests learn a 0-d one
    sections = (*([queries] if among_themselves else []), *others)
    lse = lw.log_sum_exp(queries, sections, push=push, temperature=tau, backend="triton")
    learned = [queries, tau, *(v for v in others if v.requires_grad)]
    of_queries, slope, *gradients = torch.autograd.grad(lse, learned, upstream)
    whole = iter(gradients)
    return [lse, of_queries, *(next(whole) if v.requires_grad else None for v in others)], slope.squeeze(0)


def check_errors(ours, usual, exact, dtypes=itertools.repeat(torch.float32), slack=lambda _: 0):  # noqa: B008 - never ends
    """Check that errors are at most twice those of the plain formula, whose results come in these dtypes."""
    for k, (mine, theirs, true, dtype) in enumerate(zip(ours, usual, exact, dtypes, strict=False)):
        error, allowed = ((x.detach().to(DOUBLE) - true.detach()).norm() for x in (mine, theirs.to(dtype)))
        assert error <= 2 * allowed + slack(true.detach()), f"output {k}: {error:.2e}, the plain formula {allowed:.2e}"


def check(queries, others, push, temperature, *, among_themselves=True, constant=()):
    """Check that values and gradients have at most twice the error of the plain formula in the same precision."""
    upstream = torch.randn(len(queries), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    temperature = torch.tensor(temperature).item()  # as float32 has it, for all
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
    given = [mine is not None for mine in ours]
    ours, usual, exact = (list(itertools.compress(results, given)) for results in (ours, usual, exact))
    check_errors(ours, usual, exact, [torch.float32, *[queries.dtype] * len(ours)])  # gradients come as their rows do
    allowed = (usual[1].to(queries.dtype).to(DOUBLE) - exact[1]).norm()
    assert (slope.to(DOUBLE) - true_slope).abs() <= 2 * allowed * double.norm() / temperature


def beta_and_labels(n, r):
    """Return NWS's push for a queue: β times the dissimilarity of label sets that share no label."""
    own, others = sets(n, 70, seed=2).to(DEVICE), sets(r, 70, seed=3).to(DEVICE)
    similarity = torch.rand(70, 70, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    return ~pairs.SharesLabel(own, others) * (1 - pairs.MeanSimilarity(own, similarity, others)) * 0.1


def by_frequency(n, r):
    """Return BCL's push: equal weight for each class, an anchor's own class without its positives."""
    own, others = torch.arange(n) % 5, torch.arange(r) % 5
    same, counts = pairs.SameClass(own, others), torch.bincount(others, minlength=5)
    positives = same & pairs.NotSelf(n, r, 2)
    return (~same).scale(references=1 / counts[others]) + positives.scale(anchors=1 / (1 + torch.arange(n)))


@pytest.mark.usefixtures("splits")
@in_every_precision(["temperature"], [(0.003,), (0.1,), (0.1,)], by_turns=True)
def test_a_batch_among_itself(dtype, temperature):
    """All except the anchor itself, one class, other classes, a shared label: values and all gradients."""
    n = 35
    labels = torch.arange(n) % 7
    for push in (
        pairs.NotSelf(n),
        pairs.SameClass(labels) & pairs.NotSelf(n),
        ~pairs.SameClass(labels),
        pairs.SharesLabel(sets(n, 70)) & pairs.NotSelf(n),
        pairs.NotSelf(n) * 0.3,
    ):
        check(clustered(n, 20, dtype), (), push, temperature)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_one_pair_has_all_the_weight(dtype):
    """The rounding of a single pair is not averaged out: 22 bits for float32, else that of the half precision."""
    rows, others = clustered(40, 20, dtype), clustered(40, 20, dtype, seed=1)
    push = ~pairs.NotSelf(40)
    (lse, of_queries, of_keys), _ = kernels(
        rows, (others,), push, 0.1, torch.ones(40, device=DEVICE), among_themselves=False
    )
    torch.testing.assert_close(lse.double(), (rows.double() * others.double()).sum(dim=1) / 0.1, rtol=1e-6, atol=1e-6)
    bound = 2**-22 if dtype == torch.float32 else torch.finfo(dtype).eps
    for mine, true in ((of_queries, others), (of_keys, rows)):
        assert (mine.double() - true.double() / 0.1).norm() <= bound * (true.double() / 0.1).norm()


@pytest.mark.usefixtures("splits")
@in_every_precision(["temperature", "constant"], [(0.003, ()), (0.1, (1,)), (0.003, (0, 1))], by_turns=True)
def test_sections(dtype, temperature, constant):
    """Keys and a queue, with and without gradient, with and without the batch, with weights of every form."""
    n, keys, queue = 34, clustered(19, 20, dtype, seed=1), clustered(35, 20, dtype, seed=2)
    rows = clustered(n, 20, dtype)
    push = pairs.concat([by_frequency(n, 19), beta_and_labels(n, 35)])
    check(rows, (keys, queue), push, temperature, among_themselves=False, constant=constant)
    push = pairs.concat([pairs.NotSelf(n), pairs.concat([pairs.NotSelf(n, 19, 3), pairs.AllPairs(n, 35) * 0.5])])
    check(rows, (keys, queue), push, temperature, constant=constant)


@in_every_precision(["d"], [(1,), (17,), (128,), (300,), (300,)], by_turns=True)
def test_any_number_of_features(dtype, d):
    """Few features are padded and many are read in chunks, even if the forward computes the backward's product."""
    rows, others = clustered(20, d, dtype), clustered(18, d, dtype)
    check(rows, (), pairs.NotSelf(20), 0.1)
    check(rows, (others,), pairs.AllPairs(20, 18), 0.1, among_themselves=False, constant=(0,))


@in_every_precision(["n", "r"], [(1, 1), (1, 5), (2, 33), (33, 1), (0, 0), (0, 3), (3, 0)], by_turns=True)
def test_tiny_problems(dtype, n, r):
    """One row, one reference, none."""
    rows, others = clustered(n, 4, dtype), clustered(r, 4, dtype, seed=1)
    upstream, eps = torch.ones(n, device=DEVICE), torch.finfo(dtype).eps
    for weight in (pairs.AllPairs(n, r), pairs.NotSelf(n, r), pairs.SameClass(torch.arange(n), torch.arange(r) % 2)):
        ours, slope = kernels(rows, (others,), weight, 0.1, upstream, among_themselves=False)
        true, true_slope = plain(rows.double(), (others.double(),), weight, 0.1, upstream)
        torch.testing.assert_close(ours[0], true[0], rtol=1e-6, atol=1e-5, check_dtype=False)
        torch.testing.assert_close(slope, true_slope, rtol=4 * eps, atol=400 * eps, check_dtype=False)
        torch.testing.assert_close(ours[1:], true[1:], rtol=2 * eps, atol=40 * eps, check_dtype=False)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_duplicates(dtype):
    """Equal rows have the largest possible similarity, on the diagonal and off it."""
    check(clustered(60, 20, dtype, clusters=20, spread=0.0), (), pairs.NotSelf(60), 0.01)


def test_empty_rows_are_minus_infinity_without_gradient():
    """A row with an empty push is −inf and has no gradient, whatever the upstream."""
    z = clustered(70, 8).requires_grad_()
    labels = torch.arange(70).clamp(max=40)
    for push in (pairs.SameClass(labels) & pairs.NotSelf(70), (pairs.SameClass(labels) & pairs.NotSelf(70)) * 0.5):
        lse = lw.log_sum_exp(z, push=push, temperature=0.1, backend="triton")
        assert torch.isneginf(lse).tolist() == [i < 40 for i in range(70)]
        (gradient,) = torch.autograd.grad(lse, z, torch.zeros_like(lse).masked_fill(torch.isneginf(lse), torch.inf))
        assert gradient.abs().sum() == 0


def test_similarities_of_any_size():
    """Rows that are not normalised are exact, beyond the range of e^s, and excluded pairs may overflow."""
    for length in (1e-3, 30.0):
        rows = clustered(50, 12) * length * (1 + torch.arange(50, device=DEVICE)[:, None] % 3)
        check(rows, (), pairs.NotSelf(50), 0.1)
    rows = torch.eye(3, device=DEVICE) * 1e20
    lse = lw.log_sum_exp(rows, push=pairs.NotSelf(3), temperature=1.0, backend="triton")
    torch.testing.assert_close(lse, torch.full_like(lse, 2).log())


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16, None])
@pytest.mark.parametrize("pulls", [False, True])
def test_nothing_is_read_outside_the_rows(half, pulls):
    """Rows and sums surrounded by NaN in memory give the same results."""
    how, tau = precision(half, DEVICE), torch.tensor(0.1).to(DEVICE)
    same = pairs.SameClass((torch.arange(37) % 3).to(DEVICE), (torch.arange(45) % 3).to(DEVICE))
    weights = plans(ContrastSpec((Push(same),), same if pulls else None, own=(False,)), (45,), DEVICE)
    assert weights is not None
    common, (plan,) = launches.Common(weights, how, tau, fixed=False), weights.sections

    def among_nan(values):
        whole = values.new_full((*values.shape[:-1], values.shape[-1] + 128), torch.nan)
        whole[..., 64:-64] = values
        return whole[..., 64:-64]

    def placed(n, poisoned):
        rows = clustered(n, 16).to(how.stored)
        rows = among_nan(rows.flatten()).view(n, 16) if poisoned else rows
        parts = rows[None] if half else torch.stack([rows, torch.zeros_like(rows)])
        return Operand(parts, rows, torch.ones(n, device=DEVICE), 1.0)

    results = []
    for poisoned in (False, True):
        x, y = placed(37, poisoned), placed(45, poisoned)
        sums, terms = launches.forward([launches.visit("sums", x, y, plan, common)], 37, common)
        given = [sums.offset[0], torch.ones(37, device=DEVICE), torch.ones(37, device=DEVICE)]
        given = [among_nan(of) if poisoned else of for of in given]
        of_own = launches.RowArgs(given[0], given[1], given[2] if pulls else None)
        results.append([sums.total, *terms.logsums])
        for own, other, sides in ((x, y, (of_own, None)), (y, x, (None, of_own))):
            walk = launches.visit("backward", own, other, plan, common, swapped=own is y)
            out = torch.empty(walk.splits, len(own.came), 16, device=DEVICE)
            launches.backward(walk, sides, torch.ones((), device=DEVICE), out, None)
            results[-1].append(out)
    for clean, among in zip(*results, strict=True):
        assert torch.isfinite(clean).all()
        assert torch.equal(clean, among)


@pytest.mark.usefixtures("splits")
def test_same_input_same_bits():
    """Forward and backward give the same bits each time."""
    push = pairs.concat([pairs.NotSelf(40), pairs.AllPairs(40, 50)])
    arguments = clustered(40, 20), (clustered(50, 20, seed=1),), push, 0.1, torch.randn(40, device=DEVICE)
    one, other = (kernels(*arguments, among_themselves=True) for _ in range(2))
    assert torch.equal(one[1], other[1])
    assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))


def test_a_matrix_that_was_changed_is_noticed():
    """Weights that were changed in place after the forward raise in the backward, as in tiles."""
    matrix, z = torch.rand(20, 20, device=DEVICE), clustered(20, 8).requires_grad_()
    lse = lw.log_sum_exp(z, push=pairs.Explicit(matrix), temperature=0.1, backend="triton")
    matrix.mul_(2)
    with pytest.raises(RuntimeError, match="expected unchanged weights"):
        lse.sum().backward()


def test_pairwise_sums_go_by_tiles():
    """They are no log-sum-exps, which is all that kernels add up."""
    z, v = torch.randn(20, 8, device=DEVICE), torch.randn(30, 8, device=DEVICE)
    how = {"weight": pairs.AllPairs(20, 30), "function": "softplus", "temperature": 0.5, "bias": 0.1}
    mine, theirs = (lw.pairwise_sum(z, v, backend=backend, **how) for backend in ("triton", "tiled"))
    assert torch.equal(mine, theirs)


def test_weights_without_a_form_go_by_tiles():
    """Rows of a matrix by index, alone or in one of several sections: tiles evaluate the whole contrast."""
    rows, queue, index = clustered(70, 20), clustered(97, 20, seed=1), torch.arange(70) % 9
    explicit = pairs.Explicit(torch.rand(9, 97) * (torch.rand(9, 97) > 0.4), rows=index)
    matrix = ContrastSpec(
        (Push(pairs.concat([pairs.NotSelf(70), pairs.Explicit(torch.rand(70, 97))])),), own=(True, False)
    )
    assert plans(matrix, (70, 97), DEVICE) is not None  # a matrix that is given row by row has a form
    for push, others, among_themselves in (
        (pairs.concat([pairs.NotSelf(70), explicit]), (queue,), True),
        (explicit, (queue,), False),
    ):
        lengths = (*([70] if among_themselves else []), 97)
        assert plans(ContrastSpec((Push(push),)), lengths, DEVICE) is None
        check(rows, others, push, 0.1, among_themselves=among_themselves)


@in_every_precision(["name"], [(name,) for name in LOSSES], by_turns=True)
def test_every_loss(name, dtype):
    """Loss and gradients of every loss are those of the equation in float64."""
    row = LOSSES[name]
    batch = row.batch(12, draw(3))
    options = {"temperature": 0.1} if row.temperature else {}
    results = []
    for backend, number in (("triton", dtype), ("dense", DOUBLE), ("dense", torch.float32)):
        given = {k: v.detach().to(dtype if v.is_floating_point() else v.dtype) for k, v in batch.items()}
        given = {k: v.to(number if v.is_floating_point() else v.dtype) for k, v in given.items()}
        learned = [given[part].requires_grad_() for part in row.learned]
        loss = evaluated(row.make(backend=backend, **options).to(DEVICE), {k: v.to(DEVICE) for k, v in given.items()})
        results.append([loss, *torch.autograd.grad(loss, learned)])
    ours, exact, usual = results
    # Kernels round the normalised rows to the half precision in which they multiply; the equation does not.
    slack = 2e-6 + (0 if dtype == torch.float32 else 6 * torch.finfo(dtype).eps)
    dtypes = [torch.float32, *[dtype] * len(ours)]
    check_errors(ours, usual, exact, dtypes, lambda true: slack * true.norm().clamp(min=1))


def test_medium_precision_rounds_rows_once():
    """With "medium", float32 rows are rounded to bfloat16, in pull and in push; the gradient ignores it."""
    rows = clustered(70, 20)
    weights = {
        "pull": (pairs.SameClass(torch.arange(70) % 9) & pairs.NotSelf(70)).mean_over_row(),
        "push": pairs.NotSelf(70),
    }
    torch.set_float32_matmul_precision("medium")
    try:
        losses = lw.contrast(rows, **weights, temperature=0.1, backend="triton")
    finally:
        torch.set_float32_matmul_precision("highest")
    exact = lw.contrast(rows.bfloat16().double(), **weights, temperature=0.1, backend="dense")
    torch.testing.assert_close(losses.double(), exact, rtol=1e-5, atol=1e-5)


def test_label_sets_in_any_layout():
    """Label sets in column-major order are read like those in row-major order."""
    rows = clustered(64, 8)
    for labels in (16, 50, 64, 128):
        given = sets(labels, 64, seed=labels).T
        assert not given.is_contiguous()
        check(rows, (), ~pairs.SharesLabel(given) & pairs.NotSelf(64), 0.1)


def test_queries_in_two_sections():
    """Queries that occur twice among their references receive the gradient of both."""
    push = pairs.concat([pairs.NotSelf(40), pairs.SameClass(torch.arange(40) % 3)])
    gradients = []
    for backend, dtype in (("triton", torch.float32), ("dense", DOUBLE)):
        z = clustered(40, 8).to(dtype).requires_grad_()
        lse = lw.log_sum_exp(z, (z, z), push=push, temperature=0.1, backend=backend)
        gradients.append(torch.autograd.grad(lse.sum(), z)[0].to(DOUBLE))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("temperature", "upstream"), [(0.0255, 2.0**16), (0.02, 2.0**-60), (0.04, 1.0)])
def test_opposite_rows_and_a_gradient_scaler(temperature, upstream):
    """The lowest possible similarity, near the end of the fixed offset's range, with any upstream."""
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]], device=DEVICE)
    for push in (pairs.NotSelf(3), pairs.Equal(torch.tensor([0, 0, 1])) & pairs.NotSelf(3)):
        results = []
        for backend, dtype in (("triton", torch.float32), ("dense", DOUBLE)):
            z = rows.to(dtype).requires_grad_()
            lse = lw.log_sum_exp(z, push=push, temperature=torch.tensor(temperature).item(), backend=backend)
            given = torch.full_like(lse, upstream).masked_fill(lse == -torch.inf, 0)
            results.append([lse.detach().to(DOUBLE), torch.autograd.grad(lse, z, given)[0].to(DOUBLE)])
        (lse, gradient), (true_lse, true_gradient) = results
        torch.testing.assert_close(lse, true_lse, rtol=1e-6, atol=0)
        torch.testing.assert_close(gradient, true_gradient, rtol=1e-6, atol=0)


def test_a_weight_that_is_zero_is_exactly_zero():
    """One minus a mean similarity of one excludes the pair, in kernels as in tiles."""
    z = clustered(20, 8)
    for labels in (41, 47, 55, 61):
        own = torch.ones(20, labels, dtype=torch.bool)
        own[10:, labels // 2 :] = False
        for similarity in (torch.ones(labels, labels), torch.eye(labels)):
            how = {"push": 1 - pairs.MeanSimilarity(own, similarity), "temperature": 0.1}
            ours, tiles = (lw.log_sum_exp(z, **how, backend=backend) for backend in ("triton", "tiled"))
            torch.testing.assert_close(ours, tiles, rtol=1e-6, atol=1e-6)


def test_rows_of_weak_upstream():
    """Each row is exact relative to its own upstream, down to a hundred thousandth of the largest."""
    rows, others = clustered(64, 20), clustered(150, 20, seed=1)
    upstream = torch.full((64,), 1e-5, device=DEVICE)
    upstream[0] = 1
    (_, ours, _), _ = kernels(rows, (others,), pairs.AllPairs(64, 150), 0.1, upstream, among_themselves=False)
    (_, true, _), _ = plain(rows.double(), (others,), pairs.AllPairs(64, 150), 0.1, upstream)
    error = (ours.double() - true).norm(dim=1) / true.norm(dim=1)
    assert error.max() <= 2e-6


def test_magnitudes_that_are_far_from_one():
    """Tiny rows with a tiny upstream have a gradient, and a backward can be repeated."""
    rows, others = clustered(20, 8) * 1e-12, clustered(40, 8, seed=1) * 1e-12
    z = rows.clone().requires_grad_()
    lse = lw.log_sum_exp(z, others, push=pairs.AllPairs(20, 40), temperature=1e-6, backend="triton")
    given = torch.full_like(lse, 1e-15)
    first = torch.autograd.grad(lse, z, given, retain_graph=True)[0]
    (_, true, _), _ = plain(rows.double(), (others,), pairs.AllPairs(20, 40), 1e-6, given)
    assert (first.double() - true).norm() <= 1e-6 * true.norm()
    assert torch.equal(first, torch.autograd.grad(lse, z, given)[0])


@pytest.mark.slow
def test_long_sums_are_compensated(monkeypatch):
    """The rounding error of twenty thousand equal exponentials, not powers of two, does not add up."""
    if not GPU:
        monkeypatch.setattr(tuning, "tiles", lambda *_, **__: tuning.Tiles(16, 64, 4, 2))
    rows, others = torch.full((2, 1), 0.9, device=DEVICE), torch.full((20_000, 1), 0.8, device=DEVICE)
    others[0] = 1.3
    lse = lw.log_sum_exp(rows, others, push=pairs.AllPairs(2, 20_000), temperature=1.0, backend="triton")
    exact = (rows.double() @ others.double().T).logsumexp(dim=1)
    torch.testing.assert_close(lse.double(), exact, rtol=0, atol=1e-6)


def test_the_tiles_of_a_gpu(monkeypatch):
    """The tile sizes of a GPU give the same as the smaller ones in tests."""
    monkeypatch.undo()
    check(clustered(150, 20), (), pairs.NotSelf(150), 0.1)
    check(clustered(150, 20, torch.bfloat16), (), pairs.SameClass(torch.arange(150) % 7) & pairs.NotSelf(150), 0.1)


@pytest.mark.parametrize(
    ("device", "dtype", "message"),
    [
        ("cpu", torch.float64, "kernels need float32 or half precision, got float64"),
        ("meta", torch.float32, "kernels need tensors on an NVIDIA GPU, got meta"),
        ("cpu, old", torch.float32, "Triton 3.4 or newer is needed, got 3.1.0"),
        ("cpu, without", torch.float32, "Triton is not installed"),
        ("cuda", torch.float32, "kernels need compute capability 8.0 or newer, got 7.5, an old GPU"),
    ],
)
def test_what_cannot_run_says_why(device, dtype, message, monkeypatch):
    """The error says what is missing and what to use instead."""
    device, _, triton = device.partition(", ")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "an old GPU")
    if triton == "old":
        monkeypatch.setattr("triton.__version__", "3.1.0")
    elif triton == "without":
        monkeypatch.setattr(backends.importlib.util, "find_spec", lambda _: None)
    asked_once = backends.triton_is_missing, backends._no_kernels_on  # noqa: SLF001 - of each GPU
    for known in asked_once:
        known.cache_clear()
    with pytest.raises(ValueError, match=f'cannot run here: {message}.*; use "auto" or "tiled", which run anywhere'):
        backends.check_backend("triton", torch.device(device), dtype)
    for known in asked_once:
        known.cache_clear()


def supcon(rows, labels, temperature, number, half=None):
    """Return SupCon's loss and gradient by the dense formula in a precision: W = P − pull, rounded before its product.

    Rows are normalised, unless they come in a half precision, in which they are taken as they are.
    """
    rows = rows.to(number)
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True) if half is None else torch.ones_like(rows[:, :1])
    z = rows / lengths
    s = z @ z.T / temperature
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    positives = (labels[:, None] == labels) & ~itself
    count = positives.sum(dim=1, keepdim=True)
    pull = positives / count.clamp(min=1).to(number)
    lse = s.masked_fill(itself, -torch.inf).logsumexp(dim=1, keepdim=True)
    active = count > 0
    losses = torch.where(active, lse - (pull * s).sum(dim=1, keepdim=True), 0)
    w = torch.where(active, (s.masked_fill(itself, -torch.inf) - lse).exp() - pull, 0) / active.sum()
    w = w + w.T
    if half is not None:
        w = (w * 2.0**13).to(half).to(number) / 2.0**13
    g = w @ z / temperature
    if half is None:
        g = (g - z * (g * z).sum(dim=1, keepdim=True)) / lengths
    return losses.sum() / active.sum(), g


@in_every_precision(
    ["temperature", "spread"],
    list(itertools.product([0.05, 0.1, 0.5], [0.1, 0.01, 0.003, 0.001]))
    if GPU
    else [(0.05, 0.1), (0.1, 0.01), (0.05, 0.003), (0.5, 0.003), (0.05, 0.001), (0.1, 0.001)],
)
def test_tight_clusters(dtype, temperature, spread):
    """Push and pull almost cancel: value and gradient have at most twice the plain formula's error."""
    n, d = (1024, 128) if GPU else (64, 16)
    temperature = torch.tensor(temperature).item()
    rows = clustered(n, d, DOUBLE, clusters=16, spread=spread * d**0.5)
    labels, half = (torch.arange(n) % 16).to(DEVICE), None if dtype == torch.float32 else dtype
    rows = (rows * 3 if half is None else rows).to(dtype)
    usual = supcon(rows, labels, temperature, torch.float32, half)
    exact = supcon(rows, labels, temperature, DOUBLE, half and DOUBLE)
    z = rows.clone().requires_grad_()
    pull, options = (pairs.SameClass(labels) & pairs.NotSelf(n)).mean_over_row(), {"temperature": temperature}
    options |= {"coefficients": (None,), "reduction": "mean", "normalize": half is None}
    loss = outcome_of(z, (z,), pairs.NotSelf(n), pull, **options).losses
    ours = loss, torch.autograd.grad(loss, z)[0]
    check_errors(ours, usual, exact, (torch.float32, dtype), lambda true: 1e-7 * true if true.ndim == 0 else 0)


def outcomes(backend, number, rows, others, **options):
    """Return the parts of an outcome and the gradients of a weighted sum of them, in a precision."""
    z = rows.to(number).requires_grad_()
    given = [v.to(number).requires_grad_(need) for v, need in others]
    tau = torch.tensor(0.1, dtype=number if backend == "dense" else torch.float32, device=DEVICE, requires_grad=True)
    sections = tuple(z if k is None else given[k] for k in options.pop("sections"))
    outcome = evaluate(ContrastSpec(**options), z, sections, temperature=tau, backend=backend)
    generator = torch.Generator().manual_seed(5)
    parts = [outcome.losses] if options.get("coefficients") else [*outcome.logsums, *outcome.columns]
    parts += [outcome.attraction] if options.get("pull") is not None and not options.get("coefficients") else []
    parts = [part.masked_fill(part == -torch.inf, 0) for part in parts]
    total = sum((part * torch.randn(part.shape, generator=generator).to(part)).sum() for part in parts)
    learned = [z, tau, *(v for v in given if v.requires_grad)]
    return [*parts, *torch.autograd.grad(total, learned)], outcome.counts


def shapes(n):
    """Return the options that losses use, by name."""
    labels = (torch.arange(n) % 7).to(DEVICE)
    labels[-1] = 10**12
    not_self, one = pairs.NotSelf(n), torch.ones(n, device=DEVICE)
    same, own = pairs.SameClass(labels) & not_self, ~pairs.NotSelf(n)
    explicit = pairs.Explicit(torch.rand(n, 50) * (torch.rand(n, 50) > 0.5))
    label_sets = sets(n, 70).to(DEVICE)
    overlap = pairs.Overlap(label_sets) * not_self
    queue = pairs.NoPairs(n, 50), pairs.NoPairs(n, 31)
    return {
        "SupCon": {"pushes": (Push(not_self),), "pull": same.mean_over_row(), "coefficients": (None,)},
        "SupCon, in": {"pushes": (Push(not_self), Push(same.mean_over_row())), "coefficients": (one, -one)},
        "sums of positives": {"pushes": (Push(not_self),), "pull": same, "coefficients": (None,)},
        "scaled": {"pushes": (Push(not_self * 0.3),), "pull": same.scale(anchors=one * 2), "coefficients": (one,)},
        "hard negatives": {"pushes": (Push(~same, 2.0), Push(~same)), "pull": same},
        "two ways": {
            "pushes": (Push(pairs.AllPairs(n, n)),), "pull": own, "both_ways": True,
            "others": (n,), "sections": (0,),
        },
        "two ways, some rows and columns empty": {
            "pushes": (Push(pairs.SameClass(torch.arange(n) % 9, torch.arange(40) % 9 + 3)),), "both_ways": True,
            "others": (40,), "sections": (0,),
        },
        "two ways, weighted": {
            "pushes": (Push(by_frequency(n, 40)),), "both_ways": True, "others": (40,), "sections": (0,)
        },
        "queue": {
            "pushes": (Push(pairs.concat([not_self, pairs.AllPairs(n, 50), pairs.AllPairs(n, 31)])),),
            "pull": pairs.concat([same, *queue]).mean_over_row(), "coefficients": (None,),
            "others": (50, 31), "sections": (None, 0, 1),
        },
        "a matrix and a queue": {
            "pushes": (Push(pairs.concat([not_self, explicit, pairs.AllPairs(n, 31) * 0.5])),),
            "pull": pairs.concat([same, explicit, queue[1]]).mean_over_row(), "coefficients": (None,),
            "others": (50, 31), "sections": (None, 0, 1),
        },
        "a matrix": {
            "pushes": (Push(pairs.AllPairs(n, 50)),), "pull": explicit.mean_over_row(), "coefficients": (None,),
            "others": (50,), "sections": (0,),
        },
        "label sets": {"pushes": (Push(~pairs.SharesLabel(label_sets)),), "pull": overlap, "coefficients": (None,)},
        "streamed": {
            "pushes": (Push(not_self),), "pull": pairs.Jaccard(label_sets) * not_self, "coefficients": (None,)
        },
        "given sums": {
            "pushes": (Push(not_self),), "pull": overlap.with_row_sums(overlap.row_sum(device=DEVICE)),
            "coefficients": (None,),
        },
    }  # fmt: skip


@pytest.mark.usefixtures("splits")
@pytest.mark.parametrize("name", list(shapes(3)))
def test_pull_and_push_together(name):
    """Losses, log-sum-exps, attraction, active rows, and gradients of rows and τ, for any requested outputs."""
    n = 35
    reduction = "none" if name in {"sums of positives", "queue"} else "mean"
    options = {"sections": (None,), "reduction": reduction, "normalize": True} | shapes(n)[name]
    others = [
        (clustered(length, 20, DOUBLE, seed=k + 1) * 0.5, k == 0) for k, length in enumerate(options.pop("others", ()))
    ]
    rows = clustered(n, 20, DOUBLE) * 3
    (ours, counts), (true, true_counts), (usual, _) = (
        outcomes(backend, number, rows.float(), [(v.float(), need) for v, need in others], **options)
        for backend, number in (("triton", torch.float32), ("dense", DOUBLE), ("dense", torch.float32))
    )
    # τ's gradient is a sum over all pairs, with terms larger than the sum if losses leave a row's W unbalanced.
    slack = lambda exact: (4e-7 if exact.ndim else 2e-6) * exact.norm().clamp(min=1)  # noqa: E731 - one line
    check_errors(ours, usual, true, slack=slack)
    if counts:
        assert torch.equal(counts[0], true_counts[0])
        assert int(counts[1]) == int(true_counts[1])
    if len(counts) > 2:  # of the weight that is counted, without the factors of anchors
        push, pull = options["pushes"][-1].weight, options.get("pull")
        assert torch.equal(counts[2] > 0, (push if pull is None else pull).support(DEVICE))


def classes(kind, n):
    """Return keys of any integers: of a few classes, of one, all different, or of one large class and many small."""
    keys = {
        "few": torch.tensor([-(2**40), 3, 2**32 + 3, 2**40])[torch.randint(4, (n,), generator=SEEDED.manual_seed(0))],
        "one": torch.full((n,), -7),
        "all different": torch.randperm(n, generator=SEEDED.manual_seed(0)) * 2**33,
        "a large one": torch.randint(40, (n,), generator=SEEDED.manual_seed(0)).sub(25).clamp(min=0),
    }
    return keys[kind].to(DEVICE)


KINDS = "few", "one", "all different", "a large one"


@pytest.mark.parametrize(
    ("name", "kind", "split"),
    [
        (name, KINDS[(turn + 2 * split + turn // 4) % 4], split)
        for turn, name in enumerate(("out", "in", "mean and sum", "others", "scaled", "learned"))
        for split in (False, True)
    ],
)
def test_rows_sorted_by_key(name, kind, split, monkeypatch):
    """Whatever is sorted by the one key there is comes out where it came, as from the dense formula."""
    n = 101
    monkeypatch.setattr(weights_module, "MIN_ROWS_TO_SORT", n)
    if split:
        monkeypatch.setattr(tuning, "splits", lambda _programs, walked, _device, **_: min(3, walked))
    same, not_self = pairs.SameClass(classes(kind, n)), pairs.NotSelf(n)
    positives, c = (same & not_self).mean_over_row(), torch.rand(n, generator=SEEDED.manual_seed(1)).to(DEVICE)
    pushes, pull, coefficients, reduction = {
        "out": ((not_self,), positives, (None,), "mean"),
        "in": ((not_self, positives), None, (c, -c), "none"),
        "mean and sum": ((pairs.AllPairs(n, n), same & not_self), None, (c, -c), "sum"),
        "others": ((~same,), same & not_self, (c,), "none"),
        "scaled": (((~same | ~not_self) * 0.3,), (same & not_self) * 0.5, (None,), "mean"),
        "learned": ((same & not_self,), positives, (c,), "sum"),
    }[name]
    asked = ContrastSpec(tuple(map(Push, pushes)), pull, coefficients, reduction, normalize=True)
    found = plans(asked._replace(own=(True,)), (n,), DEVICE)
    assert found is not None
    assert found.order is not None
    results = []
    for backend, number in (("triton", torch.float32), ("dense", DOUBLE), ("dense", torch.float32)):
        rows, tau = (clustered(n, 20, DOUBLE) * 3).to(number).requires_grad_(), torch.tensor(0.1, device=DEVICE)
        tau = tau.to(number).requires_grad_() if name == "learned" else 0.1
        outcome = evaluate(asked, rows, (rows,), temperature=tau, backend=backend)
        upstream = torch.randn(outcome.losses.shape, generator=SEEDED.manual_seed(2)).to(rows)
        wanted = (rows, tau) if name == "learned" else (rows,)
        gradients = torch.autograd.grad(outcome.losses, wanted, upstream)
        results.append([outcome.losses.detach(), *gradients, *(x.to(DOUBLE) for x in outcome.counts)])
    ours, true, usual = results
    check_errors(ours, usual, true, slack=lambda exact: (1e-6 if exact.ndim == 0 else 0) * exact.norm().clamp(min=1))


@pytest.mark.parametrize("what", ["a queue", "a scale", "two keys", "rows as they are", "few rows"])
def test_what_is_not_sorted(what, monkeypatch):
    """Rows that something else tells apart by where they are."""
    n = 50
    monkeypatch.setattr(weights_module, "MIN_ROWS_TO_SORT", n + (what == "few rows"))
    one, other = (pairs.SameClass(torch.arange(n) % k) for k in (3, 4))
    push, own = pairs.NotSelf(n), (True,)
    if what == "a queue":
        one, push = (pairs.concat([weight, pairs.AllPairs(n, 9)]) for weight in (one, push))
        own = (True, False)
    push = push.scale(anchors=torch.rand(n)) if what == "a scale" else push & ~other if what == "two keys" else push
    asked = ContrastSpec((Push(push),), one, normalize=what != "rows as they are", own=own)
    found = plans(asked, (n, 9)[: len(own)], DEVICE)
    assert found is not None
    assert found.order is None


class _RecordedError(Exception):
    """What the first of two passes gives to the others."""


@pytest.mark.parametrize(
    ("sizes", "temperature", "normalize", "pulls", "learned"),
    [
        ((21, 1, 26), 0.07, True, True, True),
        ((21, 1, 26), 1.0, True, True, False),
        ((21, 0, 26), 0.07, True, True, False),
        ((0, 26), 1.0, True, False, True),
        ((20, 0), 0.5, False, True, True),
        ((0, 5, 17), 0.05, False, False, True),
        ((9, 0, 12), 2.0, False, True, False),
        ((0, 0), 0.07, True, True, True),
        ((0, 0, 0), 0.07, False, False, False),
    ],
)
def test_queries_that_are_part_of_the_references_have_their_whole_gradient(
    sizes, temperature, normalize, pulls, learned
):
    """Kernels on two or three processes, one after the other: what each tells the others is recorded, then given.

    Some have no rows. Each tells as much of a row as the others, once. One has longer rows than the others.
    """
    z = clustered(sum(sizes), 24)
    if not normalize:
        z[: sizes[0]] *= 2
    labels = torch.arange(len(z), device=DEVICE) % 3
    upstream = torch.rand(len(z), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    coefficients = (None if pulls else 1.0), 0.3
    told, values, gradients, slopes = [], [], [], []

    def step(rank, gather):
        offset, count = sum(sizes[:rank]), sizes[rank]
        mine = slice(offset, offset + count)
        queries = z[mine].clone().requires_grad_()
        tau = torch.tensor(temperature, device=DEVICE, requires_grad=True) if learned else temperature
        push = pairs.NotSelf(count, len(z), offset)
        pull = (pairs.SameClass(labels[mine], labels, offset=offset) & push).mean_over_row() if pulls else None
        problem = ContrastSpec(
            (Push(push), Push(push, 2.0)),
            pull,
            coefficients=tuple(c if c is None else torch.full((count,), c, device=DEVICE) for c in coefficients),
            normalize=normalize,
            part=LocalAnchors(offset, gather),
        )
        found = evaluate(problem, queries, (z.clone().requires_grad_(),), temperature=tau, backend="triton")
        (found.losses * upstream[mine]).sum().backward()
        values.append(found.losses.detach())
        gradients.append(queries.grad)
        slopes.append(tau.grad if learned else 0)

    def record(numbers):
        raise _RecordedError(numbers)

    for rank in range(len(sizes)):
        with pytest.raises(_RecordedError) as raised:
            step(rank, record)
        told.append(raised.value.args[0])
    assert len({(numbers.dtype, *numbers.shape[1:]) for numbers in told}) == 1
    assert [len(numbers) for numbers in told] == list(sizes)
    for rank in range(len(sizes)):
        asked = []
        step(rank, lambda numbers, asked=asked: asked.append(numbers) or torch.cat(told))
        assert len(asked) == 1
    wide, tau = z.double().requires_grad_(), torch.tensor(temperature, dtype=DOUBLE, device=DEVICE, requires_grad=True)
    unit = torch.nn.functional.normalize(wide, dim=1) if normalize else wide
    losses = [(unit.sum() / tau)[None][:0]]
    for i in range(len(z)):
        s = torch.cat([unit[:i], unit[i + 1 :]]) @ unit[i] / tau
        positives = torch.cat([labels[:i], labels[i + 1 :]]) == labels[i]
        attraction = s[positives].mean() if pulls and positives.any() else 0.0
        loss = s.logsumexp(dim=0) + 0.3 * (2 * s).logsumexp(dim=0) - attraction
        losses.append((loss if positives.any() or not pulls else 0 * loss)[None])
    losses = torch.cat(losses)
    (losses * upstream).sum().backward()
    scale = max([1e-30, *wide.grad.abs().flatten().tolist()])
    torch.testing.assert_close(torch.cat(values).double(), losses.detach(), rtol=2e-6, atol=2e-6)
    assert torch.cat(gradients).sub(wide.grad).abs().le(2e-6 * scale).all()
    assert not learned or abs(sum(slopes) - (tau.grad or 0)) <= 2e-6 * max(1, abs(tau.grad or 0))


def test_positives_are_counted():
    """With losses, the same loop counts each row's positives."""
    rows, labels = clustered(50, 8), (torch.arange(50) % 6).to(DEVICE)
    same = pairs.SameClass(labels) & pairs.NotSelf(50)
    pull = same.mean_over_row()
    outcome = outcome_of(rows, (rows,), pairs.NotSelf(50), pull, coefficients=(None,), reduction="mean")
    assert torch.equal(outcome.counts[2], same.row_sum(device=DEVICE))


@pytest.mark.parametrize("length", [1e-12, 1e12])
@pytest.mark.parametrize("d", [20, 300])
def test_rows_of_any_length_are_normalised(length, d):
    """Long and short rows are as exact as others, and a zero row has no gradient."""
    rows = clustered(40, d, DOUBLE) * length
    rows[7] = 0
    results = []
    for backend, number in (("triton", torch.float32), ("dense", DOUBLE)):
        z = rows.float().to(number).requires_grad_()
        (lse,) = outcome_of(z, (z,), pairs.NotSelf(40), backend=backend).logsums
        results.append([lse.detach(), *torch.autograd.grad(lse.sum(), z)])
    for mine, true in zip(*results, strict=True):
        assert (mine.double() - true).norm() <= 2e-6 * true.norm()
    assert results[0][1][7].abs().sum() == 0


@pytest.mark.parametrize("kernel", ["forward_kernel", "backward_kernel"])
def test_a_kernel_without_room_goes_by_tiles(kernel, monkeypatch):
    """A kernel that needs more shared memory than a GPU has raises nothing: tiles take its place, after one warning."""
    launched = launches._kernel  # noqa: SLF001 - where kernels meet their grids

    def lacking(what, grid):
        if what.__name__ == kernel:
            raise OutOfResources(163_840, 101_376, "shared memory")
        return launched(what, grid)

    monkeypatch.setattr(launches, "_kernel", lacking)
    fused._warn.cache_clear()  # noqa: SLF001 - it warns once in a process
    rows, keys, labels = clustered(40, 20), clustered(40, 20, seed=1), torch.arange(40, device=DEVICE) % 5

    def step(backend):
        z, v = rows.clone().requires_grad_(), keys.clone().requires_grad_()
        tau = torch.tensor(0.1, device=DEVICE, requires_grad=True)
        loss = lw.SupConLoss(temperature=tau, backend=backend)(z, labels)
        loss += lw.InfoNCELoss(symmetric=True, backend=backend)(z, v)
        return loss, *torch.autograd.grad(loss, (z, v, tau))

    with pytest.warns(UserWarning, match="goes by tiles where a kernel has no room") as seen:
        found = step("triton"), step("triton")
    assert len(seen) == 1, [str(each.message) for each in seen]
    for ours in found:
        torch.testing.assert_close(ours, step("tiled"), rtol=1e-5, atol=1e-6)


def test_a_kernel_without_room_is_an_error_where_processes_exchange_what_kernels_do(monkeypatch):
    """Tiles exchange other numbers, and a process without rows launches no kernel: the others would wait for it."""

    def lacking(*_):
        raise OutOfResources(163_840, 101_376, "shared memory")

    monkeypatch.setattr(launches, "_kernel", lacking)
    z, references = clustered(8, 20), clustered(16, 20)
    part = LocalAnchors(0, lambda rows: torch.zeros(16, *rows.shape[1:], device=DEVICE))
    with pytest.raises(RuntimeError, match=r"too little .shared memory.: choose backend=.tiled. on all processes"):
        outcome_of(z.requires_grad_(), (references,), pairs.NotSelf(8, 16, 0), part=part)


@pytest.mark.skipif(not GPU, reason="interpreted, so many rows take hours")
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("d", [20, 128, 256, 300])
def test_the_tiles_that_are_shipped(dtype, d):
    """The default tiles on a GPU, with enough rows to fill several of them."""
    for n in (700, 2000):
        labels = (torch.arange(n) % 9).to(DEVICE)
        check(clustered(n, d, dtype), (), pairs.NotSelf(n), 0.1)
        check(clustered(n, d, dtype), (), pairs.SameClass(labels) & pairs.NotSelf(n), 0.1)
        check(clustered(n, d, dtype), (clustered(900, d, dtype, seed=1),), pairs.AllPairs(n, 900), 0.1,
              among_themselves=False, constant=(0,))  # fmt: skip


def test_auto_never_interprets():
    """On the CPU "auto" uses one matrix of up to 65,536 pairs, then tiles, with or without the interpreter."""
    for rows, engine in ((256, backends.whole), (257, backends.tiled)):
        z = clustered(rows, 4).cpu().requires_grad_()
        lse = lw.log_sum_exp(z, push=pairs.NotSelf(rows), temperature=0.1)
        assert lse.grad_fn.engine is engine
