"""The losses: reference values, gradients, properties, degenerate batches, several views, label sets, masks, errors."""

import math
import warnings
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import likewise as lw
from likewise.losses import ContrastiveLoss
from likewise.losses.checks import warn_if_inactive
from likewise.losses.inputs import Classes, Embeddings, References, Views

BACKENDS = ["dense", "tiled"]
DOUBLE = torch.float64
CASES = ["nt_xent", "supcon_out", "supcon_in", "supcon_out_single_view"]


def embeddings(*shape, dtype=DOUBLE):
    return torch.randn(*shape, dtype=dtype)


def loop(z, positive, temperature, form="out", references=None):
    """Return SupCon's row losses as the paper writes them, one pair at a time; None on anchors without positives."""
    z = torch.nn.functional.normalize(z, dim=1)
    others = z if references is None else torch.nn.functional.normalize(references, dim=1)
    losses = []
    for i in range(len(z)):
        rest = [u for u in range(len(others)) if references is not None or u != i]
        chosen = [p for p in rest if positive(i, p)]
        if not chosen:
            losses.append(None)
            continue
        denominator = sum(torch.exp(z[i] @ others[u] / temperature) for u in rest)
        ratios = [torch.exp(z[i] @ others[p] / temperature) / denominator for p in chosen]
        if form == "out":
            losses.append(-sum(torch.log(ratio) for ratio in ratios) / len(chosen))
        else:
            losses.append(-torch.log(sum(ratios) / len(chosen)))
    return losses


def mean(losses):
    active = [loss for loss in losses if loss is not None]
    return sum(active) / len(active)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("draw", ["a", "b"])
@pytest.mark.parametrize("case", CASES)
def test_reference_values(case, draw, dtype, backend):
    """Loss, rows and gradient are the reference's."""
    reference = np.load(Path(__file__).parents[1] / "golden" / f"{case}_{draw}.npz")
    temperature = float(reference["input.temperature"])
    leaf = torch.tensor(reference["input.embeddings"], dtype=dtype, requires_grad=True)
    labels = torch.tensor(reference["input.labels"])
    if case == "nt_xent":
        make, arguments = lw.NTXentLoss, (leaf,)
    else:
        make, arguments = lw.SupConLoss, (leaf, labels)
    options = {"form": "in"} if case == "supcon_in" else {}
    loss = make(temperature=temperature, backend=backend, **options)(*arguments)
    loss.backward()
    rows = make(temperature=temperature, backend=backend, reduction="none", **options)(*arguments)
    expected_rows = np.nan_to_num(reference["rows"])
    tolerance = 1e-10 if dtype == DOUBLE else 1e-5
    for mine, theirs in (
        (loss, reference["loss"]),
        (rows, expected_rows),
        (leaf.grad, reference["grad.embeddings"]),
    ):
        bound = tolerance * max(np.abs(theirs).max(), 1 / temperature)
        assert np.abs(mine.detach().numpy() - theirs).max() <= bound


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["out", "in"])
@pytest.mark.parametrize("views", [1, 2, 3])
def test_sup_con_with_labels_is_the_double_loop(backend, form, views):
    """One, two and three views: loss and gradient of the paper's sums; row v·B + b is sample b's view v."""
    labels = torch.tensor([0, 1, 0, 2, 1])
    batch = embeddings(5, views, 4).requires_grad_()
    rows = torch.cat(batch.unbind(dim=1))
    expected = mean(loop(rows, lambda i, p: labels[i % 5] == labels[p % 5], 0.2, form))
    loss = lw.SupConLoss(temperature=0.2, form=form, backend=backend)(batch, labels)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, batch)[0] for value in (loss, expected)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["out", "in"])
