"""One process of several: gradients of a network that is chunked under DDP or FSDP2, saved for the test.

python chunks_worker.py RANK WORLD FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import likewise as lw
from likewise.models import in_chunks
from likewise.training.fitting import synchronize

ROWS = 24


class Network(nn.Module):
    """Layers, with batch statistics if wanted, with one that nothing uses, and a method besides forward."""

    def __init__(self, *between, spare=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 16), *between, nn.Tanh(), nn.Linear(16, 5)).double()
        self.spare = nn.Linear(2, 2).double() if spare else None

    def forward(self, inputs):
        return self.layers(inputs)

    def doubled(self, inputs):
        """Give outputs by name."""
        return {"twice": 2 * self(inputs)}


def batch():
    """Return the inputs and labels of all processes."""
    return torch.randn(ROWS, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), torch.arange(ROWS) % 4


def ddp_cases(world):
    """Yield names, networks, and ways to encode."""

    def wrapped(network, **options):
        synchronize(network, torch.device("cpu"))
        return network if world == 1 else DistributedDataParallel(network, **options)

    yield "plain", wrapped(Network()), lambda of, x: in_chunks(of, x, 5)
    yield "buffers", wrapped(Network(nn.BatchNorm1d(16).eval())), lambda of, x: in_chunks(of, x, 5)
    yield "unused", wrapped(Network(spare=True), find_unused_parameters=True), lambda of, x: in_chunks(of, x, 5)
    yield "static", wrapped(Network(), static_graph=True), lambda of, x: in_chunks(of, x, 5)
    yield "method", wrapped(Network()), lambda of, x: in_chunks(of, x, 5, lambda chunk: 2 * of(chunk))
    hooked = Network()
    hooked.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2,))
    hooked.register_forward_hook(lambda _, __, out: out + 1)
    yield "hooks", wrapped(hooked), lambda of, x: in_chunks(of, x, 5)
    yield "inside", nn.Sequential(wrapped(Network()), nn.Tanh()), lambda of, x: in_chunks(of, x, 5)
    yield "twice", wrapped(Network()), lambda of, x: in_chunks(of, x, 5) + in_chunks(of, x.flip(1), 3)
    yield (
        "by name",
        wrapped(Network()),
        lambda of, x: in_chunks(of, {"inputs": x}, 5, lambda chunk: getattr(of, "module", of).doubled(**chunk))[
            "twice"
        ],
    )


def fsdp_network(world):
    """Return a network whose layers and whole are sharded."""
    network = Network()
    if world > 1:
        mesh = init_device_mesh("cpu", (world,))
        for layer in network.layers:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(network, mesh=mesh)
    return network


class Headed(nn.Module):
    """A sharded encoder that is chunked within the forward of what is sharded around it."""

    def __init__(self, world):
        super().__init__()
        self.encoder = Network()
        torch.manual_seed(1)
        self.head = nn.Linear(5, 5).double()
        if world > 1:
            mesh = init_device_mesh("cpu", (world,))
            for part in (self.encoder, self.head, self):
                fully_shard(part, mesh=mesh)

    def forward(self, inputs):
        return self.head(in_chunks(self.encoder, inputs, 5))


def steps(network, encode, mine, world):
    """Return the gradients of three steps, the last two of them added up."""
    inputs, labels = (of[mine] for of in batch())
    made = []
    for _ in range(3):
        if len(made) < 2:
            network.zero_grad()
        lw.SupConLoss(temperature=0.2, gather_distributed=world > 1)(encode(network, inputs), labels).backward()
        found = {name.replace("module.", ""): of.grad for name, of in network.named_parameters()}
        whole = {name: of.full_tensor() if hasattr(of, "full_tensor") else of for name, of in found.items()}
        made.append({name: None if of is None else of.clone() for name, of in whole.items()})
    return made


def main(rank, world, folder):
    """Save the gradients of all cases."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world)
    mine = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
    found = {name: steps(network, encode, mine, world) for name, network, encode in ddp_cases(world)}
    found["fully_shard"] = steps(fsdp_network(world), lambda of, x: in_chunks(of, x, 5), mine, world)
    found["fully_shard, with a head"] = steps(Headed(world), lambda of, x: of(x), mine, world)
    torch.save(found, folder / f"{world}-{rank}.pt")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
