"""Properties of every loss on every backend: one table, one test per property."""

import gc
import inspect
from functools import partial
from itertools import cycle, islice, pairwise

import pytest
import torch

import likewise as lw
from cases import SIGNATURES, with_one_backend
from likewise.losses import ContrastiveLoss, Loss
from likewise.operator import tiled, tiles
from loss_table import LOSSES, draw, evaluate

DOUBLE = torch.float64
PUBLIC = {name: getattr(lw, name) for name in lw.__all__ if name.endswith("Loss")}
every_loss = pytest.mark.parametrize("name", LOSSES)
every_signature = pytest.mark.parametrize("name", SIGNATURES)


def leaves(name, batch):
    return [batch[part].requires_grad_() for part in LOSSES[name].learned]


def cast(batch, dtype):
    """Return a batch of its own whose embeddings are in a dtype."""
    return {k: v.detach().to(dtype if v.is_floating_point() else v.dtype, copy=True) for k, v in batch.items()}


def step(name, batch, dtype=DOUBLE, **options):
    """Return the loss and its gradients."""
    batch = cast(batch, dtype)
    wanted = leaves(name, batch)
    loss = evaluate(LOSSES[name].make(**options), batch)
    return loss.detach(), torch.autograd.grad(loss.sum(), wanted)


def test_the_table_has_every_loss():
    """No contrastive loss is missing; the others, without options, are also subclasses of Loss."""
    contrastive = {kind for kind in PUBLIC.values() if issubclass(kind, ContrastiveLoss)}
    assert contrastive == {type(row.make()) for row in LOSSES.values()} - {lw.Matryoshka}
    assert {kind.__name__ for kind in PUBLIC.values()} == set(PUBLIC)
    for kind in PUBLIC.values():
        assert issubclass(kind, Loss)
    for kind in set(PUBLIC.values()) - contrastive:
        assert kind().last == {}


def test_what_a_class_says_of_its_inputs():
    """Losses that need a momentum encoder, for a queue or targets, recommend it; the others recommend nothing.

    Optional inputs are keyword-only, except SupCon's labels.
    """
    wished = {name: kind.recommended_inputs for name, kind in PUBLIC.items() if kind.recommended_inputs}
    queue = "Momentum", "KeyQueue"
    assert wished == {"MSCLoss": queue, "NWSLoss": queue, "BYOLLoss": ("Momentum", "Predictor")}
    for name in ("MSCLoss", "NWSLoss"):
        assert {"queue", "queue_labels"} <= set(inspect.signature(PUBLIC[name].forward).parameters)
    for name, kind in PUBLIC.items():
        parameters = inspect.signature(kind.forward).parameters.values()
        optional = {of.name for of in parameters if of.default is not of.empty and of.kind is not of.KEYWORD_ONLY}
        assert optional == ({"labels"} if name == "SupConLoss" else set())
    without = {name.removesuffix("Loss") for name, kind in PUBLIC.items() if not kind.label_kinds}
    assert without == {"NTXent", "DCL", "HardNegative", "InfoNCE", "Clip", "SigLIP", "NPairs", "Triplet", "BYOL"}


LABELS_OF = {"labels", "cell_labels", "query_labels"}


@pytest.mark.parametrize("name", [name for name in SIGNATURES if LABELS_OF & set(LOSSES[name].batch(5, draw(1)))])
def test_label_kinds_are_those_that_are_taken(name):
    """A loss accepts the label kinds it names and refuses the others."""
    loss, batch = LOSSES[name].make(), LOSSES[name].batch(5, draw(1))
    (named,) = LABELS_OF & set(batch)
    of_sets = batch[named].ndim > 1 and named == "labels"
    assert ("label sets" if of_sets else "classes") in loss.label_kinds
    if len(loss.label_kinds) == 1:
        length = len(batch[named])
        with pytest.raises(ValueError, match=f"{named} "):
            evaluate(loss, batch | {named: torch.arange(length) if of_sets else torch.eye(length, 4)})


