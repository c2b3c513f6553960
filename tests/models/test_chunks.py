"""Embedding caching: the gradient of a large batch, with the activations of one chunk at a time."""

import operator
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from command_worker import workers
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from transformers import BatchEncoding, BertConfig, BertModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

import likewise as lw
from likewise.cli import main
from likewise.models import Encoder, in_chunks
from likewise.runs import Run

LABELS = torch.arange(23) % 4


def _inputs():
    return torch.randn(23, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@dataclass
class Both:
    """Two views, or two outputs."""

    one: torch.Tensor
    other: torch.Tensor


def _network(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), *between, nn.Tanh(), nn.Linear(16, 5)).double()


def _gradients(network, encode):
    """Return the loss of all rows and the gradients, with the same random numbers for each way to encode."""
    torch.manual_seed(7)
    network.zero_grad()
    loss = lw.SupConLoss(temperature=0.2)(encode(), LABELS)
    loss.backward()
    return loss.detach(), [of.grad.clone() for of in network.parameters()]


def _kept(network, inputs, size):
    """Return outputs whose graph is kept, chunk by chunk: what caching must be equal to."""
    return torch.cat([network(chunk) for chunk in inputs.split(size)])


def _whole(network):
    return lambda: network(_inputs())


def _same(first, second):
    torch.testing.assert_close(first[0], second[0], rtol=1e-12, atol=1e-12)
    for one, other in zip(first[1], second[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("size", [1, 5, 22, 23, 100])
def test_chunks_give_the_gradient_of_the_whole_batch(size):
    network = _network()
    _same(_gradients(network, lambda: in_chunks(network, _inputs(), size)), _gradients(network, _whole(network)))


class Moving(nn.Module):
    """Counts its calls in an integer, and has a running average, of no dimension too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("size", torch.ones((), dtype=torch.float64))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, inputs):
        self.calls += 1
        self.size.mul_(0.9).add_(0.1 * inputs.detach().abs().mean())
        return inputs / self.size.clone()


class Checkpointed(nn.Module):
    """A block whose activations are computed again in the backward."""

    def __init__(self, reentrant):
        super().__init__()
        self.block, self.reentrant = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.2)), reentrant

    def forward(self, inputs):
        return checkpoint(self.block, inputs, use_reentrant=self.reentrant)


def _twice():
    block = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.2))
    return block, nn.Tanh(), block


LAYERS = {
    "dropout": lambda: [nn.Dropout(0.4), nn.Dropout(0.2)],
    "batch normalisation": lambda: [nn.BatchNorm1d(16)],
    "a running average": lambda: [Moving()],
    "a module in two places": _twice,
    "a checkpoint": lambda: [Checkpointed(reentrant=False)],
    "a reentrant checkpoint": lambda: [Checkpointed(reentrant=True)],
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # the first pass has no graph
@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_whatever_is_within_gradients_and_buffers_are_those_with_activations_kept(layers):
    """The second pass meets the buffers of the first, which alone moves them, and every tensor stays in its place."""
    results, buffers = [], []
    for encode in (in_chunks, _kept):
        torch.manual_seed(1)
        network = _network(*layers())
        tensors = [*network.parameters(), *network.buffers()]
        results.append(_gradients(network, partial(encode, network, _inputs(), 6)))
        assert all(map(operator.is_, tensors, [*network.parameters(), *network.buffers()]))
        buffers.append(dict(network.named_buffers()))
    _same(*results)
    calls = [of.pop("1.calls", None) for of in buffers]
    assert calls in ([None, None], [1, 4])  # an integer counts a batch, not its chunks
    assert all(torch.equal(value, buffers[1][name]) for name, value in buffers[0].items())


def test_a_network_may_change_its_chunk_in_place_and_a_dataclass_is_chunked():
    """The second pass meets what the first has met, and the caller's inputs stay."""
    network, inputs = _network(), _inputs()
    _same(
        _gradients(network, lambda: in_chunks(network, inputs, 6, lambda chunk: network(chunk.sub_(1)))),
        _gradients(network, lambda: network(inputs - 1)),
    )
    assert torch.equal(inputs, _inputs())
    both = Both(inputs, inputs.flip(0))
    out = in_chunks(network, both, 6, lambda of: Both(network(of.one), network(of.other)))
    assert torch.allclose(out.other, network(both.other))


def test_values_that_are_no_tensors_reach_every_chunk_as_they_are():
    """A flag in a tuple would be true whatever it says; a `ModelOutput` keeps its order."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 8}
    bert = BertModel(BertConfig(vocab_size=9, **sizes)).eval()
    tokens = {"input_ids": torch.randint(9, (7, 5)), "output_hidden_states": True, "return_dict": True}
    whole, parts = bert(**tokens), in_chunks(bert, tokens, 3)
    assert list(parts) == list(whole)
    assert torch.allclose(parts[0], whole[0], atol=1e-6)
    assert len(parts.hidden_states) == len(whole.hidden_states) == 4
    assert all(map(partial(torch.allclose, atol=1e-6), parts.hidden_states, whole.hidden_states))
    assert type(in_chunks(bert, tokens | {"return_dict": False}, 3)) is tuple


def test_no_rows_and_networks_that_do_not_learn_are_chunked_too():
    assert len(in_chunks(_network(), _inputs()[:0], 4)) == 0
    with torch.no_grad():
        assert not in_chunks(AveragedModel(_network()), _inputs(), 4).requires_grad


def test_the_first_pass_keeps_no_graph_and_the_second_one_gradient_a_parameter():
    network, inputs = _network(*(nn.Linear(16, 16) for _ in range(5))), _inputs()
    out = in_chunks(network, inputs, 2)
    seen, left = set(), [out.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [of for of, _ in node.next_functions]
    assert len(seen) == 1 + len(list(network.parameters()))  # one node for all chunks, and the parameters
    live = []
    network[1].register_forward_hook(lambda _, __, made: live.append(weakref.ref(made)))
    network[3].register_forward_hook(lambda *_: held.append(sum(of() is not None for of in live)))
    held = []
    out.sum().backward()
    assert len(held) == 12
    assert max(held) == 1  # the activations of one chunk


def test_gradients_go_wherever_autograd_sends_them():
    """Hooks, accumulation, `torch.autograd.grad`, tied, frozen and captured parameters, and inputs that learn."""
    network, inputs = _network(nn.Linear(16, 16), nn.Linear(16, 16)), _inputs().requires_grad_()
    network[2].weight = network[1].weight
    network[3] = nn.Sequential(nn.Tanh(), nn.Tanh())
    network[1].bias.requires_grad_(requires_grad=False)
    apart = torch.randn(5, dtype=torch.float64, requires_grad=True)  # known to nobody
    counts, losses, gradients = [], [], []
    network[0].weight.register_hook(lambda gradient: 2 * gradient)
    network[0].weight.register_post_accumulate_grad_hook(lambda _: counts.append(1))

    def call(rows):
        return network(rows) * apart

    learned = [*(weight for weight in network.parameters() if weight.requires_grad), inputs]
    for encode in (lambda: in_chunks(network, inputs, 6, call), lambda: call(inputs)):
        for leaf in (*learned, apart):
            leaf.grad = None
        for _ in range(2):  # accumulated
            loss = lw.SupConLoss(temperature=0.2)(encode(), LABELS)
            loss.backward(retain_graph=True)  # for what follows
        losses.append(loss.detach())
        gradients.append([leaf.grad.clone() for leaf in (*learned, apart)] + list(torch.autograd.grad(loss, learned)))
    _same((losses[0], gradients[0]), (losses[1], gradients[1]))
    assert network[1].bias.grad is None
    assert len(counts) == 4  # once a backward


def test_gradients_that_two_leaves_share_are_added_up_apart():
    one, other = (torch.zeros(5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    in_chunks(nn.Identity(), _inputs()[:, :5], 4, lambda rows: (one + other) * rows).sum().backward()
    assert torch.allclose(one.grad, _inputs()[:, :5].sum(dim=0))
    assert torch.equal(one.grad, other.grad)


def test_random_numbers_go_on_after_a_backward_as_without_caching():
    network, inputs, draws = _network(nn.Dropout(0.4)), _inputs(), []
    for encode in (in_chunks, _kept):
        torch.manual_seed(3)
        out = encode(network, inputs, 6)
        draws.append(torch.rand(3))
        out.sum().backward()
        draws.append(torch.rand(3))
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[1], draws[3])


@pytest.mark.parametrize("within", [False, True])
def test_the_second_pass_is_cast_as_the_first_was(within):
    """Weights that the first pass casts without a graph are not what later calls learn through."""
    network, inputs, results = _network(nn.Dropout(0.3)).float(), _inputs().float(), []
    for encode in (in_chunks, _kept):
        network.zero_grad()
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16) as cast:
            out = encode(network, inputs, 6)
            loss = 1024 * (out.square().sum() + network(inputs[:3]).sum())  # scaled
            assert out.dtype == torch.bfloat16
            if within:
                loss.backward()
        if not within:
            loss.backward()
        del cast
        results.append([of.grad / 1024 for of in network.parameters()])
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, rtol=0.02, atol=0.02 * float(other.abs().max()))


def test_what_cannot_be_done_a_second_time_is_said():
    network, inputs = _network(), _inputs()
    with pytest.raises(RuntimeError, match="expected a backward without create_graph"):
        torch.autograd.grad(in_chunks(network, inputs, 6).sum(), network[0].weight, create_graph=True)
    root = torch.ones(5, dtype=torch.float64, requires_grad=True)
    before = root.exp()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        in_chunks(network, inputs, 6, lambda rows: network(rows) * before).sum().backward()
    out = in_chunks(network, inputs, 6)
    with torch.no_grad():
        network[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        out.sum().backward()
    replaced, network[0].forward = network[0].forward, lambda rows: nn.functional.linear(rows, network[0].weight)
    out = in_chunks(network, inputs, 6)
    network[0].forward = replaced
    with pytest.raises(RuntimeError, match="expected the network's forward in the backward too, got another, as if it"):
        out.sum().backward()
    for without_graph in (torch.inference_mode, torch.no_grad):
        with without_graph():
            assert torch.allclose(in_chunks(network, _inputs(), 6), network(_inputs()))
    out = in_chunks(network.requires_grad_(requires_grad=False), inputs, 6)
    assert not out.requires_grad


class Named(nn.Module):
    """A language model in small: takes names, returns several things."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(9, 16).double()
        self.last = nn.Linear(16, 5).double()

    def forward(self, input_ids, attention_mask=None, scale=1.0, kind="mean"):  # noqa: ARG002 - passed on
        weights = attention_mask / attention_mask.sum(dim=1, keepdim=True)
        hidden = self.tokens(input_ids) * scale
        pooled = self.last((hidden * weights[:, :, None]).sum(dim=1))
        states = (hidden, input_ids + 1)
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=pooled, hidden_states=states)


def _tokens():
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 9, (23, 7), generator=draw)
    mask = (torch.arange(7) < torch.randint(1, 8, (23, 1), generator=draw)).double()
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("kind", [dict, BatchEncoding, OrderedDict, tuple, list])
def test_inputs_and_outputs_by_name_are_chunked(kind):
    network, scale = Named(), torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    named = {**_tokens(), "scale": scale, "kind": "mean"}
    inputs = kind(named.values()) if kind in {tuple, list} else kind(named)
    sizes, results = [], []
    network.register_forward_pre_hook(
        lambda _, rows, words: sizes.append(len((*rows, *words.values())[0])), with_kwargs=True
    )
    for encode in (lambda: in_chunks(network, inputs, 6), lambda: network(**named)):
        network.zero_grad()
        scale.grad = None
        out = encode()
        assert type(out) is BaseModelOutputWithPooling
        assert not out.hidden_states[1].requires_grad
        (out.pooler_output.square().sum() + out["last_hidden_state"].sum() + out.hidden_states[0].sum()).backward()
        results.append((out.pooler_output.detach(), [scale.grad, *(of.grad.clone() for of in network.parameters())]))
    _same(*results)
    assert sizes == [6, 6, 6, 5] * 2 + [23]


