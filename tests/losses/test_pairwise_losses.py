"""DCL, N-pairs, the triplet, BYOL and InfoPatch: double loops, gradients, edges."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import likewise as lw
from likewise import pairs

BACKENDS = ["dense", "tiled", "auto"]
DOUBLE = torch.float64


def draw(*shape):
    return torch.randn(*shape, dtype=DOUBLE)


def leaves(*shapes):
    return tuple(draw(*shape).requires_grad_() for shape in shapes)


def assert_same(loss, expected, inputs):
    """Assert that two losses and their gradients are equal."""
    torch.testing.assert_close(loss, expected)
    mine, theirs = (torch.autograd.grad(value, inputs) for value in (loss, expected))
    torch.testing.assert_close(mine, theirs)


def dcl(z, samples, tau, weights):
    """Return DCL's row losses: the weighted other view against the views of all other samples; None without those."""
    losses = []
    for i in range(len(z)):
        own = [p for p in range(len(z)) if p % samples == i % samples and p != i]
        others = [u for u in range(len(z)) if u % samples != i % samples]
        attraction = sum(z[i] @ z[p] / tau for p in own) / len(own)
        losses.append(torch.log(sum(torch.exp(z[i] @ z[u] / tau) for u in others)) - weights[i % samples] * attraction)
    return torch.stack(losses)


def omega(view_0, view_1, sigma):
    """Return DCLW's weights, sample by sample."""
    likeness = [torch.exp(torch.cosine_similarity(a, b, dim=0) / sigma) for a, b in zip(view_0, view_1, strict=True)]
    return [(2 - value / (sum(likeness) / len(likeness))).detach() for value in likeness]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("views", [2, 3])
