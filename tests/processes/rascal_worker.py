"""RASCAL in one process of several, or its memory.

python rascal_worker.py RANK WORLD FOLDER      two steps of every ranking on this rank's shard, saved; WORLD 1 holds all
python rascal_worker.py memory ROWS            print by how many bytes the peak grows over a step on one class
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from memory_worker import resident
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import likewise as lw
from likewise.pairs import within_class

SHARDS = {1: [9], 2: [6, 3], 3: [4, 0, 5]}
"""Samples a process: uneven, and once none."""

LABELS = torch.tensor([0, 1, 0, 0, 1, 0, 3, 1, 0])
INDEX = torch.tensor([4, 11, 0, 9, 2, 4, 6, 8, 4])
"""Sample 4 occurs on several processes."""


class Step(nn.Module):
    """An encoder and the loss with a learned temperature, as one module to distribute."""

    def __init__(self, **options):
        super().__init__()
        self.encoder = nn.Linear(6, 4, dtype=torch.float64)
        nn.init.normal_(self.encoder.weight, generator=torch.Generator().manual_seed(1))
        nn.init.zeros_(self.encoder.bias)
        self.temperature = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        self.loss = lw.RASCALLoss(12, 4, temperature=self.temperature, gather_distributed=True, **options)

    def forward(self, inputs, labels, index):
        return self.loss(self.encoder(inputs), labels, index)


def evaluate(mine, world, **options):
    """Return the losses, gradients and statistics of two steps, without learning, and the cache after them."""
    step = Step(**options)
    model = step if world == 1 else DistributedDataParallel(step)
    generator = torch.Generator().manual_seed(0)
    losses, gradients = [], []
    for _ in range(2):
        inputs = torch.randn(9, 2, 6, dtype=torch.float64, generator=generator)
        step.zero_grad()
        loss = model(inputs[mine], LABELS[mine], INDEX[mine])
        loss.backward()
        losses.append(loss.detach())
        gradients += [parameter.grad.clone() for parameter in step.parameters()]
    last = {
        name: value
        for name, value in step.loss.last.items()
        if name not in {"positives_per_anchor", "rank_drift_by_anchor"}
    }
    return losses, gradients, last, list(step.loss.cache.buffers())


def refusals(rank):
    """Return what each rank is told where rank 1 has a bad index, or another ranking."""
    told = {}
    for name in ("index", "ranking"):
        ranking = "current" if name == "ranking" and rank == 1 else "agreement"
        criterion = lw.RASCALLoss(12, 3, ranking=ranking, gather_distributed=True)
        index = torch.tensor([0, 12 if name == "index" and rank == 1 else 1])
        try:
            criterion(torch.randn(2, 3), torch.tensor([0, 0]), index)
        except ValueError as error:
            told[name] = str(error)
    return told


def distributed(rank, world, folder):
    """Evaluate every case, and save the results of this rank."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    start = sum(SHARDS[world][:rank])
    mine = slice(start, start + SHARDS[world][rank])
    results = {
        f"{ranking} {level}": evaluate(mine, world, ranking=ranking, rank_level=level)
        for ranking in ("agreement", "current", "uniform")
        for level in ("view", "sample")
    }
    if world > 1:
        results["refusals"] = refusals(rank)
        dist.destroy_process_group()
    torch.save(results, folder / f"{rank}.pt")


def memory(rows):
    """Take one step on one class, in blocks so small that rows show, and print how far the peak went up."""
    within_class.BLOCK = within_class.MAX_KEPT = 2**15
    criterion = lw.RASCALLoss(rows, 32)
    labels, index = torch.zeros(rows, dtype=torch.int64), torch.arange(rows)
    criterion(torch.randn(1100, 32, requires_grad=True), labels[:1100], index[:1100]).backward()
    criterion.cache.valid.fill_(value=True)
    embeddings = torch.randn(rows, 32, requires_grad=True)
    embeddings.grad = torch.zeros_like(embeddings)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    criterion(embeddings, labels, index).backward()
    print(resident("VmHWM") - before)


if __name__ == "__main__":
    if sys.argv[1] == "memory":
        memory(int(sys.argv[2]))
    else:
        distributed(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
