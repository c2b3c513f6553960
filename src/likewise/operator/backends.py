"""The choice of backend and precision, made in one place: the only module that knows all backends."""

import importlib.util
import os
from functools import cache
from importlib import import_module
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from likewise.operator import tiled, whole
from likewise.operator.function import Engine

Backend = Literal["auto", "dense", "tiled", "triton"]
BACKENDS = get_args(Backend)

TRITON = 3, 4
"""The oldest Triton version that supports the kernels."""

AMPERE = 8, 0
"""The oldest compute capability with bfloat16 tensor cores."""


def check_backend(backend: object, device: torch.device, dtype: torch.dtype) -> None:
    """Raise unless a backend is known and, if it is "triton", can run on the device in the dtype."""
    if backend not in BACKENDS:
        raise ValueError(f"expected backend to be one of {', '.join(BACKENDS)}, got {backend!r}: try auto")
    if backend != "triton":
        return
    why = no_triton(device)
    if why is None and dtype == torch.float64:
        why = "kernels need float32 or half precision, got float64"
    if why is not None:
        raise ValueError(f'backend="triton" cannot run here: {why}; use "auto" or "tiled", which run anywhere')


def half_of(backend: Backend, *rows: Tensor) -> torch.dtype | None:
    """Return the half precision in which kernels multiply rows, or None for float32, and where no kernel does.

    Rows that all have the same half precision are multiplied in it. float32 is rounded to bfloat16 only if
    ``torch.set_float32_matmul_precision("medium")`` was called. The backend has been checked.
    """
    return kernels().half_of({v.dtype for v in rows}) if backend == "triton" else None


@cache
def triton_is_missing() -> str | None:
    """Return why the Triton of this environment cannot be used, or None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    version = import_module("triton").__version__  # builds of torch bring it under other names of a distribution
    if tuple(int(part) for part in version.split(".")[:2]) < TRITON:
        return f"Triton {TRITON[0]}.{TRITON[1]} or newer is needed, got {version} (pip install -U triton)"
    return None


def no_triton(device: torch.device) -> str | None:
    """Return why no kernel can run on a device, or None if they can; Triton's interpreter can run them on the CPU."""
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return triton_is_missing()
    if device.type != "cuda" or torch.version.hip is not None:
        return f"kernels need tensors on an NVIDIA GPU, got {device.type} (TRITON_INTERPRET=1 interprets them on a CPU)"
    return _no_kernels_on(device)


@cache
def _no_kernels_on(device: torch.device) -> str | None:
    """Return why no kernel can run on a GPU, or None; once for each, since torch takes its time to ask."""
    if (capability := torch.cuda.get_device_capability(device)) < AMPERE:
        return (
            f"kernels need compute capability {AMPERE[0]}.{AMPERE[1]} or newer, "
            f"got {capability[0]}.{capability[1]}, {torch.cuda.get_device_name(device)}"
        )
    return triton_is_missing()


@cache
def kernels() -> Any:
    """Return the module of the kernels, imported only when it is chosen."""
    return import_module("likewise.operator.triton")


EXCHANGES = "", "tiled", "kernels"


def exchange_of(backend: Backend) -> int:
    """Return which of `EXCHANGES` a backend takes part in where rows are part of the references; see `LocalAnchors`.

    0, none, works out no whole gradients.
    """
    engine = engine_of(backend)
    return EXCHANGES.index("") if engine is None else EXCHANGES.index("tiled" if engine is tiled else "kernels")


def engine_of(backend: Backend, *, is_small: bool = False) -> Engine | None:
    """Return the engine of a backend, for "auto" one matrix or tiles; None for "dense", the plain formula."""
    if backend == "dense":
        return None
    if backend == "auto" and is_small:
        return whole
    return kernels() if backend == "triton" else tiled