def test_label_sets_share_one_label(backend, form):
    """With multi-hot labels the positives share a label; a sample without labels has only negatives."""
    labels = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 0], [0, 0, 1]])
    batch = embeddings(5, 2, 4).requires_grad_()
    rows = torch.cat(batch.unbind(dim=1))
    expected = loop(rows, lambda i, p: (labels[i % 5] * labels[p % 5]).sum() > 0, 0.2, form)
    criterion = lw.SupConLoss(temperature=0.2, form=form, backend=backend)
    loss = criterion(batch, labels)
    torch.testing.assert_close(loss, mean(expected))
    torch.testing.assert_close(*(torch.autograd.grad(value, batch)[0] for value in (loss, mean(expected))))
    assert criterion.last["active_anchors"] == 8
    assert criterion.last["positives_per_anchor"].tolist() == [3, 5, 5, 0, 3] * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["out", "in"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_an_explicit_mask_defines_the_positives(backend, form, dtype):
    """Any mask, even an asymmetric one, applies to every pair of views; its diagonal is for the other views."""
    mask = torch.tensor([[1, 1, 0], [0, 0, 1], [0, 0, 1]]).to(dtype)
    batch = embeddings(3, 2, 4)
    rows = torch.cat(batch.unbind(dim=1))
    expected = mean(loop(rows, lambda i, p: mask[i % 3, p % 3] > 0, 0.2, form))
    torch.testing.assert_close(lw.SupConLoss(temperature=0.2, form=form, backend=backend)(batch, mask=mask), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["out", "in"])
def test_separate_references(backend, form):
    """No anchor is among separate references; labels, label sets and masks all define the positives."""
    labels, reference_labels = torch.tensor([0, 1, 2]), torch.tensor([1, 0, 1, 3])
    batch, references = embeddings(3, 2, 4).requires_grad_(), embeddings(4, 4).requires_grad_()
    rows = torch.cat(batch.unbind(dim=1))
    expected = mean(loop(rows, lambda i, p: labels[i % 3] == reference_labels[p], 0.2, form, references))
    criterion = lw.SupConLoss(temperature=0.2, form=form, backend=backend)
    loss = criterion(batch, labels, references=references, reference_labels=reference_labels)
    torch.testing.assert_close(loss, expected)
    leaves = [batch, references]
    for mine, theirs in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(mine, theirs)
    one_hot = torch.nn.functional.one_hot
    by_sets = criterion(batch, one_hot(labels, 4), references=references, reference_labels=one_hot(reference_labels, 4))
    by_mask = criterion(batch, mask=labels[:, None] == reference_labels, references=references)
    torch.testing.assert_close(by_sets, expected)
    torch.testing.assert_close(by_mask, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["out", "in"])
@pytest.mark.parametrize("beside", ["batch", "references"])
@pytest.mark.parametrize("kind", ["classes", "sets"])
def test_a_queue_with_the_batch_or_references(kind, beside, form, backend):
    """The references are the batch without self, or the given ones, plus the queue: one loop over all."""
    labels, others, older = torch.tensor([0, 1, 2]), torch.tensor([1, 0, 1, 3]), torch.tensor([2, 0, 5, 1, 1])
    batch, references, queue = embeddings(3, 2, 4).requires_grad_(), embeddings(4, 4), embeddings(5, 4)
    rows = torch.cat(batch.unbind(dim=1))
    given = {"references": references, "reference_labels": others} if beside == "references" else {}
    everyone = torch.cat([rows if beside == "batch" else references, queue])
    all_labels = torch.cat([labels.repeat(2) if beside == "batch" else others, older])
    z, v = (torch.nn.functional.normalize(part, dim=1) for part in (rows, everyone))
    losses = []
    for i in range(6):
        s = torch.stack([z[i] @ v[u] / 0.2 for u in range(len(v)) if beside == "references" or u != i])
        alike = torch.stack([labels[i % 3] == all_labels[u] for u in range(len(v)) if beside == "references" or u != i])
        if alike.any():
            positives = s[alike]
            inside = positives.mean() if form == "out" else positives.exp().mean().log()
            losses.append(s.logsumexp(0) - inside)
    if kind == "sets":
        labels, older = (torch.nn.functional.one_hot(of, 6) for of in (labels, older))
        given |= {"reference_labels": torch.nn.functional.one_hot(others, 6)} if given else {}
    criterion = lw.SupConLoss(temperature=0.2, form=form, backend=backend)
    loss = criterion(batch, labels, **given, queue=queue, queue_labels=older)
    torch.testing.assert_close(loss, mean(losses))
    torch.testing.assert_close(*(torch.autograd.grad(value, batch)[0] for value in (loss, mean(losses))))


def test_labels_and_references_of_other_dtypes():
    """Small integers with large, and float64 with float32: nothing wraps around, dtypes are promoted."""
    batch, references = embeddings(3, 4, dtype=torch.float32), embeddings(4, 4)
    labels, others = torch.tensor([0, 1, 44], dtype=torch.uint8), torch.tensor([0, 300, 300, 1])
    loss = lw.SupConLoss(temperature=0.2)(batch, labels, references=references, reference_labels=others)
    expected = mean(loop(batch.double(), lambda i, p: int(labels[i]) == others[p], 0.2, "out", references))
    assert loss.dtype == DOUBLE
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nt_xent_with_three_views_averages_its_positives(backend):
    """Three views: the mean over the two other views of the sample."""
    batch = embeddings(4, 3, 5)
    rows = torch.cat(batch.unbind(dim=1))
    expected = mean(loop(rows, lambda i, p: i % 4 == p % 4, 0.3))
    torch.testing.assert_close(lw.NTXentLoss(temperature=0.3, backend=backend)(batch), expected)
    torch.testing.assert_close(lw.NTXentLoss(temperature=0.3, backend=backend)(*batch.unbind(dim=1)), expected)


def test_sup_con_without_labels_is_nt_xent():
    """Neither labels nor mask: the positives are the views of the sample."""
    batch = embeddings(6, 2, 5)
    assert torch.equal(lw.SupConLoss(temperature=0.5)(batch), lw.NTXentLoss(temperature=0.5)(batch))


def test_a_learned_temperature_is_a_parameter():
    """A temperature given as a parameter becomes the module's parameter, and is trained."""
    tau = torch.nn.Parameter(torch.tensor(0.1))
    criterion = lw.NTXentLoss(temperature=tau)
    criterion(embeddings(4, 2, 3, dtype=torch.float32)).backward()
    assert list(criterion.parameters()) == [tau]
    assert tau.grad is not None
    assert tau.grad != 0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.003, 0.05, 0.5, 1.0]))
