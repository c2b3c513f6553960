"""Several processes in the trainers of other libraries: the gradient is that of one process."""

import socket
from pathlib import Path

import pytest
import torch
from command_worker import workers

WORKER = Path(__file__).parents[1] / "processes" / "trainers_worker.py"
CASES = ["Trainer", "Trainer, accumulation", "sentences", "sentences, in chunks"]

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of libraries


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@pytest.fixture(scope="module")
def steps(save_bert, tmp_path_factory):
    """Return what each process met, on one and on two."""
    for module in ("datasets", "accelerate"):
        pytest.importorskip(module, reason="not installed")
    folder = tmp_path_factory.mktemp("trainers")
    save_bert(folder / "model", hidden_size=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    found = {}
    for world in (1, 2):
        here, port = folder / str(world), free_port()
        here.mkdir()
        workers(WORKER, *((rank, world, port, here) for rank in range(world)), folder=here)
        found[world] = [torch.load(here / f"{world}-{rank}.pt") for rank in range(world)]
    return found


@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_gradient_of_one(case, steps):
    """Of the model and of a learned temperature, and every process logs the loss of all."""
    (one,) = steps[1]
    loss, gradients = one[case]
    assert any(of.shape == (1,) and float(of) != 0 for of in gradients)  # the temperature's
    for each in steps[2]:
        mine, found = each[case]
        assert mine == pytest.approx(loss, rel=1e-4) or mine == 0  # which may be logged by the first alone
        for one_of, other in zip(found, gradients, strict=True):
            torch.testing.assert_close(one_of, other, rtol=1e-4, atol=2e-6)


def test_an_accumulation_is_the_mean_of_its_batches(steps):
    """Of the same rows twice it is the gradient of once, without a trainer."""
    (one,) = steps[1]
    for mine, expected in zip(one["Trainer, accumulation"][1], one["directly"][1], strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-7)
