"""What was measured and on which machine: a file, a line for each result as it comes, and at the end a table."""

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

from benchmarks.measuring.prediction import in_units
from likewise.files.formats import PARTIAL_SUFFIX
from likewise.runs.machine import device_name, versions

PACKAGES = (
    "triton torchvision pytorch-metric-learning lightly open-clip-torch sentence-transformers inf-cl cut-cross-entropy"
)
HEAD = f"{'rows':>9}  {'loss':<17}{'contender':<32}{'ms':>10}  {'quartiles':<19}{'memory':>9}"


@final
@dataclass(frozen=True)
class Timing:
    """What one contender took at one size for a forward and backward step, or why it was skipped.

    `milliseconds` is the median of `repeats` steps, of three or more with quartiles; `fastest` is in milliseconds too.
    `peak_bytes` are those beyond the inputs, gradients included; None where the system does not report them.
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
    low, _, high = quantiles(values, method="inclusive") if len(values) > 2 else (0.0, 0.0, 0.0)
    spread = (low, high) if len(values) > 2 else None
    return {"milliseconds": median(values), "quartiles": spread, "repeats": len(values), "fastest": min(values)}


def machine(device: str) -> dict[str, Any]:
    """Return what results depend on: the device, the processor, threads, load, versions."""
    return {
        "device": device_name(device),
        "processor": device_name("cpu"),
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "load": [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": versions() | _installed(),
    }


def _installed() -> dict[str, str]:
    found = dict[str, str]()
    for name in PACKAGES.split():
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def write(path: Path, facts: Mapping[str, Any], results: Sequence[Timing]) -> None:
    """Write the file as a whole or not at all, so that it is valid at any time."""
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    rows = ",\n".join(f"    {json.dumps(asdict(result), ensure_ascii=False)}" for result in results)
    head = json.dumps(facts, indent=2, ensure_ascii=False).removesuffix("\n}")
    partial.write_text(f'{head},\n  "results": [\n{rows}\n  ]\n}}\n', encoding="utf-8")
    partial.replace(path)


def line(result: Timing) -> str:
    """Return a result as a line below HEAD.

    Example:
        >>> line(Timing("SupConLoss", "likewise", "tiled", 4096, "float32", 80.12, (79.0, 83.4), 9, 12 << 20))
        '    4,096  SupConLoss       likewise, tiled                      80.12  79.00 – 83.40         12 MiB'
    """
    head = f"{result.rows:>9,}  {result.loss:<17}{result.who:<32}"
    if result.skipped is not None:
        return f"{head}   skipped: {result.skipped}"
    figures = ", ".join(f"{name} {value}" for name, value in result.figures.items())
    if result.milliseconds is None:
        return f"{head}   {figures}"
    spread = " – ".join(_digits(value) for value in result.quartiles) if result.quartiles else ""
    memory = "–" if result.peak_bytes is None else in_units(result.peak_bytes)
    return f"{head}{_digits(result.milliseconds):>10}  {spread:<19}{memory:>9}{'  ' * bool(figures)}{figures}"


def by_loss(results: Sequence[Timing], losses: Sequence[str]) -> str:
    """Return results as a Markdown table with a row for each contender, loss by loss, and a column for each size.

    Example:
        >>> print(by_loss([Timing("BYOLLoss", "likewise", "", 64, "float32", 0.5, None, 1, 1 << 20)], ["BYOLLoss"]))
        | loss | by | 64 |
        |---|---|---|
        | BYOLLoss | likewise | 0.50 ms, 1.0 MiB |
    """
    found = {(each.loss, each.who, each.rows): _cell(each) for each in results if each.milliseconds is not None}
    sizes = sorted({rows for _, _, rows in found})
    contenders = dict.fromkeys((each.loss, each.who) for each in results)
    rows: list[list[str]] = [["loss", "by", *(f"{rows:,}" for rows in sizes)], ["---"] * (2 + len(sizes))]
    for loss, name in sorted(contenders, key=lambda row: (losses.index(row[0]), not row[1].startswith("likewise"))):
        rows.append([loss, name, *(found.get((loss, name, size), "–") for size in sizes)])
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as a Markdown table; a row of dashes ends the head."""
    return "\n".join(f"|{'|'.join(row)}|" if row[0] == "---" else f"| {' | '.join(row)} |" for row in rows)


def _cell(result: Timing) -> str:
    memory = "" if result.peak_bytes is None else f", {in_units(result.peak_bytes)}"
    return f"{_digits(result.milliseconds or 0)} ms{memory}"


def _digits(milliseconds: float) -> str:
    return f"{milliseconds:,.{0 if milliseconds >= 1000 else 1 if milliseconds >= 100 else 2}f}"
