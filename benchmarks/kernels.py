"""What the kernels become when they are compiled: registers, spills, shared memory, tensor cores. No GPU is needed.

uv run python benchmarks/kernels.py                     for compute capability 9.0 (H100, H200)
uv run python benchmarks/kernels.py --capability 80     for another: 80, 90 or 100
uv run python benchmarks/kernels.py --few               what SupCon needs, at D = 128
uv run python benchmarks/kernels.py --tune              on a GPU: times tiles beside those that `tuning.tiles` chooses

Every launch is the library's own, on small CPU tensors; where Triton looks for a GPU stands what names a capability. Of
each kernel the table has what ptxas gives a thread and a program, and the instructions of its shortest loop over tiles
(without masks and, if it has one, with a fixed offset): products on tensor cores, exponentials, and loads and stores of
registers that found no room ("spills", of those in the whole kernel).
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import product
from pathlib import Path
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
from likewise.operator.problem import Problem
from likewise.operator.triton import launches, operands, sections, tuning

ROWS, LABELS, CLASSES = 512, 128, 7
KIB = 1 << 10
SHARED = {80: 163 * KIB, 90: 227 * KIB, 100: 227 * KIB}
"""The shared memory that a program may have, by compute capability."""

REGISTERS, THREADS = 1 << 16, 2048
"""Of a multiprocessor, whose shared memory is one KiB more than a program may have; each program takes one beside."""

KERNELS = "sums", "average", "both", "own", "other"
"""The forward, without and with the weighted average; the backward of both sides' sums, of the own, the other's."""

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}
"""One part in a half precision, or two halves."""

WEIGHTS: tuple[str, ...] = "all pairs", "not self", "SupCon", "SupCon in", "shared label", "NWS", "BCL"
"""The pushes and the pull of some losses; the first two have no pull, NWS none in tiles. "Shared label" is SupCon's of
label sets, NWS has two products of label sets, BCL two scaled terms."""

FEATURES = 16, 128, 256, 512
CANDIDATES = [tuning.Tiles(*size) for size in product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))]
STORES = r"\bSTS\.(?:\w+\.)*128\b"
"""What was loaded into registers, and waited for, is stored to shared memory; the rest goes there by itself."""

WAITS = r"\bWARPGROUP\.DEPBAR|\bHGMMA\b.*gsb0"
TENSOR_CORES = r"\b(?:HGMMA|HMMA|UTC\w*MMA)\b"
SPILLS = r"\b(?:LDL|STL)\b"


class Variant(NamedTuple):
    """A kernel, the weight it evaluates, the features of its rows and their precision."""

    kernel: str
    weight: str
    features: int
    precision: str


@dataclass(frozen=True)
class Compiled:
    """What became of a variant."""

    kernel: str
    weight: str
    features: int
    precision: str
    tiles: tuple[int, int, int, int]
    registers: int
    stack: int
    shared: int
    programs: int
    products: int
    exponentials: int
    loads: int
    waits: int
    spills: int
    spills_of_all: int
    seconds: float
    flaws: tuple[str, ...]

    def __str__(self) -> str:
        tiles = "{}×{}, {} warps, {} stages".format(*self.tiles)
        return (
            f"| {self.kernel} | {self.weight} | {self.features} | {self.precision} | {tiles} | {self.registers} "
            f"| {self.stack} | {self.shared / KIB:.1f} | {self.programs} | {self.products} | {self.exponentials} "
            f"| {self.loads} | {self.waits} | {self.spills} of {self.spills_of_all} "
            f"| {self.seconds:.1f} | {', '.join(self.flaws)} |"
        )


HEAD = (
    "| kernel | weight | D | rows | tiles | registers | stack, bytes | shared, KiB | programs on a multiprocessor "
    "| products | exponentials | tiles by way of registers | waits | spills | compiled in, s | |"
    "\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


class Driver:
    """Stands where Triton looks for a GPU, and names a capability; each is a device of its own."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        """Return the key under which Triton keeps what it compiled."""
        return self.capability

    def get_current_stream(self, _device: int) -> int:
        """Return what nothing is sent to."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """Return what to compile for."""
        return GPUTarget("cuda", self.capability, 32)


class Compiler:
    """A kernel whose launches only compile it, and are kept with their keywords."""

    def __init__(self, kernel: Any, kept: list[tuple[Any, dict[str, Any]]]) -> None:
        self.kernel, self.kept = kernel, kept

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*values: Any, **keywords: Any) -> None:
            self.kept.append((self.kernel.run(*values, grid=grid, warmup=True, **keywords), keywords))

        return launch


def variants(*, few: bool) -> list[Variant]:
    """Return what is compiled: every width of SupCon, every weight at D = 128, each in either precision."""
    if few:
        return [
            Variant("sums", "SupCon", 128, "fp32"),
            Variant("sums", "shared label", 128, "bf16"),
            Variant("both", "SupCon", 128, "fp32"),
            Variant("both", "SupCon", 128, "bf16"),
        ]
    widths = [Variant(k, "SupCon", d, rows) for d, rows, k in product(FEATURES, ("bf16", "fp32"), ("sums", "both"))]
    halves = [Variant(kernel, "SupCon", 128, "fp16") for kernel in ("sums", "both")]
    some = [Variant(k, "not self", 128, rows) for rows, k in product(("bf16", "fp32"), KERNELS)]
    names = [name for name in WEIGHTS if name not in {"not self", "SupCon"}]
    kinds = "sums", "both"
    return [
        *widths,
        *halves,
        *some,
        *(Variant(k, w, 128, rows) for w, rows, k in product(names, ("bf16", "fp32"), kinds)),
    ]


def problem(name: str, rows: int, device: str) -> Problem:
    """Return a problem with the weights of one of the losses."""
    generator = torch.Generator().manual_seed(0)
    sets = (torch.rand(rows, LABELS, generator=generator) < 0.1).to(device)
    scale = torch.rand(rows, generator=generator).to(device)
    same, shared = pairs.SameClass((torch.arange(rows) % CLASSES).to(device)), pairs.SharesLabel(sets)
    everything, not_self = pairs.AllPairs(rows, rows), pairs.NotSelf(rows)
    positives = same & not_self
    similarity = (0.5 + 0.5 * torch.eye(LABELS)).to(device)
    nws = ~shared * (1 - pairs.MeanSimilarity(sets, similarity)) * 0.5
    bcl = (~same).scale(references=scale) + positives.scale(anchors=scale)
    shapes: dict[str, tuple[tuple[pairs.PairWeight, ...], pairs.PairWeight | None]] = {
        "all pairs": ((everything,), None),
        "not self": ((not_self,), None),
        "SupCon": ((not_self,), positives.mean_over_row()),
        "SupCon in": ((not_self, positives.mean_over_row()), None),
        "shared label": ((not_self,), (shared & not_self).mean_over_row()),
        "NWS": ((nws,), None),
        "BCL": ((bcl,), positives.mean_over_row()),
    }
    pushes, pull = shapes[name]
    return Problem(tuple(Push(push) for push in pushes), pull, (True,), normalize=True, inverse=10.0)


def launch(variant: Variant, rows: int, device: str) -> Callable[[], Any]:
    """Return what launches a variant among random rows, by way of the library."""
    how = operands.precision(
        PRECISIONS[variant.precision], torch.device("cuda")
    )  # the CPU's would be the interpreter's
    asked, tau = problem(variant.weight, rows, device), torch.tensor(0.1, device=device)
    z = launches.operand(torch.randn(rows, variant.features, device=device), how, normalize=True)
    numbers = launches.numbers(z, z, tau, asked.inverse, how)
    (plan,) = sections.taken_apart(asked, (rows,), torch.device(device)).plans
    if plan is None:
        raise ValueError(f"no kernel evaluates {variant.weight}")
    if variant.kernel in {"sums", "average"}:
        fixable = plan.is_set and variant.kernel == "sums"
        walk = launches.visit(variant.kernel, z, z, plan, numbers, how, fixable=fixable)
        return lambda: launches.forward([walk], plan, rows, tau.device)
    pushes, share = len(plan.shape.powers), torch.full((rows,), 1 / rows, device=device)
    some = launches.Rows(
        torch.full((pushes, rows), 10.0, device=device), share.expand(pushes, rows).contiguous(), share
    )
    own, other = (some if variant.kernel in {"both", side} else None for side in ("own", "other"))
    walk = launches.visit("backward", z, z, plan, numbers, how, fixable=plan.is_set)
    out = torch.empty(walk.splits, rows, walk.how.D, device=device)
    return lambda: launches.backward(walk, own, other, share.amax(), out, None)


def taking(tiles: tuning.Tiles | None) -> contextlib.AbstractContextManager[Any]:
    """Have launches take these tiles; their own choice where there are none."""
    return mock.patch.object(tuning, "tiles", return_value=tiles) if tiles else contextlib.nullcontext()


def compiled(variant: Variant, capability: int, tiles: tuning.Tiles | None = None) -> Compiled:
    """Compile a variant for a capability, and read what became of it."""
    driver: Any = Driver(capability)
    triton.runtime.driver.set_active(driver)
    kept: list[tuple[Any, dict[str, Any]]] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(launches, "_kernel", lambda kernel, grid: Compiler(kernel, kept)[grid]))
        stack.enter_context(taking(tiles))
        stack.enter_context(mock.patch.object(tuning, "capability", return_value=capability, create=True))
        run = launch(variant, ROWS, "cpu")
        start = time.perf_counter()
        run()
    seconds = time.perf_counter() - start
    binary, keywords = kept[-1]
    how = keywords["HOW"]
    size = how.BLOCK_N, how.BLOCK_R, keywords["num_warps"], keywords["num_stages"]
    return Compiled(*variant, tiles=size, **read(binary, capability, 32 * size[2]), seconds=round(seconds, 2))


def read(binary: Any, capability: int, threads: int) -> dict[str, Any]:
    """Return what ptxas gave a kernel, and what its shortest loop over tiles holds."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage, code = (dumped(option, file.name) for option in ("-res-usage", "-sass"))
    given = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if given is None:
        raise RuntimeError(f"cuobjdump tells no registers: {usage[-300:]}")
    registers, stack, shared = int(given[1]), int(given[2]), binary.metadata.shared
    instructions = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^;/]+);", code)]
    walk = min(loops(instructions), key=len, default=[])
    products, exponentials, spills = (count(walk, what) for what in (TENSOR_CORES, r"MUFU\.EX2", SPILLS))
    loads, waits = count(walk, STORES), count(walk, WAITS)
    limit = SHARED[capability]
    flaws = {
        "no tensor cores": not products,
        "spills": spills > 0,
        f"over {limit // KIB} KiB": shared > limit,
        "loads that are waited for": capability >= 90 and loads > 0,
        "a wait after every product": products > 2 and waits >= products,
    }
    by_registers = REGISTERS // (-(-registers // 8) * 8 * threads)
    return {
        "registers": registers,
        "stack": stack,
        "shared": shared,
        "programs": min(by_registers, THREADS // threads, (limit + KIB) // (shared + KIB)),
        "products": products,
        "exponentials": exponentials,
        "loads": loads,
        "waits": waits,
        "spills": spills,
        "spills_of_all": count([text for _, text in instructions], SPILLS),
        "flaws": tuple(flaw for flaw, holds in flaws.items() if holds),
    }


def dumped(option: str, file: str) -> str:
    """Return what Triton's own cuobjdump prints of a binary."""
    done = subprocess.run([knobs.nvidia.cuobjdump.path, option, file], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def loops(instructions: list[tuple[int, str]]) -> Iterator[list[str]]:
    """Yield the instructions between each branch back and where it goes, if they hold exponentials and products."""
    for last, jump in instructions:
        to = re.search(r"\bBRA\b.*\b0x([0-9a-f]+)", jump)
        body = [text for at, text in instructions if to is not None and int(to[1], 16) <= at <= last]
        if count(body, r"MUFU\.EX2") and count(body, TENSOR_CORES):
            yield body


def count(instructions: list[str], pattern: str) -> int:
    """Return how many instructions match."""
    return sum(re.search(pattern, text) is not None for text in instructions)


def attempt(variant: Variant, capability: int, tiles: tuning.Tiles | None = None) -> Compiled | str:
    """Return what became of a variant, or why it cannot be compiled."""
    try:
        return compiled(variant, capability, tiles)
    except (RuntimeError, TritonError) as error:
        return f"| {' | '.join(map(str, variant))} | {str(error).splitlines()[-1]} |"


def table(capability: int, results: Path, *, few: bool, workers: Executor) -> bool:
    """Print a row of each variant as it comes, write them, and say whether all compiled and none has a flaw."""
    print(f"Triton {metadata.version('triton')}, compute capability {capability / 10}\n\n{HEAD}", flush=True)
    chosen = variants(few=few)
    rows: list[Compiled | str] = []
    for row in workers.map(attempt, chosen, [capability] * len(chosen)):
        print(row, flush=True)
        rows.append(row)
    done = [asdict(row) for row in rows if isinstance(row, Compiled)]
    results.parent.mkdir(parents=True, exist_ok=True)
    head = {"triton": metadata.version("triton"), "torch": torch.__version__, "capability": capability}
    results.write_text(json.dumps({**head, "kernels": done}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    flawed = [row for row in rows if isinstance(row, str) or row.flaws]
    print(f"\n{len(rows)} kernels, {len(flawed)} with a flaw; {results}")
    return not flawed


def tune(rows: int, features: list[int], workers: Executor) -> None:
    """Time the forward and the symmetric backward of each width and precision in every candidate that fits."""
    major, minor = torch.cuda.get_device_capability()
    capability = 10 * major + minor
    print(f"{torch.cuda.get_device_name()}, {rows:,} rows; milliseconds, the present tiles last", flush=True)
    for variant in (Variant(k, "SupCon", d, p) for d, p, k in product(features, PRECISIONS, ("sums", "both"))):
        sizes = [*CANDIDATES, None]
        found = workers.map(attempt, [variant] * len(sizes), [capability] * len(sizes), sizes)  # into Triton's cache
        fit = [size for size, row in zip(sizes, found, strict=True) if isinstance(row, Compiled) and not row.flaws]
        run = launch(variant, rows, "cuda")
        times = {size: milliseconds(run, size) for size in [*fit, *([] if None in fit else [None])]}
        best = sorted((taken_in, size) for size, taken_in in times.items() if size is not None)[:3]
        print(
            f"{variant.kernel:5} {variant.features:5} {variant.precision}  "
            + "  ".join(f"{tuple(size)} {taken_in:.3f}" for taken_in, size in best)
            + f"  | {times[None]:.3f}",
            flush=True,
        )


def milliseconds(run: Callable[[], Tensor], tiles: tuning.Tiles | None) -> float:
    """Return the median time of a launch in these tiles; infinity where the GPU refuses it."""
    try:
        with taking(tiles):
            quantiles: Any = triton.testing.do_bench(run, warmup=50, rep=200, quantiles=[0.5])
            return float(quantiles)
    except triton.runtime.OutOfResources:
        return float("inf")


def main() -> int:
    """Compile, or tune, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, choices=SHARED, default=90)
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--results", type=Path, help="the file to write; in results/, named after the capability")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--rows", type=int, default=65536, help="of --tune")
    parser.add_argument("--features", type=int, nargs="+", default=[64, 128, 256], help="of --tune")
    given = parser.parse_args()
    if knobs.runtime.interpret:
        print("TRITON_INTERPRET is set: nothing is compiled; unset it", file=sys.stderr)
        return 2
    if given.tune and not torch.cuda.is_available():
        print("--tune times kernels on an NVIDIA GPU, and there is none here", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        if not given.tune:  # compiled anew, so that the seconds are true
            os.environ["TRITON_CACHE_DIR"] = stack.enter_context(tempfile.TemporaryDirectory())
        spawn = multiprocessing.get_context("spawn")
        workers = stack.enter_context(ProcessPoolExecutor(given.workers, mp_context=spawn))
        if given.tune:
            tune(given.rows, given.features, workers)
            return 0
        suffix = "-few" if given.few else ""
        here = Path(__file__).parent / "results" / f"kernels-sm_{given.capability}{suffix}.json"
        return 0 if table(given.capability, given.results or here, few=given.few, workers=workers) else 1


if __name__ == "__main__":
    sys.exit(main())
