"""Snapshots: what the loss received in two steps of a training, kept without changing it."""

import pytest
import torch
from trainings import Kill, fitted

import likewise as lw
from likewise.data import Samples, Views
from likewise.diagnostics import load_snapshots
from likewise.losses.base import ContrastiveLoss
from likewise.models import MLP, ProjectionHead
from likewise.runs import Run
from likewise.training import Checkpoints, Pretraining, Snapshots, TrainingData, callbacks

pytestmark = pytest.mark.slow
BATCHES = 3  # an epoch of 36 samples, 12 a batch


class Recorder(ContrastiveLoss):
    """A loss that remembers what it received, and how many hooks it had, in each step."""

    label_kinds = frozenset({"classes"})

    def __init__(self):
        super().__init__(temperature=0.25)
        self.calls, self.hooks = [], []

    def forward(self, embeddings, labels, sample_index):
        self.calls.append((embeddings.detach().clone(), labels, sample_index))
        self.hooks.append(len(self._forward_pre_hooks))
        return lw.SupConLoss()(embeddings, labels)


def train(run, loss, *, also=(), resume=False, keep=True, **limits):
    torch.manual_seed(0)
    labels = torch.arange(36) % 3
    inputs = torch.randn(36, 4, generator=torch.Generator().manual_seed(0)) + labels.unsqueeze(1)
    samples = Samples(inputs, labels, ("a", "b", "c"))
    encoder = torch.nn.Dropout(0.1)  # so that random numbers count
    module = Pretraining(MLP((4,), width=8), ProjectionHead(8), loss, torch.optim.AdamW, samples=samples)
    module.encoder.register_forward_hook(lambda _module, _inputs, output: encoder(output))
    callbacks = [*([Snapshots(run)] if keep else []), Checkpoints(run, 1e-9), *also]
    data = TrainingData(samples, Views(batch_size=12), seed=0)
    fitted(module, data, run.checkpoint if resume else None, callbacks=callbacks, **({"max_epochs": 4} | limits))
    return module


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path, "run")


def check(snapshot, call, *, epoch, step):
    embeddings, labels, index = call
    assert torch.equal(snapshot.embeddings, embeddings)
    assert torch.equal(snapshot.labels, labels)
    assert torch.equal(snapshot.sample_index, index)
    assert (snapshot.epoch, snapshot.step, snapshot.samples, snapshot.temperature) == (epoch, step, 12, 0.25)


def test_the_last_steps_of_the_first_and_the_last_epoch_are_kept_and_others_have_no_hook(run):
    loss = Recorder()
    train(run, loss)
    assert loss.hooks == [0, 0, 1] * 4
    found = load_snapshots(run.batches)
    assert list(found) == ["first", "last"]
    check(found["first"], loss.calls[BATCHES - 1], epoch=1, step=BATCHES - 1)
    check(found["last"], loss.calls[-1], epoch=4, step=4 * BATCHES - 1)
    assert not [path for path in run.folder.iterdir() if path.suffix == ".new"]
    loss(*loss.calls[0])
    assert loss.hooks[-1] == 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run, and its state."""
    run = Run.create(tmp_path_factory.mktemp("whole"), "whole")
    return run, train(run, lw.SupConLoss()).state_dict()


def test_training_is_bit_for_bit_what_it_is_without(whole, run):
    without = train(run, lw.SupConLoss(), keep=False).state_dict()
    assert all(torch.equal(value, without[name]) for name, value in whole[1].items())


@pytest.mark.parametrize(("limits", "last"), [({"max_steps": 2}, None), ({"max_steps": 5}, (2, 4))])
def test_however_a_training_is_limited_its_last_step_is_kept(limits, last, run):
    loss = Recorder()
    train(run, loss, **({"max_epochs": -1} | limits))
    found = load_snapshots(run.batches)
    assert list(found) == (["first"] if last is None else ["first", "last"])
    epoch, step = last or (1, len(loss.calls) - 1)
    check(found["last" if last else "first"], loss.calls[-1], epoch=epoch, step=step)


def test_a_resumed_training_leaves_the_same_file(whole, run):
    for batch in (1, BATCHES, BATCHES + 2):
        with pytest.raises(InterruptedError):
            train(run, lw.SupConLoss(), also=[Kill(batch)], resume=run.checkpoint.exists())
    train(run, lw.SupConLoss(), resume=True)
    assert run.batches.read_bytes() == whole[0].batches.read_bytes()


def test_large_batches_are_cut_to_whole_samples(run, monkeypatch):
    monkeypatch.setattr(callbacks, "MAX_ROWS", 9)
    loss = Recorder()
    train(run, loss, max_epochs=1)
    first = load_snapshots(run.batches)["first"]
    assert first.embeddings.shape[:2] == (4, 2)
    assert torch.equal(first.embeddings, loss.calls[-1][0][:4])
    assert len(first.labels) == len(first.sample_index) == 4
    assert first.samples == 12


def test_views_by_position_are_embeddings(run):
    train(run, lw.NTXentLoss(temperature=0.3), max_epochs=1)
    first = load_snapshots(run.batches)["first"]
    assert first.embeddings.shape[:2] == (12, 2)
    assert first.temperature == pytest.approx(0.3)


@pytest.mark.parametrize("loss", [lw.TripletLoss, lw.CrossEntropyLoss])
def test_losses_without_embeddings_leave_no_file(loss, run):
    train(run, loss(), max_epochs=1)
    assert not run.batches.exists()
