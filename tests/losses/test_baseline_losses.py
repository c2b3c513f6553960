"""The losses of a classifier's logits: plain loops, gradients, views, long tails, huge logits, statistics."""

import math

import pytest
import torch
from torch import nn

import likewise as lw

DOUBLE = torch.float64
MAKERS = {
    "cross-entropy": lw.CrossEntropyLoss,
    "smoothed": lambda: lw.CrossEntropyLoss(label_smoothing=0.2),
    "BCE": lw.BCELoss,
    "weighted": lambda: lw.BCELoss(positive_weight=7),
    "ASL": lw.AsymmetricLoss,
    "ASL of both": lambda: lw.AsymmetricLoss(gamma_negative=2.5, gamma_positive=1),
    "ASL of a root": lambda: lw.AsymmetricLoss(gamma_negative=0.5, gamma_positive=0.5, clip=0.3),
    "focal": lambda: lw.AsymmetricLoss(gamma_negative=2, gamma_positive=2, clip=0),
    "clipped only": lambda: lw.AsymmetricLoss(gamma_negative=0),
}
every_loss = pytest.mark.parametrize("name", MAKERS)
of_sets = pytest.mark.parametrize("name", [name for name in MAKERS if name not in {"cross-entropy", "smoothed"}])


def draw(*shape, seed=0, scale=2):
    return scale * torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def long_tail(rows, classes):
    """Return classes whose sizes halve from one to the next, the last ones empty."""
    return torch.tensor([min(int(math.log2(1 + row)), classes - 1) for row in range(rows)]).flip(0)


def rare_labels(rows, length):
    """Return label sets in which every 2^c-th sample has label c, and none has the last label."""
    sets = torch.tensor([[row % 2**c == 2**c - 1 for c in range(length)] for row in range(rows)])
    sets[:, -1] = False
    return sets


def labels_for(name, rows, length):
    return long_tail(rows, length) if name in {"cross-entropy", "smoothed"} else rare_labels(rows, length)


def by_hand(loss, logits, labels):
    """Return the loss of one sample's logits, in a plain loop over Python's numbers."""
    if isinstance(loss, lw.CrossEntropyLoss):
        everything = math.log(sum(math.exp(g) for g in logits))
        share = loss.label_smoothing / len(logits)
        targets = [share + (1 - loss.label_smoothing) * (c == labels) for c in range(len(logits))]
        return sum(q * (everything - g) for q, g in zip(targets, logits, strict=True))
    total = 0.0
    for g, y in zip(logits, labels, strict=True):
        p = 1 / (1 + math.exp(-g))
        if isinstance(loss, lw.BCELoss):
            total -= (loss.positive_weight * math.log(p) if y else math.log(1 - p)) / len(logits)
        elif y:
            total -= (1 - p) ** loss.gamma_positive * math.log(p)
        else:
            kept = max(p - loss.clip, 0)
            total -= kept**loss.gamma_negative * math.log(1 - kept)
    return total


@every_loss
@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
def test_a_loss_is_its_formula(name, dtype):
    """The loss of long-tailed labels is the mean of a plain loop over rows."""
    loss, logits, labels = MAKERS[name](), draw(37, 6).to(dtype), labels_for(name, 37, 6)
    rows = zip(logits.tolist(), labels.tolist(), strict=True)
    expected = sum(by_hand(loss, *row) for row in rows) / 37
    value = loss(logits, labels)
    assert value.dtype == dtype
    tolerance = 1e-13 if dtype == DOUBLE else 2e-6
    torch.testing.assert_close(value.double(), torch.tensor(expected, dtype=DOUBLE), rtol=tolerance, atol=0)


@every_loss
def test_gradients_are_those_of_finite_differences(name):
    """First and second, of logits on both sides of the clip."""
    logits, labels = draw(8, 4).requires_grad_(), labels_for(name, 8, 4)
    assert torch.autograd.gradcheck(lambda g: MAKERS[name]()(g, labels), (logits,))
    assert torch.autograd.gradgradcheck(lambda g: MAKERS[name]()(g, labels), (logits,))


@every_loss
def test_every_view_has_its_samples_labels(name):
    """The loss of (B, V, C) is the mean over views of that of (B, C), and so are the statistics."""
    loss, logits, labels = MAKERS[name](), draw(9, 3, 5), labels_for(name, 9, 5)
    together = loss(logits, labels)
    told = dict(loss.last)
    torch.testing.assert_close(together, torch.stack([loss(view, labels) for view in logits.unbind(dim=1)]).mean())
    loss(torch.cat(logits.unbind(dim=1)), torch.cat([labels] * 3))
    assert told == loss.last


