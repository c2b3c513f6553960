"""Memory and time of one step with embedding caching, each way in a fresh process: `python benchmarks/chunks.py`.

"at once" keeps all activations; "by hand" is a plain GradCache: outputs without a graph, the loss, then chunk after
chunk. Memory is the growth of the peak resident size during the step, time is processor time of one thread. One of them
alone: `python benchmarks/chunks.py layers in_chunks`.
"""

import resource
import subprocess
import sys
import time

import torch
from torch import Tensor, nn

import likewise as lw
from likewise.models import in_chunks

WAYS = ("at once", "by hand", "in_chunks")
CASES = {"layers": (16_384, 8), "bert": (4_096, 32), "resnet-256": (256, 32), "resnet-1024": (1_024, 32)}


def case(name: str, rows: int) -> tuple[nn.Module, Tensor]:
    """Return a network and inputs."""
    torch.manual_seed(0)
    if name == "layers":
        layers = [part for _ in range(50) for part in (nn.Linear(32, 32), nn.ReLU(), nn.LayerNorm(32))]
        return nn.Sequential(*layers), torch.randn(rows, 32)
    if name == "bert":
        from transformers import BertConfig, BertModel  # noqa: PLC0415 - takes a second

        config = BertConfig(
            vocab_size=100, hidden_size=32, num_hidden_layers=12, num_attention_heads=2, intermediate_size=64
        )
        return Pooled(BertModel(config).eval()), torch.randint(0, 100, (rows, 8))
    from likewise.models import ResNet  # noqa: PLC0415 - likewise

    return ResNet((3, 32, 32), 18), torch.rand(rows, 3, 32, 32)


class Pooled(nn.Module):
    """The mean of a language model's last hidden states."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode tokens (N, T)."""
        return self.model(input_ids=tokens).last_hidden_state.mean(dim=1)


def step(network: nn.Module, inputs: Tensor, size: int, way: str) -> None:
    """Take the gradient of a loss of all rows."""

    def loss_of(embeddings: Tensor) -> Tensor:
        return lw.InfoNCELoss()(*embeddings.chunk(2))

    if way == "at once":
        loss_of(network(inputs)).backward()
    elif way == "in_chunks":
        loss_of(in_chunks(network, inputs, size)).backward()
    else:
        with torch.no_grad():
            embeddings = torch.cat([network(chunk) for chunk in inputs.split(size)])
        (gradients,) = torch.autograd.grad(loss_of(embeddings.requires_grad_()), embeddings)
        for chunk, gradient in zip(inputs.split(size), gradients.split(size), strict=True):
            network(chunk).backward(gradient)


def measure(name: str, way: str) -> None:
    """Print MiB and seconds of one step."""
    torch.set_num_threads(1)
    rows, size = CASES[name]
    network, inputs = case(name, rows)
    step(network, inputs[:4], 2, way)
    network.zero_grad()
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    step(network, inputs, size, way)
    seconds = time.process_time() - start
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, "MiB", f"{seconds:.1f} CPU-s")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(*sys.argv[1:])
    else:
        for one in CASES:
            for other in WAYS:
                print(f"{one:12} {other:10}", end=" ", flush=True)
                subprocess.run([sys.executable, __file__, one, other], check=True)  # noqa: S603 - this file
