"""What is measured: a contender, on a case."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor

from likewise.benchmark.prediction import Growth

CLASSES, LABELS, LABELS_OF_ONE = 100, 64, 3.4  # classes and label sets are drawn of so many, 3.4 labels a row

Dtype = Literal["float32", "bfloat16", "float16"]


class Case(NamedTuple):
    """A size, and what the rows are made of and lie on.

    Args:
        rows: How many rows of embeddings a loss contrasts, N; of two views, N/2 samples.
        features: D.
        dtype: Of the embeddings.
        device: "cpu" or "cuda".
    """

    rows: int
    features: int
    dtype: Dtype
    device: str


@final
class Draw:
    """Draws the parts of a random batch, the same ones for the same seed.

    Args:
        case: The size, the dtype and the device.
        seed: Where the draws begin.

    Example:
        >>> Draw(Case(8, 4, "float32", "cpu")).embeddings(2, 3).shape
        torch.Size([2, 3, 4])
    """

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case = case
        self._generator = torch.Generator(case.device).manual_seed(seed)

    def embeddings(self, *shape: int, learned: bool = True) -> Tensor:
        """Return normal values, (*shape, D), with or without a gradient."""
        return self.values(*shape, self.case.features, learned=learned)

    def values(self, *shape: int, learned: bool = True) -> Tensor:
        """Return normal values of the case's dtype."""
        drawn = torch.randn(shape, generator=self._generator, device=self.case.device)
        return drawn.to(getattr(torch, self.case.dtype)).requires_grad_(learned)

    def classes(self, count: int) -> Tensor:
        """Return the classes of so many rows, in no order: each has as many as the next, about, and four or more."""
        order = torch.randperm(count, generator=self._generator, device=self.case.device)
        return order % max(1, min(CLASSES, count // 4))

    def label_sets(self, count: int, labels: int = LABELS) -> Tensor:
        """Return so many multi-hot label sets, each with one label or more."""
        some = torch.rand(count, labels, generator=self._generator, device=self.case.device) < LABELS_OF_ONE / labels
        first = torch.randint(labels, (count, 1), generator=self._generator, device=self.case.device)
        return some.scatter(1, first, value=True)


@final
@dataclass(frozen=True)
class Contender:
    """One way to compute one loss.

    Args:
        loss: The loss, by its public name, or a primitive's.
        name: Who computes it: "likewise", "dense form", "torch.compile", another library.
        backend: The operator's backend, or "" of others.
        make: Returns what computes the loss's value of a batch, a scalar.
        batch: Returns a batch; its floating tensors with a gradient are what backward is timed for.
        growth: How its time and memory grow, for what was not measured yet.
        first: Whether it comes before others where the budget does not reach for all.
        apart: Whether its threads spin on, so that it takes no turns with others.
        in_graph: Whether steps are captured in a CUDA graph and replayed.
        largest: The most rows that it is meant for.
        module: What it imports, "" if nothing of others.
    """

    loss: str
    name: str
    backend: str
    make: Callable[[Case], Callable[..., Tensor]]
    batch: Callable[[Draw], tuple[Any, ...]]
    growth: Growth
    first: bool = False
    apart: bool = False
    in_graph: bool = False
    largest: int | None = None
    module: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from all others."""
        return self.loss, self.name, self.backend

    def __str__(self) -> str:
        return " ".join(filter(None, (self.loss, self.name, self.backend)))


def leaves(batch: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors of a batch that receive a gradient."""
    return [part for part in batch if isinstance(part, Tensor) and part.requires_grad]


def run(loss: Callable[..., Tensor], batch: tuple[Any, ...]) -> None:
    """Run forward and backward once, from no gradient."""
    for leaf in leaves(batch):
        leaf.grad = None
    loss(*batch).backward()
