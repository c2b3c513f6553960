"""Pretraining under Lightning's trainer, and the folder a run leaves."""

import math

import lightning
import pytest
import torch

from likewise.data import Digits
from likewise.losses import NTXentLoss, SupConLoss
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


def _fit(loss, *, data=None, optimizer=torch.optim.AdamW, **limits):
    torch.manual_seed(0)
    module = Pretraining(ConvNet((1, 8, 8), width=4), ProjectionHead(16, out_dim=5), loss, optimizer)
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
        Pretraining(ConvNet((1, 8, 8), width=4), ProjectionHead(16), SupConLoss(reduction="none"), torch.optim.AdamW)
    with pytest.raises(ValueError, match=r"one loss a batch, got \(1,\)"):
        _fit(Recorder(torch.ones(1)))


def test_one_view_is_refused_where_two_are_needed():
    with pytest.raises(ValueError, match="two views"):
        _fit(NTXentLoss(), data=Digits(batch_size=64, views=1))


def test_a_training_without_end_is_refused():
    with pytest.raises(ValueError, match="finite length"):
        _fit(SupConLoss(), max_steps=-1, max_epochs=-1)


def test_a_checkpoint_gives_the_same_features_back(tmp_path):
    module, trainer = _fit(SupConLoss())
    trainer.save_checkpoint(tmp_path / "checkpoint.ckpt")
    images = Digits().test_samples.inputs
    other = Pretraining(ConvNet((1, 8, 8), width=4), ProjectionHead(16, out_dim=5), SupConLoss(), torch.optim.AdamW)
    other.load_state_dict(torch.load(tmp_path / "checkpoint.ckpt", weights_only=True)["state_dict"])
    assert torch.equal(module.encoder.encode(images), other.encoder.encode(images))


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
