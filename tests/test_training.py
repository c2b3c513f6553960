"""Pretraining under Lightning's trainer, and the folder a run leaves."""

import math
import re
from pathlib import Path

import lightning
import pytest
import torch

from likewise.data import Digits
from likewise.losses import (
    BCLLoss,
    DCLLoss,
    HardNegativeLoss,
    InfoNCELoss,
    KCLLoss,
    MSCLoss,
    MulSupConLoss,
    NPairsLoss,
    NTXentLoss,
    NWSLoss,
    PaCoLoss,
    PatchLoss,
    ProxyNCALoss,
    RASCALLoss,
    SupConLoss,
    TripletLoss,
)
from likewise.losses.base import ContrastiveLoss
from likewise.models import ConvNet, ProjectionHead
from likewise.training import Pretraining, run_folder

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*", "ignore:.*does not have many workers.*")


class Recorder(ContrastiveLoss):
    """A loss that keeps what it is called with."""

    def __init__(self, scale=1.0):
        super().__init__(temperature=1.0)
        self.calls, self.scale = [], scale

    def forward(self, embeddings, sample_index=None):
        self.calls.append((embeddings.shape, sample_index))
        return self.scale * embeddings.square().mean()


class Pairs(Recorder):
    """The same, of two views."""

    def forward(self, anchors, positives):
        self.calls.append((anchors, positives))
        return anchors.square().mean()


class Everything(Recorder):
    """The same, of all that is offered by name, and of something that is not needed."""

    def forward(self, z, class_logits, prototypes, labels, sample_index, other=None, **others):
        self.calls.append((z, class_logits, prototypes, labels, sample_index, other, others))
        return (z @ prototypes.T).square().mean() + class_logits.square().mean()


def _pretraining(loss, *, optimizer=torch.optim.AdamW, **options):
    encoder, head = ConvNet((1, 8, 8), width=4), ProjectionHead(16, out_dim=5)
    return Pretraining(encoder, head, loss, optimizer, **({"num_classes": 10} | options))


def _fit(loss, *, data=None, optimizer=torch.optim.AdamW, **limits):
    torch.manual_seed(0)
    module = _pretraining(loss, optimizer=optimizer)
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"max_steps": 3} | limits),
    )
    trainer.fit(module, data or Digits(batch_size=64))
    return module, trainer


def test_a_loss_receives_views_and_what_its_forward_names():
    loss = Recorder()
    _fit(loss, data=Digits(batch_size=64, views=3), max_steps=1)
    (shape, sample_index) = loss.calls[0]
    assert shape == (64, 3, 5)
    assert len(set(sample_index.tolist())) == 64


def test_a_loss_of_two_views_receives_them_in_order_as_two_arguments():
    class Embeddings(Recorder):
        def forward(self, embeddings):
            self.calls.append(embeddings)
            return embeddings.square().mean()

    together, apart = Embeddings(), Pairs()
    for loss in (together, apart):
        _fit(loss, max_steps=1)
    (anchors, positives), embeddings = apart.calls[0], together.calls[0]
    assert torch.equal(torch.stack([anchors, positives], dim=1), embeddings)
    assert not torch.equal(anchors, positives)


@pytest.mark.parametrize(("loss", "names"), [(InfoNCELoss(), "queries and keys"), (NPairsLoss(), "anchors and pos")])
@pytest.mark.parametrize("views", [1, 3])
def test_a_loss_of_two_views_refuses_more_and_fewer(loss, names, views):
    with pytest.raises(ValueError, match=rf"two views for .*, as {names}.*, got {views}: set data.views to 2"):
        _fit(loss, data=Digits(batch_size=64, views=views))


def test_a_loss_receives_prototypes_and_class_logits_that_are_learned_with_the_rest():
    loss, data = Everything(), Digits(batch_size=64, views=3)
    module, _ = _fit(loss, data=data, max_steps=1)
    z, logits, prototypes, labels, index, *others = loss.calls[0]
    assert (z.shape, logits.shape, others) == ((64, 3, 5), (64, 3, 10), [None, {}])
    assert prototypes is module.prototypes.weight
    assert prototypes.shape == (10, 5)
    assert torch.equal(labels, data.train_samples.labels[index])
    learned = {id(of) for group in module.optimizers().param_groups for of in group["params"]}
    for of in (prototypes, module.classifier.weight):
        assert id(of) in learned
        assert of.grad.abs().sum() > 0