@with_one_backend(0, [name for name, row in LOSSES.items() if row.temperature or name == "Patch"])
def test_a_temperature_may_have_shape_1(name, backend):
    """Loss and gradients are those of a 0-d tensor; the gradient has the temperature's shape."""
    row, batch = LOSSES[name], LOSSES[name].batch(5, draw(1))
    option = "temperature" if row.temperature else "scale"
    results = []
    for shape in ((), (1,)):
        tau, parts = torch.full(shape, 0.5, dtype=DOUBLE, requires_grad=True), leaves(name, batch)
        loss = evaluate(row.make(backend=backend, **{option: tau}), batch)
        of_tau, *others = torch.autograd.grad(loss, [tau, *parts])
        assert of_tau.shape == shape
        results.append([loss, of_tau.reshape(()), *others])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@every_loss
def test_tiled_is_dense(name, monkeypatch):
    """Loss, rows and gradients agree in float64 in several tiles, at several temperatures down to 0.003."""
    for module in (tiles, tiled):
        monkeypatch.setattr(module, "TILE", 32)
    row = LOSSES[name]
    batch = row.batch(40, draw(2))
    for temperature, reduction in ((0.003, "mean"), (0.003, "none"), (0.02, "sum"), (0.1, "mean"), (1.0, "none")):
        options = {"temperature": temperature} if row.temperature else {}
        mine, theirs = (
            step(name, batch, backend=backend, reduction=reduction, **options) for backend in ("tiled", "dense")
        )
        close = {"rtol": 1e-10, "atol": 1e-10 / temperature}
        torch.testing.assert_close(mine, theirs, **close)


@with_one_backend(1)
def test_repeats_are_equal_bit_for_bit(name, backend):
    """The same input gives the same bits, forward and backward."""
    batch = LOSSES[name].batch(40, draw(4))
    one, other = (step(name, batch, torch.float32, backend=backend) for _ in range(2))
    assert torch.equal(one[0], other[0])
    assert all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))


@every_signature
def test_nothing_of_a_step_is_left_when_it_is_over(name):
    """No tensor and no node of the graph; a node that holds its own result would never be freed."""
    criterion, batch = LOSSES[name].make(backend="tiled"), cast(LOSSES[name].batch(70, draw(4)), torch.float32)
    wanted = leaves(name, batch)

    def left():
        gc.collect()
        kinds = [type(of) for of in gc.get_objects()]  # isinstance would ask lazy modules
        return sum(issubclass(kind, torch.Tensor) or kind.__name__.endswith("Backward") for kind in kinds)

    counts = []
    gc.freeze()  # what is older is neither collected nor counted: it is most of a heap of a million objects
    try:
        for _ in range(6):
            torch.autograd.grad(evaluate(criterion, batch).sum(), wanted)
            counts.append(left())
    finally:
        gc.unfreeze()
    assert any(after <= before for before, after in pairwise(counts[1:]))  # what is kept once is no leak: that grows


@with_one_backend(2)
def test_reductions(name, backend):
    """The sum is that of the rows, the mean is the sum over the active anchors, and inactive rows are 0."""
    row = LOSSES[name]
    batch = row.batch(7, draw(5))
    rows, total, mean = (evaluate(row.make(backend=backend, reduction=r), batch) for r in ("none", "sum", "mean"))
    loss = row.make(backend=backend)
    evaluate(loss, batch)
    count = int(loss.last["active_anchors"])
    assert rows.ndim == 1
    torch.testing.assert_close(rows.sum(), total)
    torch.testing.assert_close(total / count, mean)
    assert not row.counts_rows or int((rows != 0).sum()) == count
    assert loss.last["positives_per_anchor"].shape == rows.shape


def assert_finite(loss, gradients):
    assert torch.isfinite(loss)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@with_one_backend(0)
def test_a_batch_of_no_sample_or_one_is_finite(name, backend):
    """No sample at all: loss 0, connected to the graph, gradient 0."""
    row = LOSSES[name]
    assert_finite(*step(name, row.batch(1, draw(6)), backend=backend))
    loss, gradients = step(name, row.batch(0, draw(6)), backend=backend)
    assert loss == 0
    assert not any(gradient.any() for gradient in gradients)


