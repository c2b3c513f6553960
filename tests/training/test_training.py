"""Pretraining under Lightning's trainer: what a loss is given, what is logged, schedules, and what is random."""

import functools
import math
from functools import partial
from pathlib import Path

import lightning
import pytest
import timm
import torch
from test_models import Reader
from torch import nn
from trainings import Rates, fitted

import likewise as lw
from likewise.data import Digits, Samples, Stratified, Views
from likewise.losses.base import ContrastiveLoss
from likewise.models import ConvNet, ProjectionHead
from likewise.training import Constant, Cosine, KeyQueue, LabelPrototypes, Momentum, Pretraining, TrainingData
from likewise.training.data import Loader, Position
from likewise.training.fitting import GatheredBatchNorm, synchronize
from likewise.training.optimization import optimizer_of

pytestmark = pytest.mark.slow


class Recorder(ContrastiveLoss):
    """A loss that records its arguments."""

    def __init__(self, scale=1.0):
        super().__init__(temperature=1.0)
        self.calls, self.scale = [], scale

    def forward(self, embeddings, sample_index=None):
        self.calls.append((embeddings.shape, sample_index))
        return self.scale * embeddings.square().mean()


@functools.cache
def _train():
    """The training part of the digits."""
    return Stratified()(Digits().load()).train


def _data(batch_size=64, views=2, samples=None, **options):
    return TrainingData(samples or _train(), Views(views, batch_size), **options)


def _pretraining(loss, *, optimizer=torch.optim.AdamW, **options):
    encoder, head = ConvNet((1, 8, 8), width=4), ProjectionHead(16, out_dim=5)
    return Pretraining(encoder, head, loss, optimizer, **({"samples": _train()} | options))


def _fit(loss, *, data=None, optimizer=torch.optim.AdamW, module=None, **limits):
    torch.manual_seed(0)
    module = module or _pretraining(loss, optimizer=optimizer)
    return module, fitted(module, data or _data(), **({"max_steps": 3} | limits))


def test_a_matryoshka_is_trained_by_and_its_loss_is_the_modules():
    """The value that is logged is that of all widths, and state has the names that it has without them."""
    loss = lw.InfoNCELoss(temperature="learned")
    module = _pretraining(lw.Matryoshka(loss, (5, 2)))
    assert module.loss is loss
    assert [name for name in module.state_dict() if "temperature" in name] == ["loss.log_temperature"]
    calls = []
    loss.register_forward_pre_hook(lambda *call: calls.append(call[-1]), with_kwargs=True)
    _, trainer = _fit(loss, module=module, max_steps=1)
    assert [named["queries"].shape[1] for named in calls] == [2, 5]
    expected = sum(lw.InfoNCELoss()(named["queries"], named["keys"]) for named in calls).detach() / 2
    torch.testing.assert_close(trainer.logged_metrics["loss"], expected)


def test_prototypes_and_class_logits_need_the_training_part():
    for loss in (lw.ProxyNCALoss(), lw.PaCoLoss()):
        with pytest.raises(ValueError, match=r"expected labels for \w+Loss.*pass samples= with labels"):
            _pretraining(loss, samples=None)


TRAINED = (  # one for each way in which a loss is given its arguments, and the ranks of both levels
    *(lw.InfoNCELoss, lw.NTXentLoss, lw.TripletLoss, lw.SupConLoss, lw.PaCoLoss, lw.ProxyNCALoss, lw.CrossEntropyLoss),
    *(lw.BYOLLoss, lambda: lw.RASCALLoss(320, 5), lambda: lw.RASCALLoss(320, 5, rank_level="sample")),
)


@pytest.mark.parametrize("make", TRAINED)
def test_losses_fall_in_training(make):
    losses = []

    class Watch(lightning.Callback):
        def on_train_batch_end(self, *of):
            losses.append(float(of[2]["loss"]))

    data = _data(samples=_train()[torch.arange(320)])  # 5 steps an epoch, so that a cache is hit
    _fit(make(), data=data, optimizer=lambda of: torch.optim.AdamW(of, lr=1e-2), max_steps=20, callbacks=[Watch()])
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])


