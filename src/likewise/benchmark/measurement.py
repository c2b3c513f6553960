"""What a measurement is: options, results as they come, and a summary of them."""

import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, get_args

import torch

from likewise.benchmark.case import Contender, Dtype
from likewise.benchmark.cpu import CpuMeter
from likewise.benchmark.cuda import CudaMeter
from likewise.benchmark.results import Result
from likewise.benchmark.schedule import Schedule, Settings
from likewise.benchmark.table import by_loss

FEWEST_ROWS = 32
DTYPES = get_args(Dtype)


def option(default: Any, description: str, *, choices: Sequence[object] = (), least: float | None = None) -> Any:
    """Declare a field as an option of the command.

    Args:
        default: Its default; a tuple takes one value or more.
        description: What --help says.
        choices: The values that it may have, where they are few.
        least: The smallest value.
    """
    return field(default=default, metadata={"help": description, "choices": choices, "least": least})


@dataclass(kw_only=True)
class Measurement(ABC):
    """Abstract: what `likewise bench` measures under one name."""

    device: str = "cpu"

    @abstractmethod
    def total(self) -> int:
        """How many results there will be."""

    @abstractmethod
    def results(self, tell: Callable[[str], object]) -> Iterator[Result]:
        """Measure, tell what is being done, and yield each result as soon as it is known."""

    @abstractmethod
    def summary(self, results: Sequence[Result]) -> str:
        """Return what is printed at the end."""

    def missing(self) -> dict[str, str]:
        """Return what is not installed and therefore not measured, with the command that installs it."""
        return {}


@dataclass(kw_only=True)
class Timed(Measurement):
    """Abstract: contenders whose steps are timed, and their memory measured, size by size."""

    device: str = option("auto", "Where to measure; auto: on a GPU if there is one.", choices=("auto", "cpu", "cuda"))
    sizes: tuple[int, ...] = option((4096,), "Numbers of rows.", least=FEWEST_ROWS)
    features: int = 128
    dtype: Dtype = "float32"
    repeats: int = option(20, "Steps to time at least, while time is left.", least=1)
    budget: float = option(240.0, "Seconds for everything, approximately.", least=1)
    clock: str = option("wall", "What to time on a CPU: elapsed or processor time.", choices=("wall", "cpu"))
    busy: int = option(0, "How many busy processes to run at the same time.", least=0)

    def __post_init__(self) -> None:
        if self.device == "cuda" and not torch.cuda.is_available():
            if type(self).device == "cuda":
                raise ValueError("expected a GPU, torch sees none here: measure on a machine with one")
            raise ValueError("expected --device auto or cpu, got cuda: torch sees no GPU here")
        if self.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.sizes = tuple(sorted(set(self.sizes)))

    @abstractmethod
    def contenders(self) -> list[Contender]:
        """Return what is measured."""

    def total(self) -> int:
        return sum(rows <= (each.largest or rows) for each in self.contenders() for rows in self.sizes)

    def results(self, tell: Callable[[str], object]) -> Iterator[Result]:
        contenders = self.contenders()
        settings = Settings(self.sizes, self.features, self.dtype, self.budget, self.repeats)
        if self.device == "cuda":
            meter = CudaMeter()
        else:
            meter = CpuMeter(self.contenders, sorted({each.module for each in contenders} - {""}), self.clock)
        with _busy(self.busy):
            yield from Schedule(contenders, settings, meter, tell).results()

    def summary(self, results: Sequence[Result]) -> str:
        return by_loss(results, list(dict.fromkeys(each.loss for each in self.contenders())))


@contextmanager
def _busy(count: int) -> Generator[None]:
    """Keep some other processes busy while the block runs."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