@with_one_backend(1)
def test_zeros_and_collapse_are_finite(name, backend):
    """A zero row has zero gradient where rows are normalised; all rows equal, at a temperature of 0.003: finite."""
    row = LOSSES[name]
    first, cold = row.learned[0], {"temperature": 0.003} if row.temperature else {}
    for dtype in (DOUBLE, torch.float32, torch.float16, torch.bfloat16):
        batch = cast(row.batch(7, draw(7)), dtype)
        batch[first][0] = 0
        loss, gradients = step(name, batch, dtype, backend=backend)
        assert_finite(loss, gradients)
        assert not row.normalizes or not gradients[0][0].any()
        batch = {k: torch.ones_like(v) if v.is_floating_point() else v for k, v in batch.items()}
        loss, gradients = step(name, batch, dtype, backend=backend, **cold)
        assert_finite(loss, gradients)
        assert [of.dtype for of in (loss, *gradients)] == [torch.promote_types(dtype, torch.float32)] + [dtype] * len(
            gradients
        )


@with_one_backend(2)
def test_the_length_of_embeddings_does_not_matter(name, backend):
    """If the loss normalises, very short and very long embeddings give the loss of their directions."""
    row = LOSSES[name]
    batch = cast(row.batch(7, draw(8)), torch.float32)
    expected = evaluate(row.make(backend=backend), batch)
    others = {k: v for k, v in batch.items() if k.startswith(("class_logits", "guide"))}
    for scale in (1e-30, 1e30) if row.normalizes else (1e12,):
        scaled = {k: v * scale if v.is_floating_point() else v for k, v in batch.items()} | others
        changed = evaluate(row.make(backend=backend), scaled)
        if row.normalizes:
            torch.testing.assert_close(changed, expected)
        else:
            assert not torch.allclose(changed, expected)


