"""torch.compile of losses, and of what contains them: how often it compiles, what comes out, what is refused."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

WORKER = """
import json, sys, warnings
warnings.simplefilter("ignore")  # the compiler's own
import torch, likewise as lw
from torch import nn

torch.manual_seed(0)
lw.SupConLoss()(torch.randn(6, 4, requires_grad=True), torch.arange(6) % 2).backward()
found = {"torch": torch.__version__, "imported": "torch._dynamo" in sys.modules}

from torch._dynamo.testing import CompileCounter

encoder, criterion = nn.Linear(5, 4), lw.SupConLoss()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.loss = encoder, criterion

    def forward(self, x, labels):
        return self.loss(self.encoder(x) * 2, labels)


def step(x, labels):
    loss = criterion(encoder(x) * 2, labels)
    loss.backward()
    return loss


def contrast(x, labels):
    pull = (lw.pairs.SameClass(labels) & lw.pairs.NotSelf(len(labels))).mean_over_row()
    push = lw.pairs.NotSelf(len(labels))
    return lw.contrast(encoder(x) * 2, pull=pull, push=push, temperature=0.1, reduction="mean")


def keys(loss):
    return lambda x, labels: loss(encoder(x), encoder(x).roll(1, 1))


def gradients(call, x, labels):
    encoder.zero_grad()
    value = call(x, labels)
    if call not in (step, compiled.get("step")):
        value.backward()
    return value.detach(), encoder.weight.grad


in_pairs = lw.InfoNCELoss(backend="dense")
calls = {
    "loss": lambda x, labels: eager["loss"](encoder(x) * 2, labels),
    "model": Model(),
    "step": step,
    "contrast": contrast,
    "dense": keys(lw.InfoNCELoss(symmetric=True, backend="dense")),
    "learned": keys(lw.InfoNCELoss(temperature="learned", symmetric=True, backend="dense")),
    "ids": lambda x, labels: in_pairs(encoder(x), encoder(x).roll(1, 1), ids=labels),
    "BYOL": keys(lw.BYOLLoss()),
}
eager, compiled = {"loss": criterion}, {}
for name, call in calls.items():
    torch.compiler.reset()
    counter = CompileCounter()
    if name == "loss":
        of_loss = torch.compile(criterion, backend=counter)
        compiled[name] = lambda x, labels: of_loss(encoder(x) * 2, labels)
    else:
        compiled[name] = torch.compile(call, backend=counter)
    counts = []
    for k in range(12):
        count = 24 if k != 7 else 13
        x, labels = torch.randn(count, 5), torch.randint(4, (count,))
        torch.testing.assert_close(gradients(compiled[name], x, labels), gradients(call, x, labels))
        counts.append(counter.frame_count)
    try:
        whole = criterion if name == "loss" else call
        torch.compile(whole, backend="eager", fullgraph=True)(x[:, :5], labels)
        refused = ""
    except Exception as error:
        refused = str(error)
    found[name] = {"counts": counts, "refused": refused}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    """What compiling in a process of its own gives: tests check shapes at run time, with code that does not compile."""
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_torch_compile_the_compiler_is_not_imported(found):
    """It would take seconds of every start."""
    assert not found["imported"]


@pytest.mark.parametrize(("name", "graphs"), [("loss", 0), ("model", 1), ("step", 1), ("contrast", 1), ("ids", 1)])
def test_a_loss_stays_outside_of_graphs(found, name, graphs):
    """The encoder is one graph, and one more for another number of rows; no batch compiles anything again."""
    counts = found[name]["counts"]
    assert counts[:7] == [graphs] * 7
    assert counts[7:] == [counts[7]] * 5
    assert 2 * graphs <= counts[7] <= 3 * graphs  # torch 2.8 has one for the labels of a weight, too
    assert "losses run outside compiled graphs: leave out fullgraph=True" in found[name]["refused"]


def test_a_loss_without_pair_weights_is_in_the_graph(found):
    """With any torch."""
    assert not found["BYOL"]["refused"]
    assert found["BYOL"]["counts"] == [1] * 7 + [found["BYOL"]["counts"][7]] * 5


@pytest.mark.parametrize("name", ["dense", "learned"])
def test_info_nce_is_one_graph_where_the_compiler_can_follow(found, name):
    """With "dense", from torch 2.13 on; before, it stays outside as the others do. A temperature may be learned."""
    counts = found[name]["counts"]
    assert counts == [counts[0]] * 7 + [counts[7]] * 5
    major, minor, *_ = (int(part) for part in found["torch"].split("+")[0].split("."))
    assert bool(found[name]["refused"]) == ((major, minor) < (2, 13)), found[name]["refused"]