def test_dcl_is_the_double_loop(backend, unit, views):
    """The sample's own views are not in the denominator; several other views are averaged."""
    (batch,) = leaves((5, views, 4))
    rows = torch.cat(batch.unbind(dim=1))
    expected = dcl(normalize(rows, dim=1) if unit else rows, 5, 0.3, [1] * 5)
    loss_of = lw.DCLLoss(temperature=0.3, backend=backend, normalize=unit)
    assert_same(loss_of(batch), expected.mean(), (batch,))
    assert torch.equal(loss_of(*batch.unbind(dim=1)), loss_of(batch))
    loss_of.reduction = "none"
    torch.testing.assert_close(loss_of(batch), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("unit", [True, False])
def test_dclw_is_the_double_loop(backend, unit):
    """ω weights only the pull, has no gradient, and uses the cosine whether or not embeddings are normalised."""
    (batch,) = leaves((5, 2, 4))
    rows = torch.cat(batch.unbind(dim=1))
    weights = omega(batch[:, 0], batch[:, 1], 0.2)
    assert min(weights) < 0 < max(weights)
    expected = dcl(normalize(rows, dim=1) if unit else rows, 5, 0.3, weights)
    loss_of = lw.DCLLoss(temperature=0.3, weighted=True, sigma=0.2, backend=backend, normalize=unit)
    assert_same(loss_of(batch), expected.mean(), (batch,))
    assert loss_of.last["positives_per_anchor"].tolist() == [1] * 10


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_anchor_of_weight_zero_is_still_active(backend):
    """One pair agrees and one doesn't, at a small σ: ω is exactly 0 and 2; all four anchors stay in the mean."""
    axes = torch.eye(2, dtype=DOUBLE)
    view_1 = torch.stack([axes[0], -axes[1]])
    criterion = lw.DCLLoss(temperature=0.5, weighted=True, sigma=0.01, backend=backend, reduction="none")
    rows = criterion(axes, view_1)
    assert criterion.last["active_anchors"] == 4
    torch.testing.assert_close(rows, math.log(2) + torch.tensor([0, 4, 0, 4], dtype=DOUBLE))


@pytest.mark.parametrize("criterion", [lw.DCLLoss(), lw.DCLLoss(weighted=True), lw.HardNegativeLoss()])
def test_one_sample_has_no_negatives(criterion):
    """Its anchors are inactive, and the loss is 0 and connected."""
    (batch,) = leaves((1, 2, 3))
    loss = criterion(batch)
    loss.backward()
    assert loss == 0
    assert criterion.last["active_anchors"] == 0
    assert batch.grad.abs().sum() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_n_pairs_is_the_papers_sum(backend):
    """log(1 + Σ e^{a·p_j − a·p_i}), of embeddings of any length; equals InfoNCE at τ = 1 without normalisation."""
    anchors, positives = leaves((5, 4), (5, 4))
    expected = [
        torch.log(1 + sum(torch.exp(a @ positives[j] - a @ positives[i]) for j in range(5) if j != i))
        for i, a in enumerate(anchors)
    ]
    assert_same(lw.NPairsLoss(backend=backend)(anchors, positives), sum(expected) / 5, (anchors, positives))
    twin = lw.InfoNCELoss(temperature=1.0, normalize=False, backend=backend)
    assert torch.equal(lw.NPairsLoss(backend=backend)(anchors, positives), twin(anchors, positives))
    unit = lw.NPairsLoss(normalize=True)
    torch.testing.assert_close(unit(anchors, positives), unit(3 * anchors, positives))


def test_n_pairs_of_long_embeddings_is_finite():
    """Similarities in the hundreds of thousands, which occur without normalisation, do not overflow."""
    anchors = (1000 * torch.randn(70, 16)).requires_grad_()
    loss = lw.NPairsLoss()(anchors, -anchors.detach())
    loss.backward()
    assert torch.isfinite(loss)
    assert loss > 1e6
    assert torch.isfinite(anchors.grad).all()


def triples(unit=True):
    """Return rows of triplets, as given and as the loss uses them."""
    given = leaves((6, 4), (6, 4), (6, 4))
    return given, [normalize(rows, dim=1) if unit else rows for rows in given]


@pytest.mark.parametrize("unit", [True, False])
def test_triplet_is_the_equation_row_by_row(unit):
    """Its push is 1 on the positive and e^{m/τ} on the negative, of each anchor's own two references."""
    given, rows = triples(unit)
    pull, push = (pairs.Explicit(torch.tensor([w], dtype=DOUBLE)) for w in ([1.0, 0.0], [1.0, math.exp(0.2 / 0.3)]))
    expected = torch.cat(
        [
            lw.contrast(a[None], torch.stack([p, n]), pull=pull, push=push, temperature=0.3)
            for a, p, n in zip(*rows, strict=True)
        ]
    )
    loss_of = lw.TripletLoss(temperature=0.3, margin=0.2, normalize=unit)
    assert_same(loss_of(*given), expected.mean(), given)
    loss_of.reduction = "none"
    torch.testing.assert_close(loss_of(*given), expected)


def test_triplet_with_one_negative_is_sup_con():
    """Without a margin: SupCon's loss of an anchor, one reference of its class, and one of another."""
    given, _ = triples()
    sup_con = lw.SupConLoss(temperature=0.3)
    expected = sum(
        sup_con(a[None], torch.tensor([0]), references=torch.stack([p, n]), reference_labels=torch.tensor([0, 1]))
        for a, p, n in zip(*given, strict=True)
    )
    assert_same(lw.TripletLoss(temperature=0.3)(*given), expected / 6, given)


def test_triplet_at_a_low_temperature():
    """τ → 0: half the hinge on squared distances with margin 2m."""
    given, (a, p, n) = triples()
    tau, margin = 1e-5, -1.0
    gap = (a - p).square().sum(dim=1) - (a - n).square().sum(dim=1)
    rows = lw.TripletLoss(temperature=tau, margin=margin, reduction="none")(*given)
    hinge = (gap + 2 * margin).clamp(min=0) / 2
    torch.testing.assert_close(tau * rows, hinge, rtol=1e-9, atol=1e-9)
    assert 0 < (hinge > 0).sum() < 6


def test_triplet_by_distance_is_torchs_soft_margin_and_equal_rows_have_no_gradient():
    z = torch.randn(3, 20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z[1, 0] = z[0, 0]
    leaves = [of.clone().requires_grad_() for of in z]
    unit = [torch.nn.functional.normalize(of) for of in leaves]
    apart = [((unit[0] - of) ** 2).sum(dim=1).add(1e-40).sqrt() for of in unit[1:]]
    expected = torch.nn.functional.softplus((apart[0] - apart[1] + 0.2) / 0.5).mean()
    found = lw.TripletLoss(temperature=0.5, margin=0.2, distance="euclidean")(*leaves)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    pairs = zip(torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), strict=True)
    for mine, theirs in pairs:
        assert mine.isfinite().all()
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    z = torch.eye(3).repeat(2, 1).requires_grad_()  # every positive equals its anchor
    loss = lw.BatchTripletLoss(margin=2.0, mining="all", distance="euclidean")(z, torch.arange(6) % 3)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(2 - 2**0.5)
    assert z.grad.isfinite().all()


def test_triplet_is_exact_where_softplus_is_cut_off():
    """log(1 + e^x) at x = 25 is x + e^{−x}, not x."""
    axis = torch.tensor([[1.0]], dtype=DOUBLE)
    loss = lw.TripletLoss(temperature=2 / 25)(axis, -axis, axis)
    torch.testing.assert_close(loss - 25, torch.tensor(math.exp(-25), dtype=DOUBLE), rtol=1e-3, atol=0)


def test_byol_sums_both_directions():
    """2 − 2 cos of a view's prediction and the other view's detached target, over both directions; for rows, one."""
    predictions, targets = leaves((5, 2, 4), (5, 2, 4))
    cosine = torch.cosine_similarity
    expected = (
        sum(
            4 - 2 * cosine(q[0], z[1], dim=0) - 2 * cosine(q[1], z[0], dim=0)
            for q, z in zip(predictions, targets.detach(), strict=True)
        )
        / 5
    )
    assert_same(lw.BYOLLoss()(predictions, targets), expected, (predictions,))
    lw.BYOLLoss()(predictions, targets).backward()
    assert targets.grad is None
    one_way = [lw.BYOLLoss()(predictions[:, v], targets[:, 1 - v]) for v in (0, 1)]
    torch.testing.assert_close(sum(one_way), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_byol_at_zero_and_in_low_precision(dtype):
    """A zero prediction or target has cosine 0; gradients are finite, and half precision is computed in float32."""
    predictions, targets = draw(4, 3).to(dtype), draw(4, 3).to(dtype)
    predictions[1], targets[2] = 0, 0
    exact = predictions.double().requires_grad_()
    predictions.requires_grad_()
    loss, expected = lw.BYOLLoss()(predictions, targets), lw.BYOLLoss()(exact, targets.double())
    (loss + expected).backward()
    assert loss.dtype == (DOUBLE if dtype == DOUBLE else torch.float32)
    assert (predictions.grad[1:3] == 0).all()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(predictions.grad.double(), exact.grad, rtol=1e-2, atol=1e-3)
    assert lw.BYOLLoss()(predictions[:0], targets[:0]) == 0


def test_byol_gradcheck():
    """Its gradient is that of finite differences, and it is twice differentiable."""
    predictions, targets = leaves((3, 2, 4), (3, 2, 4))
    assert torch.autograd.gradcheck(lambda q: lw.BYOLLoss()(q, targets.detach()), (predictions,))
    assert torch.autograd.gradgradcheck(lambda q: lw.BYOLLoss()(q, targets.detach()), (predictions,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_patch_is_a_cross_entropy_over_each_episode(backend):
    """Every cell against its episode's class means, averaged over cells; a tensor scale is learned."""
    queries, supports = leaves((3, 4, 5, 2, 3), (3, 6, 5, 3, 2))
    scale = torch.tensor(7.0, dtype=DOUBLE, requires_grad=True)
    labels = torch.randint(0, 6, (3, 4, 2, 3))
    cells = normalize(queries, dim=2)
    classes = normalize(supports.mean(dim=(-2, -1)), dim=-1)
    logits = scale * torch.einsum("eqdhw,ekd->eqkhw", cells, classes)
    expected = cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1))
    loss_of = lw.PatchLoss(scale=scale, backend=backend)
    assert_same(loss_of(queries, supports, labels), expected, (queries, supports, scale))
    loss_of.reduction = "none"
    rows = cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1), reduction="none").flatten()
    torch.testing.assert_close(loss_of(queries, supports, labels), rows)
    assert loss_of.last["active_anchors"] == 3 * 4 * 6


