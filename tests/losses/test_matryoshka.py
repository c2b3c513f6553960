"""Matryoshka: the mean of a loss over the first so many features, for every loss whose inputs can be cut."""

from typing import Annotated

import pytest
import torch
from operator_checks import check_same
from torch import nn

import likewise as lw
from cases import SIGNATURES, with_one_backend
from likewise.losses import ContrastiveLoss
from likewise.losses.inputs import Embeddings
from loss_table import FEATURES, LOSSES, draw, evaluate

VECTORS = {"embeddings", "queries", "keys", "negatives", "queue", "prototypes", "references", "anchors", "positives"}
REFUSED = "PaCo", "RASCAL", "Clip", "Patch", "Prototypical"
TAKING = [name for name in SIGNATURES if not name.startswith(REFUSED) and "widths" not in name]
WIDTHS = 2, FEATURES, 4


@with_one_backend(0, TAKING)
def test_widths_are_the_mean_of_a_loop(name, backend):
    """Value, gradients and what is drawn; the statistics are those of all features."""
    row = LOSSES[name]
    batch = row.batch(7, draw(1))
    parts = [batch[part].requires_grad_() for part in row.learned]
    loss = lw.Matryoshka(row.make(backend=backend), WIDTHS)
    found = evaluate(loss, batch)
    one, values = row.make(backend=backend), []
    torch.manual_seed(0)
    for width in sorted(WIDTHS):
        cut = {part: of[..., :width] if part in VECTORS else of for part, of in batch.items()}
        first, *others = cut
        values.append(one(cut[first], **{part: cut[part] for part in others}))
    expected = sum(values) / 3
    check_same(found, expected, parts, rtol=1e-12, atol=1e-12)
    assert loss.last.keys() == one.last.keys()
    for statistic, value in one.last.items():
        torch.testing.assert_close(loss.last[statistic], value)


@pytest.mark.parametrize("name", [name for name in SIGNATURES if name.startswith(REFUSED)])
def test_what_has_one_width_is_refused(name):
    with pytest.raises(ValueError, match=r"^expected a loss whose inputs can be cut .*, got \w+Loss: it has .*$"):
        lw.Matryoshka(LOSSES[name].make(), (4, 2))


class Own(ContrastiveLoss):
    """A loss whose input is declared, and one more that is not a vector."""

    def __init__(self, **options):
        super().__init__(1.0, **options)

    def forward(self, embeddings: Annotated[torch.Tensor, Embeddings()], ages=None):
        rows = self.rows(embeddings)
        everything = rows.not_self()
        return self.evaluate(rows, pull=everything, push=everything, positives=everything) + ages.sum()


class Undeclared(ContrastiveLoss):
    def __init__(self, **options):
        super().__init__(1.0, **options)

    def forward(self, embeddings):
        return embeddings.sum()


def test_a_loss_of_ones_own_that_declares_its_vectors():
    z, ages = torch.randn(5, 4), torch.randn(5, 6)
    loss, expected = lw.Matryoshka(Own(), [4, 3]), (Own()(z, ages) + Own()(z[:, :3], ages)) / 2
    torch.testing.assert_close(loss(z, ages), expected)
    torch.testing.assert_close(loss([z, z], ages), loss(torch.stack([z, z], dim=1), ages))
    torch.testing.assert_close(loss(embeddings=z, ages=ages), expected)
    for other in (Undeclared(), nn.CrossEntropyLoss(), lw.SupConLoss):
        with pytest.raises(ValueError, match="expected a loss whose inputs can be cut"):
            lw.Matryoshka(other, (3,))
    for given in ((z, ages, ages), (), (z,)):
        with pytest.raises((TypeError, AttributeError)):
            lw.Matryoshka(Own(), (3,))(*given)
    with pytest.raises(TypeError, match="NTXentLoss"):
        lw.Matryoshka(lw.NTXentLoss(), (3,))(z, z, labels=ages)


@pytest.mark.parametrize("widths", [(), (3, 3), (0, 2), (-1,), (2.0,), (True,), "64", 64, ("4",), None])
def test_widths_are_different_whole_numbers(widths):
    with pytest.raises(ValueError, match="expected widths as different whole numbers of at least 1, got "):
        lw.Matryoshka(lw.InfoNCELoss(), widths)


def test_widths_are_within_the_features_which_are_as_many_everywhere():
    z = torch.randn(5, 2, 4)
    for loss, given in (
        (lw.NTXentLoss(), (z,)),
        (lw.NTXentLoss(), (z[:, 0], z[:, 1])),
        (lw.NTXentLoss(), ([z[:, 0], z[:, 1]],)),
        (lw.InfoNCELoss(), (z[:, 0], z[:, 1])),
        (lw.SupConLoss(), (z, torch.zeros(5).long())),
    ):
        with pytest.raises(ValueError, match=r"expected as many features of \w+.*, at least the 5 .*, got 4: encode"):
            lw.Matryoshka(loss, (5, 2))(*given)
    with pytest.raises(ValueError, match=r"expected as many features of queries, keys, at .* got 3 and 4"):
        lw.Matryoshka(lw.InfoNCELoss(), (3, 2))(z[:, 0], z[:, 1, :3])


@pytest.mark.parametrize("bad", [torch.ones(4), torch.ones(3, 4).long(), torch.ones(3, 4).to_sparse(), 3, None])
def test_what_has_no_rows_is_refused_by_the_loss(bad):
    with pytest.raises(ValueError, match=r"expected (queries|keys) "):
        lw.Matryoshka(lw.InfoNCELoss(), (4, 2))(bad, torch.ones(3, 4))


def test_weights_are_those_of_a_sum():
    q, k = torch.randn(6, 4), torch.randn(6, 4)
    found = lw.Matryoshka(lw.InfoNCELoss(), (2, 4), (0.25, 2))(q, k)
    torch.testing.assert_close(found, 0.25 * lw.InfoNCELoss()(q[:, :2], k[:, :2]) + 2 * lw.InfoNCELoss()(q, k))
    for weights, told in (((1.0,), "a weight for each of 2 widths, got 1"), ((1, -1), "weights to be a number")):
        with pytest.raises(ValueError, match=told):
            lw.Matryoshka(lw.InfoNCELoss(), (2, 4), weights)


def test_half_precision_is_rounded_once():
    """The gradients of widths are added in float32, and then rounded."""
    q, k = torch.randn(2, 6, 4).bfloat16().unbind()
    half, full = q.clone().requires_grad_(), q.float().requires_grad_()
    lw.Matryoshka(lw.InfoNCELoss(), (2, 3, 4))(half, k).backward()
    lw.Matryoshka(lw.InfoNCELoss(), (2, 3, 4))(full, k.float()).backward()
    assert half.grad.dtype == torch.bfloat16
    assert torch.equal(half.grad, full.grad.bfloat16())


def test_one_temperature_is_learned_for_all_widths():
    """Its gradient is that of the mean."""
    q, k = torch.randn(6, 4), torch.randn(6, 4)
    loss, plain = lw.Matryoshka(lw.InfoNCELoss(temperature="learned"), (4, 2)), lw.InfoNCELoss(temperature="learned")
    loss(q, k).backward()
    ((plain(q, k) + plain(q[:, :2], k[:, :2])) / 2).backward()
    torch.testing.assert_close(loss.loss.log_temperature.grad, plain.log_temperature.grad)
    assert repr(loss).startswith("Matryoshka(\n  widths=(4, 2), weights=(0.5, 0.5)\n  (loss): InfoNCELoss(")
