"""The memory of a step is predicted from a few inputs; where it is not at hand, fewer are encoded at a time."""

from functools import partial

import pytest
import torch
from torch import nn
from trainings import fitted

import likewise as lw
from likewise.data import Samples, Views
from likewise.models import ConvNet, ProjectionHead
from likewise.training import Constant, Pretraining, TrainingData, memory
from likewise.training.memory import MemoryOfStep, need

pytestmark = pytest.mark.slow
MB = 10**6


class Encoder(ConvNet):
    """A network with random numbers and batch statistics in its forward."""

    def forward(self, inputs):
        return nn.functional.dropout(super().forward(inputs), 0.2, self.training)


def trained(callbacks=(), chunk_size=None, steps=4, resumed=None):
    torch.manual_seed(0)
    samples = Samples(torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8), torch.arange(40) % 4, tuple("abcd"))
    module = Pretraining(
        Encoder((3, 16, 16)), ProjectionHead(128), lw.SupConLoss(), partial(torch.optim.Adam, lr=0.01),
        samples=samples, schedule=Constant(), chunk_size=chunk_size,
    )  # fmt: skip
    data = TrainingData(samples, Views(batch_size=20), seed=0)
    return module, fitted(module, data, resumed, callbacks=list(callbacks), max_steps=steps)


def weights(module):
    return [value.clone() for value in module.encoder.state_dict().values()]


def test_what_is_kept_is_what_layers_need_for_their_gradients():
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 32), nn.Tanh()
    )
    inputs = torch.rand(64, 3, 8, 8)
    found = need([(network, inputs)], torch.optim.SGD(network.parameters(), lr=0.1))
    relu, pooled, places, tanh = 8 * 64 * 4, 8 * 16 * 4, 8 * 16 * 8, 32 * 4  # bytes of an input
    largest = sorted(weight.numel() * 4 for weight in network.parameters())
    for count in (1, 16, 64):
        kept = count * (relu + pooled + places + tanh)
        assert found.of(count) == pytest.approx(1.1 * (sum(largest) + 2 * largest[-1] + kept + 2 * count * relu), abs=1)
    assert found.of(1000) == found.of(64)  # there are no more


@pytest.mark.parametrize(
    ("made", "states"),
    [
        (partial(torch.optim.SGD, lr=0.1), 0),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), 1),
        (partial(torch.optim.AdamW, lr=0.1), 2),
    ],
)
def test_the_state_of_the_optimizer_is_counted(made, states):
    network = nn.Linear(100, 50, bias=False)
    found = need([(network, torch.rand(8, 100))], made(network.parameters()))
    assert found.of(8) == pytest.approx(1.1 * 20_000 * (1 + states + 2), rel=0.01)  # and a count of steps


def test_frozen_layers_keep_nothing():
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    network[0].requires_grad_(requires_grad=False)
    network[2].requires_grad_(requires_grad=False)
    network.append(nn.Linear(4, 4))
    found = need([(network, torch.rand(64, 8))], torch.optim.SGD(network.parameters(), lr=0.1))
    assert found.of(64) - found.of(32) == round(1.1 * 32 * 3 * 4 * 4)  # what goes into the last one alone


def test_predicting_changes_nothing(monkeypatch):
    plain, _ = trained()
    told = []
    monkeypatch.setattr(memory, "room", lambda _: 80 * MB)
    watched, _ = trained([MemoryOfStep(told.append)])
    torch.testing.assert_close(weights(watched), weights(plain), rtol=0, atol=0)
    (line,) = told
    assert line.startswith("memory: a step takes about ")
    assert line.endswith(" of 80 MB at hand")


def test_nothing_is_said_where_much_more_is_at_hand_or_nothing_is_known(monkeypatch):
    told = []
    for room in (8000 * MB, None):
        monkeypatch.setattr(memory, "room", lambda _, room=room: room)
        trained([MemoryOfStep(told.append)], steps=1)
    assert not told


def test_where_memory_lacks_fewer_inputs_are_encoded_at_a_time_as_if_asked_for_and_in_a_resumed_training(
    monkeypatch, tmp_path
):
    told = []
    monkeypatch.setattr(memory, "room", lambda _: 12 * MB)
    chosen, trainer = trained([MemoryOfStep(told.append)])
    size = chosen.chunk_size
    assert size in {20, 10, 5}
    (line,) = told
    assert f"so {size} of 40 inputs are encoded at a time (--chunk_size {size})" in line
    assert "batch normalisation normalises each part by itself" in line
    monkeypatch.setattr(memory, "room", lambda _: MB)
    told.clear()
    asked, _ = trained([MemoryOfStep(told.append)], chunk_size=size)  # which stays, however little there is
    torch.testing.assert_close(weights(chosen), weights(asked), rtol=0, atol=0)
    assert asked.chunk_size == size
    assert "a step takes about" in told[0]
    trainer.save_checkpoint(tmp_path / "done.ckpt")
    monkeypatch.setattr(memory, "room", lambda _: 8000 * MB)  # as on another machine
    resumed, _ = trained([MemoryOfStep(print)], steps=5, resumed=tmp_path / "done.ckpt")
    assert resumed.chunk_size == size


def test_the_room_of_a_container_is_its_limit_less_what_it_holds(monkeypatch, tmp_path):
    for name, content in {"max": "3000000\n", "current": "1000000\n", "none": "max\n"}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(memory, "USAGE_FILES", (str(tmp_path / "current"),))
    monkeypatch.setattr(memory, "LIMIT_FILES", (str(tmp_path / "max"),))
    monkeypatch.setattr(memory, "STAT_FILES", (str(tmp_path / "stat"),))
    assert memory.room(torch.device("cpu")) == 2_000_000
    (tmp_path / "stat").write_text("anon 300000\ninactive_file 400000\nactive_file 200000\n")
    assert memory.room(torch.device("cpu")) == 2_600_000  # files that were read are given back
    monkeypatch.setattr(memory, "LIMIT_FILES", (str(tmp_path / "none"),))
    assert memory.room(torch.device("cpu")) > 2_000_000
