"""Triton's own dispatch and launcher on a driver that computes nothing: the host's side of a step, without a GPU.

Tensors are the CPU's, and kernels are compiled as for an H100; what would run them is `stub_driver.c`, which
Triton takes for libcuda. What comes out is whatever memory holds. For processes of their own: Triton keeps the driver.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

SOURCE = Path(__file__).with_suffix(".c")
CAPABILITY, MULTIPROCESSORS = 90, 132
STREAM = 7
"""What the driver calls its current stream: not the default one, 0."""


class Launch(NamedTuple):
    """What Triton's launcher was given."""

    kernel: str
    compiled: int
    """The identity of what was compiled."""
    grid: tuple[int, ...]
    stream: int
    arguments: tuple[Any, ...]
    """Tensors, numbers, tuples of them, and constants of the compilation."""


class Stub(NamedTuple):
    """The driver in the place of libcuda."""

    library: Any
    record: list[Launch]

    @property
    def launches(self) -> int:
        """How many launches came as far as the library."""
        return self.library.launches()


def missing() -> str | None:
    """Return why there can be no stub here, or None."""
    if find_spec("triton") is None:
        return "Triton is not installed: it has no wheel for this platform"
    if torch.cuda.is_available():
        return "a GPU's own driver is here"
    return None if _compiler() else "no C compiler is here, which Triton's launcher needs, too"


def _compiler() -> str | None:
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")


@contextmanager
def installed(*, recorded: bool = False) -> Generator[Stub]:
    """Launch on the stub what backend="triton" launches, of CPU tensors; recorded if asked for, which takes time."""
    if (why := missing()) is not None:
        raise ValueError(f"expected what a stub driver needs, got none: {why}")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        library = Path(folder) / "libcuda.so.1"
        command = [_compiler() or "", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{library.name}", "-o", str(library)]
        subprocess.run([*command, str(SOURCE)], check=True)  # noqa: S603 - the compiler that Triton takes
        library.with_suffix("").symlink_to(library)  # by which Triton 3.4 and 3.5 link
        stack.enter_context(mock.patch.dict(os.environ, TRITON_LIBCUDA_PATH=folder))
        stub = Stub(ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL), [])
        _activate(stub.record, recorded=recorded)
        for patch in _pretences():
            stack.enter_context(patch)
        yield stub


def _pretences() -> list[Any]:
    """Return patches with which the library takes the CPU for a GPU, where it asks what it runs on."""
    from likewise.losses import inputs  # noqa: PLC0415 - only where Triton is
    from likewise.operator import backends  # noqa: PLC0415 - likewise
    from likewise.operator.triton import fused, operands, tuning  # noqa: PLC0415 - likewise

    gpu, precision = torch.device("cuda"), operands.precision
    instead = {  # plain functions: a mock's own work would count as the step's
        (backends, "no_triton"): lambda _: None,
        (fused, "precision"): lambda half, _: precision(half, gpu),
        (tuning, "capability"): lambda _: CAPABILITY,
        (tuning, "multiprocessors"): lambda _: MULTIPROCESSORS,
        (inputs, "check_finite"): lambda *_: None,  # of a GPU, values are not looked at
    }
    return [mock.patch.object(module, name, function) for (module, name), function in instead.items()]


def _activate(record: list[Launch], *, recorded: bool) -> None:
    """Make Triton's driver for NVIDIA GPUs one that has an H100."""
    import triton  # noqa: PLC0415 - only where it is
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415 - likewise
    from triton.backends.nvidia import driver  # noqa: PLC0415 - likewise

    class Launcher(driver.CudaLauncher):
        def __init__(self, source: Any, metadata: Any) -> None:
            super().__init__(source, metadata)
            self.name = source.fn.__name__

        def __call__(self, *given: Any) -> None:
            x, y, z, stream, _, _, _, _, _, *arguments = given
            record.append(Launch(self.name, id(self), (x, y, z), stream, tuple(arguments)))
            super().__call__(*given)

    class Driver(driver.CudaDriver):
        def __init__(self) -> None:
            self.utils = driver.CudaUtils()
            self.launcher_cls = Launcher if recorded else driver.CudaLauncher
            self.get_current_device, self.get_current_stream = lambda: 0, lambda _=0: STREAM
            self.get_device_capability = lambda _=0: divmod(CAPABILITY, 10)

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", CAPABILITY, 32)

    triton.runtime.driver.set_active(Driver())