def test_in_is_at_most_out(seed, temperature):
    """L_in ≤ L_out for every anchor, by Jensen's inequality, and strictly where positives differ."""
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(8, 2, 4, dtype=DOUBLE, generator=generator)
    labels = torch.randint(0, 3, (8,), generator=generator)
    out, inside = (
        lw.SupConLoss(temperature=temperature, form=form, reduction="none")(batch, labels) for form in ("out", "in")
    )
    assert (inside <= out + 1e-12 / temperature).all()
    assert inside.sum() < out.sum()


@pytest.mark.parametrize("form", ["out", "in"])
def test_gradient_is_that_of_equations_4_and_5(form):
    """∂ℓ_i/∂z_i = 1/τ { Σ_p v_p (P_ip − X_ip) + Σ_n v_n P_in }, X = 1/|P| (out), softmax over positives (in)."""
    temperature, labels = 0.3, torch.tensor([0, 0, 1, 0, 1])
    z = torch.nn.functional.normalize(embeddings(5, 4), dim=1)
    query = z[0].clone().requires_grad_()
    rest, positive = torch.arange(1, 5), torch.tensor([True, False, True, False])
    loss = lw.SupConLoss(temperature=temperature, form=form, normalize=False, backend="tiled")(
        query[None], labels[:1], references=z[rest], reference_labels=labels[rest]
    )
    similarity = z[rest] @ z[0] / temperature
    probability = similarity.softmax(dim=0)
    if form == "out":
        target = positive / positive.sum()
    else:
        target = similarity.masked_fill(~positive, -torch.inf).softmax(dim=0)
    expected = ((probability - target)[:, None] * z[rest]).sum(dim=0) / temperature
    torch.testing.assert_close(torch.autograd.grad(loss, query)[0], expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.003, 0.02, 0.1, 1.0]), st.sampled_from(["out", "in"]))
def test_order_names_and_views_do_not_matter(seed, temperature, form):
    """Permuting samples, renaming labels and swapping views permute the rows' losses, and change nothing else."""
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(7, 2, 4, dtype=DOUBLE, generator=generator)
    labels = torch.randint(0, 3, (7,), generator=generator)
    criterion = lw.SupConLoss(temperature=temperature, form=form, reduction="none")
    rows = criterion(batch, labels).view(2, 7)
    close = {"rtol": 1e-10, "atol": 1e-10 / temperature}
    order = torch.randperm(7, generator=generator)
    torch.testing.assert_close(criterion(batch[order], labels[order]).view(2, 7), rows[:, order], **close)
    names = torch.tensor([10**15, -3, 7])
    torch.testing.assert_close(criterion(batch, names[labels]).view(2, 7), rows, **close)
    torch.testing.assert_close(criterion(batch.flip(1), labels).view(2, 7), rows.flip(0), **close)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["out", "in"])
