"""One process of several: evaluates every case on its shard under DistributedDataParallel, and saves what it got.

python distributed_worker.py RANK WORLD FOLDER; with WORLD 1 it holds everything.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import likewise as lw

SHARDS = {1: [7], 2: [5, 2], 3: [3, 0, 4]}
"""Samples a process: uneven, and once none."""


class Step(nn.Module):
    """An encoder and a loss with a learned temperature, as one module to distribute."""

    def __init__(self, make, options):
        super().__init__()
        self.encoder = nn.Linear(6, 4, dtype=torch.float64)
        nn.init.normal_(self.encoder.weight, generator=torch.Generator().manual_seed(1))
        nn.init.zeros_(self.encoder.bias)
        self.temperature = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        self.loss = make(temperature=self.temperature, gather_distributed=True, **options)

    def forward(self, batch):
        arguments = dict(batch)
        embeddings = self.encoder(arguments.pop("inputs"))
        if "references" in arguments:
            arguments["references"] = self.encoder(arguments["references"])
        return self.loss(embeddings, **arguments)


def cases():
    """Yield each case's name, loss, options, whole batch, and which of its parts are cut by samples."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 0, 2, 1, 0, 3])
    sets = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]])
    mask = torch.rand(7, 7, generator=generator) > 0.6

    def inputs(*shape):
        return torch.randn(*shape, 6, dtype=torch.float64, generator=generator)

    for reduction in ("mean", "sum", "none"):
        yield f"nt_xent {reduction}", lw.NTXentLoss, {"reduction": reduction}, {"inputs": inputs(7, 2)}
        for form in ("out", "in"):
            options = {"form": form, "reduction": reduction}
            yield f"sup_con {form} {reduction}", lw.SupConLoss, options, {"inputs": inputs(7, 2), "labels": labels}
    yield "three views", lw.NTXentLoss, {}, {"inputs": inputs(7, 3)}
    yield "tiled", lw.SupConLoss, {"backend": "tiled"}, {"inputs": inputs(7, 2), "labels": labels}
    yield "one view", lw.SupConLoss, {}, {"inputs": inputs(7), "labels": labels}
    yield "no labels", lw.SupConLoss, {}, {"inputs": inputs(7, 2)}
    yield "label sets", lw.SupConLoss, {}, {"inputs": inputs(7, 2), "labels": sets}
    yield "mask", lw.SupConLoss, {"form": "in"}, {"inputs": inputs(7, 2), "mask": mask}
    yield "all different", lw.SupConLoss, {}, {"inputs": inputs(7), "labels": torch.arange(7)}
    others = {"references": inputs(7), "reference_labels": labels.flip(0)}
    yield "references", lw.SupConLoss, {}, {"inputs": inputs(7, 2), "labels": labels, **others}
    yield "references, mask", lw.SupConLoss, {}, {"inputs": inputs(7, 2), "mask": mask, "references": inputs(7)}


def evaluate(make, options, batch, world):
    """Return the loss, and the gradients of the encoder and the temperature that an optimiser would meet."""
    step = Step(make, options)
    model = step if world == 1 else DistributedDataParallel(step)
    loss = model(batch)
    total = loss.sum()
    if loss.ndim and world > 1:
        total = total * world  # "none" leaves the scaling to the user: DDP's mean divides by the world
    total.backward()
    return loss.detach(), [parameter.grad.clone() for parameter in step.parameters()]


def refusals(rank, world):
    """Return what each rank is told where the input of rank 1 is bad."""
    z, labels = torch.randn(2, 2, 3), torch.tensor([0, 1])
    cold = lw.SupConLoss(gather_distributed=True)
    cold.temperature = -1 if rank == 1 else 0.1
    criterion = lw.SupConLoss(gather_distributed=True)
    good = {"embeddings": z, "labels": labels}
    bad = {
        "labels": {"embeddings": z, "labels": labels[:1]},
        "nan": {"embeddings": z * torch.nan, "labels": labels},
        "features": {"embeddings": torch.randn(2, 2, 5), "labels": labels},
        "kind": {"embeddings": z, "labels": torch.eye(2)},
        "list": {"embeddings": z, "labels": [0, 1]},
        "queue": {**good, "references": torch.randn(5, 3), "reference_labels": torch.arange(5)},
        "mask": {"embeddings": z, "mask": torch.ones(2, 2)},
    }
    told = {}
    for name, batch in [*bad.items(), ("temperature", good)]:
        usual = {"embeddings": z, "mask": torch.ones(2, 2 * world)} if name == "mask" else good
        try:
            (cold if name == "temperature" else criterion)(**(batch if rank == 1 else usual))
        except ValueError as error:
            told[name] = str(error)
    return told


def main(rank, world, folder):
    """Evaluate every case, and save the results of this rank."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    start = sum(SHARDS[world][:rank])
    mine = slice(start, start + SHARDS[world][rank])
    results = {}
    for name, make, options, batch in cases():
        shard = {key: value[mine] for key, value in batch.items()}
        results[name] = evaluate(make, options, shard, world)
    if world > 1:
        results["refusals"] = refusals(rank, world)
        dist.destroy_process_group()
    torch.save(results, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
