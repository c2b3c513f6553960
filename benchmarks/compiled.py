"""The GPU kernels compiled without a GPU: launches that only compile, and what the binary says.

Every launch is the library's own, on small CPU tensors; where Triton looks for a GPU it finds a name of a capability.
"""

import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from itertools import product
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.errors import TritonError

from likewise import pairs
from likewise.operator import Push
from likewise.operator.spec import ContrastSpec
from likewise.operator.triton import launches, operands, tuning, weights
from likewise.operator.triton.weights import plans

ROWS, LABELS, CLASSES = 512, 128, 7
KIB = 1 << 10
SHARED = {80: 163 * KIB, 86: 99 * KIB, 89: 99 * KIB, 90: 227 * KIB, 100: 227 * KIB, 120: 99 * KIB}
"""The shared memory that a program may have, by compute capability."""

REGISTERS, THREADS = 1 << 16, 2048
"""Of a multiprocessor, whose shared memory is one KiB more than a program may have; each program takes one besides."""

KERNELS = "sums", "both", "own", "other"
"""The forward; the backward for both sides' sums, the own, the other's."""

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}
"""One part in half precision; for float32 two halves."""

FEATURES = 16, 128, 256, 512
STORES = r"\bSTS\.(?:\w+\.)*128\b"
"""Stores to shared memory of what was loaded into registers and waited for; asynchronous copies need none."""

WAITS = r"\bWARPGROUP\.DEPBAR|\bHGMMA\b.*gsb0"
TENSOR_CORES = r"\b(?:HGMMA|HMMA|UTC\w*MMA)\b"
SPILLS = r"\b(?:LDL|STL)\b"


class Variant(NamedTuple):
    """A kernel, the weight that it evaluates, the features of its rows and their precision."""

    kernel: str
    weight: str
    features: int
    precision: str


FEW = [
    Variant("sums", "SupCon", 128, "fp32"),
    Variant("sums", "SupCon, sorted", 128, "bf16"),
    Variant("sums", "shared label", 128, "bf16"),
    Variant("both", "SupCon", 128, "fp32"),
    Variant("both", "SupCon", 128, "bf16"),
    Variant("both", "SupCon, sorted", 128, "bf16"),
]


def variants() -> list[Variant]:
    """Return SupCon at every width, and every weight at D = 128, each in either precision."""
    kinds, rows = ("sums", "both"), ("bf16", "fp32")
    return [
        *(Variant(kernel, "SupCon", d, p) for d, p, kernel in product(FEATURES, rows, kinds)),
        *(Variant(kernel, "SupCon", 128, "fp16") for kernel in kinds),
        *(Variant(kernel, "not self", 128, p) for p, kernel in product(rows, KERNELS)),
        *(
            Variant(kernel, weight, 128, p)
            for weight, p, kernel in product(WEIGHTS, rows, kinds)
            if weight not in {"not self", "SupCon"}
        ),
    ]


@cache  # many tiles are tried on one
def problem(name: str, rows: int, device: str) -> ContrastSpec:
    """Return a problem with the weights of one of the losses."""
    generator = torch.Generator().manual_seed(0)
    sets = (torch.rand(rows, LABELS, generator=generator) < 0.1).to(device)
    scale = torch.rand(rows, generator=generator).to(device)
    classes = (torch.arange(rows) % CLASSES).to(device)
    pushes, pull = WEIGHTS[name](pairs.SameClass(classes), pairs.SharesLabel(sets), pairs.NotSelf(rows), scale)
    return ContrastSpec(tuple(Push(push) for push in pushes), pull, normalize=True, own=(True,), inv_temperature=10.0)


def _nws(shared: pairs.SharesLabel) -> pairs.PairWeight:
    similarity = (0.5 + 0.5 * torch.eye(LABELS)).to(shared.anchors.device)
    return ~shared * (1 - pairs.MeanSimilarity(shared.anchors, similarity)) * 0.5


Weights = tuple[tuple[pairs.PairWeight, ...], pairs.PairWeight | None]
WEIGHTS: dict[str, Callable[..., Weights]] = {
    "all pairs": lambda same, *_: ((pairs.AllPairs(*same.shape),), None),
    "not self": lambda _, __, other, ___: ((other,), None),
    "SupCon": lambda same, _, other, __: ((other,), (same & other).mean_over_row()),
    "SupCon, sorted": lambda same, _, other, __: ((other,), (same & other).mean_over_row()),
    "SupCon in": lambda same, _, other, __: ((other, (same & other).mean_over_row()), None),
    "shared label": lambda _, shared, other, __: ((other,), (shared & other).mean_over_row()),
    "NWS": lambda _, shared, *__: ((_nws(shared),), None),
    "BCL": lambda same, _, other, scale: (
        ((~same).scale(references=scale) + (same & other).scale(anchors=scale),),
        (same & other).mean_over_row(),
    ),
}
"""Pushes and pull of some losses, from same class, shared label, not self and a scale. NWS has two products of label
sets and no pull in tiles, BCL two scaled terms."""