@every_loss
def test_autocast_changes_nothing(name):
    """Under autocast the loss computes in float32, and so does its backward, in or out of it (dense: out of it)."""
    row = LOSSES[name]
    batch = cast(row.batch(40, draw(9)), torch.float32)
    parts = leaves(name, batch)
    for backend in ("dense", "tiled"):
        expected = evaluate(row.make(backend=backend), batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = evaluate(row.make(backend=backend), batch)
            inside = torch.autograd.grad(found, parts, retain_graph=True) if backend == "tiled" else ()
        assert torch.equal(found, expected)
        gradients = torch.autograd.grad(expected, parts)
        for mine in (torch.autograd.grad(found, parts), inside or gradients):
            assert all(torch.equal(a, b) for a, b in zip(mine, gradients, strict=True))


@with_one_backend(0)
def test_inference_mode_gives_the_same_loss(name, backend):
    """In inference mode, where tensors have no version counter, the value is the same as in training."""
    row = LOSSES[name]
    batch = row.batch(7, draw(14))
    expected = evaluate(row.make(backend=backend), batch)
    with torch.inference_mode():
        inside = {name: value.clone() for name, value in batch.items()}
        assert torch.equal(evaluate(row.make(backend=backend), inside), expected)


@every_loss
def test_a_diverged_batch_shows(name):
    """If similarities overflow the loss is not 0: it is NaN or infinite, or the input is refused."""
    row = LOSSES[name]
    batch = cast(row.batch(7, draw(15)), torch.float32)
    first = row.learned[0]
    batch[first] = batch[first] * 1e30
    try:
        loss = evaluate(row.make(normalize=False), batch)
    except ValueError as error:
        assert "finite" in str(error)  # noqa: PT017 - either way is right
    else:
        assert loss != 0


@every_loss
def test_known_sums_of_a_pull_are_its_sums(name, monkeypatch):
    """If a loss knows its pull's row sums, they are those of the weights, and positive where there is support."""
    told, outcome = [], ContrastiveLoss.outcome

    def note(self, rows, problem, *others):
        told.append(problem.pull)
        return outcome(self, rows, problem, *others)

    monkeypatch.setattr(ContrastiveLoss, "outcome", note)
    evaluate(LOSSES[name].make(), LOSSES[name].batch(7, draw(13)))
    assert (len(told) > 0) == (
        name.partition(",")[0] not in {"Triplet", "BatchTriplet", "Prototypical", "ArcFace", "CosFace", "ProxyNCA"}
    )
    for pull in told:
        if pull is not None:
            weights = pull.dense(DOUBLE)
            torch.testing.assert_close(pull.row_sum(DOUBLE), weights.sum(dim=1))
            assert torch.equal(pull.support(), (weights != 0).any(dim=1))


def nested(value):
    return torch.nested.as_nested_tensor(list(value.unbind()), layout=torch.jagged if value.ndim > 1 else torch.strided)


def quantized(value):
    return torch.quantize_per_tensor(value.float(), 0.1, 0, torch.qint8)


def with_a(number, value):
    changed = value.clone()
    changed.view(-1)[3] = number
    return changed


BAD = {
    "float8": (lambda value: value.to(torch.float8_e4m3fn), "got torch.float8_e4m3fn"),
    "complex": (lambda value: value.to(torch.complex64), "got torch.complex64"),
    "sparse": (lambda value: value.to_sparse(), "got torch.sparse_coo: convert it with .to_dense"),
    "sparse rows": (lambda value: value.flatten(1).to_sparse_csr(), "got torch.sparse_csr: convert it with .to_dense"),
    "nested": (nested, "got a nested tensor: pad it"),
    "meta": (lambda value: value.to("meta"), "got (a tensor on the device )?meta: (make it|move)"),
    "quantized": (quantized, "got torch.qint8: convert it with .dequantize"),
}
"""Tensors that no loss supports: how to make one, and what the error says it got."""

unusual = pytest.mark.filterwarnings(
    "ignore:Sparse CSR:UserWarning",
    "ignore:The PyTorch API of nested:UserWarning",
    "ignore:torch.quantize_per_tensor:UserWarning",
)
"""Torch's own warnings when such tensors are created."""


@unusual
@every_signature
def test_what_is_not_finite_dense_and_plain_is_refused(name):
    """Every argument of every loss is checked before it is used: the error names it, in one line."""
    row = LOSSES[name]
    batch, kinds = row.batch(7, draw(12)), cycle(BAD)
    for part, value in batch.items():
        bad = {kind: BAD[kind] for kind in islice(kinds, 3) if kind != "sparse rows" or value.ndim > 1}
        if part in row.learned:
            for number in (torch.nan, torch.inf):
                bad[number] = partial(with_a, number), "finite"
        for change, message in bad.values():
            called = "(embeddings|view_0)" if part == "embeddings" else part
            with pytest.raises(ValueError, match=f"{called} .*{message}") as error:
                evaluate(row.make(), batch | {part: change(value)})
            assert "\n" not in str(error.value)


@unusual
@pytest.mark.parametrize("bad", BAD)
def test_a_mask_and_similarities_that_are_not_dense_and_plain_are_refused(bad):
    """Matrices that accompany a batch are checked too, and so are BYOL's two inputs."""
    change, message = BAD[bad]
    z, matrix = torch.randn(4, 3), torch.eye(4)
    with pytest.raises(ValueError, match=f"mask .*{message}"):
        lw.SupConLoss()(z, mask=change(matrix))
    with pytest.raises(ValueError, match=f"targets .*{message}"):
        lw.BYOLLoss()(z, change(z))
    with pytest.raises(ValueError, match=f"label_similarity .*{message}"):
        lw.NWSLoss(change(matrix))


@pytest.fixture
def in_double():
    """Let tensors be float64 where nothing else is asked for, as in a program for small differences."""
    torch.set_default_dtype(DOUBLE)
    yield
    torch.set_default_dtype(torch.float32)


@every_signature
@pytest.mark.usefixtures("in_double")
def test_a_default_dtype_of_float64_changes_nothing(name):
    """Neither the type of values nor these: of float32 embeddings, and a loss that is made under it."""
    batch = LOSSES[name].batch(14, draw(3))
    found = step(name, batch, torch.float32)
    torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, step(name, batch, torch.float32), rtol=1e-4, atol=1e-5)
