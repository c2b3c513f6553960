"""The machine and the versions that results depend on."""

import platform
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import torch


def device_name(kind: str) -> str:
    """Return the name of the GPU for "cuda", else that of the processor."""
    if kind == "cuda":
        return torch.cuda.get_device_name()
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of the library and of torch, whether they are installed or only on the path."""
    return {"likewise": str(import_module("likewise").__version__), "torch": str(torch.__version__)}