def launch(variant: Variant, rows: int, device: str, tiles: tuning.Tiles | None = None) -> Callable[[], Any]:
    """Return a function that launches a variant on random rows, in the tiles given or the library's own choice."""
    on = "cpu" if knobs.runtime.interpret else "cuda"  # compiled on a CPU it is a GPU's
    how = operands.precision(PRECISIONS[variant.precision], torch.device(on))
    asked, tau = problem(variant.weight, rows, device), torch.tensor(0.1, device=device)
    z = launches.operand(torch.randn(rows, variant.features, device=device), how, normalize=True)
    with mock.patch.object(weights, "MIN_ROWS_TO_SORT", 0 if "sorted" in variant.weight else rows + 1):
        found = plans(asked, (rows,), torch.device(device))
    if found is None:
        raise ValueError(f"no kernel evaluates {variant.weight}")
    common, forward = launches.Common(found, how, tau, fixed=found.sets), variant.kernel == "sums"
    with mock.patch.object(tuning, "tiles", return_value=tiles) if tiles else nullcontext():
        kernel = variant.kernel if forward else "backward"
        walk = launches.visit(kernel, z, z, found.sections[0], common)
    if forward:
        return lambda: launches.forward([walk], rows, common)
    pushes, share = len(found.powers), torch.full((rows,), 1 / rows, device=device)
    offsets = torch.full((pushes, rows), 10.0, device=device)
    some = launches.RowArgs(offsets, share.expand(pushes, rows).contiguous(), share if found.pulls else None)
    own, other = (some if variant.kernel in {"both", side} else None for side in ("own", "other"))
    out = torch.empty(walk.splits, *z.parts.shape[1:], device=device)

    def run() -> Tensor:
        launches.backward(walk, (own, other), share.amax(), out, None)
        return out

    return run


@contextmanager
def compiling(capability: int) -> Generator[list[tuple[Any, dict[str, Any]]]]:
    """Let launches only compile, for a capability; yield the list of their binaries, each with its keywords."""
    driver = mock.Mock(
        **{
            "get_current_device.return_value": capability,  # the key under which Triton keeps what it compiled
            "get_current_stream.return_value": 0,
            "get_current_target.return_value": GPUTarget("cuda", capability, 32),
        }
    )
    triton.runtime.driver.set_active(driver)
    kept: list[tuple[Any, dict[str, Any]]] = []

    def only_compiled(kernel: Any, grid: Any) -> Callable[..., None]:
        return lambda *values, **keywords: kept.append(
            (kernel.run(*values, grid=grid, warmup=True, **keywords), keywords)
        )

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(launches, "_kernel", only_compiled))
        stack.enter_context(mock.patch.object(tuning, "capability", return_value=capability))
        stack.enter_context(mock.patch.object(tuning, "room", return_value=SHARED[capability]))
        yield kept


def compiled(variant: Variant, capability: int, tiles: tuning.Tiles | None = None) -> dict[str, Any] | str:
    """Compile a variant for a capability; return what the binary says, or why it cannot be compiled."""
    with compiling(capability) as kept:
        try:
            run, start = launch(variant, ROWS, "cpu", tiles), time.perf_counter()
            run()
        except (RuntimeError, TritonError) as error:
            return f"failed: {str(error).splitlines()[-1]}"
    seconds = round(time.perf_counter() - start, 2)
    binary, keywords = next((binary, keywords) for binary, keywords in kept if "HOW" in keywords)
    how, warps = keywords["HOW"], keywords["num_warps"]
    size = how.N, how.R, warps, keywords["num_stages"]
    return {"tiles": size, **read(binary, capability, how.N * how.R, 32 * warps), "seconds": seconds}


def read(binary: Any, capability: int, pairs_of_tile: int, threads: int) -> dict[str, Any]:
    """Return what ptxas gave a kernel, and what its shortest loop over tiles contains.

    "a pair" are the instructions of each of its loops over tiles for a pair of rows.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage, code = (_dumped(option, file.name) for option in ("-res-usage", "-sass"))
    given = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if given is None:
        raise RuntimeError(f"cuobjdump reports no registers: {usage[-300:]}")
    registers, shared, limit = int(given[1]), binary.metadata.shared, SHARED[capability]
    code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^;/]+);", code)]
    loops = list(_loops(code))
    walk = min(loops, key=len, default=[])
    names = {"products": TENSOR_CORES, "exponentials": r"MUFU\.EX2", "loads": STORES, "waits": WAITS, "spills": SPILLS}
    counts = {name: _count(walk, pattern) for name, pattern in names.items()}
    flaws = {
        "no tensor cores": not counts["products"],
        "spills": counts["spills"] > 0,
        f"over {limit // KIB} KiB": shared > limit,
        "loads that are waited for": capability >= 90 and counts["loads"] > 0,
        "a wait after every product": 2 < counts["products"] <= counts["waits"],
    }
    by_registers = REGISTERS // (-(-registers // 8) * 8 * threads)
    return {
        "registers": registers,
        "stack": int(given[2]),
        "shared": shared,
        "programs": min(by_registers, THREADS // threads, (limit + KIB) // (shared + KIB)),
        "a pair": [round(len(loop) * threads / pairs_of_tile, 1) for loop in loops],
        **counts,
        "spills_of_all": _count([text for _, text in code], SPILLS),
        "flaws": [flaw for flaw, holds in flaws.items() if holds],
    }


def _dumped(option: str, file: str) -> str:
    """Return what Triton's own cuobjdump prints of a binary."""
    command = [knobs.nvidia.cuobjdump.path, option, file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - Triton's own program
    return done.stdout + done.stderr


def _loops(code: list[tuple[int, str]]) -> Iterator[list[str]]:
    """Yield the instructions between each backward branch and its target, if there are exponentials and products."""
    for last, jump in code:
        to = re.search(r"\bBRA\b.*\b0x([0-9a-f]+)", jump)
        body = [text for at, text in code if to is not None and int(to[1], 16) <= at <= last]
        if _count(body, r"MUFU\.EX2") and _count(body, TENSOR_CORES):
            yield body


def _count(instructions: list[str], pattern: str) -> int:
    return sum(re.search(pattern, text) is not None for text in instructions)
