"""What was measured and on which machine, and the file that holds it."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median, quantiles
from typing import Any, final

import torch

VERSIONS = (
    "likewise",
    "torch",
    "triton",
    "torchvision",
    "pytorch-metric-learning",
    "lightly",
    "inf-cl",
    "cut-cross-entropy",
)


@final
@dataclass(frozen=True)
class Result:
    """What one contender took at one size, or why it was skipped.

    Args:
        loss: What was computed: a loss, a primitive, a kernel.
        contender: How, or by which library.
        backend: The operator's, or "".
        rows: N.
        dtype: Of the embeddings.
        milliseconds: The median of one step, forward and backward.
        quartiles: The lower and the upper one, of three steps or more.
        repeats: How many steps were timed.
        peak_bytes: The peak memory of a step beyond its inputs, gradients included; None where the system does not
            report it.
        skipped: Why nothing was measured.
        fastest: The milliseconds of the fastest step.
        figures: What else was measured, by name.
    """

    loss: str
    contender: str
    backend: str
    rows: int
    dtype: str
    milliseconds: float | None = None
    quartiles: tuple[float, float] | None = None
    repeats: int = 0
    peak_bytes: int | None = None
    skipped: str | None = None
    fastest: float | None = None
    figures: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies the contender."""
        return self.loss, self.contender, self.backend

    @property
    def who(self) -> str:
        """The contender in words."""
        return ", ".join(filter(None, (self.contender, self.backend)))


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """Return the median, the quartiles, the number and the fastest of steps that took these seconds.

    Example:
        >>> summary([0.002, 0.001, 0.003])
        {'milliseconds': 2.0, 'quartiles': (1.5, 2.5), 'repeats': 3, 'fastest': 1.0}
    """
    values = [1e3 * value for value in seconds]
    low, _, high = quantiles(values, method="inclusive") if len(values) > 2 else (None, None, None)
    return {
        "milliseconds": median(values),
        "quartiles": None if low is None or high is None else (low, high),
        "repeats": len(values),
        "fastest": min(values),
    }


def machine(device: str) -> dict[str, Any]:
    """Return what results depend on: the device, the processor, threads, load, versions."""
    processor, versions = _processor(), dict[str, str]()
    for name in VERSIONS:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else processor,
        "processor": processor,
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "load": [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": versions,
    }


def thread_words(threads: int) -> str:
    """Say how many threads.

    Example:
        >>> thread_words(1), thread_words(2)
        ('1 thread', '2 threads')
    """
    return f"{threads} thread{'' if threads == 1 else 's'}"


def write(path: Path, facts: Mapping[str, Any], results: Sequence[Result]) -> None:
    """Write the file as a whole or not at all, so that it is valid at any time."""
    partial = path.with_name(path.name + ".partial")
    rows = ",\n".join(f"    {json.dumps(asdict(result), ensure_ascii=False)}" for result in results)
    head = json.dumps(facts, indent=2, ensure_ascii=False).removesuffix("\n}")
    partial.write_text(f'{head},\n  "results": [\n{rows}\n  ]\n}}\n', encoding="utf-8")
    partial.replace(path)


def _processor() -> str:
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
