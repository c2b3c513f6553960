"""The GPU kernels compiled without a GPU: registers, spills, shared memory, tensor cores."""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from benchmarks.measuring.case import Contender
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.results import Timing


def compiler() -> Any:
    """Return the module that compiles kernels; raise a ValueError if Triton is not there, or only interprets."""
    if find_spec("triton") is None:
        raise ValueError("expected Triton, which has no wheel for this platform: measure on Linux")
    if import_module("triton").knobs.runtime.interpret:
        raise ValueError("expected Triton to compile, got TRITON_INTERPRET, with which it only interprets: unset it")
    return import_module("benchmarks.compiled")


def workers(count: int, cache: str | None = None) -> ProcessPoolExecutor:
    """Return processes that compile, into Triton's cache or another folder."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin, (cache,))


def _begin(cache: str | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    if cache is not None:
        os.environ["TRITON_CACHE_DIR"] = cache


@dataclass(kw_only=True)
class Measure(Measurement):
    """Compile the GPU kernels without a GPU, and report registers, spills, shared memory and tensor cores.

    Instructions are those of the shortest loop over tiles, which has no masks: products on tensor cores, exponentials,
    tiles loaded by way of registers ("loads"), waits, and loads and stores of registers that did not fit ("spills").
    "a pair" are the instructions of each loop for a pair of rows: without masks, where sorted rows may have equal keys,
    on the diagonal. "programs" is how many run on a multiprocessor at a time, "seconds" the time of compiling.
    """

    device: str = "cpu"  # not options: nothing runs, so nothing is timed
    sizes: tuple[int, ...] = ()
    repeats: int = 0
    budget: float = 0
    clock: str = "wall"
    capability: int = option(90, "Compute capability.", choices=(80, 86, 89, 90, 100, 120))
    few: bool = option(default=False, description="Only what SupCon needs, at D = 128.")
    workers: int = option(os.cpu_count() or 1, "Processes that compile at a time.", least=1)

    def __post_init__(self) -> None:
        of = self._compiler = compiler()
        self._variants = of.FEW if self.few else of.variants()

    def contenders(self) -> list[Contender]:
        return []

    def total(self) -> int:
        return len(self._variants)

    def results(self, tell: Callable[[str], object]) -> Iterator[Timing]:
        tell(f"compiling for compute capability {self.capability / 10}")
        # a new cache, so that the seconds are those of compiling
        with tempfile.TemporaryDirectory() as cache, workers(self.workers, cache) as pool:
            every = pool.map(self._compiler.compiled, self._variants, [self.capability] * self.total())
            for (kernel, weight, features, precision), found in zip(self._variants, every, strict=True):
                named = kernel, f"{weight}, D = {features}", "", self._compiler.ROWS, precision
                yield Timing(*named, skipped=found) if isinstance(found, str) else Timing(*named, figures=found)

    def summary(self, results: Sequence[Timing]) -> str:
        flawed = sum(bool(each.skipped or each.figures["flaws"]) for each in results)
        return f"{len(results)} kernels, {flawed} with a flaw"
