"""What is measured on a GPU alone; steps captured in a CUDA graph, whose replay takes no time of the processor's."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.measuring.case import Batch, Case, Contender, Peak, Sampler, forget, run
from benchmarks.measuring.cuda import WARM, CudaMeter, timed
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.schedule import Meter

IN_GRAPH = ", in a CUDA graph"


def in_graph(contender: Contender, largest: int) -> Contender:
    """Return a contender whose steps a `GraphMeter` replays, up to a number of rows."""
    return replace(contender, name=contender.name + IN_GRAPH, largest=largest)


class GraphMeter(CudaMeter):
    """Measures steps on the current GPU; those of contenders that are `in_graph` as replays."""

    def turns(self, contender: Contender, case: Case, expected: float) -> Callable[[], float]:
        """Return a function that runs or replays a step and returns its seconds."""
        if contender.name.endswith(IN_GRAPH):
            return _replayed(contender.make(case), self.copies(contender, case))
        return super().turns(contender, case, expected)


class WallMeter:
    """Rehearses without a GPU: runs every step on the CPU, also those that are `in_graph`, by the wall clock."""

    device, inputs = "cpu", 0

    def peak(self, contender: Contender, case: Case) -> Peak:
        """Return no memory, and the seconds of a step."""
        return Peak(None, self.turns(contender, case, 0.0)())

    def turns(self, contender: Contender, case: Case, expected: float) -> Callable[[], float]:  # noqa: ARG002 - a meter's
        """Return a function that runs a step and returns its seconds."""
        step, batch = contender.make(case), contender.batch(Sampler(case))

        def turn() -> float:
            start = time.perf_counter()
            run(step, batch)
            return time.perf_counter() - start

        return turn


@dataclass(kw_only=True)
class OnGpu(Measurement):
    """Abstract: what needs a GPU."""

    device: str = option("cuda", "Where to measure.", choices=("cuda",))

    def __post_init__(self) -> None:
        if not torch.cuda.is_available():
            raise ValueError("expected a GPU, torch sees none here: measure on a machine with one")
        super().__post_init__()

    def meter(self) -> Meter:
        return GraphMeter()


def _replayed(step: Callable[..., Any], batches: list[Batch]) -> Callable[[], float]:
    """Capture a step for each batch in one CUDA graph; return a function that replays it and returns seconds a step."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for batch in batches * WARM:
            run(step, batch)
    torch.cuda.current_stream().wait_stream(side)
    for batch in batches:
        forget(batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for batch in batches:
            run(step, batch)
    return lambda: timed(graph.replay) / len(batches)
