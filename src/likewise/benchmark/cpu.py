"""Time and peak memory of a step on the CPU: memory in a process of its own, time in this one.

The peak resident size of a process that has lived is no measure of a step, so each is measured in a fresh one. They are
forked from a server that has loaded everything and computed nothing, which takes milliseconds and not the seconds that
loading takes; it runs with a small threshold for returning memory to the system, so that repeats agree.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, final

from likewise.benchmark.case import Case, Contender, Draw, leaves, run
from likewise.benchmark.contenders import find
from likewise.benchmark.meter import Failed, Peak

WARM_ROWS = 128
QUICK = 1.0  # seconds; a longer step needs no call before the first one that counts
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",  # a library's locks, which end with the server
}
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@final
class CpuMeter:
    """Measures steps on the CPU.

    Args:
        modules: What contenders import; loaded once, before anything is measured.
    """

    device, inputs = "cpu", 0

    def __init__(self, modules: Sequence[str] = ()) -> None:
        for module in modules:
            with suppress(Exception):  # a contender that cannot be loaded says so in its row
                import_module(module)
        self._server: Any = None
        if CLEAR.exists():  # elsewhere a process does not tell its peak
            self._server = multiprocessing.get_context("forkserver")
            self._server.set_forkserver_preload(["likewise.benchmark.cpu", *modules])
            with _settled():
                idle = self._server.Process()
                idle.start()
            idle.join()

    def peak(self, contender: Contender, case: Case) -> Peak:
        """Return the peak memory of a step over its inputs, and the seconds of that step, in a process of its own.

        Raises:
            Failed: The step raised, or was ended by the system.
        """
        if self._server is None:
            batch = contender.batch(Draw(case))
            return Peak(None, _seconds(contender.make(case), batch))
        here, there = multiprocessing.Pipe(duplex=False)
        process = self._server.Process(target=_measure, args=(contender.key, case, there))
        with _settled():
            process.start()
        there.close()
        try:
            found = here.recv()
        except EOFError:
            process.join()
            raise Failed(f"ended by the system with status {process.exitcode}") from None
        finally:
            process.kill()
            process.join()
        if isinstance(found, str):
            raise Failed(found)
        return found

    def turns(self, contender: Contender, case: Case, expected: float) -> Callable[[], float]:
        """Return what runs a step, made ready by now, and returns its seconds."""
        loss, batch = contender.make(case), contender.batch(Draw(case))
        if expected < QUICK:
            run(loss, batch)
        return lambda: _seconds(loss, batch)


def _seconds(loss: Callable[..., Any], batch: tuple[Any, ...]) -> float:
    for leaf in leaves(batch):
        leaf.grad = None
    start = time.perf_counter()
    loss(*batch).backward()
    return time.perf_counter() - start


@contextmanager
def _settled() -> Generator[None]:
    """Let the server start with its environment, and with Ctrl-C left to this process."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _measure(key: tuple[str, str, str], case: Case, there: Connection) -> None:
    """Measure in this process, and send what was found, or in words why not."""
    try:
        there.send(_peak(find(key, "cpu"), case))
    except Exception as error:  # noqa: BLE001 - whatever it is, the table tells it
        there.send(Failed.words(error))


def _peak(contender: Contender, case: Case) -> Peak:
    # what is compiled is compiled for its size
    small = case if contender.apart else case._replace(rows=min(case.rows, WARM_ROWS))
    loss = contender.make(case)
    run(loss if contender.apart else contender.make(small), contender.batch(Draw(small)))
    batch = contender.batch(Draw(case))
    CLEAR.write_text("5", encoding="utf-8")  # the peak starts again from what is resident now
    before = _resident("VmRSS")
    seconds = _seconds(loss, batch)
    return Peak(max(0, _resident("VmHWM") - before), seconds)


def _resident(field: str) -> int:
    """Return a resident size of this process in bytes, from the kernel's account."""
    lines = STATUS.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
