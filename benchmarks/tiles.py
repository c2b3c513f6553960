"""The GPU kernels in other tile sizes than those chosen for them."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch

from benchmarks.graphs import OnGpu
from benchmarks.kernels import compiler, workers
from likewise.benchmark.case import Contender
from likewise.benchmark.measurement import option

SIZES = [None, *product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))]


@dataclass(kw_only=True)
class Measure(OnGpu):
    """Time SupCon's forward and its symmetric backward on a GPU, in each tile size that compiles without a flaw.

    "as chosen" is the size that `tuning.tiles` chooses. All sizes are compiled first, which takes minutes.
    """

    sizes: tuple[int, ...] = option((65536,), "Numbers of rows.", least=32)
    widths: tuple[int, ...] = option((64, 128, 256), "Features of a row.", least=1)
    budget: float = option(1200.0, "Seconds for everything but compiling, approximately.", least=1)

    def contenders(self) -> list[Contender]:
        return _contenders(self.widths)


@cache
def _contenders(widths: tuple[int, ...]) -> list[Contender]:
    of, (major, minor) = compiler(), torch.cuda.get_device_capability()
    kinds = [of.Variant(*kind) for kind in product(("sums", "both"), ("SupCon",), widths, of.PRECISIONS)]
    every = [(kind, 10 * major + minor, size and of.tuning.Tiles(*size)) for kind, size in product(kinds, SIZES)]

    def fitting() -> Iterator[Contender]:
        with workers(os.cpu_count() or 1) as pool:  # they fill Triton's cache
            for (kind, _, size), found in zip(every, pool.map(of.compiled, *zip(*every, strict=True)), strict=True):
                name = "{}×{}, {} warps, {} stages".format(*size) if size else "as chosen"
                title = f"{kind.kernel} {kind.features} {kind.precision}"
                if size is None or not (isinstance(found, str) or found["flaws"]):
                    make = lambda case, kind=kind, size=size: of.launch(kind, case.rows, "cuda", size)  # noqa: E731
                    yield Contender(title, name, "", make, lambda _: ())

    return list(fitting())
