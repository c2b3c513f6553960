"""The two primitives: `contrast` with SupCon's weights, and `log_sum_exp` with weights that cost more or less."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.graphs import GraphMeter, in_graph
from benchmarks.losses import backends
from benchmarks.measuring.case import LABELS, Case, Contender, Sampler
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.prediction import DENSE, Growth
from benchmarks.measuring.rivals import TEMPERATURE
from benchmarks.measuring.schedule import Meter
from likewise.operator import contrast, log_sum_exp
from likewise.pairs import NotSelf, PairWeight, SameClass, SharesLabel

GRAPH_ROWS = 4096  # with fewer rows the launches of a step take a noticeable part of its time
PUSHES: dict[str, Callable[[Sampler], PairWeight]] = {
    "plain": lambda sampler: NotSelf(sampler.rows),
    "class labels": lambda sampler: SameClass(sampler.classes(sampler.rows)) & NotSelf(sampler.rows),
    f"label sets, L = {LABELS}": lambda sampler: SharesLabel(sampler.label_sets(sampler.rows)),
    "label sets, L = 128": lambda sampler: SharesLabel(sampler.label_sets(sampler.rows, 128)),
}


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure `contrast` and `log_sum_exp` in every backend, on a GPU `contrast` in a CUDA graph, too."""

    sizes: tuple[int, ...] = option((256, 1024, 4096, 16384), "Numbers of rows.", least=32)

    def contenders(self) -> list[Contender]:
        return [each for backend in backends(self.device) for each in primitives(backend, self.device)]

    def meter(self) -> Meter:
        return GraphMeter() if self.device == "cuda" else super().meter()


def primitives(backend: str, device: str) -> list[Contender]:
    """Return the primitives with a backend."""
    growth = DENSE if backend == "dense" else Growth()
    weighted = Contender("contrast", "SupCon's weights", backend, _contrast(backend), _weighted, growth, first=True)
    graphs = [in_graph(weighted, GRAPH_ROWS)] if device == "cuda" else []
    return [weighted, *graphs, *(_mean_log_sum_exp(name, backend, push) for name, push in PUSHES.items())]


def _unit(sampler: Sampler) -> Tensor:
    """Return embeddings of length 1, normalised outside the step."""
    rows = sampler.embeddings(sampler.rows, learned=False)
    return nn.functional.normalize(rows, dim=1).requires_grad_()


def _weighted(sampler: Sampler) -> tuple[Tensor, PairWeight, PairWeight]:
    """Return rows of length 1, and SupCon's pull and push for them, made outside the step."""
    not_self = NotSelf(sampler.rows)
    return _unit(sampler), (SameClass(sampler.classes(sampler.rows)) & not_self).mean_over_row(), not_self


def _contrast(backend: Any) -> Callable[[Case], Callable[..., Tensor]]:
    return lambda _: (
        lambda z, pull, push: contrast(
            z, pull=pull, push=push, temperature=TEMPERATURE, reduction="mean", backend=backend
        )
    )


def _mean_log_sum_exp(name: str, backend: Any, push: Callable[[Sampler], PairWeight]) -> Contender:
    """Return the mean of `log_sum_exp` over rows of length 1, with a push."""

    def mean(z: Tensor, push: PairWeight) -> Tensor:
        found = log_sum_exp(z, push=push, temperature=TEMPERATURE, backend=backend)
        return torch.where(found.isfinite(), found, 0).mean()

    growth = DENSE if backend == "dense" else Growth()
    batch = lambda sampler: (_unit(sampler), push(sampler))  # noqa: E731
    return Contender("log_sum_exp", name, backend, lambda _: mean, batch, growth)
