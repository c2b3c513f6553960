"""`likewise --version`: the environment, for bug reports, without importing torch."""

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version

from likewise import __version__

PACKAGES = ("torch", "lightning", "torchvision", "timm", "datasets", "transformers", "onnxruntime", "triton")


def version_text() -> str:
    """Return the versions of likewise, Python and its dependencies, the platform, and NVIDIA's GPUs."""
    lines = [f"likewise {__version__}", f"Python {platform.python_version()}, {platform.platform()}"]
    installed = []
    for name in PACKAGES:
        try:
            installed.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return "\n".join([*lines, ", ".join(installed), f"GPU: {_gpus()}"])


def _gpus() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "none of NVIDIA (nvidia-smi not found)"
    command = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603 - fixed
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi fails: {error}"
    return "; ".join(done.stdout.split("\n")).strip("; ")
