"""What a measurement is: options, contenders, results as they come, and a summary of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import torch

from benchmarks.measuring.case import Contender, Dtype
from benchmarks.measuring.cpu import CpuMeter
from benchmarks.measuring.cuda import CudaMeter
from benchmarks.measuring.results import Timing, by_loss
from benchmarks.measuring.schedule import Meter, Timetable

FEWEST_ROWS = 32
DTYPES = get_args(Dtype)


def option(default: Any, description: str, *, choices: Sequence[object] = (), least: float | None = None) -> Any:
    """Declare a field as an option of the command, with what --help says; a tuple takes one value or more."""
    return field(default=default, metadata={"help": description, "choices": choices, "least": least})


@dataclass(kw_only=True)
class Measurement(ABC):
    """Abstract: contenders whose steps are timed, and their memory measured, size by size."""

    device: str = option("auto", "Where to measure; auto: on a GPU if there is one.", choices=("auto", "cpu", "cuda"))
    sizes: tuple[int, ...] = option((4096,), "Numbers of rows.", least=FEWEST_ROWS)
    features: int = 128
    dtype: Dtype = "float32"
    repeats: int = option(20, "Steps to time at least, while time is left.", least=1)
    budget: float = option(240.0, "Seconds for everything, approximately.", least=1)
    clock: str = option("wall", "What to time on a CPU: elapsed or processor time.", choices=("wall", "cpu"))

    def __post_init__(self) -> None:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("expected --device auto or cpu, got cuda: torch sees no GPU here")
        if self.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.sizes = tuple(sorted(set(self.sizes)))

    @abstractmethod
    def contenders(self) -> list[Contender]:
        """Return what is measured."""

    def missing(self) -> dict[str, str]:
        """Return what is not installed and therefore not measured, with the command that installs it."""
        return {}

    def meter(self) -> Meter:
        """Return what measures a step."""
        if self.device == "cuda":
            return CudaMeter()
        modules = {each.module for each in self.contenders()} - {""}
        return CpuMeter(self.contenders, sorted(modules), self.clock)

    def total(self) -> int:
        """Return how many results there will be."""
        return sum(rows <= (each.largest or rows) for each in self.contenders() for rows in self.sizes)

    def results(self, tell: Callable[[str], object]) -> Iterator[Timing]:
        """Measure, tell what is being done, and yield each result as soon as it is known."""
        size = self.sizes, self.features, self.dtype
        return Timetable(self.contenders(), self.meter(), tell, *size, self.budget, self.repeats).results()

    def summary(self, results: Sequence[Timing]) -> str:
        """Return what is printed at the end."""
        return by_loss(results, list(dict.fromkeys(each.loss for each in self.contenders())))
