"""Time of RASCAL, forward and backward in training with a warm cache, beside SupCon on the same batch.

uv run python benchmarks/rascal.py            4,096 rows: 2,048 samples in two views
uv run python benchmarks/rascal.py 8192       this number of rows

Times are medians of calls taken turn about in one process. The last row draws each sample's class at random, so that
classes differ in size.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import likewise as lw

FEATURES, VIEWS, TEMPERATURE = 128, 2, 0.1


def implementations(samples: int) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Return what is compared, by name."""
    index = torch.arange(samples)

    def rascal(**options: str) -> Callable[[Tensor, Tensor], Tensor]:
        loss = lw.RASCALLoss(samples, FEATURES, temperature=TEMPERATURE, **options)  # pyright: ignore[reportArgumentType]
        return lambda embeddings, labels: loss(embeddings, labels, index)

    return {
        "SupCon": lw.SupConLoss(temperature=TEMPERATURE),
        "RASCAL": rascal(),
        "by sample": rascal(rank_level="sample"),
        "current": rascal(ranking="current"),
        "uniform": rascal(ranking="uniform"),
    }


def batches(samples: int) -> dict[str, Tensor]:
    """Return the labels of each case, by name."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(samples, generator=generator)
    return {
        "100": order % 100,
        "10": order % 10,
        "100, drawn": torch.randint(100, (samples,), generator=generator),
    }


def step(loss: Callable[[Tensor, Tensor], Tensor], embeddings: Tensor, labels: Tensor) -> float:
    """Run forward and backward once, and return the seconds."""
    embeddings.grad = None
    start = time.perf_counter()
    loss(embeddings, labels).backward()
    return time.perf_counter() - start


def times(labels: Tensor, seconds: float) -> dict[str, float]:
    """Return each implementation's median time, in seconds, of calls taken turn about for about so long."""
    embeddings = torch.randn(len(labels), VIEWS, FEATURES, generator=torch.Generator().manual_seed(1))
    embeddings.requires_grad_()
    chosen = implementations(len(labels))
    for loss in chosen.values():  # fills the caches
        step(loss, embeddings, labels)
    taken: dict[str, list[float]] = {name: [] for name in chosen}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken["SupCon"]) < 5:
        for name, loss in chosen.items():
            taken[name].append(step(loss, embeddings, labels))
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=20, help="how long to take turns at each number of classes")
    arguments = parser.parse_args()
    samples = arguments.rows // VIEWS
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {samples} x {VIEWS} rows, D = {FEATURES}")
    names = list(implementations(1))
    print(f"| classes | {' | '.join(names)} | {' | '.join(f'{name} / SupCon' for name in names[1:])} |")
    print("|---" * (2 * len(names)) + "|")
    for case, labels in batches(samples).items():
        taken = times(labels, arguments.seconds)
        cells = [f"{taken[name] * 1e3:.1f} ms" for name in names]
        cells += [f"{taken[name] / taken['SupCon']:.2f} x" for name in names[1:]]
        print(f"| {case} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