def test_only_a_loss_that_takes_them_brings_prototypes_or_a_classifier():
    assert {name.split(".")[0] for name in _pretraining(SupConLoss()).state_dict()} == {"encoder", "head"}


@pytest.mark.parametrize("loss", [ProxyNCALoss(), PaCoLoss()])
def test_prototypes_and_class_logits_need_the_number_of_classes(loss):
    with pytest.raises(ValueError, match=r"num_classes for \w+Loss, got none: pass"):
        _pretraining(loss, num_classes=None)


REFUSED = [
    (TripletLoss(), "TripletLoss, which needs negatives: call it in a loop of your own"),
    (PatchLoss(), "PatchLoss, which needs support_maps and cell_labels: call"),
    (MSCLoss(), r"MSCLoss, which needs label sets as labels \(a later version reads such data\): call"),
    (NWSLoss(torch.eye(10)), "NWSLoss, which needs label sets"),
    (MulSupConLoss(), "MulSupConLoss, which needs label sets"),
]


@pytest.mark.parametrize(("loss", "words"), REFUSED)
def test_a_loss_that_needs_what_no_step_has_is_refused_before_training(loss, words):
    with pytest.raises(ValueError, match="from embeddings, labels, .*, got " + words):
        _pretraining(loss)


@pytest.mark.parametrize("loss", [loss for loss, _ in REFUSED])
def test_a_refused_loss_is_pointed_to_its_own_page(loss):
    """The page exists and calls that very loss."""
    with pytest.raises(ValueError, match=r"loop of your own; docs/losses/[\w-]+\.md shows its arguments$") as caught:
        _pretraining(loss)
    (page,) = re.findall(r"docs/losses/\S+", str(caught.value))
    assert f"lw.{type(loss).__name__}(" in (Path(__file__).parents[1] / page).read_text(encoding="utf-8")


def test_a_refused_loss_of_a_users_own_is_pointed_to_no_page():
    class Own(Recorder):
        def forward(self, embeddings, weather):
            return embeddings.mean() * weather

    with pytest.raises(ValueError, match=r"got Own, which needs weather: call it in a loop of your own$"):
        _pretraining(Own())


TRAINED = (
    *(InfoNCELoss, NPairsLoss, NTXentLoss, DCLLoss, HardNegativeLoss),
    *(SupConLoss, KCLLoss, BCLLoss, PaCoLoss, ProxyNCALoss),
    *(lambda: RASCALLoss(1348, 5), lambda: RASCALLoss(1348, 5, rank_level="sample")),
)


@pytest.mark.parametrize("make", TRAINED)
def test_every_loss_that_can_be_fed_falls_in_training(make):
    losses = []

    class Watch(lightning.Callback):
        def on_train_batch_end(self, *of):
            losses.append(float(of[2]["loss"]))

    data = Digits(batch_size=64, test_fraction=0.8)  # 5 steps an epoch, so that a cache is hit
    _fit(make(), data=data, optimizer=lambda of: torch.optim.AdamW(of, lr=1e-2), max_steps=20, callbacks=[Watch()])
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])


def test_training_lowers_the_loss_on_its_own_views():
    torch.manual_seed(0)
    data = Digits(batch_size=256)
    views, labels = data.make_views(data.train_samples.inputs[:256]), data.train_samples.labels[:256]

    def loss_of(module):
        with torch.no_grad():
            return float(SupConLoss()(module.head(module(views.flatten(0, 1))).unflatten(0, (256, 2)), labels))

    before, after = (loss_of(_fit(SupConLoss(), data=data, max_steps=steps)[0]) for steps in (0, 30))
    assert after < before - 0.3


def test_the_learning_rate_falls_to_zero_over_the_whole_training():
    rates = []

    class Watch(lightning.Callback):
        def on_train_batch_start(self, trainer, *_):
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    _fit(NTXentLoss(), max_steps=8, callbacks=[Watch()])
    expected = [1e-3 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]
    assert rates == pytest.approx(expected)


