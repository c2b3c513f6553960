"""A step of a small batch beside the dense formula: `python -m benchmarks.small_steps [--beside] [rows ...]`.

SupCon with 100 classes and 128 features, forward and backward, in turns. For one and for two threads: the median and
the smallest processor time and elapsed time of a step, and how many functions of Python and of C it calls. On a busy
machine only processor times and calls mean something. With --beside: losses of classes, 16 of them, beside
pytorch-metric-learning and beside tiles, the lowest tenth of the elapsed times.
"""

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

import likewise as lw

ROWS, TURNS, FEATURES, CLASSES, TEMPERATURE = (128, 256, 512, 1024), 100, 128, 100, 0.1
FEW = 16


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


def beside(rows: int) -> None:
    """Print a line for each loss: milliseconds of a step, ours by default, theirs, and ours in tiles."""
    from pytorch_metric_learning import losses as theirs  # noqa: PLC0415

    z, labels = torch.randn(rows, FEATURES, requires_grad=True), torch.arange(rows) % FEW
    prototypes = torch.randn(FEW, FEATURES, requires_grad=True)
    pairs = {
        "SupConLoss": theirs.SupConLoss(temperature=0.1),
        "MultiSimilarityLoss": theirs.MultiSimilarityLoss(),
        "ContrastiveMarginLoss": theirs.ContrastiveLoss(),
        "BatchTripletLoss": theirs.TripletMarginLoss(margin=0.2),
        "LiftedStructureLoss": theirs.GeneralizedLiftedStructureLoss(),
        "ProxyAnchorLoss": theirs.ProxyAnchorLoss(FEW, FEATURES),
        "ProxyNCALoss": theirs.ProxyNCALoss(FEW, FEATURES),
        "ArcFaceLoss": theirs.ArcFaceLoss(FEW, FEATURES),
    }
    for name, other in pairs.items():
        of_classes = (prototypes,) if name in {"ProxyAnchorLoss", "ProxyNCALoss", "ArcFaceLoss"} else ()
        mine = [partial(getattr(lw, name)(backend=backend), z, labels, *of_classes) for backend in ("auto", "tiled")]
        ways = {"ours": mine[0], "theirs": partial(other, z, labels), "tiles": mine[1]}
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(150):
            for way, loss in ways.items():
                z.grad, started = None, time.perf_counter()
                loss().backward()
                times[way].append(1e3 * (time.perf_counter() - started))
        found = (f"{way} {statistics.quantiles(taken[10:], n=10)[0]:.2f}" for way, taken in times.items())
        print(f"{rows:5} rows  {name:22}", *found)


def main() -> None:
    """Print a line for each number of threads and rows, or for each loss."""
    if "--beside" in sys.argv:
        sys.argv.remove("--beside")
        for rows in tuple(map(int, sys.argv[1:])) or (32, 80, 128, 256):
            beside(rows)
        return
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
