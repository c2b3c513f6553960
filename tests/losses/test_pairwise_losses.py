"""DCL, N-pairs, the triplet, BYOL and InfoPatch: edges, and what has no formula."""

import math

import pytest
import torch
from operator_checks import check_same, passed_weights
from torch import nn

import likewise as lw
from plain_formulas import omega

DOUBLE = torch.float64


def draw(*shape):
    return torch.randn(*shape, dtype=DOUBLE)


def leaves(*shapes):
    return tuple(draw(*shape).requires_grad_() for shape in shapes)


def test_dclw_weighs_by_the_cosine():
    """ω weights only the pull, and uses the cosine whether or not embeddings are normalised."""
    batch = draw(5, 2, 4)
    for unit in (True, False):
        criterion = lw.DCLLoss(weighted=True, sigma=0.2, normalize=unit)
        _, weights = passed_weights(criterion, *batch.unbind(dim=1))
        torch.testing.assert_close(weights["pull"].row_sum(DOUBLE), omega(batch, 0.2))
    assert omega(batch, 0.2).min() < 0 < omega(batch, 0.2).max()


@pytest.mark.parametrize("backend", ["dense", "tiled", "auto"])
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


def test_n_pairs_is_info_nce_of_embeddings_as_they_are():
    """At τ = 1; with ``normalize`` their length does not matter."""
    anchors, positives = leaves((5, 4), (5, 4))
    twin = lw.InfoNCELoss(temperature=1.0, normalize=False)
    assert torch.equal(lw.NPairsLoss()(anchors, positives), twin(anchors, positives))
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


def test_by_distance_equal_rows_have_a_finite_gradient():
    z = torch.randn(3, 20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z[1, 0] = z[0, 0]
    leaves = [of.clone().requires_grad_() for of in z]
    lw.TripletLoss(temperature=0.5, margin=0.2, distance="euclidean")(*leaves).backward()
    assert all(of.grad.isfinite().all() for of in leaves)
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
    """2 − 2 cos of a view's prediction and the other view's detached target, over both directions; for rows, one.

    Its gradient is that of finite differences, the second, too.
    """
    predictions, targets = leaves((5, 2, 4), (5, 2, 4))
    cosine = torch.cosine_similarity
    expected = (
        sum(
            4 - 2 * cosine(q[0], z[1], dim=0) - 2 * cosine(q[1], z[0], dim=0)
            for q, z in zip(predictions, targets.detach(), strict=True)
        )
        / 5
    )
    check_same(lw.BYOLLoss()(predictions, targets), expected, (predictions,))
    lw.BYOLLoss()(predictions, targets).backward()
    assert targets.grad is None
    one_way = [lw.BYOLLoss()(predictions[:, v], targets[:, 1 - v]) for v in (0, 1)]
    torch.testing.assert_close(sum(one_way), expected)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda q: lw.BYOLLoss()(q, targets.detach()), (predictions,))


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32, torch.bfloat16])
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


def test_an_unchecked_label_outside_its_episode_is_left_out(monkeypatch):
    """On a GPU labels are not checked: a cell with such a label has no positive, not another episode's class."""
    monkeypatch.setattr("likewise.losses.episodes.check_classes", lambda *_: None)
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


def test_a_triplet_at_its_margin_has_no_loss():
    """Nor is it counted: the mean is over the two of six triplets whose negative is the more similar one."""
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.6, 0.8]], dtype=DOUBLE)
    loss_of = lw.BatchTripletLoss(margin=0.0, mining="all", normalize=False)
    torch.testing.assert_close(loss_of(rows, torch.tensor([0, 0, 1, 0])), torch.tensor(0.4, dtype=DOUBLE))
    assert loss_of.last["active_anchors"] == 2