@pytest.mark.parametrize("temperature", [0.003, 0.02, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_duplicates_and_collapse_are_finite(backend, form, temperature, dtype):
    """Embeddings all equal: the loss is log(N − 1), at any temperature and precision, with no NaN in the gradient."""
    batch = torch.ones(6, 4, dtype=dtype, requires_grad=True)
    loss = lw.SupConLoss(temperature=temperature, form=form, backend=backend)(batch, torch.tensor([0, 0, 1, 1, 2, 2]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(5), rel=1e-4, abs=2e-4)
    assert torch.isfinite(batch.grad).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["out", "in"])
@pytest.mark.parametrize("shape", [(1, 3), (4, 3), (0, 3), (0, 2, 3)])
def test_no_active_anchor_is_zero_with_zero_gradient(backend, form, shape):
    """N = 1, all labels different, or nothing at all: loss 0, connected, gradient 0."""
    batch = embeddings(*shape).requires_grad_()
    criterion = lw.SupConLoss(form=form, backend=backend)
    loss = criterion(batch, torch.arange(shape[0]))
    loss.backward()
    assert loss == 0
    assert batch.grad is not None
    assert batch.grad.abs().sum() == 0
    assert criterion.last["active_anchors"] == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["out", "in"])
def test_inactive_anchors_are_left_out_of_the_mean(backend, form):
    """The mean is over active anchors; "none" returns zeros on the others; "sum" sums."""
    batch, labels = embeddings(5, 3), torch.tensor([0, 0, 1, 2, 2])
    rows = lw.SupConLoss(form=form, reduction="none", backend=backend)(batch, labels)
    assert rows[2] == 0
    torch.testing.assert_close(lw.SupConLoss(form=form, backend=backend)(batch, labels), rows.sum() / 4)
    torch.testing.assert_close(lw.SupConLoss(form=form, reduction="sum", backend=backend)(batch, labels), rows.sum())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_zero_embedding_has_zero_gradient(dtype):
    """A zero row normalises to zero, with zero gradient, in every dtype."""
    batch = embeddings(4, 3).to(dtype)
    batch[1] = 0
    batch.requires_grad_()
    lw.SupConLoss()(batch, torch.tensor([0, 0, 1, 1])).backward()
    assert torch.isfinite(batch.grad).all()
    assert (batch.grad[1] == 0).all()
    assert (batch.grad[0] != 0).any()


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_length_does_not_matter(scale):
    """Very short and very long embeddings give the loss of their directions."""
    batch, labels = embeddings(6, 4, dtype=torch.float32), torch.tensor([0, 0, 1, 1, 2, 2])
    torch.testing.assert_close(lw.SupConLoss()(batch * scale, labels), lw.SupConLoss()(batch, labels))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_comes_back_in_its_dtype(dtype):
    """Half-precision embeddings give a float32 loss and a half-precision gradient, near those of float64."""
    exact = embeddings(40, 2, 16)
    exact = exact.to(dtype).double().requires_grad_()
    batch = exact.detach().to(dtype).requires_grad_()
    labels = torch.arange(40) % 4
    loss, expected = lw.SupConLoss()(batch, labels), lw.SupConLoss()(exact, labels)
    loss.backward()
    expected.backward()
    assert loss.dtype == torch.float32
    assert batch.grad.dtype == dtype
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(batch.grad.double(), exact.grad, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("change", ["labels", "label sets", "mask"])
def test_labels_may_change_before_the_backward(change):
    """Changing labels after the forward does not change the gradient; a mask that tiles read again raises."""
    batch, labels = embeddings(150 if change == "mask" else 80, 2, 4).requires_grad_(), torch.arange(150) % 3
    labels = labels[: len(batch)]
    if change != "labels":
        labels = torch.nn.functional.one_hot(labels).bool()
    mask = (labels.int() @ labels.T.int()).bool() if change == "mask" else None
    criterion = lw.SupConLoss(temperature=0.2)
    expected = torch.autograd.grad(criterion(batch, labels), batch)[0]
    loss = criterion(batch, mask=mask) if change == "mask" else criterion(batch, labels)
    if mask is not None:
        few = criterion(batch[:80], mask=mask[:80, :80])
        expected = torch.autograd.grad(few, batch, retain_graph=True)[0]
        mask.zero_()
        torch.testing.assert_close(torch.autograd.grad(few, batch)[0], expected)  # one matrix is kept
        with pytest.raises(RuntimeError, match="changed in place"):
            loss.backward()
    else:
        labels.zero_()
        torch.testing.assert_close(torch.autograd.grad(loss, batch)[0], expected)


def test_a_gradient_of_the_gradient_is_exact_or_refused():
    """With create_graph the dense backend is twice differentiable, normalisation included; the tiled one refuses."""
    batch, labels = embeddings(5, 3).requires_grad_(), torch.arange(5) % 2
    assert torch.autograd.gradgradcheck(lambda z: lw.SupConLoss(backend="dense", temperature=0.5)(z, labels), (batch,))
    loss = lw.SupConLoss(backend="tiled", temperature=0.5)(batch, labels)
    with pytest.raises(RuntimeError, match='backend="dense"'):
        torch.autograd.grad(loss, batch, create_graph=True)


def test_autocast_changes_nothing():
    """Under autocast, forward and backward of a loss compute in float32."""
    batch, labels = embeddings(600, 16, dtype=torch.float32).requires_grad_(), torch.arange(600) % 9
    expected = torch.autograd.grad(lw.SupConLoss()(batch, labels), batch)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine = torch.autograd.grad(lw.SupConLoss()(batch, labels), batch)[0]
    assert torch.equal(mine, expected)


def test_the_representation_of_a_loss():
    """The representation shows the parameters."""
    assert repr(lw.SupConLoss(temperature=0.2, form="in")).startswith(
        "SupConLoss(temperature=0.2, form='in', reduction="
    )


def test_a_loss_has_no_hidden_state():
    """A copy gives the same value, and the state is empty."""
    criterion = lw.SupConLoss(temperature=0.2, form="in")
    batch, labels = embeddings(6, 4), torch.arange(6) % 2
    expected = criterion(batch, labels)
    import copy  # noqa: PLC0415 - only here

    assert torch.equal(copy.deepcopy(criterion)(batch, labels), expected)
    assert not criterion.state_dict()


ROWS, VIEWS, LABELS = torch.ones(4, 3), torch.ones(4, 2, 3), torch.tensor([0, 0, 1, 1])
NAN = torch.tensor([[1.0, 2.0], [torch.nan, 1.0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lw.SupConLoss(temperature=0), "temperature to be a positive number .*got 0"),
        (lambda: lw.NTXentLoss(temperature=-0.5), "positive number .*got -0.5"),
        (lambda: lw.SupConLoss(form="both"), "form to be .* got 'both'"),
        (lambda: lw.SupConLoss(reduction="average"), "reduction to be one of mean, sum, none, got 'average'"),
        (lambda: lw.SupConLoss(backend="gpu"), "backend to be one of"),
        (lambda: lw.SupConLoss()(ROWS, LABELS[:3]), "one entry for each of 4 embeddings, got 3"),
        (lambda: lw.SupConLoss()(ROWS), "something that defines the positives"),
        (lambda: lw.SupConLoss()(VIEWS[:, :1]), "something that defines the positives"),
        (lambda: lw.SupConLoss()(ROWS, LABELS.float()), "integer classes"),
        (lambda: lw.SupConLoss()(ROWS, LABELS[:, None] * 3), "zeros and ones"),
        (lambda: lw.SupConLoss()(ROWS, torch.full((4, 2), 0.5)), "zeros and ones"),
        (lambda: lw.SupConLoss()(ROWS, LABELS, mask=torch.eye(4)), "got both"),
        (lambda: lw.SupConLoss()(ROWS, mask=torch.eye(3)), "one column for each of 4 samples, got shape \\(3, 3\\)"),
        (lambda: lw.SupConLoss()(ROWS, mask=torch.full((4, 4), 0.5)), "mask to be zeros and ones"),
        (lambda: lw.SupConLoss()(NAN, LABELS[:2]), "embeddings to be finite.*the first at 1"),
        (lambda: lw.SupConLoss()(torch.ones(4, 3, 2, 2), LABELS), "flatten feature maps"),
        (lambda: lw.SupConLoss()(torch.ones(4, 0), LABELS), "at least one feature"),
        (lambda: lw.SupConLoss()(ROWS.long(), LABELS), "convert them with .float"),
        (lambda: lw.SupConLoss()(ROWS, LABELS, references=ROWS), "expected .* together"),
        (lambda: lw.SupConLoss()(ROWS, LABELS, reference_labels=LABELS), "expected .* together"),
        (
            lambda: lw.SupConLoss()(ROWS, LABELS, references=VIEWS, reference_labels=LABELS),
            "rows, .* with the 3 features of the embeddings",
        ),
        (lambda: lw.SupConLoss()(ROWS, LABELS, references=ROWS, reference_labels=LABELS[:2]), "4 references, got 2"),
        (lambda: lw.SupConLoss()(ROWS, LABELS, references=ROWS, reference_labels=torch.eye(4)), "both classes"),
        (lambda: lw.SupConLoss()(VIEWS, references=ROWS), "something that defines the positives"),
        (lambda: lw.SupConLoss()(ROWS, mask=torch.ones(4, 3), references=ROWS), "one column for each of 4 references"),
        (lambda: lw.NTXentLoss()(ROWS), "two or more views.*augment each sample twice"),
        (lambda: lw.NTXentLoss()(VIEWS[:, :1]), "two or more views"),
        (lambda: lw.NTXentLoss()(), "two or more views"),
        (lambda: lw.NTXentLoss()(ROWS, LABELS), "views for NTXentLoss, not labels.*SupConLoss"),
        (
            lambda: lw.SupConLoss()(ROWS, LABELS, queue=ROWS),
            "queue, queue_labels and labels together, got queue and labels without queue_labels",
        ),
        (
            lambda: lw.SupConLoss()(ROWS, mask=torch.eye(4), queue=ROWS, queue_labels=LABELS),
            "a mask does not work with a queue",
        ),
        (
            lambda: lw.SupConLoss()(ROWS, LABELS, queue=ROWS[:, :2], queue_labels=LABELS),
            "queue to be rows, .* of the embed",
        ),
        (lambda: lw.SupConLoss()(ROWS, LABELS, queue=ROWS, queue_labels=torch.eye(4)), "both classes or both label"),
        (lambda: lw.SupConLoss()(ROWS, LABELS[:, None]), "pass a column of classes as labels"),
        (
            lambda: lw.contrast(ROWS, pull=torch.eye(4), push=lw.pairs.NotSelf(4), temperature=1.0),
            "into pairs.Explicit",
        ),
        (
            lambda: lw.contrast(ROWS, pull=lw.pairs.NotSelf(4), push=torch.eye(4), temperature=1.0),
            "into pairs.Explicit",
        ),
        (lambda: lw.SupConLoss(temperature="0.1"), "temperature to be a positive number .*got '0.1'.*\"learned\""),
        (lambda: lw.SupConLoss(temperature=1e-40), "temperature to be a positive number .*1e-15 .*got 1e-40"),
        (lambda: lw.InfoNCELoss(symmetric="no"), "symmetric to be one of True, False, joint, got 'no'"),
        (lambda: lw.DCLLoss(sigma=None), "sigma to be a positive number .* got None"),
        (lambda: lw.MSCLoss(alpha=1e9), "alpha to be a positive number within 1e-06 .* got 1000000000.0"),
        (lambda: lw.NWSLoss(None), "label_similarity to be a tensor or an array of numbers, got NoneType: see"),
        (lambda: lw.label_pair_similarity(None, "npmi"), "labels to be a tensor or an array of numbers, got NoneType"),
        (lambda: lw.SupConLoss()(ROWS, LABELS.to(torch.uint16)), "labels to be integer classes.* got torch.uint16"),
        (
            lambda: lw.InfoNCELoss()(ROWS, ROWS, queue=lw.memory.Queue(4, 3)),
            "queue to be a tensor, got Queue: call it",
        ),
        (lambda: lw.SupConLoss()(ROWS, LABELS.tolist()), "labels to be a tensor, got list: convert"),
        (lambda: lw.SupConLoss()(ROWS.numpy(), LABELS), "embeddings to be a tensor, got ndarray: convert"),
        (lambda: lw.SupConLoss()(ROWS, LABELS + 1j), "integer classes"),
        (lambda: lw.SupConLoss(normalize="no"), "normalize to be one of True, False, got 'no'"),
        (lambda: lw.NTXentLoss()(ROWS, ROWS[:3]), "views of the same shape"),
        (lambda: lw.NTXentLoss()(ROWS[:2, :2], NAN), "view_1 to be finite"),
        (lambda: lw.NTXentLoss()([ROWS[:2, :2], NAN]), "view_1 to be finite"),
        (lambda: lw.SupConLoss()([ROWS, ROWS[:3]], LABELS), "views of the same shape"),
        (lambda: lw.SupConLoss()([ROWS], LABELS), "two or more views for SupConLoss"),
        (lambda: lw.SupConLoss()([], LABELS), "embeddings to be a tensor, got list"),
        (lambda: lw.SupConLoss()(ROWS.tolist(), LABELS), "embeddings to be a tensor, got list: convert"),
    ],
)
def test_bad_input_is_refused_with_a_remedy(call, message):
    """The error says in one line what was expected and what was given."""
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


ALL_DIFFERENT = {
    "SupCon": lambda: lw.SupConLoss(),
    "SupCon, in": lambda: lw.SupConLoss(form="in"),
    "SupCon, pairs": lambda: lw.SupConLoss(form="pairs"),
    "KCL": lambda: lw.KCLLoss(),
    "lifted": lambda: lw.LiftedStructureLoss(),
    "triplets": lambda: lw.BatchTripletLoss(),
}


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("name", ALL_DIFFERENT)
def test_labels_that_are_all_different_are_told_once(name, reduction):
    loss, rows = ALL_DIFFERENT[name](), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    loss.reduction = reduction
    with pytest.warns(UserWarning, match=f"^{type(loss).__name__}: no anchor among 5 rows is active, so the loss is 0"):
        assert not loss(rows, torch.arange(5)).any()
    with warnings.catch_warnings(action="error"):
        loss(rows, torch.arange(5))


def test_what_has_an_anchor_or_has_met_its_margin_or_lies_on_a_gpu_is_not_told():
    rows, labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1, 1])
    with warnings.catch_warnings(action="error"):
        lw.SupConLoss()(rows, labels)
        assert lw.BatchTripletLoss(margin=0.1, mining="all")(rows, labels) == 0
        assert not warn_if_inactive("SupConLoss", torch.zeros((), device="meta"), torch.zeros(4), met=False)
        lw.SupConLoss()(rows[:0], labels[:0])


