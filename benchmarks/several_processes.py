"""A step of SupCon with its rows on several processes: time, memory and bytes, for docs/performance.md.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 benchmarks/several_processes.py 16384

Each process holds N / W rows of 128 features and contrasts them with all N. One thread a process; the first prints a
line of JSON: of the slowest process the seconds of a step, by the clock and of the processor, and the growth of its
peak memory; and the bytes that a process hands to collectives.
"""

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import likewise as lw

FEATURES, STEPS, KIB = 128, 3, 1024
OPERATIONS = ("all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")


def count_bytes() -> list[int]:
    """Let collectives add up what this process gives to them, in a list of one number."""
    total = [0]

    def counted(operation: Callable[..., Any], given: Callable[..., Tensor]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            total[0] += given(arguments).nbytes
            return operation(*arguments)

        return call

    given = (lambda of: of[1], lambda of: of[1], lambda of: of[1], lambda of: of[0])
    for name, parts in zip(OPERATIONS, given, strict=True):
        setattr(dist, name, counted(getattr(dist, name), parts))
    return total


def main(rows: int) -> None:
    """Time some steps, and print what they took."""
    torch.set_num_threads(1)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if world > 1 else 0
    torch.manual_seed(rank)
    z = torch.randn(rows // world, FEATURES, requires_grad=True)
    labels = torch.arange(rows // world) % 100
    loss_of = lw.SupConLoss(temperature=0.1, gather_distributed=True)
    loss_of(z[:8], labels[:8]).backward()
    reduce = dist.all_reduce
    before, sent, seconds, busy = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, count_bytes(), [], []
    for _ in range(STEPS):
        start, worked = time.perf_counter(), time.process_time()
        loss_of(z, labels).backward()
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - worked)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / KIB
    slowest = torch.tensor([statistics.median(seconds), statistics.median(busy), peak])
    bytes_sent = sent[0] // STEPS
    if world > 1:
        reduce(slowest, dist.ReduceOp.MAX)
    if rank == 0:
        names = ("seconds", "CPU-seconds", "MiB")
        found = {name: round(value, 3) for name, value in zip(names, slowest.tolist(), strict=True)}
        sys.stdout.write(json.dumps({"rows": rows, "processes": world} | found | {"bytes": bytes_sent}) + "\n")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