def test_one_output_of_several_may_be_used_and_a_method_gets_the_type_of_the_inputs():
    network, types = Named(), set()

    def pooled(chunk):
        types.add(type(chunk))
        chunk["made"] = 1  # in its own copy
        return {"z": network(chunk["input_ids"], chunk.attention_mask).pooler_output, "of": None, "kind": "pooled"}

    inputs = BatchEncoding(_tokens())
    out = in_chunks(network, inputs, 6, pooled)
    assert (len(out["z"]), out["of"], out["kind"]) == (23, None, "pooled")
    assert (types, "made" in inputs) == ({BatchEncoding}, False)
    in_chunks(network, inputs, 6).pooler_output.sum().backward()
    assert network.tokens.weight.grad is not None


@pytest.mark.parametrize(
    ("inputs", "size", "returned", "message"),
    [
        (_inputs(), 0, None, "expected chunk_size of at least 1, got 0"),
        (_inputs(), 2.5, None, "expected chunk_size of at least 1, got 2.5"),
        ({**_tokens(), "places": torch.zeros(1, 7)}, 6, None, r"\(23, 7\), places \(1, 7\): repeat what all share"),
        ({"input_ids": [[1, 2], [3, 4]]}, 6, None, 'expected inputs with tensors, got int: .*return_tensors="pt"'),
        ([], 6, None, "expected inputs with tensors, got nothing"),
        (_inputs(), 6, lambda rows: {"loss": rows.sum()}, r"in every chunk, got loss \(\), then \(\): return what"),
        (_inputs(), 6, lambda rows: (rows, object()), "got 1 object, then object: return what you need alone, by meth"),
        (_inputs(), 6, lambda rows: {"n": len(rows)}, "got n 6, then 5"),
        (_inputs(), 6, lambda rows: rows.T, r"got \(6, 6\), then \(6, 5\)"),
        (_inputs(), 6, lambda rows: [rows] * (len(rows) // 5 + len(rows) % 5), "outputs of the same names from every"),
    ],
)
def test_what_cannot_be_cut_or_joined_is_refused(inputs, size, returned, message):
    with pytest.raises(ValueError, match=message):
        in_chunks(nn.Identity(), inputs, size, returned)


@pytest.mark.slow
def test_a_compiled_network_is_chunked():
    network = _network()
    compiled = torch.compile(network, backend="aot_eager")
    _same(_gradients(network, lambda: in_chunks(compiled, _inputs(), 6)), _gradients(network, _whole(network)))


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chunks")
    worker = Path(__file__).parents[1] / "processes" / "chunks_worker.py"
    for world in (1, 2):
        workers(worker, *((rank, world, folder) for rank in range(world)), folder=folder)
    return [torch.load(folder / name) for name in ("1-0.pt", "2-0.pt", "2-1.pt")]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        *("plain", "buffers", "unused", "static", "method", "hooks", "inside", "twice", "by name"),
        *("fully_shard", "fully_shard, with a head"),
    ],
)
def test_two_processes_are_one(case, processes):
    """Under DDP and FSDP2, three steps, two of them accumulated, leave the gradient of a single process."""
    one, *two = processes
    for rank in two:
        for ours, alone in zip(rank[case], one[case], strict=True):
            for name, value in alone.items():
                assert (ours[name] is None) == (value is None), name
                if value is not None:
                    torch.testing.assert_close(ours[name], value, rtol=1e-10, atol=1e-13)