DRAFTS = {
    "SupConLoss has no option base_temperature; it has temperature, form, reduction": (
        lambda: lw.SupConLoss(base_temperature=0.07)
    ),
    "RASCALLoss has no option base_temperature, feat_dim; it has num_samples, feature_dim, temperature, ranking": (
        lambda: lw.RASCALLoss(base_temperature=0.07, num_samples=9, feat_dim=4)
    ),
    "NWSLoss has no option temp, agg, sim; it has label_similarity, alpha, beta, temperature, aggregation": (
        lambda: lw.NWSLoss(alpha=1, beta=0.1, temp=0.1, agg="mean", sim=torch.eye(3))
    ),
    "PatchLoss has no option scale_cls; it has scale, reduction": lambda: lw.PatchLoss(scale_cls=7),
    "InfoPatchLoss has no option scale_cls; it has scale, local_weight": lambda: lw.InfoPatchLoss(scale_cls=7),
    "RASCALLoss takes no sample_idx; it takes embeddings, labels, sample_index": (
        lambda: lw.RASCALLoss(9, 4)(torch.randn(2, 2, 4), torch.arange(2), sample_idx=torch.arange(2))
    ),
    "SupConLoss takes no features; it takes embeddings, labels, mask": lambda: lw.SupConLoss()(features=torch.eye(2)),
    r"ArcFaceLoss takes its options by name, got 10, 64: .* temperature, margin, .*; prototypes and queues are given": (
        lambda: lw.ArcFaceLoss(10, 64)
    ),
    "Own has no option warm; it has temperature, reduction, .*, backend$": lambda: Own(heat=1, warm=2),
}