def test_values_recorded_by_the_loss_are_logged_and_histograms_and_values_of_anchors_are_not():
    loss = lw.RASCALLoss(1213, 5)
    _, trainer = _fit(loss, data=_data(batch_size=1213), max_steps=4)
    assert loss.last["rank_drift_histogram"].sum() > 0
    told, summed = trainer.logged_metrics, {"rank_drift_histogram", "rank_drift_by_anchor"}
    assert told.keys() - {"loss", "learning_rate"} == loss.last.keys() - summed
    assert all(math.isfinite(value) for value in told.values())
    assert told["cache_hit_rate"] == 1


def test_a_loss_that_is_not_finite_stops_the_training():
    loss = Recorder(math.nan)
    with pytest.raises(ValueError, match=r"finite loss.*step 0.*lower the learning rate"):
        _fit(loss)
    assert len(loss.calls) == 1


@pytest.mark.parametrize(
    ("loss", "what"),
    [(lw.SupConLoss, "embeddings"), (lw.CrossEntropyLoss, "class_logits"), (lw.InfoNCELoss, "(queries|keys)")],
)
def test_weights_that_explode_stop_the_training(loss, what):
    with pytest.raises(ValueError, match=f"expected finite {what}.*training has diverged"):
        _fit(loss(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e30))


def test_a_loss_that_is_not_reduced_is_refused():
    with pytest.raises(ValueError, match=r"reduction mean or sum.*got none"):
        _pretraining(lw.SupConLoss(reduction="none"))
    with pytest.raises(ValueError, match=r"one loss per batch, got \(1,\)"):
        _fit(Recorder(torch.ones(1)))


def test_the_schedule_multiplies_each_group_by_its_own_factor():
    """Decay only for matrices; prototypes at ten times the rate; linear warm-up, then half a cosine."""
    schedule = Cosine(warmup_epochs=1, end=0.1)
    module = _pretraining(lw.ProxyNCALoss(), inputs=[LabelPrototypes(rate_factor=10.0)], schedule=schedule)
    data, rates = _data(samples=_train()[torch.arange(256)]), Rates()
    _, trainer = _fit(None, module=module, data=data, max_steps=-1, max_epochs=2, callbacks=[rates])
    assert len(rates.steps) == 8
    for step, found in enumerate(rates.steps):
        cosine = 0.1 + 0.9 * (1 + math.cos(math.pi * (step - 4) / 4)) / 2
        expected = 1e-3 * (step / 4 if step < 4 else cosine)
        assert sorted({round(rate, 9) for rate in found}) == pytest.approx(
            [expected, 10 * expected] if step else [0.0], abs=1e-8
        )
    groups = trainer.optimizers[0].param_groups
    decays = {of.ndim >= 2: group["weight_decay"] for group in groups for of in group["params"]}
    assert decays == {True: 0.01, False: 0.0}


