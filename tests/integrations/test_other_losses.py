"""Our losses in open_clip, lightly and pytorch-metric-learning, beside theirs: values and gradients."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import likewise as lw
from likewise.integrations import ForMetricLearning, ForOpenClip
from likewise.memory import Prototypes, Queue

WORKER = Path(__file__).parents[1] / "processes" / "other_losses_worker.py"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of libraries


def grads_of(found):
    return torch.cat([grad.flatten() for name, grad in sorted(found[1].items()) if name != "logit_scale"])


@pytest.fixture(scope="module")
def one():
    for module in ("open_clip", "lightly"):
        pytest.importorskip(module, reason="needs the group integrations of pyproject.toml")
    from other_losses_worker import measured  # noqa: PLC0415 - which imports them

    return measured(0, 1)


@pytest.fixture(scope="module")
def two(one, tmp_path_factory):
    assert one
    folder = tmp_path_factory.mktemp("trainers")
    started = [subprocess.Popen([sys.executable, WORKER, str(rank), "2", folder]) for rank in range(2)]
    assert [process.wait(120) for process in started] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


PAIRS = {"ours": "clip, local=False, grad=False", "our sigmoid": "sigmoid", "our views": "views"}


@pytest.mark.parametrize("ours", PAIRS)
def test_on_one_process_value_and_every_gradient_are_theirs(ours, one):
    (value, grads), (expected, theirs) = one[ours], one[PAIRS[ours]]
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    assert grads.keys() == theirs.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, theirs[name], rtol=1e-10, atol=1e-14)


@pytest.mark.process
@pytest.mark.parametrize("ours", PAIRS)
def test_on_two_processes_value_and_every_gradient_are_those_of_one(ours, one, two):
    for found in two:
        torch.testing.assert_close(found[ours][0], one[ours][0], rtol=1e-12, atol=0)
        for name, grad in found[ours][1].items():
            torch.testing.assert_close(grad, one[ours][1][name], rtol=1e-10, atol=1e-14)


@pytest.mark.process
def test_which_of_theirs_have_the_gradient_of_one_process(one, two):
    """As docs/coming-from/open-clip.md says: without gathered gradients, about half of it."""
    true = grads_of(one["ours"])
    ratios = {name: float(grads_of(two[0][name]).norm() / true.norm()) for name in one if name.startswith("clip")}
    print(ratios)
    for local in (False, True):
        assert 0.45 < ratios[f"clip, local={local}, grad=False"] < 0.6
        assert ratios[f"clip, local={local}, grad=True"] == pytest.approx(1, rel=1e-9)


def test_the_factory_takes_open_clips_options():
    """And leaves to open_clip what it has no loss for."""
    options = {"model": "RN50", "siglip": False, "distill": False, "horovod": False}
    assert not ForOpenClip.create(SimpleNamespace(**options)).sigmoid
    assert ForOpenClip.create(SimpleNamespace(**{**options, "siglip": True})).sigmoid
    for other in ({"model": "coca_base"}, {"distill": True}, {"horovod": True}):
        with pytest.raises(ValueError, match=r"without distillation and Horovod.*: leave open_clip's create_loss"):
            ForOpenClip.create(SimpleNamespace(**{**options, **other}))
    rows, one = torch.eye(2), torch.tensor(1.0)
    for sigmoid, bias in ((False, one), (True, None)):
        with pytest.raises(ValueError, match=r"logit_bias for sigmoid=.*--siglip"):
            ForOpenClip(sigmoid=sigmoid)(rows, rows, one, bias)


X, Y = torch.randn(24, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2)), torch.arange(24) % 4


def value_and_gradient(loss_of, *more, **also):
    x = X.clone().requires_grad_()
    loss = loss_of(x, Y, *more, **also)
    return loss.detach(), torch.autograd.grad(loss, x)[0]


def test_references_are_ref_emb():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    also = {"ref_emb": X.flip(1), "ref_labels": Y.flip(0)}
    ours = value_and_gradient(ForMetricLearning(lw.SupConLoss(temperature=0.1)), **also)
    for one, other in zip(ours, value_and_gradient(losses.SupConLoss(0.1), **also), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)


def test_a_queue_is_a_memory_of_batches():
    """Every value is CrossBatchMemory's, which contrasts with the same rows; gradients go to both rows of a pair."""
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    theirs = losses.CrossBatchMemory(losses.SupConLoss(0.1), 6, 256)
    ours = ForMetricLearning(lw.SupConLoss(temperature=0.1), queue=Queue(256, 6).double())
    for step in range(3):
        x = X.roll(step, 0) + step
        torch.testing.assert_close(ours(x, Y), theirs(x, Y), rtol=1e-6, atol=0)  # their queue is float32
    assert len(ours.queue) == 72
    assert ours.state_dict()["queue.enqueued"] == 72


def test_a_queue_keeps_the_lengths_that_a_loss_without_normalisation_reads():
    loss = lw.SupConLoss(temperature=2.0, normalize=False)
    ours = ForMetricLearning(loss, queue=Queue(30, 6).double())
    ours(X, Y)
    torch.testing.assert_close(ours(X, Y), loss(X, Y, queue=X, queue_labels=Y))


def test_a_scale_in_half_precision_is_inverted_in_a_wider_one():
    images, texts = torch.nn.functional.normalize(X[:12]), torch.nn.functional.normalize(X[12:])
    scale, bias = torch.tensor(73.5, dtype=torch.bfloat16), torch.tensor(-10.0, dtype=torch.bfloat16)
    wide = ForOpenClip(sigmoid=True)(images, texts, scale.float(), bias.float())
    torch.testing.assert_close(ForOpenClip(sigmoid=True)(images, texts, scale, bias), wide, rtol=1e-6, atol=0)


def test_prototypes_are_parameters_of_the_loss():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    theirs, ours = losses.ProxyAnchorLoss(4, 6), ForMetricLearning(lw.ProxyAnchorLoss(), prototypes=Prototypes(4, 6))
    with torch.no_grad():
        next(ours.parameters()).copy_(theirs.proxies)
    for one, other in zip(value_and_gradient(ours.double()), value_and_gradient(theirs.double()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-12)


class Passing(torch.nn.Module):
    """A loss of one's own that passes on what it gets."""

    def forward(self, embeddings, labels, **also):
        return lw.SupConLoss()(embeddings, labels, **also)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ForMetricLearning(lw.KCLLoss(), queue=Queue(20, 6)), "got queue, where KCLLoss"),
        (lambda: ForMetricLearning(lw.ProxyNCALoss()), r"prototypes for ProxyNCALoss, got none: prototypes=Proto"),
        (lambda: ForMetricLearning(lw.ProxyNCALoss(), prototypes=X), "prototypes as a module, got Tensor: give"),
        (lambda: ForMetricLearning(lw.SupConLoss), r"such as SupConLoss\(\), got SupConLoss: call the class"),
        (lambda: ForMetricLearning(lw.KCLLoss())(X, Y, ref_emb=X, ref_labels=Y), "got references, where"),
    ],
    ids=range(5),
)
def test_what_a_loss_does_not_take_is_told(make, words):
    with pytest.raises(ValueError, match=words):
        make()
    assert ForMetricLearning(Passing(), queue=Queue(20, 6).double())(X, Y).ndim == 0


def test_pairs_of_a_miner_are_refused():
    with pytest.raises(ValueError, match=r"indices_tuple: leave the miner out.*epsilon="):
        ForMetricLearning(lw.SupConLoss())(X, Y, (torch.arange(2),) * 3)