class Own(ContrastiveLoss):
    def __init__(self, heat, **options):
        super().__init__(heat, **options)

    def forward(self): ...


@pytest.mark.parametrize("told", DRAFTS)
def test_an_unknown_option_is_refused_by_the_names_that_there_are(told):
    """An unknown option is a TypeError that names it, before others that are missing."""
    with pytest.raises(TypeError, match=told):
        DRAFTS[told]()


class Declared(ContrastiveLoss):
    """A loss of one's own whose inputs are checked by their annotations; labels come before what they go with."""

    def __init__(self):
        super().__init__(0.1)

    def forward(
        self,
        labels: Annotated[torch.Tensor, Classes("embeddings", below="prototypes")],
        embeddings: Annotated[torch.Tensor, Embeddings()],
        prototypes: Annotated[torch.Tensor | None, References("embeddings")] = None,
    ):
        """Return the number of labels."""
        del embeddings, prototypes
        return torch.tensor(len(labels))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.arange(3), torch.eye(4), torch.eye(4)), "expected labels to have one entry for each of 4 embeddings"),
        ((torch.arange(4), torch.eye(4), torch.eye(4)[:2]), "expected labels to be within the 2 classes"),
        ((torch.arange(4), torch.full((4, 4), torch.nan), torch.eye(4)), "expected embeddings to be finite"),
        ((torch.arange(4), torch.eye(4), torch.eye(3)), "expected prototypes to be rows, .* 4 features of the embed"),
    ],
)
def test_annotations_declare_inputs(arguments, message):
    """Each input is checked after those that it has to agree with, whatever their order, by position and by name."""
    labels, embeddings, prototypes = arguments
    for call in (
        lambda: Declared()(*arguments),
        lambda: Declared()(prototypes=prototypes, embeddings=embeddings, labels=labels),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert Declared()(torch.arange(4), torch.eye(4), torch.eye(4)) == 4
    with pytest.raises(TypeError, match="expected labels, embeddings for Declared, got no embeddings: pass all"):
        Declared()(labels)
    with pytest.raises(TypeError, match="Declared takes no mask; it takes labels, embeddings"):
        Declared()(labels, embeddings, prototypes, mask=labels)


def test_an_argument_that_a_loss_does_not_have_is_refused():
    """A misspelt or foreign name is a TypeError that names it, for losses of views and of inputs by name alike."""
    views, labels = torch.randn(4, 2, 3), torch.arange(4)
    for loss in (lw.NTXentLoss(), lw.DCLLoss(), lw.HardNegativeLoss()):
        with pytest.raises(TypeError, match="unexpected keyword argument 'labels'"):
            loss(views, labels=labels)
        with pytest.raises(TypeError, match="unexpected keyword argument 'embeddings'"):
            loss(embeddings=views)
    for loss, missing in ((lw.ArcFaceLoss(), "prototypes"), (lw.ClipLoss(), "logit_scale")):
        with pytest.raises(TypeError, match=f"for {type(loss).__name__}, got no {missing}: pass all of them"):
            loss(torch.eye(4), labels if missing == "prototypes" else torch.eye(4))
    with pytest.raises(TypeError, match="InfoNCELoss takes no key; it takes queries, keys, negatives"):
        lw.InfoNCELoss()(views[:, 0], key=views[:, 1])


@pytest.mark.parametrize("loss", [lw.MulSupConLoss(), lw.MSCLoss(), lw.NWSLoss(torch.eye(2))])
def test_a_required_input_that_is_none_is_refused(loss):
    """None for label sets that must be given is no tensor; only optional ones may be left out with their rows."""
    prototypes = {} if isinstance(loss, lw.MulSupConLoss) else {"prototypes": torch.eye(2)}
    with pytest.raises(ValueError, match="expected labels to be a tensor, got NoneType"):
        loss(torch.eye(2), None, **prototypes)


def test_annotations_are_read_however_they_are_written():
    """In a union with None, as strings, beside parameters of any kind; a default reaches `check`."""

    class Own(ContrastiveLoss):
        def forward(
            self,
            first: Annotated[torch.Tensor, Embeddings()],
            second: "Annotated[torch.Tensor, References('first')] | None" = None,
            *rest: torch.Tensor,
            margin: float = 0.5,
            **others: torch.Tensor,
        ):
            del second, rest, others
            return first.sum() * margin

        def check(self, inputs):
            assert inputs["margin"] == 0.5

    assert Own(0.1)(torch.ones(2, 3)) == 3
    with pytest.raises(ValueError, match="expected first to be finite"):
        Own(0.1)(torch.full((2, 3), torch.nan))
    with pytest.raises(ValueError, match="expected second to be rows"):
        Own(0.1)(torch.ones(2, 3), torch.ones(2, 4))


@pytest.mark.parametrize(
    "loss",
    [lw.NTXentLoss(), lw.DCLLoss(), lw.HardNegativeLoss(), lw.SupConLoss(), lw.SupConLoss(form="in"), lw.BCLLoss()],
    ids=lambda loss: type(loss).__name__,
)
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_views_is_their_tensor(loss, kind):
    """A loader's list of views, each (B, D), gives the loss and the gradients of (B, V, D), labels or none beside."""
    views = torch.randn(4, 2, 5, dtype=torch.float64, requires_grad=True)
    prototypes = {"prototypes": torch.randn(2, 5, dtype=torch.float64)} if isinstance(loss, lw.BCLLoss) else {}
    labels = [] if isinstance(loss, lw.NTXentLoss | lw.DCLLoss | lw.HardNegativeLoss) else [torch.tensor([0, 0, 1, 1])]
    listed, stacked = (loss(given, *labels, **prototypes) for given in (kind(views.unbind(dim=1)), views))
    assert torch.equal(listed, stacked)
    assert torch.equal(*(torch.autograd.grad(of, views)[0] for of in (listed, stacked)))


def test_a_loss_of_views_keeps_its_own_options():
    """What a loss takes beside its views reaches its forward."""

    class Scaled(ContrastiveLoss):
        def forward(self, *views: Annotated[torch.Tensor, Views()], scale: float = 1.0):
            (embeddings,) = views
            return embeddings.sum() * scale

    assert Scaled(0.1)(torch.ones(2, 3), torch.ones(2, 3), scale=0.5) == 6


def test_inputs_that_wait_for_each_other_are_refused():
    """A class whose inputs cannot be put into an order is refused when it is made."""
    with pytest.raises(TypeError, match="got one, two, which wait for each other"):

        class _Circle(ContrastiveLoss):
            def forward(
                self,
                one: Annotated[torch.Tensor, References("two")],
                two: Annotated[torch.Tensor, References("one")],
            ):
                raise NotImplementedError


def test_an_annotation_names_inputs_that_exist():
    """A misspelt name is told when the class is made: of which input, in which loss, and what it may be."""
    told = r"the annotation of labels in .*Misspelt.forward to name inputs .*got 'embedings': name one of embeddings"
    with pytest.raises(TypeError, match=told):

        class Misspelt(lw.losses.ContrastiveLoss):
            def forward(
                self,
                embeddings: Annotated[torch.Tensor, Embeddings()],
                labels: Annotated[torch.Tensor, Classes("embedings")],
            ):
                return embeddings.sum() * len(labels)
