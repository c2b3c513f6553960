"""What is timed: a step of one contender, on a random batch of a given size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor

from benchmarks.measuring.prediction import Growth

CLASSES, LABELS, LABELS_OF_ONE = 100, 64, 3.4  # labels per row on average
QUADRATIC = Growth()
Batch = tuple[Any, ...]
Dtype = Literal["float32", "bfloat16", "float16"]


class Case(NamedTuple):
    """The size of a batch, its dtype and its device."""

    rows: int
    """N, the number of embeddings that a loss contrasts; with two views, of N/2 samples."""
    features: int
    dtype: Dtype
    device: str


@final
class Sampler:
    """Samples a random batch, the same one for the same seed."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case, self.rows = case, case.rows
        self._generator = torch.Generator(case.device).manual_seed(seed)

    def embeddings(self, *shape: int, learned: bool = True) -> Tensor:
        """Return normal values, (*shape, D), with or without gradient."""
        return self.values(*shape, self.case.features, learned=learned)

    def values(self, *shape: int, learned: bool = True) -> Tensor:
        """Return normal values of the case's dtype."""
        values = torch.randn(shape, generator=self._generator, device=self.case.device)
        return values.to(getattr(torch, self.case.dtype)).requires_grad_(learned)

    def integers(self, count: int, end: int) -> Tensor:
        """Return independent uniform integers below ``end``."""
        return torch.randint(end, (count,), generator=self._generator, device=self.case.device)

    def classes(self, count: int, classes: int = CLASSES) -> Tensor:
        """Return random classes of nearly equal size, each with at least four rows."""
        order = torch.randperm(count, generator=self._generator, device=self.case.device)
        return order % max(1, min(classes, count // 4))

    def label_sets(self, count: int, labels: int = LABELS) -> Tensor:
        """Return multi-hot label sets, (count, labels), none of them empty."""
        some = torch.rand(count, labels, generator=self._generator, device=self.case.device) < LABELS_OF_ONE / labels
        return some.scatter(1, self.integers(count, labels)[:, None], value=True)


@final
@dataclass(frozen=True)
class Contender:
    """One way to compute a loss, a primitive, or whatever contenders have in common: how, or by which library.

    `make` returns the step for a case, which takes a batch; what it returns is differentiated if it has a gradient, for
    the tensors of the batch that require one. `growth` predicts time and memory. Those that are `first` go first where
    the budget does not suffice for all; those `apart` have threads that keep spinning, so that they must not alternate
    with others. None has more than its `largest` rows. `module` is another library's that it imports.
    """

    loss: str
    name: str
    backend: str
    make: Callable[[Case], Callable[..., Any]]
    batch: Callable[[Sampler], Batch]
    growth: Growth = QUADRATIC
    first: bool = False
    apart: bool = False
    largest: int | None = None
    module: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies it."""
        return self.loss, self.name, self.backend

    def __str__(self) -> str:
        return " ".join(filter(None, self.key))


class Peak(NamedTuple):
    """The peak memory of one step beyond its inputs, where the system reports it, and its seconds."""

    bytes: int | None
    seconds: float


class Failed(Exception):  # noqa: N818 - the name is what the table says
    """A contender's step could not be run."""

    @staticmethod
    def words(error: BaseException) -> str:
        """Describe an error in one line."""
        lines = str(error).strip().splitlines() or [""]
        return f"failed: {type(error).__name__}: {lines[0][:160]}"


def leaves(batch: Batch) -> list[Tensor]:
    """Return the tensors of a batch that receive a gradient."""
    return [part for part in batch if isinstance(part, Tensor) and part.requires_grad]


def forget(batch: Batch) -> None:
    """Drop the gradients of the last step."""
    for leaf in leaves(batch):
        leaf.grad = None


def run(step: Callable[..., Any], batch: Batch) -> None:
    """Run a step once, forward and, if it has a gradient, backward."""
    forget(batch)
    found = step(*batch)
    if isinstance(found, Tensor) and found.requires_grad:
        found.backward()
