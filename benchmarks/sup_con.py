"""Time and peak memory of SupCon, forward and backward, beside the dense formula as it is usually written.

uv run python benchmarks/sup_con.py            the table of README.md: all sizes, time and memory
uv run python benchmarks/sup_con.py 256 512    these numbers of rows

Times are medians of calls taken turn about in one process; memory is the growth of the peak resident size over one call
in a process of its own, after a small call that loads everything.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import likewise as lw

FEATURES, CLASSES, TEMPERATURE = 128, 100, 0.1
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


def implementations() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Return what is compared, by name."""
    return {
        "likewise": lw.SupConLoss(temperature=TEMPERATURE),
        "dense": dense_sup_con,
        "compiled": torch.compile(dense_sup_con, dynamic=False),
    }


def batch(rows: int) -> tuple[Tensor, Tensor]:
    """Return random embeddings, which require a gradient, and labels of which every one occurs twice or more."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(rows, FEATURES, generator=generator, requires_grad=True)
    return embeddings, torch.arange(rows)[torch.randperm(rows, generator=generator)] % CLASSES


def step(loss: Callable[[Tensor, Tensor], Tensor], embeddings: Tensor, labels: Tensor) -> float:
    """Run forward and backward once, and return the seconds."""
    embeddings.grad = None
    start = time.perf_counter()
    loss(embeddings, labels).backward()
    return time.perf_counter() - start


def times(rows: int, names: list[str], seconds: float) -> dict[str, float]:
    """Return each implementation's median time, in seconds, of calls taken turn about for about so long."""
    embeddings, labels = batch(rows)
    chosen = {name: implementations()[name] for name in names}
    for loss in chosen.values():
        step(loss, embeddings, labels)
    taken: dict[str, list[float]] = {name: [] for name in chosen}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken[names[0]]) < 5:
        for name, loss in chosen.items():
            taken[name].append(step(loss, embeddings, labels))
    return {name: statistics.median(values) for name, values in taken.items()}


def peak_memory(rows: int, name: str) -> float:
    """Return by how many MiB one call raises the peak resident size of this process."""
    loss = implementations()[name]
    step(loss, *batch(rows if name == "compiled" else 128))
    embeddings, labels = batch(rows)
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
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 else None


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=int, default=[256, 512, 1024, 4096, 8192, 32768])
    parser.add_argument("--seconds", type=float, default=20, help="how long to take turns at each size")
    parser.add_argument("--dense-up-to", type=int, default=8192, help="the most rows that the dense forms are given")
    parser.add_argument(
        "--compiled-from", type=int, default=1024, help="the fewest rows that the compiled form is given"
    )
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(peak_memory(arguments.rows[0], arguments.memory_of))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, D = {FEATURES}, {CLASSES} classes")
    print("| rows | ours | dense | compiled dense | dense / ours | compiled / ours | memory: ours | dense | compiled |")
    print("|---|---|---|---|---|---|---|---|---|")
    for rows in arguments.rows:
        names = ["likewise", "dense", "compiled"] if rows <= arguments.dense_up_to else ["likewise"]
        names = names if rows >= arguments.compiled_from else names[:2]  # its threads spin on into the next one's turn
        taken = times(rows, names, arguments.seconds)
        memory = {name: measured_memory(rows, name) for name in names}
        ours = taken["likewise"]
        cells = [f"{taken[name] * 1e3:.2f} ms" if name in taken else "–" for name in ("likewise", "dense", "compiled")]
        cells += [f"{taken[name] / ours:.2f} x" if name in taken else "–" for name in ("dense", "compiled")]
        cells += [f"{memory[name]:.1f} MiB" if memory.get(name) else "–" for name in ("likewise", "dense", "compiled")]
        print(f"| {rows:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
