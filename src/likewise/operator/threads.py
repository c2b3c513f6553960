"""A thread pool for tiles: each torch call runs on a single thread, and no thread waits at the end of a tile.

Torch splits a call among OpenMP threads, which synchronise at its end. A call on one tile is short, and if another
process holds a core, all threads wait for the slowest. Here every worker takes its own tile and sets OpenMP and MKL to
one thread for itself only. Both settings are local to the thread: other threads are not affected, and the caller's
settings are restored. If torch's OpenMP library cannot be configured this way, everything runs in the caller's thread,
as usual in torch.
"""

import ctypes
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

TASKS_AHEAD = 4
"""Number of tasks per worker among which to look for one that can start."""


class Task(NamedTuple):
    """One tile of work, and the places it writes to.

    Tasks that share a place run one after another in their original order. Additions to a place thus happen in the same
    order, and give the same bits, with any number of threads.
    """

    places: tuple[int, ...]
    arguments: tuple[Any, ...]


Work = Callable[..., None]


@cache
def _torch() -> ctypes.CDLL | None:
    """Return torch's own library with its OpenMP and MKL, or None; other copies of these would not affect torch."""
    try:
        library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))))
        library.omp_set_num_threads.restype = None
        _ = library.omp_get_max_threads
    except (OSError, StopIteration, AttributeError):
        return None
    return library


def _set_mkl(library: ctypes.CDLL, threads: int) -> int:
    """Set the calling thread's number of MKL threads, 0 for the global one; return the old number, 0 without MKL."""
    return library.MKL_Set_Num_Threads_Local(threads) if hasattr(library, "MKL_Set_Num_Threads_Local") else 0


def workers() -> int:
    """Return the number of threads for tiles: torch's own number, or 1 if threads cannot be configured."""
    return 1 if _torch() is None else torch.get_num_threads()


@contextmanager
def single_threaded() -> Generator[None]:
    """Run the torch calls of this thread single-threaded, and restore its settings afterwards."""
    library = _torch()
    torch.get_num_threads()  # torch configures a thread on the first query, which would undo earlier settings
    if library is None or (before := library.omp_get_max_threads()) == 1:
        yield
        return
    library.omp_set_num_threads(1)
    of_mkl = _set_mkl(library, 1)
    try:
        yield
    finally:
        library.omp_set_num_threads(before)
        _set_mkl(library, of_mkl)


class _Job:
    """Tasks shared by several threads; each starts when all earlier ones at its places are done."""

    def __init__(self, tasks: Iterable[Task], worker: Callable[[], Work], ahead: int) -> None:
        self.worker = worker
        self.changed = threading.Condition()
        self._busy: set[int] = set()  # the threads that are running a task
        self.error: BaseException | None = None
        self.inference = torch.is_inference_mode_enabled()
        self._coming = iter(tasks)
        self._ahead = ahead
        self._waiting: list[tuple[Task, tuple[int, ...]]] = []  # with the number of earlier tasks at each place
        self._queued: defaultdict[int, int] = defaultdict(int)
        self._done: defaultdict[int, int] = defaultdict(int)

    def run(self) -> None:
        work, task = None, None
        while True:
            try:
                if (task := self._next()) is None:
                    return
                work = work or self.worker()
                work(*task.arguments)
            except BaseException as error:  # noqa: BLE001 - the caller raises it, whatever it is
                self.error = self.error or error
            with self.changed:
                for block in () if task is None else task.places:
                    self._done[block] += 1
                self._busy.discard(threading.get_ident())
                self.changed.notify_all()

    def _next(self) -> Task | None:
        with self.changed:
            while not self.error:
                for task in self._coming if len(self._waiting) < self._ahead else ():
                    self._waiting.append((task, tuple(self._queued[block] for block in task.places)))
                    for block in task.places:
                        self._queued[block] += 1
                    if len(self._waiting) >= self._ahead:
                        break
                if not self._waiting:
                    return None
                for k, (task, before) in enumerate(self._waiting):
                    if all(self._done[block] == count for block, count in zip(task.places, before, strict=True)):
                        del self._waiting[k]
                        self._busy.add(threading.get_ident())
                        return task
                self.changed.wait()
            return None

    def finish(self) -> None:
        with self.changed:
            self._busy.discard(threading.get_ident())  # an interrupt may have stopped this thread in a task
            self.changed.notify_all()
            while self._busy:
                self.changed.wait()


class _Pool:
    def __init__(self) -> None:
        self._called = threading.Condition()
        self._jobs: list[_Job] = []
        self._threads = 0

    def lend(self, job: _Job, count: int) -> None:
        with self._called:
            for _ in range(count - self._threads):
                threading.Thread(target=self._serve, name="likewise-tiles", daemon=True).start()
                self._threads += 1
            self._jobs += [job] * count
            self._called.notify(count)

    def withdraw(self, job: _Job) -> None:
        with self._called:
            self._jobs = [other for other in self._jobs if other is not job]

    def _serve(self) -> None:
        torch.ones(1).exp_()  # torch configures the thread before `single_threaded` changes it
        with single_threaded():
            while True:
                with self._called:
                    while not self._jobs:
                        self._called.wait()
                    job = self._jobs.pop()
                with torch.inference_mode(job.inference), torch.no_grad():
                    job.run()
                del job


_pool = _Pool()


def _remake() -> None:
    global _pool  # noqa: PLW0603 - a forked process does not inherit threads
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remake)


def run(tasks: Iterable[Task], worker: Callable[[], Work], *, count: int) -> None:
    """Run all tasks in ``count`` threads, including this one; if it is the only one, with torch's own OpenMP threads.

    ``worker``, called once in each thread, creates the function that runs tasks: each thread has its own buffers. After
    an error no further task is started, and the error is raised when all running tasks are finished.
    """
    if count == 1:
        work = worker()
        for task in tasks:
            work(*task.arguments)
        return
    job, pool = _Job(tasks, worker, TASKS_AHEAD * count), _pool
    pool.lend(job, count - 1)
    try:
        with single_threaded():
            job.run()
    except BaseException as error:
        job.error = job.error or error  # an interrupt: no thread starts another task
        raise
    finally:
        pool.withdraw(job)
        job.finish()
    if job.error is not None:
        raise job.error
