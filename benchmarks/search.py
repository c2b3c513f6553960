"""Exact search for the nearest of queries among references by cosine, and faiss's on the same threads."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.measuring.case import Batch, Case, Contender, Sampler
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.prediction import Growth
from likewise.evaluation.nearest import Nearest

PIECE = 2**16  # references at a time, as they are read from a file
GROWTH = Growth(time=1, memory=0)  # beyond the vectors that it is given


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure searches of random vectors of length 1 in float32; the index of faiss is filled within the step."""

    sizes: tuple[int, ...] = option((1_000_000,), "Numbers of references.", least=1000)
    queries: int = option(10_000, "Queries.", least=1)
    k: tuple[int, ...] = option((5, 50), "Neighbours of a query.", least=1)
    repeats: int = option(3, "Searches to time at least, while time is left.", least=1)
    budget: float = option(1200.0, "Seconds for everything, approximately.", least=1)
    clock: str = option("cpu", "What to time on a CPU: elapsed or processor time.", choices=("wall", "cpu"))

    def contenders(self) -> list[Contender]:
        return [
            Contender(f"{k} nearest", name, "", _made(step, k), self._vectors, GROWTH, module=module)
            for k in self.k
            for name, step, module in (("likewise", _ours, ""), ("faiss", _theirs, "faiss"))
        ]

    def _vectors(self, sampler: Sampler) -> Batch:
        return tuple(normalize(sampler.embeddings(count, learned=False)) for count in (self.queries, sampler.rows))


def _made(step: Callable[[Tensor, Tensor, int], Tensor], k: int) -> Callable[[Case], Callable[..., Any]]:
    return lambda _: lambda queries, references: step(queries, references, k)


def _ours(queries: Tensor, references: Tensor, k: int) -> Tensor:
    found = Nearest(queries, k)
    for piece in references.split(PIECE):
        found.add(piece)
    return found.indices


def _theirs(queries: Tensor, references: Tensor, k: int) -> Tensor:
    faiss: Any = import_module("faiss")
    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatIP(references.shape[1])
    index.add(references.numpy())
    return torch.from_numpy(index.search(queries.numpy(), k)[1])
