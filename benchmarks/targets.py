"""What the fused operator is expected to reach on a GPU, and whether it does."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

from benchmarks.graphs import IN_GRAPH, OnGpu, in_graph
from benchmarks.primitives import GRAPH_ROWS, primitives
from likewise.benchmark.case import Contender, Dtype
from likewise.benchmark.losses import batch_of, contenders
from likewise.benchmark.measurement import option
from likewise.benchmark.prediction import Growth
from likewise.benchmark.results import Timing, markdown
from likewise.benchmark.rivals import TEMPERATURE, compiled

Key = tuple[str, str, str]

OURS, REPLAYED = ("SupConLoss", "likewise", "triton"), ("SupConLoss", f"likewise{IN_GRAPH}", "triton")
DENSE, COMPILED, FLEX = (("SupConLoss", name, "") for name in ("dense form", "torch.compile", "FlexAttention"))
PLAIN, CLASSES, SETS = (("log_sum_exp", name, "triton") for name in ("plain", "class labels", "label sets, L = 128"))
LARGEST = {DENSE: 16384, COMPILED: 16384, FLEX: 16384, PLAIN: 65536, CLASSES: 65536, SETS: 65536}
SHARES: dict[Dtype, float] = {"float32": 0.4, "bfloat16": 0.6}  # of the budget


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
    for dtype in SHARES:
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


@dataclass(kw_only=True)
class Measure(OnGpu):
    """Measure what the fused operator is expected to reach on a GPU, and say whether it does.

    Times are of forward and backward, in float32 and bfloat16.
    """

    sizes: tuple[int, ...] = (4096, 16384, 65536, 262144, 1048576)
    repeats: int = option(7, "Steps to time at least, while time is left.", least=1)
    budget: float = option(450.0, "Seconds for everything, approximately.", least=1)

    def contenders(self) -> list[Contender]:
        asked = {key for target in targets() for key in target.keys if target.dtype == self.dtype}
        losses = contenders(["SupConLoss"], ["triton"], "cuda")
        graphs = [in_graph(each, 4 * GRAPH_ROWS) for each in losses if each.key == OURS]
        every = *losses, *graphs, flex_attention(), *primitives("triton", "cuda")
        return [replace(each, largest=LARGEST.get(each.key, each.largest)) for each in every if each.key in asked]

    def _parts(self) -> list[OnGpu]:
        rows = {dtype: {each.rows for each in targets() if each.dtype == dtype} for dtype in SHARES}
        return [
            replace(self, dtype=dtype, sizes=tuple(sorted(rows[dtype])), budget=share * self.budget)
            for dtype, share in SHARES.items()
        ]

    def total(self) -> int:
        return sum(OnGpu.total(part) for part in self._parts())

    def results(self, tell: Callable[[str], object]) -> Iterator[Timing]:
        for part in self._parts():
            yield from OnGpu.results(part, tell)

    def summary(self, results: Sequence[Timing]) -> str:
        found = {(each.key, each.rows, each.dtype): each for each in results}
        head = ["", "rows", "type", "target", "measured", ""]
        return markdown([head, ["---"] * len(head), *(target.row(found) for target in targets())])
