"""What the fused operator is expected to reach on a GPU, and whether it does."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

from benchmarks.graphs import IN_GRAPH, GraphMeter, OnGpu, WallMeter, in_graph
from benchmarks.losses import batch_of, contenders
from benchmarks.measuring import schedule
from benchmarks.measuring.case import Contender, Dtype
from benchmarks.measuring.measurement import option
from benchmarks.measuring.prediction import Growth
from benchmarks.measuring.results import Timing, markdown
from benchmarks.measuring.rivals import TEMPERATURE, compiled
from benchmarks.measuring.schedule import Meter, Timetable
from benchmarks.primitives import GRAPH_ROWS, primitives
from benchmarks.reports import Report, begun, leave_if_poisoned

Key = tuple[str, str, str]

SMALL = {4096: 32, 16384: 48, 65536: 64}
"""The sizes of a dry run."""

OURS, REPLAYED = ("SupConLoss", "likewise", "triton"), ("SupConLoss", f"likewise{IN_GRAPH}", "triton")
DENSE, COMPILED, FLEX = (("SupConLoss", name, "") for name in ("dense form", "torch.compile", "FlexAttention"))
PLAIN, CLASSES, SETS = (("log_sum_exp", name, "triton") for name in ("plain", "class labels", "label sets, L = 128"))


class Group(NamedTuple):
    """Contenders that are measured in one process, and their sizes; the largest is not the last."""

    keys: tuple[Key, ...]
    dtypes: tuple[Dtype, ...]
    sizes: tuple[int, ...]
    share: float
    """Of the time."""


BF16: tuple[Dtype, ...] = ("bfloat16",)
FP32: tuple[Dtype, ...] = ("float32",)
GROUPS = {
    "ours": Group((OURS,), BF16, (4096, 16384, 65536, 1048576, 262144), 0.3),
    "graph": Group((REPLAYED,), BF16, (4096, 16384), 0.06),
    "ours-float32": Group((OURS,), FP32, (4096, 65536, 16384), 0.08),
    "primitives": Group((PLAIN, CLASSES, SETS), BF16, (16384, 65536), 0.16),
    "dense": Group((DENSE,), FP32, (16384,), 0.06),
    "compiled": Group((COMPILED,), FP32 + BF16, (16384,), 0.17),
    "flex": Group((FLEX,), FP32 + BF16, (16384,), 0.17),
}
"""Ours first."""


class Target(NamedTuple):
    """What is expected of one contender, or of the ratio of two.

    Args:
        title: What it is about.
        rows: N.
        dtype: Of the embeddings.
        keys: The contender, and the one that it is divided by, if any.
        limit: Of milliseconds or GB, or of their ratio: the most, or the least where ``at_least``.
        at_least: Whether the limit is a lower one.
        memory: Whether it is about memory.
    """

    title: str
    rows: int
    dtype: Dtype
    keys: tuple[Key, ...]
    limit: float
    at_least: bool = False
    memory: bool = False

    @property
    def unit(self) -> str:
        """The unit of the limit."""
        return "×" if len(self.keys) == 2 else "GB" if self.memory else "ms"

    def row(self, found: dict[tuple[Key, int, str], Timing]) -> list[str]:
        """Return title, rows, dtype, limit, measured value and verdict."""
        asked = f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}"
        results = [found.get((key, self.rows, self.dtype)) for key in self.keys]
        return [self.title, f"{self.rows:,}", self.dtype, asked, *self._verdict(results)]

    def _verdict(self, results: Sequence[Timing | None]) -> tuple[str, str]:
        values: list[float] = []
        for each in results:
            if each is None or each.skipped is not None:
                return "–", "not measured" if each is None else each.skipped or ""
            if self.memory and each.peak_bytes is None:
                return "–", "not measured"
            values.append((each.peak_bytes or 0) / 1e9 if self.memory else each.milliseconds or 0.0)
        value = values[0] if len(values) == 1 else values[0] / max(values[1], 1e-12)
        holds = value >= self.limit if self.at_least else value <= self.limit
        words = f"{value:,.0f} {self.unit}" if value >= 100 else f"{value:.3g} {self.unit}"
        return words, "holds" if holds else "falls short"


def targets() -> Iterator[Target]:
    """Return the targets, those of small sizes first."""
    bf16, title = "bfloat16", "SupCon, the whole loss"
    for rows, limit in ((4096, 0.1), (16384, 0.6)):
        yield Target(f"{title}, in a CUDA graph", rows, bf16, (REPLAYED,), limit)
    for rows, limit in ((16384, 0.6), (65536, 9.0), (262144, 145.0), (1048576, 2300.0)):
        yield Target(title, rows, bf16, (OURS,), limit)
    yield Target(title, 65536, "float32", (OURS,), 24.0)
    yield Target("peak memory beyond the inputs", 1048576, bf16, (OURS,), 1.2, memory=True)
    yield Target("dense form / SupConLoss, time", 16384, "float32", (DENSE, OURS), 20, at_least=True)
    yield Target("dense form / SupConLoss, memory", 16384, "float32", (DENSE, OURS), 100, at_least=True, memory=True)
    for dtype in FP32 + BF16:
        yield Target("torch.compile / SupConLoss", 16384, dtype, (COMPILED, OURS), 4, at_least=True)
        yield Target("FlexAttention / SupConLoss", 16384, dtype, (FLEX, OURS), 1.8, at_least=True)
    for rows in (16384, 65536):
        yield Target("log_sum_exp, class labels / plain", rows, bf16, (CLASSES, PLAIN), 1.1)
        yield Target("log_sum_exp, label sets (L = 128) / plain", rows, bf16, (SETS, PLAIN), 1.6)


def flex_sup_con(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return SupCon with FlexAttention's log-sum-exp for the push, and class sums for the linear pull."""
    z = functional.normalize(embeddings, dim=1)
    rows = z[None, None]

    def not_self(score: Tensor, _: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.where(query == key, -torch.inf, score)

    _, found = flex.flex_attention(
        rows, rows, rows, score_mod=not_self, scale=1 / TEMPERATURE, return_aux=flex.AuxRequest(lse=True)
    )
    lse = torch.as_tensor(found.lse)[0, 0]
    own = functional.one_hot(labels).to(z)
    positives = (own @ (own.T @ z) - z) / (own @ own.sum(dim=0) - 1)[:, None]
    return (lse - (z * positives).sum(dim=1) / TEMPERATURE).mean()


def flex_attention() -> Contender:
    """Return SupCon by FlexAttention, compiled."""
    return Contender(*FLEX, compiled(flex_sup_con), batch_of("rows", "classes"), Growth(setup=30), first=True)


def measured(
    group: Group, meter: Meter, tell: Callable[[str], object], budget: float, repeats: int = 7
) -> Iterator[Timing]:
    """Measure a group of contenders, and yield each result as soon as it is known."""
    losses = contenders(["SupConLoss"], ["triton"], "cuda")
    graphs = [in_graph(each, 4 * GRAPH_ROWS) for each in losses if each.key == OURS]
    every = *losses, *graphs, flex_attention(), *primitives("triton", "cuda")
    chosen = [each for each in every if each.key in group.keys]
    for dtype in group.dtypes:
        size = group.sizes, 128, dtype
        yield from Timetable(chosen, meter, tell, *size, budget / len(group.dtypes), repeats).results()


@dataclass(kw_only=True)
class Measure(OnGpu):
    """Measure what the fused operator is expected to reach on a GPU, and say whether it does.

    Times are of forward and backward, in float32 and bfloat16.
    """

    groups: tuple[str, ...] = option(tuple(GROUPS), "Which contenders.", choices=tuple(GROUPS))
    repeats: int = option(7, "Steps to time at least, while time is left.", least=1)
    budget: float = option(450.0, "Seconds for everything, approximately.", least=1)
    sizes: tuple[int, ...] = ()  # not an option: a group has its own

    def contenders(self) -> list[Contender]:
        return []

    def total(self) -> int:
        chosen = [GROUPS[name] for name in self.groups]
        return sum(len(each.keys) * len(each.dtypes) * len(each.sizes) for each in chosen)

    def results(self, tell: Callable[[str], object]) -> Iterator[Timing]:
        chosen = [GROUPS[name] for name in self.groups]
        for group in chosen:
            budget = self.budget * group.share / sum(each.share for each in chosen)
            yield from measured(group, self.meter(), tell, budget, self.repeats)

    def summary(self, results: Sequence[Timing]) -> str:
        return table(results)


def table(results: Sequence[Timing]) -> str:
    """Return each target, what was measured and whether it holds, as a table in Markdown."""
    found = {(each.key, each.rows, each.dtype): each for each in results}
    head = ["", "rows", "type", "target", "measured", ""]
    return markdown([head, ["---"] * len(head), *(target.row(found) for target in targets())])


def main(report: Report, groups: list[str]) -> None:
    """Measure groups for `first_gpu.py`, in a dry run by the wall clock, in sizes that the interpreter can do."""
    report.say(summary="nothing measured")
    dry, chosen = report.dry_run, [GROUPS[name] for name in groups]
    chosen = [each for each in chosen if not dry or all(key[-1] == "triton" for key in each.keys)]
    if dry:  # others' code needs no rehearsal
        chosen = [each._replace(sizes=tuple(SMALL[rows] for rows in each.sizes[:3])) for each in chosen]
    with mock.patch.object(schedule, "SECONDS", 0.0) if dry else nullcontext():
        for k, group in enumerate(chosen):
            budget = report.left * group.share / sum(each.share for each in chosen[k:])
            meter = WallMeter() if dry else GraphMeter()
            for each in measured(group, meter, lambda doing: print(doing, flush=True), budget, 1 if dry else 7):
                report.add(**asdict(each))
                done = sum(x["skipped"] is None for x in report.results)
                report.say(summary=f"{done} of {len(report.results)} measured")
                leave_if_poisoned()


def held(folder: Path) -> Iterator[Timing]:
    """Yield the results in a folder; those of a dry run under the sizes that they stand for."""
    sizes = {small: rows for rows, small in SMALL.items()}
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        for each in found["results"]:
            timing = Timing(**each)
            yield replace(timing, rows=sizes[timing.rows]) if found["facts"]["dry_run"] else timing


if __name__ == "__main__":
    if sys.argv[1:2] == ["--table"]:
        print(table(list(held(Path(sys.argv[2])))))
    else:
        asked, its = begun(__doc__ or "", groups=tuple(GROUPS))
        main(its, asked.groups)
