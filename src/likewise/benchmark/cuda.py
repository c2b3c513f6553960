"""Time and peak memory of a step on an NVIDIA GPU, by its own clock and its own account."""

from collections.abc import Callable
from itertools import cycle
from typing import Any, final

import torch
from torch import Tensor

from likewise.benchmark.case import Case, Contender, Draw, leaves, run
from likewise.benchmark.meter import Failed, Peak

WARM = 3
COPIES = 64  # of the inputs at most, so that they do not stay in the cache


@final
class CudaMeter:
    """Measures steps on the current GPU: CUDA events, inputs rotated, medians of single steps."""

    device = "cuda"

    def __init__(self) -> None:
        self.inputs = 2 * int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)

    def peak(self, contender: Contender, case: Case) -> Peak:
        """Return the peak of the memory allocated during a step over what was before it, and the step's seconds.

        Raises:
            Failed: The step raised, out of memory among it.
        """
        try:
            loss, batch = contender.make(case), contender.batch(Draw(case))
            run(loss, batch)  # compiles and tunes
            _forget(batch)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            seconds = _timed(lambda: run(loss, batch))
            return Peak(torch.cuda.max_memory_allocated() - before, seconds)
        except Exception as error:
            raise Failed(Failed.words(error)) from error
        finally:
            torch.cuda.empty_cache()

    def turns(self, contender: Contender, case: Case, expected: float) -> Callable[[], float]:
        """Return what runs a step on the next copy of the inputs and returns its seconds."""
        loss, batches = contender.make(case), self._copies(contender, case)
        if contender.in_graph:
            return _replayed(loss, batches)
        for batch in batches[: WARM if expected < 1 else 1]:
            run(loss, batch)
        following = cycle(batches)

        def turn() -> float:
            batch = next(following)
            _forget(batch)
            return _timed(lambda: run(loss, batch))

        return turn

    def _copies(self, contender: Contender, case: Case) -> list[tuple[Any, ...]]:
        """Return as many batches as together are twice the cache, at most COPIES of them; one, if it is larger."""
        first = contender.batch(Draw(case))
        size = sum(part.nbytes for part in first if isinstance(part, Tensor))
        count = min(COPIES, -(-self.inputs // max(1, size)))
        return [first, *(contender.batch(Draw(case, seed)) for seed in range(1, count))]


def _timed(step: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def _replayed(loss: Callable[..., Tensor], batches: list[tuple[Any, ...]]) -> Callable[[], float]:
    """Capture one step for each batch in a CUDA graph, and return what replays them and returns the seconds of one."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for batch in batches * WARM:
            run(loss, batch)
    torch.cuda.current_stream().wait_stream(side)
    for batch in batches:
        _forget(batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for batch in batches:
            run(loss, batch)
    return lambda: _timed(graph.replay) / len(batches)


def _forget(batch: tuple[Any, ...]) -> None:
    for leaf in leaves(batch):
        leaf.grad = None
