"""The targets of the GPU operator, measured: one command, under eight minutes.

uv run python benchmarks/targets.py           prints target, measured, holds; writes results/<device>.json

Times are medians by the GPU's own clock with rotating inputs, forward and backward, D = 128; contenders that are
compared take turns. The loss is the one of backend "triton". What the time left would not suffice for is skipped.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from likewise.benchmark import Case, Contender, CudaMeter, Dtype, Failed, Result, machine, prediction, write
from likewise.benchmark.contenders import find
from likewise.benchmark.results import summary

FEATURES, BUDGET = 128, 450.0
SECONDS, REPEATS = 3.0, 7  # of steps of each who takes turns: so long, or so many where a step is long
LABELS = 128

OURS, IN_GRAPH = ("SupConLoss", "likewise", "triton"), ("SupConLoss", "likewise, in a CUDA graph", "triton")
PLAIN, CLASSES, SETS = (
    ("log_sum_exp", name, "triton") for name in ("plain", "class labels", f"label sets, L = {LABELS}")
)


class Target(NamedTuple):
    """What is asked of one contender, or of two beside each other.

    Args:
        title: What it is about.
        rows: N.
        dtype: Of the embeddings.
        keys: The contender, and the one that it is compared with.
        limit: The most, or the least where ``at_least``, of milliseconds; of a ratio, where there are two; of GB or of
            a ratio of them, where ``memory``.
    """

    title: str
    rows: int
    dtype: Dtype
    keys: tuple[tuple[str, str, str], ...]
    limit: float
    at_least: bool = False
    memory: bool = False

    @property
    def unit(self) -> str:
        """What follows the number."""
        return "×" if len(self.keys) == 2 else "GB" if self.memory else "ms"

    def value(self, results: Sequence[Result]) -> float:
        """Return what is to be held against the limit."""
        found = [(each.peak_bytes or 0) / 1e9 if self.memory else each.milliseconds or 0.0 for each in results]
        return found[0] if len(found) == 1 else found[0] / max(found[1], 1e-12)


def targets() -> Iterator[Target]:
    """Return the targets, those of small sizes first."""
    bf16, title = "bfloat16", "SupCon, the whole loss"
    for rows, limit in ((4096, 0.1), (16384, 0.6)):
        yield Target(f"{title}, in a CUDA graph", rows, bf16, (IN_GRAPH,), limit)
    for rows, limit in ((16384, 0.6), (65536, 9.0)):
        yield Target(title, rows, bf16, (OURS,), limit)
    yield Target(title, 65536, "float32", (OURS,), 24.0)
    dense, compiled, flex = (("SupConLoss", name, "") for name in ("dense form", "torch.compile", "FlexAttention"))
    yield Target("the dense form beside SupConLoss, time", 16384, "float32", (dense, OURS), 20, at_least=True)
    yield Target("the dense form beside it, memory", 16384, "float32", (dense, OURS), 100, at_least=True, memory=True)
    for dtype in ("float32", "bfloat16"):
        yield Target("torch.compile on the dense form beside it", 16384, dtype, (compiled, OURS), 4, at_least=True)
        yield Target("FlexAttention beside it", 16384, dtype, (flex, OURS), 1.8, at_least=True)
    for rows in (16384, 65536):
        yield Target("log_sum_exp, class labels over plain", rows, bf16, (CLASSES, PLAIN), 1.1)
        yield Target(f"log_sum_exp, label sets (L = {LABELS}) over plain", rows, bf16, (SETS, PLAIN), 1.6)
    for rows, limit in ((262144, 145.0), (1048576, 2300.0)):
        yield Target(title, rows, bf16, (OURS,), limit)
    yield Target("peak memory over the inputs", 1048576, bf16, (OURS,), 1.2, memory=True)


class Measurements:
    """What was measured by now, and when it has to end."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self._meter, self._end = CudaMeter(), time.monotonic() + BUDGET
        self._known: defaultdict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)

    def of(self, target: Target) -> list[Result]:
        """Return a target's contenders measured, taking turns; what was measured together before is not again.

        Raises:
            Failed: One of them could not be run, or would take too much.
        """
        contenders = [find(key, "cuda") for key in target.keys]
        case = Case(target.rows, FEATURES, target.dtype, "cuda")
        before = [self._earlier(each, case) for each in contenders]
        if target.memory and all(before):
            return [each for each in before if each]
        peaks = [self._peak(each, case) for each in contenders]
        turns = [self._meter.turns(each, case, known[0]) for each, known in zip(contenders, peaks, strict=True)]
        times: list[list[float]] = [[] for _ in contenders]
        end = min(self._end, time.monotonic() + SECONDS * len(contenders))
        while not times[-1] or (time.monotonic() < end or (len(times[0]) < REPEATS and time.monotonic() < self._end)):
            for turn, taken in zip(turns, times, strict=True):
                taken.append(turn())
        found = [
            Result(*each.key, case.rows, case.dtype, peak_bytes=known[1], **summary(taken))
            for each, known, taken in zip(contenders, peaks, times, strict=True)
        ]
        self.results += found
        for each, taken in zip(contenders, times, strict=True):
            self._known[*each.key, case.dtype][case.rows] = statistics.median(taken)
        return found

    def _earlier(self, contender: Contender, case: Case) -> Result | None:
        named = (*contender.key, case.rows, case.dtype)
        same = (
            each for each in self.results if (each.loss, each.contender, each.backend, each.rows, each.dtype) == named
        )
        return next(same, None)

    def _peak(self, contender: Contender, case: Case) -> tuple[float, int | None]:
        """Return a step's seconds and its peak memory, unless it would take more than there is."""
        growth, known = contender.growth, self._known[*contender.key, case.dtype]
        needed = prediction.memory({}, case.rows, case.features, growth)
        takes = (3 + REPEATS) * prediction.seconds(known, case.rows, growth) + growth.setup
        free = prediction.free_bytes("cuda")
        reason = prediction.why_not(needed, free, takes, self._end - time.monotonic())
        if reason:
            raise Failed(reason)
        peak = self._meter.peak(contender, case)
        return peak.seconds, peak.bytes


