"""The sizes of tiles and the warps of a kernel, by what it multiplies, and into how many parts its walk is split."""

from functools import cache
from typing import NamedTuple

import torch

WAVES = 2
"""Programs for each multiprocessor, below which the rows that a program walks are split among several."""

SPLITS = 16
"""The most parts of a walk: each has sums, and in the backward a gradient, of its own."""


class Tiles(NamedTuple):
    """Own rows and other rows of a tile, warps of a program, and tiles on their way."""

    own: int
    other: int
    warps: int
    stages: int


def tiles(kernel: str, chunk: int, *, two: bool) -> Tiles:
    """Return the tiles of a kernel, "sums", "average" or "backward", for a chunk of features and one part or two."""
    wide = chunk > 128
    if kernel == "sums":
        return Tiles(128, 64, 8, 2) if two else Tiles(128, 64 if wide else 128, 8, 3)
    if two:
        return Tiles(64 if wide else 128, 32 if wide else 64, 8, 2)
    return Tiles(128, 64, 8, 2 if wide else 3)


@cache
def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a GPU has; 1 for what stands in for one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def splits(programs: int, walked: int, device: torch.device) -> int:
    """Return into how many parts a walk of so many tiles is split, to occupy a GPU that has few programs otherwise."""
    wanted = -(-WAVES * multiprocessors(device) // max(programs, 1))
    return max(1, min(wanted, SPLITS, walked // 2))
