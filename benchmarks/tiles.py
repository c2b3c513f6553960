"""Which tiles are the fastest on a GPU: the neighbours of those that are chosen, of each kernel that has its own.

All losses whose weights share tiles are timed with each candidate; a winner is faster over all of them, slower in none,
and has the same result. Winners are written to a file that the launcher reads (`LIKEWISE_TILES`).
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cache
from itertools import product
from math import exp, inf, log
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks import compiled
from benchmarks.compiled import Variant
from benchmarks.compiled_kernels import workers
from benchmarks.measuring.cuda import timed
from benchmarks.reports import Report, begun, in_words, leave_if_poisoned, written
from benchmarks.smoke import LIMITS
from likewise.operator.triton import tuning
from likewise.operator.triton.tuning import Tiles

SIZES, FEATURES = (4096, 32768), (128, 256, 64)
PATIENCE = 60.0  # seconds that one compilation is waited for, when all before it are done
AWAIT = 0.02  # seconds of one kernel's launches that are captured and replayed
FASTER, SLOWER = 0.97, 1.03
"""Times relative to those of the chosen tiles: a winner has less over all losses, and no more in any."""

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
Key = tuple[Any, ...]


def variants(*, dry_run: bool) -> list[Variant]:
    """Return every loss's weights in both kernels, those of the most used losses, widths and precision first."""
    if dry_run:
        return [Variant(kernel, "SupCon", 20, "fp32") for kernel in ("sums", "both")]
    names = sorted(compiled.WEIGHTS, key=lambda name: name != "SupCon")
    kinds = product(FEATURES, ("bf16", "fp32"), names, ("sums", "both"))
    return [Variant(kernel, weight, d, precision) for d, precision, weight, kernel in kinds]


def key_of(variant: Variant, device: str) -> tuple[Key, Tiles]:
    """Return what the tiles of a variant are found by, as the launcher asks for them, and those that it chooses."""
    asked: list[tuple[Key, Tiles]] = []
    choose = tuning.tiles

    def noted(kernel: str, chunk: int, *, device: torch.device, **more: Any) -> Tiles:
        found = choose(kernel, chunk, device=device, **more)
        key = tuning.capability(device), kernel, chunk, *(more[name] for name in tuning.KEYS[3:])
        asked.append((key, found))
        return found

    with mock.patch.object(tuning, "tiles", noted):
        compiled.launch(variant, 64, device)
    return asked[-1]


