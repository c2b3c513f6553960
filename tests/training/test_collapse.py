"""A collapse is named in its epoch, once, and nothing else is."""

import lightning
import pytest
import torch

import likewise as lw
from likewise.cli import main
from likewise.data import Episodes, Samples, Views
from likewise.losses.base import ContrastiveLoss
from likewise.models import MLP, Conv4, ProjectionHead
from likewise.training import Collapse, Constant, Pretraining, TrainingData

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*", "ignore:.*does not have many workers.*"),
]
OFF = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Attraction(ContrastiveLoss):
    """All embeddings attract each other: the shortest way to a single point."""

    def __init__(self):
        super().__init__(temperature=1.0)

    def forward(self, embeddings):
        units = torch.nn.functional.normalize(embeddings.flatten(0, -2))
        return (units - units.mean(dim=0)).square().sum(dim=1).mean()


def told_in(loss, epochs=12, labels=None):
    torch.manual_seed(0)
    inputs = torch.randn(40, 4)
    samples = Samples(inputs, torch.arange(40) % 4 if labels is None else labels, tuple("abcd"))
    optimizer = lambda parameters: torch.optim.Adam(parameters, lr=0.02)  # noqa: E731
    module = Pretraining(MLP((4,), width=8), ProjectionHead(8), loss, optimizer, samples=samples, schedule=Constant())
    told = []
    callback = Collapse(told.append)
    trainer = lightning.Trainer(accelerator="cpu", callbacks=[callback], max_epochs=epochs, **OFF)
    trainer.fit(module, TrainingData(samples, Views(batch_size=10), seed=0))
    return told


def test_a_collapse_is_told_once_with_its_epoch():
    (told,) = told_in(Attraction(), epochs=60)
    assert told.startswith("after epoch ")
    assert "the embeddings have collapsed" in told
    assert "mean cosine of 0.9999" in told


def test_a_training_that_ends_within_an_epoch_is_looked_at_there():
    class Collapsed(torch.nn.Module):
        def forward(self, features):
            return features[:, :1] * 0 + torch.ones(8)

    torch.manual_seed(0)
    samples, told = Samples(torch.randn(40, 4), torch.arange(40) % 4, tuple("abcd")), []
    module = Pretraining(MLP((4,), width=8), Collapsed(), lw.SupConLoss(), torch.optim.Adam, samples=samples)
    trainer = lightning.Trainer(accelerator="cpu", callbacks=[Collapse(told.append)], max_steps=3, **OFF)
    trainer.fit(module, TrainingData(samples, Views(batch_size=10), seed=0))  # of 4 steps an epoch
    assert len(told) == 1


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
    module = Pretraining(encoder, None, loss, torch.optim.Adam, samples=samples, schedule=Constant())
    told = []
    trainer = lightning.Trainer(accelerator="cpu", callbacks=[Collapse(told.append)], max_epochs=1, **OFF)
    trainer.fit(module, TrainingData(samples, Episodes(ways=5, shots=1, queries=2, episodes=1, mix=False), seed=0))
    assert len(told) == collapsed


def test_the_command_says_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attracting.py").write_text(
        "import torch\nfrom likewise.losses.base import ContrastiveLoss\n"
        "class Attraction(ContrastiveLoss):\n"
        "    def __init__(self):\n"
        "        super().__init__(temperature=1.0)\n"
        "    def forward(self, embeddings):\n"
        "        units = torch.nn.functional.normalize(embeddings.flatten(0, -2))\n"
        "        return (units - units.mean(dim=0)).square().sum(dim=1).mean()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["train", "--loss", "attracting.Attraction", "--trainer.max_epochs", "12", "--trainer.accelerator", "cpu"]
    words += ["--encoder.width", "8", "--optimizer.lr", "0.01", "--evaluations", "[]", "--report", "false"]
    assert main([*words, "--trainer.enable_progress_bar", "false"]) == 0
    assert capsys.readouterr().err.count("the embeddings have collapsed") == 1


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
        samples, told[share] = Samples(torch.randn(400, 4), torch.arange(400) % 4, tuple("abcd")), []
        module = Pretraining(MLP((4,), width=8), Narrow(share), lw.SupConLoss(), torch.optim.Adam, samples=samples)
        callback = Collapse(told[share].append)
        trainer = lightning.Trainer(accelerator="cpu", callbacks=[callback], max_steps=60, **OFF)
        trainer.fit(module, TrainingData(samples, Views(batch_size=5), seed=0))
    assert told[0.05][0].startswith("after step 50 the embeddings have collapsed")
    assert len(told[0.05]) == 1
    assert told[0.9] == []