def test_an_unchecked_label_outside_its_episode_is_left_out(monkeypatch):
    """On a GPU labels are not checked: a cell with such a label has no positive, not another episode's class."""
    monkeypatch.setattr("likewise.losses.checks.check_classes", lambda *_: None)
    criterion, labels = lw.PatchLoss(), torch.zeros(2, 1, 2, 2, dtype=torch.int64)
    labels[0, 0, 0], labels[1, 0, 0] = 3, -1
    criterion(draw(2, 1, 4, 2, 2), draw(2, 3, 4, 1, 1), labels)
    assert criterion.last["active_anchors"] == 4
    assert criterion.last["positives_per_anchor"].tolist() == [0, 0, 1, 1] * 2


def test_one_row_and_an_empty_queue_are_zero():
    """With only the query's own key, or only one pair in the batch, there are no negatives."""
    queries, keys = leaves((3, 4), (3, 4))
    for loss in (lw.InfoNCELoss()(queries, keys, queue=draw(0, 4)), lw.InfoNCELoss()(queries[:1], keys[:1])):
        torch.testing.assert_close(loss, torch.zeros((), dtype=DOUBLE), rtol=0, atol=1e-14)
        assert torch.autograd.grad(loss, queries)[0].abs().max() < 1e-14


def test_dtypes_promote():
    """Half-precision keys and a float64 queue with float32 queries are computed in the widest dtype."""
    queries, keys, queue = draw(4, 3).float(), draw(4, 3).half(), draw(5, 3)
    loss = lw.InfoNCELoss()(queries, keys, queue=queue)
    torch.testing.assert_close(loss, lw.InfoNCELoss()(queries.double(), keys.double(), queue=queue))
    assert lw.TripletLoss()(queries, keys, queue[:4]).dtype == DOUBLE


