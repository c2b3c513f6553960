"""A collapse is named in its epoch, once, and nothing else is."""

from functools import partial

import pytest
import torch
from trainings import fitted

import likewise as lw
from likewise.cli import main
from likewise.data import Episodes, Samples, Views
from likewise.models import MLP, Conv4, ProjectionHead
from likewise.training import Collapse, Constant, Pretraining, TrainingData

pytestmark = pytest.mark.slow
ATTRACTION = """
import torch
from likewise.losses.base import ContrastiveLoss

class Attraction(ContrastiveLoss):
    def __init__(self):
        super().__init__(temperature=1.0)
    def forward(self, embeddings):
        units = torch.nn.functional.normalize(embeddings.flatten(0, -2))
        return (units - units.mean(dim=0)).square().sum(dim=1).mean()
"""


def told_in(loss, samples=None, network=None, batches=None, **options):
    """Train a small network, and return what was told."""
    told = []
    torch.manual_seed(0)
    samples = samples or Samples(torch.randn(40, 4), torch.arange(40) % 4, tuple("abcd"))
    encoder, head = network or (MLP((4,), width=8), ProjectionHead(8))
    optimizer = partial(torch.optim.Adam, lr=0.02)
    module = Pretraining(encoder, head, loss, optimizer, samples=samples, schedule=Constant())
    data = TrainingData(samples, batches or Views(batch_size=10), seed=0)
    fitted(module, data, callbacks=[Collapse(told.append)], **({"max_epochs": 12} | options))
    return told


def test_a_training_that_ends_within_an_epoch_is_looked_at_there():
    class Collapsed(torch.nn.Module):
        def forward(self, features):
            return features[:, :1] * 0 + torch.ones(8)

    network = MLP((4,), width=8), Collapsed()
    assert len(told_in(lw.SupConLoss(), network=network, max_epochs=-1, max_steps=3)) == 1  # of 4 steps an epoch


@pytest.mark.parametrize("loss", [lw.SupConLoss(), lw.NTXentLoss()])
def test_a_training_that_goes_well_is_told_nothing_of(loss):
    assert told_in(loss) == []


@pytest.mark.parametrize("collapsed", [False, True])
def test_losses_of_feature_maps_are_looked_at_too(collapsed):
    torch.manual_seed(0)
    samples = Samples(torch.rand(60, 1, 16, 16), torch.arange(60) % 6, tuple("abcdef"))
    encoder = Conv4((1, 16, 16), width=8, pools=2)
    if collapsed:
        encoder.maps = lambda inputs: torch.ones(len(inputs), 8, 4, 4) * encoder.blocks[0][0].weight.mean().exp()
    loss = lw.InfoPatchLoss(global_weight=0.0)
    batches = Episodes(ways=5, shots=1, queries=2, episodes=1, mix=False)
    assert len(told_in(loss, samples, (encoder, None), batches, max_epochs=1)) == collapsed


def test_the_command_says_it_once_with_the_epoch(tmp_path, capsys, monkeypatch):
    """All embeddings attract each other, which is the shortest way to a single point."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attracting.py").write_text(ATTRACTION)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["train", "--loss", "attracting.Attraction", "--trainer.max_epochs", "12", "--trainer.accelerator", "cpu"]
    words += ["--encoder.width", "8", "--optimizer.lr", "0.01", "--evaluations", "[]", "--report", "false"]
    assert main([*words, "--trainer.enable_progress_bar", "false"]) == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "the embeddings have collapsed" in line)
    assert "after epoch " in line
    assert "mean cosine of 0.9999" in line


def test_a_plateau_is_told_within_fifty_steps():
    """With a rate that is far too high all embeddings are alike, though not to the fourth digit."""

    class Narrow(torch.nn.Module):
        def __init__(self, share):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)
            self.share = share

        def forward(self, features):
            return 1 + self.share * torch.tanh(self.layer(features))

    told = {}
    for share in (0.05, 0.9):
        torch.manual_seed(0)
        samples = Samples(torch.randn(400, 4), torch.arange(400) % 4, tuple("abcd"))
        network = MLP((4,), width=8), Narrow(share)
        told[share] = told_in(lw.SupConLoss(), samples, network, Views(batch_size=5), max_epochs=-1, max_steps=50)
    (line,) = told[0.05]
    assert line.startswith("after step 50 the embeddings have collapsed")
    assert told[0.9] == []
