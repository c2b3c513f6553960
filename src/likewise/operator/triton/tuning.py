"""The tile sizes and warps of a kernel, by its operands, and the number of parts of its loop."""

import json
import os
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

MAX_SPLITS = 256, 16
"""Maximum number of parts of a loop: for sums, two numbers per row in each part, and for products, all features."""

STORE_COST = 0.1, 3.0
"""Number of tiles that a program could visit while it stores its part, for sums and for products, counted in bytes."""

SLACK = 1.05
"""Largest time of a loop in fewer parts, relative to the best time: a part of products has N·D numbers. If programs
fill a GPU twenty times, one part is enough."""

REGISTERS = 1 << 16
"""Number of registers of a multiprocessor."""


class Tiles(NamedTuple):
    """Own rows and other rows of a tile, warps of a program, and pipeline stages."""

    own: int
    other: int
    warps: int
    stages: int
    programs: int = 1
    """Number of programs that run on a multiprocessor at a time, so that one multiplies while another adds up."""

    @property
    def registers(self) -> int | None:
        """The largest number of registers of a thread for this; None: no limit below the hardware's 255."""
        limit = REGISTERS // (32 * self.warps * self.programs)
        return limit if limit < 255 else None


WARPGROUPS = 9, 10
"""The GPU generations whose tensor cores read both operands from shared memory, with up to 227 KiB per program."""

A100_SHARED_MEMORY = 163 << 10
"""The shared memory of an A100's program in bytes; other GPUs without warp groups mostly have 99 KiB."""


KEYS = "capability", "kernel", "chunk", "two", "whole", "overlaps", "busy"
"""Names of the keys of measured tiles: the compute capability times ten, and the arguments of `tiles`."""

SHIPPED_TILES = Path(__file__).with_name("tiles.json")
"""The file of tiles measured to be faster than those of the rules below; `LIKEWISE_TILES` names your own file."""


def tiles(kernel: str, chunk: int, *, two: bool, whole: bool, overlaps: int, busy: bool, device: torch.device) -> Tiles:
    """Return the tiles measured to be the fastest, or else tiles whose loop spilled few or no registers in tests.

    A tile of "sums" or "backward" holds a ``chunk`` of the features, all if ``whole``, of rows in ``two`` parts or one.
    Weights have ``overlaps`` thin products, and are ``busy`` if a tile compares keys, has a pull or a second push.
    """
    measured = _read_measured().get((capability(device), kernel, chunk, two, whole, overlaps, busy))
    if measured is not None:
        return measured
    if capability(device) // 10 not in WARPGROUPS:
        roomy = room(device) >= A100_SHARED_MEMORY
        return _narrow(kernel, chunk, two=two, whole=whole, overlaps=overlaps, roomy=roomy)
    blackwell = capability(device) // 10 == 10  # each of up to eight products may have its own tensor memory
    if two and (blackwell or not whole):
        stages = 1 if blackwell and not whole else 2
        return Tiles(128, 32, 8, stages) if kernel == "sums" else Tiles(64, 32, 4, stages, programs=2)
    if not two and not overlaps and chunk <= 128 and whole:
        return Tiles(128, 64, 8, 3, programs=2) if kernel == "sums" else Tiles(128, 128, 8, 2)
    if kernel == "sums":
        return Tiles(128, 64 if overlaps or (blackwell and busy) else 128, 8, 2)
    halvings = two + (chunk > 128 or not whole or overlaps > 0) + (overlaps > 1)
    return Tiles(128, max(32, 128 >> halvings), 8, 2)


def _narrow(kernel: str, chunk: int, *, two: bool, whole: bool, overlaps: int, roomy: bool) -> Tiles:
    """Return tiles for mma instructions that fit into every supported GPU, ``roomy`` like an A100 or not."""
    simple, wide = chunk <= 128 and whole and not overlaps, roomy or chunk <= 128
    if two:
        rows = 128 if kernel == "sums" and whole and roomy else 64
        other = 64 if rows == 64 and whole and not overlaps else 32
        return Tiles(rows, other, 8, 2 if whole or roomy else 1)
    if kernel == "sums" and simple:
        return Tiles(128, 128, 8, 3 if roomy else 2)
    return Tiles(128 if simple or (kernel == "sums" and wide) else 64, 64 if wide else 32, 8, 2)


@cache
def _read_measured() -> dict[tuple[Any, ...], Tiles]:
    """Return the tiles of the shipped file and of the user's own, which takes precedence."""
    custom_path = os.environ.get("LIKEWISE_TILES")
    return {
        key: size
        for path in (SHIPPED_TILES, *([Path(custom_path)] if custom_path else ()))
        for key, size in read(path).items()
    }


def read(path: Path) -> dict[tuple[Any, ...], Tiles]:
    """Read measured tiles by `KEYS` from a list of objects with these keys and "tiles", the fields of `Tiles`."""
    kinds = [int, str, int, bool, bool, int, bool]
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entries, list):
            raise TypeError(f"a {type(entries).__name__} instead of a list")  # noqa: TRY301 - reported like the rest
        sizes = {tuple([each[name] for name in KEYS]): Tiles(*each["tiles"]) for each in entries}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(_tiles_message(path, f"{type(error).__name__}: {error}")) from error
    for key, size in sizes.items():
        if [type(value) for value in key] != kinds or key[1] not in {"sums", "backward"} or not _is_possible(size):
            raise ValueError(_tiles_message(path, f"{dict(zip(KEYS, key, strict=True))} with {list(size)}"))
    return sizes


def _tiles_message(path: Path, content: str) -> str:
    return (
        f"expected tiles as benchmarks/first_gpu.py writes them in {path}, got {content}: measure them again, or unset "
        "LIKEWISE_TILES"
    )


def _is_possible(size: Tiles) -> bool:
    rows, warps = (16, 32, 64, 128, 256), (1, 2, 4, 8, 16)
    choices = rows, rows, warps, range(1, 9), range(1, 17)
    return all(type(value) is int and value in allowed for value, allowed in zip(size, choices, strict=True))


@cache
def capability(device: torch.device) -> int:
    """Return a GPU's compute capability times ten; for any other device, an H100's."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def room(device: torch.device) -> int:
    """Return the shared memory available to a program on a GPU, in bytes; for any other device, an H100's."""
    if device.type != "cuda":
        return 227 << 10
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; 1 for any other device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def splits(programs: int, walked: int, device: torch.device, *, at_once: int, products: bool) -> int:
    """Return the number of parts to split a loop of ``walked`` tiles into, to fill a GPU with enough programs.

    A multiprocessor runs ``at_once`` programs. The time counts the waves of programs, each over its part of the loop,
    and the storing of each part: for products about as much as `STORE_COST` tiles. The result is the smallest number
    whose time is within `SLACK` of the shortest.
    """
    return _splits(programs, walked, multiprocessors(device) * at_once, products)


@lru_cache(maxsize=256)
def _splits(programs: int, walked: int, at_once: int, products: bool) -> int:
    storing = STORE_COST[products] / max(walked, 1)
    most = max(1, min(MAX_SPLITS[products], walked // 2))
    times = [-(-programs * parts // at_once) * (1 / parts + storing) for parts in range(1, most + 1)]
    limit = SLACK * min(times)
    return next(parts for parts, time in enumerate(times, start=1) if time <= limit)