def test_what_the_loss_did_is_logged_beside_it():
    _, trainer = _fit(SupConLoss(), data=Digits(batch_size=64, views=2), max_steps=1)
    assert {"loss", "learning_rate", "active_anchors", "positives_per_anchor"} <= trainer.logged_metrics.keys()
    assert trainer.logged_metrics["active_anchors"] == 128


def test_a_histogram_of_the_loss_is_not_logged_as_a_number():
    loss = RASCALLoss(1348, 5)
    _, trainer = _fit(loss, data=Digits(batch_size=674), max_steps=4)
    assert loss.last["rank_drift_histogram"].sum() > 0
    told = trainer.logged_metrics
    assert told.keys() - {"loss", "learning_rate"} == loss.last.keys() - {"rank_drift_histogram"}
    assert all(math.isfinite(value) for value in told.values())
    assert told["cache_hit_rate"] == 1


@pytest.mark.parametrize("scale", [math.inf, math.nan])
def test_a_loss_that_is_not_finite_stops_the_training(scale):
    loss = Recorder(scale)
    with pytest.raises(ValueError, match=r"finite loss.*step 0.*lower the learning rate"):
        _fit(loss)
    assert len(loss.calls) == 1


def test_weights_that_explode_stop_the_training():
    with pytest.raises(ValueError, match="training has diverged"):
        _fit(SupConLoss(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e30))


def test_a_loss_that_is_not_reduced_is_refused():
    with pytest.raises(ValueError, match=r"reduction mean or sum.*got none"):
        _pretraining(SupConLoss(reduction="none"))
    with pytest.raises(ValueError, match=r"one loss a batch, got \(1,\)"):
        _fit(Recorder(torch.ones(1)))


def test_one_view_is_refused_where_two_are_needed():
    with pytest.raises(ValueError, match="two views"):
        _fit(NTXentLoss(), data=Digits(batch_size=64, views=1))


def test_a_training_without_end_is_refused():
    with pytest.raises(ValueError, match="finite length"):
        _fit(SupConLoss(), max_steps=-1, max_epochs=-1)


@pytest.mark.parametrize(
    ("make", "held"),
    [
        (SupConLoss, set()),
        (ProxyNCALoss, {"prototypes.weight"}),
        (PaCoLoss, {"classifier.weight"}),
        (lambda: RASCALLoss(1348, 5), {"loss.cache.features", "loss.cache.valid"}),
    ],
)
def test_a_checkpoint_gives_features_and_what_the_loss_keeps_back(make, held, tmp_path):
    module, trainer = _fit(make())
    trainer.save_checkpoint(tmp_path / "checkpoint.ckpt")
    images = Digits().test_samples.inputs
    other = _pretraining(make())
    assert not any(torch.equal(other.state_dict()[name], module.state_dict()[name]) for name in held)
    other.load_state_dict(torch.load(tmp_path / "checkpoint.ckpt", weights_only=True)["state_dict"])
    assert torch.equal(module.encoder.encode(images), other.encoder.encode(images))
    assert all(torch.equal(other.state_dict()[name], module.state_dict()[name]) for name in held)


def _fail_half_way(root, *, trained):
    with run_folder(root, "half") as folder:
        (folder.partial / "config.yaml").touch()
        if trained:
            (folder.partial / "checkpoint.ckpt").touch()
        raise RuntimeError(str(folder.partial))


@pytest.mark.parametrize("trained", [False, True])
def test_a_run_that_fails_never_takes_its_name_and_stays_only_if_it_trained(tmp_path, trained):
    with pytest.raises(RuntimeError) as caught:
        _fail_half_way(tmp_path, trained=trained)
    assert [str(path) for path in tmp_path.iterdir()] == ([str(caught.value)] if trained else [])
    assert str(caught.value).endswith("-half.partial")
    assert getattr(caught.value, "__notes__", []) == ([f"what the run had written is left in {caught.value}"] * trained)


def test_runs_of_one_second_do_not_meet(tmp_path):
    folders = []
    for _ in range(3):
        with run_folder(tmp_path, "same") as folder:
            folders.append(folder)
        with run_folder(tmp_path, "same") as first, run_folder(tmp_path, "same") as second:
            folders += [first, second]
    assert len({folder.whole for folder in folders}) == len(list(tmp_path.iterdir())) == 9


def test_a_root_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="expected a folder to write runs into"), run_folder(tmp_path / "file", "x"):
        pass