def verdict(target: Target, results: Sequence[Result]) -> tuple[str, str]:
    """Return what was measured, in words, and whether the target holds."""
    value = target.value(results)
    holds = value >= target.limit if target.at_least else value <= target.limit
    return (
        f"{value:,.0f} {target.unit}" if value >= 100 else f"{value:.3g} {target.unit}",
        "holds" if holds else "falls short",
    )


def main(folder: Path = Path(__file__).parent / "results") -> int:
    """Measure, print the table, write the file into a folder; return the exit status."""
    if not torch.cuda.is_available():
        print("error: torch sees no GPU here, and these are the targets of one", file=sys.stderr)
        return 2
    facts = machine("cuda")
    told: list[dict[str, str]] = []
    name = "-".join(facts["device"].split())
    path = folder / f"{name}.json"
    folder.mkdir(exist_ok=True)
    measurements = Measurements()
    print(f"{facts['device']}, torch {facts['versions']['torch']}, D = {FEATURES}, forward and backward\n")
    print("| | rows | type | target | measured | |\n|---|---|---|---|---|---|", flush=True)
    for target in targets():
        try:
            measured, holds = verdict(target, measurements.of(target))
        except Exception as error:  # noqa: BLE001 - one target that cannot be measured leaves the others
            measured, holds = "–", str(error) if isinstance(error, Failed) else Failed.words(error)
        asked = f"{'≥' if target.at_least else '≤'} {target.limit:g} {target.unit}"
        row = (target.title, f"{target.rows:,}", target.dtype, asked, measured, holds)
        print(f"| {' | '.join(row)} |", flush=True)
        told.append(dict(zip(("title", "rows", "dtype", "target", "measured", "holds"), row, strict=True)))
        write(path, facts | {"targets": told}, measurements.results)
    print(f"\nresults: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