def test_a_scale_that_became_negative_is_refused():
    """A learned scale is checked in every step, not only when the loss is created."""
    scale = nn.Parameter(torch.tensor(7.0))
    criterion = lw.PatchLoss(scale=scale)
    scale.data.fill_(-1)
    with pytest.raises(ValueError, match=r"scale to be a positive number .*got -1"):
        criterion(draw(2, 3, 4, 2, 2), draw(2, 3, 4, 2, 2), torch.zeros(2, 3, 2, 2).long())


def test_options_that_a_loss_does_not_have_are_refused():
    """N-pairs has no temperature and BYOL no options."""
    with pytest.raises(TypeError, match="temperature"):
        lw.NPairsLoss(temperature=0.1)
    with pytest.raises(TypeError, match="reduction"):
        lw.BYOLLoss(reduction="sum")


def test_a_triplet_at_its_margin_has_no_loss():
    """Nor is it counted: the mean is over the two of six triplets whose negative is the more similar one."""
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.6, 0.8]], dtype=DOUBLE)
    loss_of = lw.BatchTripletLoss(margin=0.0, mining="all", normalize=False)
    torch.testing.assert_close(loss_of(rows, torch.tensor([0, 0, 1, 0])), torch.tensor(0.4, dtype=DOUBLE))
    assert loss_of.last["active_anchors"] == 2
