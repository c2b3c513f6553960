"""Time and peak memory of a step on the CPU: memory in a fresh process, time in this one.

The peak resident size of a process that has already computed something does not measure a step, so each step runs in a
fresh process. A server that has loaded everything and computed nothing forks them, which takes milliseconds instead of
the seconds that loading takes. The server returns memory to the system early, so that repeated measurements agree.
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
from unittest import mock

from benchmarks.measuring.case import Batch, Case, Contender, Failed, Peak, Sampler, forget, run

WARM_ROWS = 128
QUICK = 1.0  # seconds; a longer step needs no warm-up
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",  # about a library's locks, which end with the server
}
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

Contenders = Callable[[], list[Contender]]


@final
class CpuMeter:
    """Measures steps on the CPU, in elapsed time ("wall") or processor time ("cpu"), after loading the modules.

    Contenders cannot be pickled, so they are made again in each process.
    """

    device, inputs = "cpu", 0

    def __init__(self, contenders: Contenders, modules: Sequence[str] = (), clock: str = "wall") -> None:
        self._contenders, self._clock = contenders, clock
        for module in modules:
            with suppress(Exception):  # the contender reports the error in its row
                import_module(module)
        self._server: Any = None
        if CLEAR.exists():  # other systems do not report a process's peak
            self._server = multiprocessing.get_context("forkserver")
            self._server.set_forkserver_preload([__name__, contenders.__module__, *modules])
            with _settled():
                idle = self._server.Process()
                idle.start()
            idle.join()

    def peak(self, contender: Contender, case: Case) -> Peak:
        """Return the peak memory of a step beyond its inputs, and its seconds, measured in a fresh process."""
        if self._server is None:
            return Peak(None, _seconds(contender.make(case), contender.batch(Sampler(case)), self._clock))
        here, there = multiprocessing.Pipe(duplex=False)
        given = self._contenders, contender.key, case, self._clock, there
        process = self._server.Process(target=_measure, args=given)
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
        """Return a function that runs a step, warmed up, and returns its seconds."""
        step, batch = contender.make(case), contender.batch(Sampler(case))
        if expected < QUICK:
            run(step, batch)
        return lambda: _seconds(step, batch, self._clock)


def _seconds(step: Callable[..., Any], batch: Batch, clock: str) -> float:
    forget(batch)
    now = CLOCKS[clock]
    start = now()
    run(step, batch)
    return now() - start


@contextmanager
def _settled() -> Generator[None]:
    """Start the server with its environment, and leave Ctrl-C to this process."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with mock.patch.dict(os.environ, ENVIRONMENT):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _measure(contenders: Contenders, key: tuple[str, str, str], case: Case, clock: str, there: Connection) -> None:
    try:
        found = _peak(next(each for each in contenders() if each.key == key), case, clock)
    except Exception as error:  # noqa: BLE001 - whatever it is, the table shows it
        found = Failed.words(error)
    with suppress(BrokenPipeError):  # nobody waits for it after Ctrl-C
        there.send(found)


def _peak(contender: Contender, case: Case, clock: str) -> Peak:
    step = contender.make(case)
    # compiled code is compiled for one size
    small = case if contender.apart else case._replace(rows=min(case.rows, WARM_ROWS))
    run(step if contender.apart else contender.make(small), contender.batch(Sampler(small)))
    batch = contender.batch(Sampler(case))
    CLEAR.write_text("5", encoding="utf-8")  # resets the peak to the present size
    before = _resident("VmRSS")
    seconds = _seconds(step, batch, clock)
    return Peak(max(0, _resident("VmHWM") - before), seconds)


def _resident(field: str) -> int:
    """Return a resident size of this process in bytes, as the kernel reports it."""
    lines = STATUS.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
