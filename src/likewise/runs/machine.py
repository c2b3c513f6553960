"""The machine, its devices, and the versions that results depend on."""

import os
import platform
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path

import torch


def device_named(name: str) -> torch.device:
    """Return the named device, or the best available one for "auto"."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"expected a device that is there, got {name}: leave --device out, or cpu") from error


def device_name(device_type: str) -> str:
    """Return the name of the GPU for "cuda", else that of the processor."""
    if device_type == "cuda":
        return torch.cuda.get_device_name()
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 natively: NVIDIA's GPUs from Ampere, processors with AVX-512 or AMX.

    ONEDNN_MAX_CPU_ISA may limit a processor's instructions, as oneDNN documents.
    """
    if device.type == "cuda":
        return torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):  # torch before 2.10
        return False
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() or "ALL"
    has = torch.cpu.get_capabilities()
    within = any(name in limit for name in ("ALL", "DEFAULT", "BF16", "FP16", "AMX", "AVX10"))
    return within and any(bool(has.get(name)) for name in ("avx512_bf16", "amx_bf16"))


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of the library, installed or only on the path, and of torch, packages and Python."""
    ours = {"likewise": str(import_module("likewise").__version__), "torch": str(torch.__version__)}
    return ours | {name: metadata.version(name) for name in packages} | {"python": platform.python_version()}