def test_a_learned_temperature_is_logged_and_has_a_rate_of_its_own_without_decay_as_a_bias_has_none():
    loss, seen = lw.SigLIPLoss(temperature="learned", bias="learned"), []
    module = _pretraining(loss, temperature_rate_factor=10.0, schedule=Constant())

    class Watch(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            seen.append(float(trainer.callback_metrics["temperature"]))

    _, trainer = _fit(None, module=module, callbacks=[Watch()])
    of = {one: group for group in trainer.optimizers[0].param_groups for one in group["params"]}
    assert [of[loss.log_temperature][name] for name in ("lr", "weight_decay")] == [0.01, 0.0]
    assert [of[loss.bias][name] for name in ("lr", "weight_decay")] == [0.001, 0.0]
    assert seen[0] == pytest.approx(0.1)
    assert len(set(seen)) == 3
    assert loss.bias.item() != -10  # as it begins


def test_a_factor_without_a_meaning_is_refused():
    for temperature, factor in (("learned", 0.0), (0.1, 2.0)):
        with pytest.raises(ValueError, match=f"temperature_rate_factor above 0.*got {factor}: 1 is the encoder's rate"):
            _pretraining(lw.InfoNCELoss(temperature=temperature), temperature_rate_factor=factor)


def test_in_a_training_limited_by_time_the_rate_falls_with_time():
    rates = Rates()
    _fit(lw.NTXentLoss(), max_steps=-1, max_epochs=-1, max_time={"seconds": 1.5}, callbacks=[rates])
    assert rates.first[0] == pytest.approx(1e-3, rel=0.2)
    assert rates.first[-1] < 0.2e-3
    assert sorted(rates.first, reverse=True) == rates.first


def test_an_optimizer_of_another_kind_and_an_option_that_it_refuses_are_told():
    with pytest.raises(ValueError, match="got LBFGS: choose SGD or AdamW"):
        optimizer_of(torch.nn.Linear(3, 2), torch.optim.LBFGS)
    with pytest.raises(ValueError, match=r"^expected options that AdamW takes, got .*Invalid learning rate: -1"):
        optimizer_of(torch.nn.Linear(3, 2), partial(torch.optim.AdamW, lr=-1.0))


def test_momentum_moves_with_the_optimizers_steps_and_keys_are_queued_with_every_batch():
    """A momentum that rises ends at one."""
    module = _pretraining(lw.InfoNCELoss(), inputs=[Momentum(0.9, rising=True), KeyQueue(1000)])
    _fit(None, module=module, max_steps=2, accumulate_grad_batches=3)
    assert module.inputs.momentum.slow.step == 2
    assert module.inputs.momentum.slow.momentum == 1.0
    assert len(module.inputs.by_class["KeyQueue"].ring) == 6 * 64


def test_a_batch_and_its_views_depend_only_on_seed_and_step():
    def batches(seed, everything_else):
        torch.manual_seed(everything_else)
        data = _data(batch_size=400, seed=seed)
        return [data.on_after_batch_transfer(batch, 0) for batch in data.train_dataloader()]

    for one, other in zip(batches(1, 5), batches(1, 6), strict=True):
        assert torch.equal(one["sample_index"], other["sample_index"])
        assert torch.equal(one["inputs"], other["inputs"])
    first, second = batches(1, 5), batches(2, 5)
    assert not torch.equal(first[0]["sample_index"], second[0]["sample_index"])
    assert not torch.equal(first[0]["inputs"], first[1]["inputs"])


def test_several_processes_together_hold_the_batch_of_a_single_one():
    """The rows of a batch and their views, bit for bit, on any process."""
    batches = Views(batch_size=60)
    batches.fit(_train())

    def first(rank, processes):
        place = Position(epoch=3, batch=2, rank=rank, processes=processes)
        loader = Loader(_train(), batches, seed=4, position=lambda: place)
        return batches.on_device(next(iter(loader)))

    alone, shares = first(0, 1), [first(rank, 3) for rank in range(3)]
    for name in ("inputs", "labels", "sample_index"):
        assert torch.equal(torch.cat([share[name] for share in shares]), alone[name])


@pytest.fixture
def read():
    """The training part with inputs that are not in memory."""
    return Samples(Reader(_train().inputs), _train().labels, _train().names)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batch_normalisation_of_all_processes_keeps_activations(device):
    """Timm's has one within; another forward of its own would be lost, and is refused."""
    network, inputs = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval(), torch.randn(2, 3, 32, 32)
    expected = network(inputs)
    synchronize(network, torch.device(device))
    assert torch.equal(network(inputs), expected)
    assert sum(isinstance(part, GatheredBatchNorm | nn.SyncBatchNorm) for part in network.modules()) == 49

    class Doubled(nn.BatchNorm2d):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(ValueError, match=r"got .*Doubled with a forward of its own at 1: take one of these, or"):
        synchronize(nn.Sequential(nn.BatchNorm2d(3), Doubled(3)), torch.device(device))


def test_inputs_that_are_not_in_memory_are_read_by_workers_in_the_same_order(read):
    inputs = _train().inputs
    for samples, workers in ((_train(), 0), (read, 0), (read, 2)):
        loader = _data(samples=samples, workers=workers).train_dataloader()
        batches = list(loader)
        assert len(batches) == len(loader) == 18
        assert all(torch.equal(batch["inputs"], inputs[batch["sample_index"]]) for batch in batches)


def test_workers_that_could_send_nothing_are_refused(read, monkeypatch):
    """PyTorch's workers would drop what they read, and the training would wait for it without end."""
    monkeypatch.setattr("tempfile.tempdir", str(Path("/") / ("long" * 20)))
    with pytest.raises(ValueError, match=r"temporary folder.*at most 70 characters.*set TMPDIR"):
        next(iter(_data(samples=read, workers=1).train_dataloader()))
    assert len(next(iter(_data(samples=read, workers=0).train_dataloader()))["inputs"]) == 64
