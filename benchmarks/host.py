"""What a step with kernels costs the host: Python and Triton's launcher, on a driver that computes nothing."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from cProfile import Profile
from dataclasses import dataclass
from pstats import Stats
from typing import Any

import torch
from torch import Tensor

import likewise as lw
from benchmarks import stub_driver
from benchmarks.compiled_kernels import compiler
from benchmarks.measuring.case import Contender
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.results import Timing, summary

CLASSES, WARM, PROFILED = 100, 20, 500

PARTS = {
    "dispatch": (
        "triton/runtime/",
        "triton/compiler/",
        "triton/backends/",
        "triton/knobs",
        ":launch",
        ":_launch",
        ":_k",
    ),
    "weights": ("likewise/pairs/", "triton/weights.py"),
    "launches": ("operator/triton/", "operator/spec.py"),
    "autograd": (
        "/torch/",
        "operator/backends.py:forward",
        "operator/backends.py:backward",
        "operator/inputs.py:run",
        "operator/inputs.py:without_autocast",
    ),
    "checks": ("losses/inputs.py", "losses/info_nce.py:check_", "operator/inputs.py", "operator/backends.py"),
}
"""What a function is part of, by its file and name: the first that fits."""

Step = Callable[[], tuple[float, float]]
"""Takes a step, and returns the processor's seconds of its forward and of its backward."""


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure the processor time of the host for steps with kernels, where nothing is computed: no GPU is needed.

    Triton compiles as for an H100, and its own launcher hands each launch to a driver of ours. "µs" is the fastest
    step, which says the most on a busy machine; "calls" are those of Python and of C, the same every time. Parts are
    shares of a profile, in which small functions weigh more than otherwise: what one does in C counts as its own.
    """

    device: str = "cpu"  # not options: GPU or not, nothing runs there
    clock: str = "cpu"
    budget: float = 0
    dtype: str = "bfloat16"  # pyright: ignore[reportIncompatibleVariableOverride] - the only one
    sizes: tuple[int, ...] = option((4096,), "Numbers of rows.", least=32)
    repeats: int = option(1000, "Steps to time.", least=3)

    def __post_init__(self) -> None:
        compiler()  # raises where Triton is not there, or only interprets
        if (why := stub_driver.missing()) is not None:
            raise ValueError(f"expected no GPU and a C compiler for a driver that computes nothing, got: {why}")
        super().__post_init__()

    def contenders(self) -> list[Contender]:
        return []

    def total(self) -> int:
        return 2 * len(self.sizes) * (3 + len(PARTS))

    def results(self, tell: Callable[[str], object]) -> Iterator[Timing]:
        torch.set_num_threads(1)
        with stub_driver.installed() as stub:
            for rows in self.sizes:
                for loss, given in _cases(rows, self.features):
                    tell(f"{type(loss).__name__}, {rows:,} rows")
                    yield from self._measured(loss, given, stub)

    def _measured(self, loss: lw.losses.Loss, given: tuple[Tensor, ...], stub: stub_driver.Stub) -> Iterator[Timing]:
        step = _step(loss, given)
        for _ in range(WARM):
            step()
        before = stub.launches
        of_step = {"calls": _calls(step), "launches": stub.launches - before}
        forward, backward = zip(*[step() for _ in range(self.repeats)], strict=True)
        whole = [sum(both) for both in zip(forward, backward, strict=True)]
        named: dict[str, Any] = {"loss": type(loss).__name__, "backend": "triton", "rows": len(given[0])}
        named["dtype"] = self.dtype
        for part, seconds in (("step", whole), ("forward", forward), ("backward", backward)):
            found = summary(seconds)
            figures = {"µs": round(1e3 * found["fastest"])} | (of_step if part == "step" else {})
            yield Timing(contender=part, **named, **found, figures=figures)
        for part, share in _shares(step).items():
            yield Timing(contender=part, **named, figures={"share": round(share, 3)})

    def summary(self, results: Sequence[Timing]) -> str:
        steps = [each for each in results if each.contender == "step"]
        return "\n".join(f"{each.loss}, {each.rows:,} rows: {each.figures['µs']} µs a step" for each in steps)


def _cases(rows: int, features: int) -> list[tuple[lw.losses.Loss, tuple[Tensor, ...]]]:
    one, other = (torch.randn(rows, features).bfloat16().requires_grad_() for _ in range(2))
    return [
        (lw.SupConLoss(backend="triton"), (one, torch.arange(rows) % CLASSES)),
        (lw.InfoNCELoss(backend="triton"), (one, other)),
    ]


def _step(loss: lw.losses.Loss, given: tuple[Tensor, ...]) -> Step:
    def step() -> tuple[float, float]:
        for value in given:
            value.grad = None
        started = time.process_time()
        value = loss(*given)
        between = time.process_time()
        value.backward()
        return between - started, time.process_time() - between

    return step


def _calls(step: Step) -> int:
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count


def _shares(step: Step) -> dict[str, float]:
    """Return the share of each of `PARTS` in a profile, and that of the rest."""
    profile = Profile(builtins=False)
    profile.enable()
    for _ in range(PROFILED):
        step()
    profile.disable()
    found = dict.fromkeys((*PARTS, "rest"), 0.0)
    stats: Any = Stats(profile)
    for (file, _, name), (_, _, seconds, *_) in stats.stats.items():
        if file != __file__:
            part = next((part for part, names in PARTS.items() if any(of in f"{file}:{name}" for of in names)), "rest")
            found[part] += seconds
    return {part: seconds / sum(found.values()) for part, seconds in found.items()}
