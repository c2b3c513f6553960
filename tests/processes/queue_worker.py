"""One process of several: feeds a queue that gathers, and saves what it holds.

python queue_worker.py RANK WORLD FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from likewise.memory import Queue

BATCHES = [[3, 1], [0, 2], [4, 4], [0, 0], [1, 0]]
"""Keys each of two processes has, batch by batch: uneven, and sometimes none."""


def batch(step, rank):
    """Return the keys, classes, label sets and ids of a rank's batch, all different."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    count = BATCHES[step][rank]
    keys = torch.randn(count, 2, generator=generator)
    labels, ids = (torch.randint(100, (count,), generator=generator) for _ in range(2))
    return keys, labels, torch.stack([labels % 2, labels % 3 == 0, labels % 5 == 0], dim=1).bool(), ids


def filled():
    """Return a queue of classes, one of label sets and one without labels or ids, fed with this process's batches."""
    classes = Queue(size=6, feature_dim=2, gather_distributed=True)
    sets = Queue(size=6, feature_dim=2, num_labels=3, gather_distributed=True).half()
    bare = Queue(size=6, feature_dim=2, gather_distributed=True)
    for step in range(len(BATCHES)):
        keys, labels, label_sets, ids = batch(step, dist.get_rank())
        classes.enqueue(keys, labels, ids)
        sets.enqueue(keys, label_sets, ids)
        bare.enqueue(keys)
    return {"classes": classes.state_dict(), "sets": sets.state_dict(), "bare": bare.state_dict()}


def refusals(rank):
    """Return what each rank is told where the batch, or the queue, of rank 1 is another."""
    keys, labels = torch.ones(2, 2), torch.tensor([0, 1])
    odd = rank == 1
    attempts = {
        "features": (2, torch.ones(2, 3) if odd else keys, labels),
        "labels": (2, keys, None if odd else labels),
        "size": (3 if odd else 2, keys, labels),
        "nan": (2, keys * (torch.nan if odd else 1), labels),
    }
    told = {}
    for name, (size, *arguments) in attempts.items():
        queue = Queue(size, feature_dim=2, gather_distributed=True)
        try:
            queue.enqueue(*arguments)
        except ValueError as error:
            told[name] = str(error), len(queue)
    return told


def main(rank, world, folder):
    """Feed the queues of this rank, and save them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.save({**filled(), "refusals": refusals(rank)}, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
