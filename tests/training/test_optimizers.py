"""Optimizers by part: each steps as alone, the schedule scales all, and a run that was cut goes on with them."""

from functools import partial

import pytest
import torch
from command_worker import killed_and_resumed
from safetensors.torch import load_file
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from likewise.runs import Run
from likewise.training.inputs import Classifier, LabelPrototypes
from likewise.training.optimization import Together, optimizer_of


class Parts(nn.Module):
    """An encoder, and prototypes with an optimizer of their own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.prototypes = nn.Linear(3, 2), nn.Linear(2, 4, bias=False)

    def forward(self, inputs):
        return self.prototypes(self.encoder(inputs)).square().sum()


def test_each_optimizer_steps_as_alone():
    inputs, ours, theirs = torch.randn(5, 3), Parts(), Parts()
    usual, own = partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1), partial(torch.optim.SGD, lr=0.3, momentum=0.5)
    both = optimizer_of(ours, usual, makers={ours.prototypes: own})
    assert isinstance(both, Together)
    schedule = LambdaLR(both, lambda step: 1 / (1 + step))
    alone = (
        torch.optim.AdamW([theirs.encoder.weight], weight_decay=0.1),
        torch.optim.AdamW([theirs.encoder.bias], weight_decay=0.0),
        torch.optim.SGD(theirs.prototypes.parameters(), momentum=0.5),
    )
    for step in range(4):
        for optimizer, rate in zip(alone, (0.02, 0.02, 0.3), strict=True):
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = rate / (1 + step)
        theirs(inputs).backward()
        for optimizer in alone:
            optimizer.step()
        both.zero_grad()
        both.step(lambda: ours(inputs).backward())
        schedule.step()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_a_rate_alone_is_of_the_usual_optimizer():
    usual = partial(torch.optim.AdamW, lr=0.02, weight_decay=0.3)
    made = LabelPrototypes(lr=0.5).optimizer_of(usual)
    assert (made.func, made.keywords) == (torch.optim.AdamW, {"lr": 0.5, "weight_decay": 0.3})
    made = Classifier(lr=0.5, optimizer="SGD").optimizer_of(usual)
    assert (made.func, made.keywords) == (torch.optim.SGD, {"lr": 0.5})
    assert Classifier().optimizer_of(usual) is None


def test_rates_and_optimizers_that_are_none_are_told():
    for given, words in (
        ({"lr": 0.0}, r"lr above 0, or a rate_factor, got 0\.0"),
        ({"lr": 0.1, "rate_factor": 2}, "or a rate_factor, got 0.1 with rate_factor 2: leave one out"),
        ({"optimizer": "SGD"}, "lr beside optimizer, got none for SGD"),
        ({"lr": 0.1, "optimizer": "torch.nn.Linear"}, "class of kind Optimizer, got torch.nn.Linear"),
    ):
        with pytest.raises(ValueError, match=words):
            LabelPrototypes(**given)


@pytest.mark.process
@pytest.mark.slow
def test_a_run_with_two_optimizers_goes_on_as_if_it_had_not_been_cut(tmp_path):
    words = ["--loss", "ProxyAnchorLoss", "--inputs", "LabelPrototypes", "--inputs.lr", "0.2"]
    words += ["--inputs.optimizer", "SGD", "--encoder.width", "4", "--subset", "Fraction", "--subset.fraction", "0.2"]
    words += ["--epochs", "3", "--batch_size", "32"]
    words += [
        "--evaluations",
        "[]",
        "--report",
        "false",
        "--checkpoint_minutes",
        "1e-9",
        "--trainer.accelerator",
        "cpu",
    ]
    weights = []
    for name, moments in (("whole", []), ("cut", [("batch", 11)])):
        (tmp_path / name).mkdir()
        weights.append(load_file(Run.open(killed_and_resumed(words, tmp_path / name, *moments)).weights))
    one, other = weights
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