class Plain(Encoder):
    """An encoder that treats rows one by one."""

    def __init__(self, input_shape: tuple[int, ...], width: int = 32):
        super().__init__(input_shape)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, width))

    @property
    def feature_dim(self):
        return self.layers[-1].out_features

    def forward(self, inputs):
        return self.layers(self.standardized(inputs))


def _trained(root, *words):
    common = ["train", "--encoder", "test_chunks.Plain", "--steps", "8", "--report", "false"]
    common += ["--trainer.accelerator", "cpu", "--trainer.precision", "64-true", "--evaluations", "[]"]
    assert main([*common, "--trainer.enable_progress_bar", "false", "--runs", str(root), *words]) == 0
    (folder,) = root.iterdir()
    return load_file(Run(folder).weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--loss", "RASCALLoss"],
        ["--loss", "InfoNCELoss", "--inputs", "Momentum", "--inputs+", "KeyQueue", "--inputs.size", "200"],
    ],
    ids=["RASCAL", "MoCo"],
)
def test_the_command_trains_in_chunks_as_it_does_at_once(words, tmp_path):
    at_once, chunked = (_trained(tmp_path / str(len(more)), *words, *more) for more in ([], ["--chunk_size", "50"]))
    for name, value in at_once.items():
        torch.testing.assert_close(chunked[name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_the_command_says_what_chunks_change_and_refuses_none(tmp_path, capsys):
    words = ["train", "--steps", "2", "--evaluations", "[]", "--report", "false", "--runs", str(tmp_path)]
    assert main([*words, "--chunk_size", "100"]) == 0
    assert "batch normalisation in the encoder normalises each chunk of 100 by itself" in capsys.readouterr().err
    assert main([*words, "--chunk_size", "0"]) == 2
    assert "error: expected --chunk_size of at least 1, got 0: leave it out" in capsys.readouterr().err
