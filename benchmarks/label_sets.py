"""Time and peak memory of the losses of label sets, forward and backward, with a long queue.

uv run python benchmarks/label_sets.py                     1,024 queries, a queue of 65,536, 159 labels
uv run python benchmarks/label_sets.py --queue 8192 --labels 983

Times are medians; memory is the growth of the peak resident size over one step, in a process of its own, after a small
step that loads everything. Keys and queue have no gradient, as they come from a momentum encoder.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import likewise as lw
from sup_con import MIB, resident

FEATURES, LABELS_OF_ONE = 128, 3.4
LOSSES = ("MSC", "NWS mean", "NWS max")


def steps(queries: int, queue: int, labels: int) -> dict[str, Callable[[], Tensor]]:
    """Return each loss of one random batch, whose samples have 3.4 labels each on average."""
    generator = torch.Generator().manual_seed(0)

    def embeddings(rows: int, *, learned: bool = False) -> Tensor:
        return torch.randn(rows, FEATURES, generator=generator, requires_grad=learned)

    def sets(rows: int) -> Tensor:
        return torch.rand(rows, labels, generator=generator) < LABELS_OF_ONE / labels

    similarity = torch.rand(labels, labels, generator=generator)
    similarity = (similarity + similarity.T) / 2
    z, prototypes = embeddings(queries, learned=True), embeddings(labels, learned=True)
    own, keys = sets(queries), embeddings(queries)
    older, older_labels = embeddings(queue), sets(queue)
    earlier = {"queue": older, "queue_labels": older_labels}
    with_keys = {"keys": keys, "key_labels": own, **earlier}
    return {
        "MSC": lambda: lw.MSCLoss()(z, own, prototypes, **earlier),
        "NWS mean": lambda: lw.NWSLoss(similarity)(z, own, prototypes, **with_keys),
        "NWS max": lambda: lw.NWSLoss(similarity, aggregation="max")(z, own, prototypes, **with_keys),
    }


def measured(name: str, queries: int, queue: int, labels: int, repeats: int) -> dict[str, float]:
    """Return the median seconds and the MiB of one loss in this process."""
    steps(64, 256, labels)[name]().backward()
    loss = steps(queries, queue, labels)[name]
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = resident("VmRSS")
    loss().backward()
    memory = (resident("VmHWM") - before) / MIB
    seconds: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        loss().backward()
        seconds.append(time.perf_counter() - start)
    return {"seconds": statistics.median(seconds), "MiB": memory}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=1024)
    parser.add_argument("--queue", type=int, default=65536)
    parser.add_argument("--labels", type=int, default=159)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", choices=LOSSES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.one, given.queries, given.queue, given.labels, given.repeats)))
        return
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, D = {FEATURES}, {given.queries:,} queries, "
        f"a queue of {given.queue:,}, {given.labels} labels"
    )
    print("| loss | time | memory |\n|---|---|---|")
    for name in LOSSES:
        done = subprocess.run([sys.executable, *sys.argv, "--one", name], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        print(f"| {name} | {found['seconds']:.2f} s | {found['MiB']:.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()
