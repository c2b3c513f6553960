"""Time and peak memory of a step on an NVIDIA GPU, by CUDA events and the allocator's statistics."""

from collections.abc import Callable
from itertools import cycle

import torch
from torch import Tensor

from benchmarks.measuring.case import Batch, Case, Contender, Failed, Peak, Sampler, forget, run

WARM = 3
COPIES = 64  # of the inputs at most, so that they do not stay in the cache


class CudaMeter:
    """Measures steps on the current GPU, on inputs that rotate."""

    device = "cuda"

    def __init__(self) -> None:
        self.inputs = 2 * int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)

    def peak(self, contender: Contender, case: Case) -> Peak:
        """Return the peak memory allocated during a step beyond what was allocated before, and its seconds."""
        try:
            step, batch = contender.make(case), contender.batch(Sampler(case))
            run(step, batch)  # compiles and tunes
            forget(batch)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            seconds = timed(lambda: run(step, batch))
            return Peak(torch.cuda.max_memory_allocated() - before, seconds)
        except Exception as error:
            raise Failed(Failed.words(error)) from error
        finally:
            torch.cuda.empty_cache()

    def turns(self, contender: Contender, case: Case, expected: float) -> Callable[[], float]:
        """Return a function that runs a step on the next copy of the inputs and returns its seconds."""
        step, batches = contender.make(case), self.copies(contender, case)
        for batch in batches[: WARM if expected < 1 else 1]:
            run(step, batch)
        following = cycle(batches)

        def turn() -> float:
            batch = next(following)
            forget(batch)
            return timed(lambda: run(step, batch))

        return turn

    def copies(self, contender: Contender, case: Case) -> list[Batch]:
        """Return batches that together are twice as large as the cache, at most COPIES of them."""
        first = contender.batch(Sampler(case))
        size = sum(part.nbytes for part in first if isinstance(part, Tensor))
        count = min(COPIES, -(-self.inputs // max(1, size)))
        return [first, *(contender.batch(Sampler(case, seed)) for seed in range(1, count))]


def timed(step: Callable[[], None]) -> float:
    """Run a step and return its seconds."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3
