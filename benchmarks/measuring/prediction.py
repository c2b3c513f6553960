"""The time and memory that a step will take, predicted from smaller ones, so that neither runs out."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

SHARE = 0.6  # of the free memory that a step may take
HIDDEN = 32 << 20  # bytes; less is lost in the memory that the process reuses
WHOLE_ROWS = 12  # before any measurement: how many copies of its rows a loss with linear memory holds,
TILES = 256 << 20  # and how many bytes of tiles
FLAT = 1024  # with fewer rows the time of a step is that of its calls
UNTOLD = 4 << 30  # bytes assumed to be free where the system does not report it


class Growth(NamedTuple):
    """How time and memory of a step grow with rows."""

    time: int = 2
    """The power of N with which its time grows."""
    memory: int = 1
    """The power of N with which its memory grows."""
    matrices: float = 0
    """How many times N^memory float32 values it holds at its peak, if memory > 1."""
    setup: float = 0
    """Seconds before its first step at each size."""

    def seconds(self, earlier: Mapping[int, float], rows: int) -> float:
        """Predict the seconds of a step from the largest smaller size that was measured; 0 if there is none."""
        smaller = max((n for n in earlier if n < rows), default=0)
        return earlier[smaller] * (max(rows, FLAT) / max(smaller, FLAT)) ** self.time if smaller else 0.0

    def bytes(self, earlier: Mapping[int, int], rows: int, features: int) -> int:
        """Predict the peak memory of a step from the largest smaller size, or from what its formula holds."""
        prior = 4 * (self.matrices * rows**self.memory + WHOLE_ROWS * rows * features) + TILES * (self.memory == 1)
        smaller = max((n for n in earlier if n < rows), default=0)
        if not smaller:
            return int(prior)
        scaled = earlier[smaller] * (rows / smaller) ** self.memory
        return int(scaled if earlier[smaller] >= HIDDEN else max(scaled, prior))


DENSE = Growth(memory=2, matrices=8)
"""Of a loss with a few N x N matrices."""


def why_not(needed: int, free: int, takes: float, left: float) -> str | None:
    """Say why a step should not run: it would take too much of the free memory, or more than the time left."""
    if needed > SHARE * free:
        return f"would take about {in_units(needed)} of {in_units(free)} free"
    if left <= 0:
        return "no time is left for it"
    if takes > left:
        return f"would take about {takes:,.0f} s, and {max(0, left):,.0f} s are left for it"
    return None


def in_units(size: float) -> str:
    """Return bytes in a readable unit.

    Example:
        >>> in_units(3 << 30), in_units(700 << 10), in_units(0)
        ('3.0 GiB', '0.7 MiB', '< 0.1 MiB')
    """
    if 20 * size < 1 << 20:
        return "< 0.1 MiB"
    power, name = next((each for each in ((40, "TiB"), (30, "GiB")) if size >= 1 << each[0]), (20, "MiB"))
    return f"{size / (1 << power):,.{0 if size >= 10 << power else 1}f} {name}"


def free_bytes(device: str, root: Path = Path("/")) -> int:
    """Return how much memory is free now, on the device, or on the machine within the limit of its control group.

    `root` is the folder of ``proc`` and ``sys``.
    """
    if device == "cuda":  # what torch has reserved and does not use is free for the next step
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    available = _number(root / "proc/meminfo", "MemAvailable:")
    free = [] if available is None else [1024 * available]
    groups = root / "sys/fs/cgroup"
    for folder, limit, used, cache in (
        (groups, "memory.max", "memory.current", "inactive_file"),
        (groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        allowed, taken = _number(folder / limit), _number(folder / used)
        if allowed is not None and taken is not None:
            free.append(allowed - taken + (_number(folder / "memory.stat", cache) or 0))
    return max(0, min(free, default=UNTOLD))


def _number(path: Path, name: str = "") -> int | None:
    """Read the number that follows a name at the start of a line; None if there is no file or no number."""
    try:
        found = re.search(rf"^{name}\s*(\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1])