def neighbours(chosen: Tiles) -> list[Tiles]:
    """Return tiles that differ from the chosen ones in one number or two, the nearest first."""
    halves = (1, 0.5), (1, 2), (0.5, 1), (2, 1), (0.5, 2), (2, 0.5)
    found = [chosen._replace(own=int(chosen.own * a), other=int(chosen.other * b)) for a, b in halves]
    found += [chosen._replace(stages=chosen.stages + more) for more in (1, -1)]
    found += [chosen._replace(warps=12 - chosen.warps)] if chosen.warps in {4, 8} else []
    found += [chosen._replace(warps=4, own=chosen.own // 2)] if chosen.warps == 8 else []
    found += [chosen._replace(programs=3 - chosen.programs)] if chosen.programs in {1, 2} else []
    in_range = [each for each in found if 64 <= each.own <= 256 and 16 <= each.other <= 256 and each.stages > 0]
    return [each for each in dict.fromkeys(in_range) if each.own * each.other <= 128 * 128]


def prepared(variant: Variant, rows: int, device: str, tiles: Tiles) -> tuple[Callable[[], Any], Tensor]:
    """Return a launch of a variant, and its result."""
    torch.manual_seed(0)
    run = compiled.launch(variant, rows, device, tiles)
    found = run()
    return run, torch.stack(found[1].logsums) if variant.kernel == "sums" else found.sum(dim=0)


def milliseconds(run: Callable[[], Any], device: str) -> float:
    """Return the time of a launch: of many in a CUDA graph, since that of the host is longer than a small kernel's."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)
    repeats = max(2, min(50, int(AWAIT / max(timed(run), 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    return 1e3 * min(timed(graph.replay) for _ in range(3)) / repeats


@cache
def of_chosen(variant: Variant, rows: int, device: str, chosen: Tiles) -> tuple[float, Tensor]:
    """Return the milliseconds and the result of a variant in the tiles that are chosen for it."""
    run, result = prepared(variant, rows, device, chosen)
    return milliseconds(run, device), result


def measured(variant: Variant, device: str, tiles: Tiles, chosen: Tiles, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return the milliseconds of a variant in some tiles and in the chosen ones, at each size, and the difference."""
    found: dict[str, Any] = {"ms": [], "ms_as_chosen": [], "differences": []}
    for rows in sizes:
        theirs, expected = of_chosen(variant, rows, device, chosen)
        run, result = prepared(variant, rows, device, tiles)
        found["differences"].append(float((result - expected).norm() / expected.norm()))
        found["ms"].append(milliseconds(run, device))
        found["ms_as_chosen"].append(theirs)
    return found


def is_out(found: dict[str, Any] | str, as_chosen: dict[str, Any] | str) -> bool:
    """Return whether a candidate's binary does not fit, or has flaws that the chosen one's has not."""
    if isinstance(found, str):
        return True
    return not isinstance(as_chosen, str) and not set(found["flaws"]) <= set(as_chosen["flaws"])


def winner(
    tried: list[dict[str, Any]], count: int, faster: float = FASTER, slower: float = SLOWER
) -> dict[str, Any] | None:
    """Return the candidate that is the fastest over all losses and right and not slower in any, if one is."""
    best: tuple[float, list[int]] | None = None
    for tiles in {tuple(each["tiles"]) for each in tried}:
        mine = [each for each in tried if tuple(each["tiles"]) == tiles]
        if len(mine) < count or any("ms" not in each for each in mine):
            continue
        ratios = [[log(a / b) for a, b in zip(each["ms"], each["ms_as_chosen"], strict=True)] for each in mine]
        right = all(value <= LIMITS[DTYPES[each["precision"]]] for each in mine for value in each["differences"])
        ratio, most = (exp(of(fmean(each) for each in ratios)) for of in (fmean, max))
        if right and ratio < faster and most < slower and (best is None or ratio < best[0]):
            best = ratio, [*tiles]
    return None if best is None else {"tiles": best[1], "ratio": round(best[0], 4)}


class Tuning:
    """The candidates of every key, compiled by other processes while those before are timed."""

    def __init__(self, report: Report) -> None:
        self.report, self.keys = report, dict[Key, list[Variant]]()
        self.chosen = dict[Key, Tiles]()
        for variant in variants(dry_run=report.dry_run):
            key, self.chosen[key] = key_of(variant, report.device)
            self.keys.setdefault(key, []).append(variant)
        self._futures = dict[tuple[Variant, Tiles], Future[Any]]()
        self._pool = None if report.dry_run else workers(max(1, (os.cpu_count() or 1) - 2))

    def candidates(self, key: Key) -> list[Tiles]:
        """Return what is tried for a key beside the chosen tiles."""
        return [Tiles(64, 64, 4, 1)] if self.report.dry_run else neighbours(self.chosen[key])

    def begin(self) -> None:
        """Let all be compiled, in the order in which they are timed."""
        for key, of in self.keys.items():
            for tiles, variant in product([self.chosen[key], *self.candidates(key)], of):
                if self._pool is not None:
                    self._futures[variant, tiles] = self._pool.submit(compiled.compiled, variant, key[0], tiles)

    def binary(self, variant: Variant, tiles: Tiles) -> dict[str, Any] | str:
        """Return what is known of a binary, or why there is none; wait for it a while."""
        future = self._futures.get((variant, tiles))
        try:
            return {"flaws": []} if future is None else future.result(timeout=max(0.1, min(PATIENCE, self.report.left)))
        except Exception as error:  # noqa: BLE001 - of one candidate
            return f"failed: {in_words(error)}"

    def end(self) -> None:
        """Compile nothing more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def trials(self, key: Key) -> Iterator[tuple[Variant, Tiles]]:
        """Yield what is to be timed for a key and was not before."""
        names = "kernel", "weight", "features", "precision", "tiles"
        known = {(*(each[name] for name in names[:-1]), *each["tiles"]) for each in self.report.results}
        for tiles, variant in product(self.candidates(key), self.keys[key]):
            if (*variant, *tiles) not in known:
                yield variant, tiles

    def trial(self, key: Key, variant: Variant, tiles: Tiles) -> None:
        """Time one candidate with one loss's weights; whatever happens is a result, but that the time is over."""
        found = self.binary(variant, tiles)
        if self.report.left < 0:
            return
        named = {**variant._asdict(), "key": dict(zip(tuning.KEYS, key, strict=True)), "tiles": [*tiles]}
        named |= {"binary": found, "as_chosen": [*self.chosen[key]]}
        if is_out(found, self.binary(variant, self.chosen[key])):
            self.report.add(**named, failed=found if isinstance(found, str) else f"flaws: {found['flaws']}")
            return
        self.report.add(**named, failed="the process ended while it was tried")
        sizes = (64,) if self.report.dry_run else SIZES
        try:
            result = measured(variant, self.report.device, tiles, self.chosen[key], sizes)
        except Exception as error:  # noqa: BLE001 - of one candidate
            result = {"failed": in_words(error)}
        self.report.results.pop()
        self.report.add(**named, **result)
        leave_if_poisoned()


def main(report: Report, file: Path) -> None:
    """Time all candidates while time is left, and write the winners after every key."""
    tuned, winners, skipped = Tuning(report), list[dict[str, Any]](), list[Key]()
    tuned.begin()
    try:
        for key, of in tuned.keys.items():
            for variant, tiles in tuned.trials(key):
                tuned.trial(key, variant, tiles)
                if report.left < 0:
                    skipped.append(key)
                    break
            named = dict(zip(tuning.KEYS, key, strict=True))
            limits = (inf, inf) if report.dry_run else (FASTER, SLOWER)  # a rehearsal has a winner
            best = winner([each for each in report.results if each["key"] == named], len(of), *limits)
            winners += [] if best is None else [{**named, **best}]
            written(file, winners)
            report.say(
                winners=winners,
                complete=not skipped,
                not_reached=[dict(zip(tuning.KEYS, each, strict=True)) for each in skipped],
                summary=f"{len(winners)} of {len(tuned.keys)} kernels faster in others; {len(skipped)} cut short",
            )
    finally:
        tuned.end()
    tuning.read(file)  # as the launcher does


if __name__ == "__main__":
    asked, its = begun(__doc__ or "")
    main(its, asked.out.with_name("tiles.json"))
