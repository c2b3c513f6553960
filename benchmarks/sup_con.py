"""Time and peak memory of SupCon, forward and backward, beside the dense formula and the products that it cannot avoid.

uv run python benchmarks/sup_con.py            the table of README.md: all sizes, time and memory
uv run python benchmarks/sup_con.py 256 512    these numbers of rows
uv run python benchmarks/sup_con.py 4096 --busy 0 1 3    the same beside so many other busy processes
uv run python benchmarks/sup_con.py --others    label sets, a queue and two batches of 4,096 rows, quiet and busy

"sgemm" is the time of the tile products alone: of each tile of the upper triangle one in the forward, and in the
backward one to make it again and one for the rows' gradient, off the diagonal another for the columns'. Times are
medians of calls taken turn about in one process; memory is the growth of the peak resident size over one call in a
process of its own, after a small call that loads everything.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

import likewise as lw

FEATURES, CLASSES, TEMPERATURE, TILE = 128, 100, 0.1, 512
TURNS = 20
"""Of how many turns a median is taken at least."""
MIB = 1 << 20


def dense_sup_con(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return SupCon from N x N matrices: similarities, masks, exponentials, log-probabilities."""
    z = torch.nn.functional.normalize(embeddings, dim=1)
    logits = z @ z.T / TEMPERATURE
    logits = logits - logits.max(dim=1, keepdim=True).values.detach()
    not_self = 1 - torch.eye(len(z))
    positive = (labels[:, None] == labels[None, :]).float() * not_self
    exponentials = torch.exp(logits) * not_self
    log_probability = logits - torch.log(exponentials.sum(dim=1, keepdim=True))
    return -((positive * log_probability).sum(dim=1) / positive.sum(dim=1)).mean()


def products(rows: int) -> None:
    """Multiply the tiles that forward and backward of the upper triangle consist of."""
    z, gradient, e = torch.randn(rows, FEATURES), torch.zeros(rows, FEATURES), torch.rand(TILE, TILE)
    tiles = [slice(start, start + TILE) for start in range(0, rows, TILE)]
    for backward in (False, True):
        for k, i in enumerate(tiles):
            for j in tiles[k:]:
                torch.mm(z[i], z[j].T, out=e)
                if backward:
                    gradient[i].addmm_(e, z[j])
                if backward and i is not j:
                    gradient[j].addmm_(e.T, z[i])


def implementations() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Return the losses that are compared, by name."""
    return {
        "ours": lw.SupConLoss(temperature=TEMPERATURE),
        "ours, in": lw.SupConLoss(temperature=TEMPERATURE, form="in"),
        "ours, bf16": lw.SupConLoss(temperature=TEMPERATURE),
        "dense": dense_sup_con,
        "compiled": torch.compile(dense_sup_con, dynamic=False),
    }


def batch(rows: int, name: str) -> tuple[Tensor, Tensor]:
    """Return random embeddings, which require a gradient, and labels of which every one occurs twice or more."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(rows, FEATURES, generator=generator)
    embeddings = embeddings.to(torch.bfloat16 if name.endswith("bf16") else torch.float32).requires_grad_()
    return embeddings, torch.arange(rows)[torch.randperm(rows, generator=generator)] % CLASSES


def step_of(name: str, rows: int) -> Callable[[], None]:
    """Return what is timed: one step, forward and backward, on a batch of its own."""
    if name == "sgemm":
        return lambda: products(rows)
    loss, (embeddings, labels) = implementations()[name], batch(rows, name)

    def step() -> None:
        embeddings.grad = None
        loss(embeddings, labels).backward()

    return step


def times(rows: int, names: list[str], seconds: float) -> dict[str, float]:
    """Return each contender's median time, in seconds, of calls taken turn about for about so long."""
    steps = {name: step_of(name, rows) for name in names}
    for step in steps.values():
        step()
    taken: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken[names[0]]) < TURNS:
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


