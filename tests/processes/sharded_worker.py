"""One rank of a step whose module, a learned temperature included, FSDP2 shards; saves what an optimizer would meet.

It also saves the temperature, and its sharded logarithm, of steps that drive it out of its range.

Called with: rank, world size, folder.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import likewise as lw

ROWS, FEATURES = 6, 5


class Step(nn.Module):
    """An encoder and a loss, as one module to shard; FSDP2 takes no 0-d parameter."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(FEATURES, FEATURES, dtype=torch.float64)
        self.loss = lw.InfoNCELoss(
            temperature=nn.Parameter(torch.tensor([0.3], dtype=torch.float64)), gather_distributed=True
        )
        self.learned = lw.SupConLoss(temperature="learned", gather_distributed=True).double()

    def forward(self, queries, keys):
        queries, keys = self.encoder(queries), self.encoder(keys)
        return self.loss(queries, keys) + self.learned(torch.stack([queries, keys], dim=1))


class Alone(nn.Module):
    """A module of nothing but a loss that learns its temperature."""

    def __init__(self):
        super().__init__()
        self.loss = lw.SupConLoss(temperature="learned", gather_distributed=True).double()

    def forward(self, embeddings):
        return self.loss(embeddings)


def driven(world):
    """Return for some steps that drive a learned temperature down the one that is used, and its logarithm after it."""
    step, found = Alone(), []
    if world > 1:
        fully_shard(step, mesh=init_device_mesh("cpu", (world,)))
    views = torch.eye(4, dtype=torch.float64).view(2, 2, 4)
    for _ in range(4):
        (parameter,) = step.parameters()
        parameter.grad = torch.full_like(parameter, 3.0)
        torch.optim.SGD(step.parameters(), lr=1.0).step()
        step(views).sum().backward()
        (parameter,) = step.parameters()
        kept = parameter.full_tensor() if world > 1 else parameter
        found.append((float(step.loss.last["temperature"]), float(kept.detach())))
    return found


def main(rank, world, folder):
    """Take two steps of SGD, and save the loss, the temperature and the weights after each."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step, (queries, keys) = Step(), torch.randn(2, ROWS, FEATURES, dtype=torch.float64)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
        fully_shard(step, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.SGD(step.parameters(), lr=0.05)
    mine, saved = slice(rank * ROWS // world, (rank + 1) * ROWS // world), []
    for _ in range(2):
        optimizer.zero_grad()
        loss = step(queries[mine], keys[mine])
        loss.backward()
        optimizer.step()
        whole = [of.full_tensor() if world > 1 else of for of in step.parameters()]
        saved.append([loss.detach(), *(of.detach().clone() for of in whole)])
    limits = driven(world)
    if world > 1:
        dist.destroy_process_group()
    torch.save((saved, limits), folder / f"{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
