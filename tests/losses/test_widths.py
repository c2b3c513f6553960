"""Losses of several widths: the mean of a loss over the first so many features, for every loss that takes widths."""

from typing import Annotated

import pytest
import torch
from torch import nn

import likewise as lw
from likewise.losses import ContrastiveLoss
from likewise.losses.inputs import Embeddings
from loss_table import FEATURES, LOSSES, draw, evaluate

VECTORS = {"embeddings", "queries", "keys", "negatives", "queue", "prototypes", "references", "anchors", "positives"}
REFUSED = "PaCo", "RASCAL", "Clip", "Patch", "Prototypical"
TAKING = [name for name in LOSSES if not name.startswith(REFUSED) and "widths" not in name]
WIDTHS = 2, FEATURES, 4


@pytest.mark.parametrize("backend", ["dense", "tiled"])
@pytest.mark.parametrize("name", TAKING)
def test_widths_are_the_mean_of_a_loop(name, backend):
    """Value, gradients and what is drawn; the statistics are those of all features."""
    row = LOSSES[name]
    batch = row.batch(7, draw(1))
    parts = [batch[part].requires_grad_() for part in row.learned]
    loss = row.make(backend=backend, widths=WIDTHS)
    found = evaluate(loss, batch)
    one, values = row.make(backend=backend), []
    torch.manual_seed(0)
    for width in sorted(WIDTHS):
        cut = {part: of[..., :width] if part in VECTORS else of for part, of in batch.items()}
        first, *others = cut
        values.append(one(cut[first], **{part: cut[part] for part in others}))
    expected = sum(values) / 3
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(torch.autograd.grad(found, parts), torch.autograd.grad(expected, parts), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert loss.last.keys() == one.last.keys()
    for statistic, value in one.last.items():
        torch.testing.assert_close(loss.last[statistic], value)


@pytest.mark.parametrize("name", [name for name in LOSSES if name.startswith(REFUSED)])
def test_what_has_one_width_refuses_others(name):
    with pytest.raises(ValueError, match=r"expected no widths for \w+Loss, which has .*, got \(4, 2\): leave") as told:
        LOSSES[name].make(widths=(4, 2))
    assert "\n" not in str(told.value)


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


def test_a_loss_of_ones_own_has_widths_if_it_declares_its_vectors():
    z, ages = torch.randn(5, 4), torch.randn(5, 6)
    expected = (Own()(z, ages) + Own()(z[:, :3], ages)) / 2
    assert torch.equal(Own(widths=[4, 3])(z, ages), expected)
    assert torch.equal(Own(widths=[4, 3])([z, z], ages), Own(widths=[4, 3])(torch.stack([z, z], dim=1), ages))
    torch.testing.assert_close(Own(widths=[4, 3])(embeddings=z, ages=ages), expected)
    with pytest.raises(ValueError, match="expected no widths for Undeclared"):
        Undeclared(widths=(3,))
    with pytest.raises(TypeError):
        Own(widths=(3,))(z, ages, ages)


@pytest.mark.parametrize("widths", [(), (3, 3), (0, 2), (-1,), (2.0,), (True,), "64", 64, ("4",)])
def test_widths_are_different_whole_numbers(widths):
    with pytest.raises(ValueError, match="expected widths as different whole numbers of at least 1, got "):
        lw.InfoNCELoss(widths=widths)


def test_widths_are_within_the_features():
    z = torch.randn(5, 2, 4)
    for loss, given in (
        (lw.NTXentLoss, (z,)),
        (lw.InfoNCELoss, (z[:, 0], z[:, 1])),
        (lw.SupConLoss, (z, torch.zeros(5).long())),
    ):
        with pytest.raises(ValueError, match=r"expected widths of at most the 4 features of \w+, got 5: leave it out"):
            loss(widths=(5, 2))(*given)


def test_one_temperature_is_learned_for_all_widths():
    """Its gradient is that of the mean, and the state is that of the loss without widths."""
    q, k = torch.randn(6, 4), torch.randn(6, 4)
    loss, plain = (lw.InfoNCELoss(temperature="learned", **options) for options in ({"widths": (4, 2)}, {}))
    assert loss.state_dict().keys() == plain.state_dict().keys()
    loss(q, k).backward()
    ((plain(q, k) + plain(q[:, :2], k[:, :2])) / 2).backward()
    torch.testing.assert_close(loss.log_temperature.grad, plain.log_temperature.grad)
    assert isinstance(loss.log_temperature, nn.Parameter)