@pytest.mark.parametrize("name", ["cross-entropy", "BCE", "ASL"])
def test_labels_may_be_of_any_dtype(name):
    logits, labels = draw(8, 5).float(), labels_for(name, 8, 5)
    dtypes = (torch.int8, torch.int16) if name == "cross-entropy" else (torch.bool, torch.float16, DOUBLE)
    for dtype in (torch.uint8, torch.int32, *dtypes):
        assert torch.equal(MAKERS[name]()(logits, labels.to(dtype)), MAKERS[name]()(logits, labels))


@pytest.mark.parametrize(("size", "dtype"), [(20.0, torch.float32), (1e4, torch.float32), (1e4, torch.bfloat16)])
@every_loss
def test_huge_logits_cost_no_precision(name, size, dtype):
    """Right and wrong logits of ± 20 and ± 10⁴: loss and gradients are float64's, up to rounding of the largest."""
    labels = labels_for(name, 16, 4)
    logits = (draw(16, 4).sign() * size).to(dtype).requires_grad_()
    exact = logits.detach().double().requires_grad_()
    value, expected = MAKERS[name]()(logits, labels), MAKERS[name]()(exact, labels)
    (value + expected).backward()
    assert value.dtype == torch.float32
    assert torch.isfinite(logits.grad).all()
    assert (exact.grad.abs() > 1e-3).any()  # wrong ones are felt
    torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=0)
    rounding = torch.finfo(dtype).eps * exact.grad.abs().max()
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=0, atol=float(rounding))


def test_many_bfloat16_rows_are_summed_in_float32():
    """The sum of 4,096 equal rows is exact: in bfloat16 it would stop at 256."""
    logits, labels = torch.zeros(4096, 4, dtype=torch.bfloat16), torch.zeros(4096, dtype=torch.int64)
    torch.testing.assert_close(lw.CrossEntropyLoss()(logits, labels), torch.tensor(math.log(4)))
    torch.testing.assert_close(lw.BCELoss()(logits, nn.functional.one_hot(labels, 4)), torch.tensor(math.log(2)))


@pytest.mark.parametrize("gamma", [0, 0.5, 1, 4])
def test_asl_ignores_easy_negatives(gamma):
    """At p ≤ m a negative has neither loss nor gradient, however far below; just above m it has both."""
    logits = torch.tensor([[-1e4, -30, -5, -3, -2.9444, -2.9]], requires_grad=True)  # p = 0.05 at −2.94444
    loss = lw.AsymmetricLoss(gamma_negative=gamma)(logits, torch.zeros(1, 6))
    loss.backward()
    assert (logits.grad[0, :4] == 0).all()
    assert logits.grad[0, 5] > 0
    assert loss > 0


def test_accuracy_of_a_step():
    """The share of rows whose largest logit is their class's; in a tie the first counts."""
    loss = lw.CrossEntropyLoss()
    loss(torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 1.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]), torch.tensor([0, 2, 0, 2]))
    assert loss.last == {"accuracy": torch.tensor(0.5)}  # right, wrong, a tie told right, a tie told wrong
    loss(torch.zeros(6, 3, requires_grad=True), torch.arange(6) % 3)
    assert loss.last["accuracy"] == torch.tensor(1 / 3)
    assert not loss.last["accuracy"].requires_grad


@of_sets
def test_micro_f1_of_a_step(name):
    """2 TP / (2 TP + FP + FN) over all labels at once; a logit of zero predicts no label."""
    logits, labels = draw(20, 5).requires_grad_(), rare_labels(20, 5)
    loss = MAKERS[name]()
    loss(logits, labels)
    right = wrong = 0
    for g, y in zip(logits.flatten().tolist(), labels.flatten().tolist(), strict=True):
        right += 2 * (g > 0 and y)
        wrong += (g > 0) != y
    torch.testing.assert_close(loss.last, {"micro_f1": torch.tensor(right / (right + wrong), dtype=DOUBLE)})
    assert not loss.last["micro_f1"].requires_grad
    for carried in (0, 1):
        loss(torch.zeros(3, 5), torch.full((3, 5), carried))
        assert loss.last["micro_f1"] == 0


@every_loss
def test_an_empty_batch_has_loss_zero(name):
    """An empty batch has loss 0, connected to the graph, and never NaN."""
    loss, logits = MAKERS[name](), draw(0, 3).requires_grad_()
    value = loss(logits, labels_for(name, 8, 3)[:0])
    value.backward()
    assert value == 0
    assert all(number == 0 for number in loss.last.values())
