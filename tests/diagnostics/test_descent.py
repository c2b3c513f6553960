"""Whether a loss came down: hardly ever by noise alone, however its steps vary, and always where a training learns."""

from itertools import pairwise

import numpy as np
import pytest

from likewise.diagnostics import descent

NOISE = {
    "even": lambda rng, steps: rng.normal(size=steps),
    "long tails": lambda rng, steps: rng.standard_t(3, size=steps),
    "often zero": lambda rng, steps: rng.exponential(size=steps) * (rng.random(steps) < 0.3),
    "few values": lambda rng, steps: rng.integers(0, 2, size=steps).astype(float),
}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize(("steps", "size"), [(100, 0.0), (270, -40.0)])
def test_noise_is_no_descent(noise, steps, size):
    rng = np.random.default_rng(steps)  # of its own: what a test finds may not depend on which others ran before it
    fell = sum(descent((size + 0.3 * NOISE[noise](rng, steps)).tolist()).fell for _ in range(400))
    assert fell <= 400 * (0.05 if noise == "often zero" else 0.025)  # of 6,000 each 0.032 and at most 0.015 were found


def test_a_constant_loss_and_one_that_rises_while_a_queue_fills_did_not_fall():
    assert descent([np.log(255)] * 100) == (np.log(255), np.log(255), 0.0, False)
    filling = np.log(np.minimum(128 * np.arange(1, 271), 4096)) + 0.01 * np.random.default_rng(0).normal(size=270)
    assert not descent(filling.tolist()).fell


def test_a_descent_of_less_than_a_thousandth_is_none_however_regular():
    assert not descent(np.linspace(5.5, 5.4951, 200).tolist()).fell
    assert descent(np.linspace(5.5, 5.48, 200).tolist()).fell


@pytest.mark.parametrize("steps", [100, 3000])
def test_what_learns_falls_at_once_or_late_below_zero_and_after_a_rise(steps):
    at = np.linspace(0, 1, steps)
    curves = {
        "at once": 3.4 + 2.1 * np.exp(-50 * at),
        "late": 5.5 - 2.0 * (at > 0.85),
        "below zero": -1.0 - 2.0 * at,
        "after a rise": 7.0 - 3.0 * np.abs(at - 0.3),
    }
    rng = np.random.default_rng(steps)
    for name, curve in curves.items():
        assert descent((curve + 0.06 * rng.normal(size=steps)).tolist()).fell, name


def test_the_numbers_are_those_of_a_plain_loop():
    losses = [*np.linspace(6, 4, 95), *np.random.default_rng(0).normal(4, 0.1, size=42)]
    tenths, start = [], 0
    for number in range(10):
        width = len(losses) // 10 + (number < len(losses) % 10)
        tenths.append(sum(losses[start : start + width]) / width)
        start += width
    steps = [(later - earlier) ** 2 for earlier, later in pairwise(losses[13:])]
    found = descent(losses)
    assert found[:3] == pytest.approx((max(tenths), tenths[-1], (sum(steps) / len(steps) / 2) ** 0.5))


def test_a_handful_of_steps_cannot_tell():
    assert descent([]) is None
    assert descent([5.5, 3.0] * 9) is None
