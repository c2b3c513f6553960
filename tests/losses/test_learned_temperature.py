"""temperature="learned": every loss starts at its default, gets τ ∂L/∂τ, stays in its range, is saved and copied."""

import copy
import functools
import inspect
import math
import pickle

import pytest
import torch

import likewise as lw
from cases import SIGNATURES
from likewise.losses import ContrastiveLoss
from loss_table import LOSSES, draw, evaluate

LEARNING = [name for name in SIGNATURES if LOSSES[name].temperature and "widths" not in name]
every_loss = pytest.mark.parametrize("name", LEARNING)


@every_loss
def test_the_logarithm_is_learned_from_the_losss_default(name):
    """Value and gradient are those of a tensor given by hand, times τ for the logarithm."""
    row = LOSSES[name]
    loss, batch = row.make(temperature="learned"), row.batch(7, draw(1))
    start = inspect.signature(type(loss)).parameters["temperature"].default
    assert [of for of, _ in loss.named_parameters()] == ["log_temperature"]
    assert loss.log_temperature.shape == (1,)
    loss.double()
    with torch.no_grad():
        loss.log_temperature.fill_(math.log(start))
    tau = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    expected, value = evaluate(row.make(temperature=tau), batch), evaluate(loss, batch)
    torch.testing.assert_close(value, expected)
    value.backward()
    (slope,) = torch.autograd.grad(expected, tau)
    torch.testing.assert_close(loss.log_temperature.grad, (slope * start).reshape(1))
    assert loss.last["temperature"] == pytest.approx(start)
    assert not loss.last["temperature"].requires_grad


@every_loss
def test_it_is_saved_copied_pickled_and_shown(name):
    row = LOSSES[name]
    loss, batch = row.make(temperature="learned"), row.batch(7, draw(1))
    with torch.no_grad():
        loss.log_temperature.fill_(math.log(0.25))
    expected = evaluate(loss, batch)
    fresh = row.make(temperature="learned")
    fresh.load_state_dict(loss.state_dict())
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss)), fresh):  # noqa: S301 - our own
        assert torch.equal(evaluate(other, batch), expected)
        assert other.log_temperature is not loss.log_temperature
    assert "temperature='learned'" in repr(loss)
    assert loss.facts()["temperature"] == f"a tensor of {loss.temperature.item()!r}"
    assert loss.to("meta").temperature.device.type == "meta"


@pytest.mark.parametrize(("logarithm", "temperature"), [(-20.0, 0.01), (20.0, 100.0)])
def test_at_its_bounds_it_is_put_back_and_still_has_a_gradient(logarithm, temperature):
    """A step that leaves the range is undone before the next, which may lead back inside."""
    loss, (q, k) = lw.InfoNCELoss(temperature="learned"), draw(3)(2, 6, 4)
    with torch.no_grad():
        loss.log_temperature.fill_(logarithm)
    loss(q, k).backward()
    assert loss.temperature.item() == pytest.approx(temperature)
    assert loss.log_temperature.item() == pytest.approx(math.log(temperature))
    assert loss.log_temperature.grad.abs() > 0


def test_a_temperature_set_by_hand_and_tensors_work_as_before():
    for given in (torch.tensor(0.2), torch.tensor([0.2]), torch.nn.Parameter(torch.tensor(0.2))):
        loss = lw.InfoNCELoss(temperature=given)
        assert loss.temperature is given
        loss(*draw(3)(2, 6, 4))
        assert loss.last["temperature"] == given
    loss = lw.InfoNCELoss(temperature=0.2)
    loss(*draw(3)(2, 6, 4))
    assert "temperature" not in loss.last


class Starting(ContrastiveLoss):
    """A loss of one's own, whose default temperature is what is given."""

    def __init__(self, temperature, **options):
        super().__init__(temperature, **options)

    def forward(self, embeddings):
        return embeddings.sum()


def test_what_cannot_be_learned_is_told():
    with pytest.raises(ValueError, match=r"temperature to be a positive number .*got 'learnt': .* or .learned"):
        lw.NTXentLoss(temperature="learnt")
    with pytest.raises(
        ValueError, match="default temperature of Starting, from which a learned one starts, to be a pos"
    ):
        Starting("learned")
    with pytest.raises(ValueError, match=r'positive number.*got -0.1.*keeps it positive with temperature="learned"'):
        lw.NTXentLoss(temperature=torch.nn.Parameter(torch.tensor(-0.1)))(torch.eye(4).view(2, 2, 4))
    with pytest.raises(AttributeError, match="no attribute 'warmth'"):
        functools.partial(getattr, lw.NTXentLoss(temperature="learned"))("warmth")
