"""Embedding caching: the gradient of a large batch, with the activations of one chunk at a time."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

import likewise as lw
from likewise.cli import main
from likewise.models import Encoder, ResNet12, in_chunks
from likewise.runs import Run

LABELS = torch.arange(23) % 4


def _inputs():
    return torch.randn(23, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


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


def _same(first, second):
    torch.testing.assert_close(first[0], second[0], rtol=1e-12, atol=1e-12)
    for one, other in zip(first[1], second[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("size", [1, 5, 22, 23, 100])
def test_chunks_give_the_gradient_of_the_whole_batch(size):
    network, inputs = _network(), _inputs()
    _same(
        _gradients(network, lambda: in_chunks(network, inputs, size)),
        _gradients(network, lambda: network(inputs)),
    )


@pytest.mark.parametrize("layers", [[nn.Dropout(0.4)], [nn.Dropout(0.4), nn.Dropout(0.2)], [nn.BatchNorm1d(16)]])
def test_dropout_and_batch_normalisation_are_those_of_the_chunks_with_their_activations_kept(layers):
    network, inputs = _network(*layers), _inputs()
    start = {name: value.clone() for name, value in network.state_dict().items()}
    kept = _gradients(network, lambda: torch.cat([network(chunk) for chunk in inputs.split(6)]))
    after = {name: value.clone() for name, value in network.named_buffers()}
    network.load_state_dict(start)
    _same(_gradients(network, lambda: in_chunks(network, inputs, 6)), kept)
    for name, value in network.named_buffers():  # running statistics are moved once, in the first pass
        assert torch.equal(value, after[name]), name


def test_the_second_pass_meets_the_buffers_of_the_first():
    class Moving(nn.Module):
        """Scale rows by a running average that every call moves."""

        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(1, dtype=torch.float64))
            self.register_buffer("calls", torch.tensor(0))

        def forward(self, inputs):
            self.calls += 1
            return inputs * (1 + self.calls)

    network, inputs = _network(Moving()), _inputs()
    out = _gradients(network, lambda: in_chunks(network, inputs, 6))
    assert int(network[1].calls) == 1  # one step of the training, in four chunks and two passes
    network[1].calls.zero_()
    _same(out, _gradients(network, lambda: network(inputs)))


def test_drop_block_counts_a_batch_once():
    encoder = ResNet12((3, 32, 32), widths=[4, 4, 8, 8])
    before = {name: int(value) for name, value in encoder.named_buffers() if name.endswith("step")}
    assert before
    in_chunks(encoder, torch.rand(6, 3, 32, 32), 2).sum().backward()
    assert all(int(value) == before[name] + 1 for name, value in encoder.named_buffers() if name.endswith("step"))


def test_activations_of_one_chunk_are_kept_at_a_time():
    network, inputs = _network(), _inputs()
    kept = 0

    def pack(tensor):
        nonlocal kept
        kept += tensor.numel() * (tensor.shape[:1] in {(23,), (6,), (5,)} and tensor.shape[-1] == 16)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        in_chunks(network, inputs, 6)
        assert kept == 0
        network(inputs)
        assert kept > 0


def test_chunks_may_differ_in_nothing_but_rows():
    with pytest.raises(ValueError, match="expected chunk_size of at least 1, got 0"):
        in_chunks(_network(), _inputs(), 0)
    assert len(in_chunks(_network(), _inputs()[:0], 4)) == 0
    with torch.no_grad():
        assert not in_chunks(AveragedModel(_network()), _inputs(), 4).requires_grad


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
    common = ["train", "--encoder", "test_chunks.Plain", "--trainer.max_epochs", "2", "--report", "false"]
    common += ["--trainer.accelerator", "cpu", "--trainer.precision", "64-true", "--evaluations", "[]"]
    assert main([*common, "--trainer.enable_progress_bar", "false", "--runs", str(root), *words]) == 0
    (folder,) = root.iterdir()
    return load_file(Run(folder).weights)


@pytest.mark.parametrize(
    "words",
    [
        ["--loss", "RASCALLoss"],
        ["--loss", "InfoNCELoss", "--offers", "Momentum", "--offers+", "KeyQueue", "--offers.size", "200"],
        ["--loss", "CrossEntropyLoss"],
    ],
    ids=["RASCAL", "MoCo", "cross-entropy"],
)
def test_the_command_trains_in_chunks_as_it_does_at_once(words, tmp_path):
    at_once, chunked = (_trained(tmp_path / name, *words, *more) for name, more in CHUNKED.items())
    for name, value in at_once.items():
        torch.testing.assert_close(chunked[name], value, rtol=1e-9, atol=1e-11)


CHUNKED = {"whole": [], "chunks": ["--chunk_size", "50"]}


def test_the_command_says_what_chunks_change_and_refuses_none(tmp_path, capsys):
    words = ["train", "--trainer.max_epochs", "1", "--evaluations", "[]", "--report", "false", "--runs", str(tmp_path)]
    assert main([*words, "--chunk_size", "100"]) == 0
    assert "batch normalisation in the encoder normalises each chunk of 100 by itself" in capsys.readouterr().err
    assert main([*words, "--chunk_size", "0"]) == 2
    assert "error: expected --chunk_size of at least 1, got 0: leave it out" in capsys.readouterr().err
