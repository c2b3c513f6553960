"""Schedules: their values step by step against plain loops, and trainings that would train nothing."""

import math
import warnings
from datetime import timedelta

import pytest
import torch
from trainings import Rates, fitted

from likewise.data import Samples, Views
from likewise.losses import NTXentLoss
from likewise.models import MLP
from likewise.report.run_summary import training_warnings
from likewise.training import Constant, Cosine, Pretraining, Schedule, Steps, TrainingData
from likewise.training.optimization import FineTuning

pytestmark = pytest.mark.slow
RATE = 0.01


class Never(Schedule):
    """A schedule of somebody's own that is always 0."""

    def factor(self, epoch, share):
        return 0.0 * epoch * share


def cosine(steps, warmup, start=0.0, end=0.0):
    """The factors of a linear warm-up of some steps and half a cosine over the rest."""
    factors = []
    for step in range(steps):
        if step < warmup:
            factors.append(start + (1 - start) * step / warmup)
        else:
            factors.append(end + (1 - end) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))))
    return factors


def trained(schedule, *, batches=4, rate=RATE, fine_tuning=None, **limits):
    """Train a small network, and return the module and the factor of each step."""
    torch.manual_seed(0)
    encoder = MLP((3,), width=4)
    options = {"schedule": schedule, "fine_tuning": fine_tuning}
    module = Pretraining(encoder, None, NTXentLoss(), lambda groups: torch.optim.SGD(groups, lr=rate), **options)
    rates = Rates()
    data = TrainingData(Samples(torch.rand(4 * batches, 3)), Views(batch_size=4))
    fitted(module, data, callbacks=[rates], **limits)
    return module, [rate / RATE for rate in rates.first]


@pytest.mark.parametrize(
    ("schedule", "limits", "steps", "warmup"),
    [
        (Cosine(), {"max_epochs": 2}, 8, 0),
        (Cosine(1), {"max_epochs": 3}, 12, 4),
        (Cosine(0.5, 0.1, 0.2), {"max_epochs": 9, "max_steps": 9}, 9, 2),
        (Cosine(1), {"max_epochs": 2, "accumulate_grad_batches": 2}, 4, 2),
    ],
    ids=str,
)
def test_a_cosine_rises_to_the_full_rate_and_falls_over_the_rest(schedule, limits, steps, warmup):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "a warm-up")
        _, rates = trained(schedule, **limits)
    expected = cosine(steps, warmup, schedule.warmup_start, schedule.end)
    assert rates[:: len(rates) // steps] == pytest.approx(expected)
    assert max(rates) == pytest.approx(1)


@pytest.mark.parametrize(
    ("schedule", "limits", "steps", "warmup"),
    [
        (Cosine(5, 0.1, 0.2), {"max_epochs": 2}, 8, 4),
        (Cosine(1), {"max_steps": 3}, 3, 1),
        (Cosine(1), {"max_epochs": 1, "batches": 1}, 1, 0),
        (Cosine(1), {"max_epochs": 1, "limit_train_batches": 2}, 2, 1),
        (Cosine(1), {"fast_dev_run": True}, 1, 0),
    ],
    ids=str,
)
def test_a_warm_up_longer_than_half_of_the_training_is_shortened_and_it_is_said(schedule, limits, steps, warmup):
    with pytest.warns(UserWarning, match=f"a warm-up of .* it takes {warmup or 'none'} of them"):
        module, rates = trained(schedule, **limits)
    assert rates == pytest.approx(cosine(steps, warmup, schedule.warmup_start, schedule.end))
    torch.manual_seed(0)
    before = MLP((3,), width=4)
    assert not all(torch.equal(a, b) for a, b in zip(before.parameters(), module.encoder.parameters(), strict=True))


def test_a_warm_up_takes_at_most_half_of_a_time():
    """An epoch takes a fifth of the time; the warm-up ends when either its epochs or half of the time is over."""
    for warmup in (1, 2.5, 3, 5, 100):
        schedule, part = Cosine(warmup), min(warmup / 5, 0.5)
        for share in (0.0, 0.01, 0.1, 0.3, 0.499, 0.5, 0.7, 0.99, 1.0):
            ramp, rest = share / part, (share - part) / (1 - part)
            expected = ramp if share < part else 0.5 * (1 + math.cos(math.pi * rest))
            assert schedule.factor(5 * share, share) == pytest.approx(expected)


def test_a_rate_of_0_in_every_step_is_refused_before_the_first():
    for schedule, rate, limits in (
        (Constant(), 0.0, {"max_epochs": 1}),
        (Constant(), 0.0, {"max_epochs": -1, "max_time": timedelta(seconds=0.3)}),
        (Steps([0], 0.0), RATE, {"max_steps": 2}),
        (Never(), RATE, {"max_epochs": 2}),
    ):
        with pytest.raises(ValueError, match="a learning rate above 0 in some step, got 0 in all: raise --lr"):
            trained(schedule, rate=rate, **limits)


def test_a_schedule_that_ends_at_0_and_a_training_without_steps_are_let_be():
    *_, rates = trained(Steps([1], 0.0), max_epochs=2)
    assert rates == pytest.approx([1.0] * 4 + [0.0] * 4)
    *_, rates = trained(Constant(), max_epochs=0)
    assert rates == []


def test_what_is_unfrozen_after_the_end_is_refused():
    tuned = FineTuning("all", unfreeze_epoch=3)
    with pytest.raises(ValueError, match="unfreeze_epoch within the training of 2 epochs, got 3"):
        trained(Constant(), max_epochs=2, fine_tuning=tuned)
    trained(Constant(), max_steps=9, fine_tuning=FineTuning("all", unfreeze_epoch=3))


def test_a_rate_that_was_0_throughout_is_told_with_the_scores():
    (told,) = training_warnings({}, {"loss": [(0, 1.0)], "learning_rate": [(0, 0.0)]})
    assert "the learning rate was 0 in every step" in told
    assert not any("rate was 0" in told for told in training_warnings({}, {"learning_rate": [(0, 0.0), (1, 0.1)]}))
