"""A step of a small batch beside the dense formula: `python -m benchmarks.small_steps [rows ...]`.

SupCon with 100 classes and 128 features, forward and backward, in turns. For one and for two threads: the median and
the smallest processor time and elapsed time of a step, and how many functions of Python and of C it calls. On a busy
machine only processor times and calls mean something.
"""

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

import likewise as lw

ROWS, TURNS, FEATURES, CLASSES, TEMPERATURE = (128, 256, 512, 1024), 100, 128, 100, 0.1


def dense(z: Tensor, labels: Tensor) -> Tensor:
    """Return SupCon as it is usually written: from N x N similarities, masks and log-probabilities."""
    z = functional.normalize(z, dim=1)
    logits = z @ z.T / TEMPERATURE
    others = ~torch.eye(len(z), dtype=torch.bool)
    logits = logits - logits.amax(dim=1, keepdim=True).detach()
    log_probabilities = logits - (logits.exp() * others).sum(dim=1, keepdim=True).log()
    positives = (labels[:, None] == labels) & others
    counts = positives.sum(dim=1)
    active = counts > 0
    return -((log_probabilities * positives).sum(dim=1)[active] / counts[active]).mean()


def steps(rows: int) -> dict[str, Callable[[], None]]:
    """Return a step of each contender."""
    torch.manual_seed(0)
    z, labels = torch.randn(rows, FEATURES, requires_grad=True), torch.arange(rows) % CLASSES

    def step_of(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def step() -> None:
            z.grad = None
            loss(z, labels).backward()

        return step

    return {"likewise": step_of(lw.SupConLoss(temperature=TEMPERATURE)), "dense": step_of(dense)}


def calls(step: Callable[[], None]) -> Counter[str]:
    """Return how many calls of Python and of C a step makes."""
    counts: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _argument: counts.update([event]))
    try:
        step()
    finally:
        sys.setprofile(None)
    return counts


def main() -> None:
    """Print a line for each number of threads and rows."""
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for rows in tuple(map(int, sys.argv[1:])) or ROWS:
            ways = steps(rows)
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for _ in range(TURNS + 5):
                for name, step in ways.items():
                    cpu, wall = time.process_time(), time.perf_counter()
                    step()
                    times[name].append((1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)))
            line = [f"{threads} threads, {rows:5} rows"]
            for name, taken in times.items():
                for clock, of in zip(("CPU", "elapsed"), zip(*taken[5:], strict=True), strict=True):
                    line.append(f"{name} {clock} {statistics.median(of):.2f} (min {min(of):.2f}) ms")
                counted = calls(ways[name])
                line.append(f"{counted['call']} + {counted['c_call']} calls")
            for k, clock in enumerate(("CPU", "elapsed")):
                ours, theirs = (statistics.median(each[k] for each in times[name][5:]) for name in ways)
                line.append(f"{clock} {theirs / ours:.2f}x")
            print("; ".join(line))


if __name__ == "__main__":
    main()
