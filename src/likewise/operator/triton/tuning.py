"""The sizes of tiles and the warps of a kernel, by what it multiplies, and into how many parts its walk is split."""

from functools import cache
from typing import NamedTuple

import torch

SPLITS = 256, 16
"""The most parts of a walk: of sums, two numbers a row each, and of products, which are all features of a row."""

STORING = 0.1, 3.0
"""How many tiles a program could walk while it stores its part, of sums and of products: by count of bytes."""


class Tiles(NamedTuple):
    """Own rows and other rows of a tile, warps of a program, and tiles on their way."""

    own: int
    other: int
    warps: int
    stages: int


WARPGROUPS = 9, 10
"""The generations whose tensor cores read both operands from shared memory, of which a program may have 227 KiB."""


def tiles(kernel: str, chunk: int, *, two: bool, whole: bool, overlaps: int, busy: bool, device: torch.device) -> Tiles:
    """Return the tiles in which a kernel was seen to spill no register in its loop without masks, or few.

    Args:
        kernel: "sums", "average" or "backward".
        chunk: The features that a tile holds.
        two: Whether rows have two parts.
        whole: Whether these are all features.
        overlaps: How many thin products the weights have.
        busy: Whether a tile compares keys, has a pull or a second push.
        device: The GPU; what stands in for one is taken for an H100.
    """
    if capability(device) // 10 not in WARPGROUPS:
        return _narrow(kernel, chunk, two=two, whole=whole, overlaps=overlaps)
    if kernel == "sums":
        narrow = busy or overlaps > 1 or (two and not whole)
        return Tiles(128, 64 if narrow else 128, 8, 2 if two or overlaps or chunk > 128 or not whole else 3)
    if kernel == "average" and two and not whole:
        return Tiles(64, 64, 8, 2)
    if not two and not overlaps and chunk <= 128 and whole:
        return Tiles(64, 64, 4, 3) if kernel == "backward" else Tiles(128, 64, 8, 3)
    halvings = two + (chunk > 128 or not whole or overlaps > 0) + (overlaps > 1)
    return Tiles(128, max(32, 128 >> halvings), 8, 2)


def _narrow(kernel: str, chunk: int, *, two: bool, whole: bool, overlaps: int) -> Tiles:
    """Return tiles that fit the 99 KiB of shared memory that a program has at the least, and mma instructions."""
    simple = chunk <= 128 and whole and not overlaps
    if kernel == "sums":
        if two:
            return Tiles(128, 32, 8, 2)
        return Tiles(128, 128, 8, 3) if simple else Tiles(128, 64, 8, 2)
    if two:
        return Tiles(64, 64 if whole and not overlaps else 32, 8, 2)
    return Tiles(128 if simple else 64, 64, 8, 2)


@cache
def capability(device: torch.device) -> int:
    """Return a GPU's compute capability times ten; that of an H100 for what stands in for one."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a GPU has; 1 for what stands in for one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def splits(programs: int, walked: int, device: torch.device, *, warps: int, products: bool) -> int:
    """Return into how many parts a walk of so many tiles is split, to occupy a GPU that has few programs otherwise.

    What it takes is waves of programs, each over its part of the walk, and for each part what stores it: of products
    about as much as `STORING` tiles.
    """
    room = multiprocessors(device) * max(1, 8 // warps)
    storing = STORING[products] / max(walked, 1)
    most = max(1, min(SPLITS[products], walked // 2))

    def takes(parts: int) -> float:
        return -(-programs * parts // room) * (1 / parts + storing)

    return min(range(1, most + 1), key=takes)