@contextmanager
def beside(count: int) -> Generator[None]:
    """Keep so many other processes busy for as long as the block runs."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def other_walks() -> dict[str, Callable[[], None]]:
    """Return steps that go other ways than classes among themselves, of 4,096 rows."""
    z, labels = batch(4096, "ours")
    generator = torch.Generator().manual_seed(1)
    sets = torch.rand(4096, 20, generator=generator) < 0.1
    keys, queue = (torch.randn(n, FEATURES, generator=generator) for n in (4096, 16384))
    info_nce, sup_con = lw.InfoNCELoss(temperature=TEMPERATURE), lw.SupConLoss(temperature=TEMPERATURE)
    both_ways = lw.InfoNCELoss(temperature=TEMPERATURE, symmetric=True)

    def step(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            z.grad = None
            loss().backward()

        return run

    return {
        "classes": step(lambda: sup_con(z, labels)),
        "label sets, 20 labels": step(lambda: sup_con(z, sets)),
        "keys and a queue of 16,384": step(lambda: info_nce(z, keys, queue=queue)),
        "two batches, one way": step(lambda: info_nce(z, keys)),
        "two batches, both ways": step(lambda: both_ways(z, keys)),
    }


def print_others(busy: list[int], seconds: float) -> None:
    """Print a table of other walks, quiet and beside busy processes."""
    print(f"| step | {' | '.join(f'beside {count}' for count in busy)} |")
    print("|---" * (1 + len(busy)) + "|")
    steps = other_walks()
    for name, step in steps.items():
        medians: list[float] = []
        for count in busy:
            with beside(count):
                step()
                taken: list[float] = []
                end = time.perf_counter() + seconds / 2
                while time.perf_counter() < end or len(taken) < TURNS:
                    start = time.perf_counter()
                    step()
                    taken.append(time.perf_counter() - start)
            medians.append(statistics.median(taken))
        print(f"| {name} | {' | '.join(f'{median * 1e3:.0f} ms' for median in medians)} |", flush=True)


def peak_memory(rows: int, name: str) -> float:
    """Return by how many MiB one call raises the peak resident size of this process."""
    step_of(name, rows if name == "compiled" else 128)()
    loss, (embeddings, labels) = implementations()[name], batch(rows, name)
    embeddings.grad = torch.zeros_like(embeddings)  # the gradient itself belongs to the caller, not to the loss
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = resident("VmRSS")
    loss(embeddings, labels).backward()
    return (resident("VmHWM") - before) / MIB


def resident(field: str) -> int:
    """Return a resident size of this process in bytes, from the kernel's account."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith(field))


def measured_memory(rows: int, name: str) -> float | None:
    """Return `peak_memory` from a process of its own, or None if it could not run."""
    command = [sys.executable, __file__, str(rows), "--memory-of", name]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back, and the runs agree
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return float(done.stdout) if done.returncode == 0 else None


def contenders(rows: int, arguments: argparse.Namespace) -> list[str]:
    """Return what is compared at a number of rows."""
    names = ["ours", "ours, in"]
    if rows >= arguments.compiled_from and rows % TILE == 0:
        names += ["sgemm", "ours, bf16"]
    names += ["dense"] if rows <= arguments.dense_up_to else []
    # A compiled function's threads spin on into the next one's turn, which small sizes would feel.
    return names + (["compiled"] if arguments.compiled_from <= rows <= arguments.compiled_up_to else [])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=int, default=[256, 512, 1024, 4096, 8192, 16384, 32768])
    parser.add_argument("--seconds", type=float, default=20, help="how long to take turns at each size")
    parser.add_argument("--dense-up-to", type=int, default=8192, help="the most rows that the dense form is given")
    parser.add_argument(
        "--compiled-from", type=int, default=1024, help="the fewest rows of all that small ones leave out"
    )
    parser.add_argument(
        "--compiled-up-to", type=int, default=16384, help="the most rows that the compiled form is given"
    )
    parser.add_argument("--busy", nargs="*", type=int, default=[0], help="how many busy processes to measure beside")
    parser.add_argument(
        "--others", action="store_true", help="other walks than SupCon's: label sets, a queue, two batches"
    )
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(peak_memory(arguments.rows[0], arguments.memory_of))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, D = {FEATURES}, {CLASSES} classes")
    if arguments.others:
        print_others(arguments.busy, arguments.seconds)
        return
    timed = ["ours", "ours, in", "sgemm", "ours, bf16", "dense", "compiled"]
    measured = ["ours", "dense", "compiled"]
    print(f"| rows | {' | '.join(timed)} | memory: {' | '.join(measured)} |")
    print("|---" * (1 + len(timed) + len(measured)) + "|")
    for rows, busy in ((rows, busy) for rows in arguments.rows for busy in arguments.busy):
        with beside(busy):
            taken = times(rows, contenders(rows, arguments), arguments.seconds)
        memory = {name: measured_memory(rows, name) for name in measured if name in taken and not busy}
        cells = [f"{taken['ours'] * 1e3:.2f} ms"]
        cells += [
            f"{taken[name] * 1e3:.2f} ms, {taken[name] / taken['ours']:.2f} x" if name in taken else "–"
            for name in timed[1:]
        ]
        cells += [f"{memory[name]:.1f} MiB" if memory.get(name) is not None else "–" for name in measured]
        print(f"| {rows:,}{f', beside {busy}' if busy else ''} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
