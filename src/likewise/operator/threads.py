"""Tiles in several threads: each call of torch runs on one, so that nobody waits for anybody at the end of a tile.

Torch shares a call among OpenMP threads, which meet at its end. A call on one tile is short, and where another process
holds a core each of them waits for the slowest. Here every worker takes a tile of its own, and tells OpenMP and MKL,
for itself alone, to use one thread. Both settings belong to the thread that makes them: no other thread notices, and
the caller's are put back. Where torch runs on no OpenMP library that is known how to tell, everything runs in the
caller's thread, as torch has it.
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

AHEAD = 4
"""How many tasks for each worker are looked at for one whose places are free."""


class Task(NamedTuple):
    """One tile of work, and the places that it writes to.

    Tasks that share a place run one after another, in the order in which they came: so whatever is added up at a place
    is added in the same order, and has the same bits, with any number of threads.
    """

    places: tuple[int, ...]
    arguments: tuple[Any, ...]


Work = Callable[..., None]


@cache
def _torch() -> ctypes.CDLL | None:
    """Return torch's own library, through which its OpenMP and MKL are reached, or None where that cannot be.

    Other libraries may have loaded an OpenMP of their own, which looks alike and would change nothing.
    """
    try:
        library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))))
        library.omp_set_num_threads.restype = None
        _ = library.omp_get_max_threads
    except (OSError, StopIteration, AttributeError):
        return None
    return library


def _set_mkl(library: ctypes.CDLL, threads: int) -> int:
    """Set the calling thread's MKL threads, 0 for the common number, and return what they were; 0 without MKL."""
    return library.MKL_Set_Num_Threads_Local(threads) if hasattr(library, "MKL_Set_Num_Threads_Local") else 0


def workers() -> int:
    """Return how many threads there are for tiles: as many as torch has for a call, or 1 where they cannot be told."""
    return 1 if _torch() is None else torch.get_num_threads()


@contextmanager
def alone() -> Generator[None]:
    """Let the calls of this thread run on one thread, and put its settings back afterwards."""
    library = _torch()
    torch.get_num_threads()  # torch sets up a thread when it first asks, which would undo what is set before
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
    """Tasks that several threads take, each when all earlier ones at its places are done."""

    def __init__(self, tasks: Iterable[Task], worker: Callable[[], Work], ahead: int) -> None:
        self.worker = worker
        self.changed = threading.Condition()
        self._busy: set[int] = set()  # the threads that are at a task
        self.error: BaseException | None = None
        self.inference = torch.is_inference_mode_enabled()
        self._coming = iter(tasks)
        self._ahead = ahead
        self._waiting: list[tuple[Task, tuple[int, ...]]] = []  # with how many tasks come before at each place
        self._asked: defaultdict[int, int] = defaultdict(int)
        self._done: defaultdict[int, int] = defaultdict(int)

    def run(self) -> None:
        """Take tasks until there are none, or one has failed."""
        work, task = None, None
        while True:
            try:
                if (task := self._next()) is None:
                    return
                work = work or self.worker()
                work(*task.arguments)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the caller raises it
                self.error = self.error or error
            with self.changed:
                for place in () if task is None else task.places:
                    self._done[place] += 1
                self._busy.discard(threading.get_ident())
                self.changed.notify_all()

    def _next(self) -> Task | None:
        with self.changed:
            while not self.error:
                for task in self._coming if len(self._waiting) < self._ahead else ():
                    self._waiting.append((task, tuple(self._asked[place] for place in task.places)))
                    for place in task.places:
                        self._asked[place] += 1
                    if len(self._waiting) >= self._ahead:
                        break
                if not self._waiting:
                    return None
                for k, (task, before) in enumerate(self._waiting):
                    if all(self._done[place] == count for place, count in zip(task.places, before, strict=True)):
                        del self._waiting[k]
                        self._busy.add(threading.get_ident())
                        return task
                self.changed.wait()
            return None

    def finish(self) -> None:
        """Wait for the tasks that other threads are at."""
        with self.changed:
            self._busy.discard(threading.get_ident())  # this one, which an interrupt may have taken from its task
            self.changed.notify_all()
            while self._busy:
                self.changed.wait()


class _Pool:
    """Threads that wait for jobs."""

    def __init__(self) -> None:
        self._called = threading.Condition()
        self._jobs: list[_Job] = []
        self._threads = 0

    def lend(self, job: _Job, count: int) -> None:
        """Let so many threads help at a job."""
        with self._called:
            for _ in range(count - self._threads):
                threading.Thread(target=self._serve, name="likewise-tiles", daemon=True).start()
                self._threads += 1
            self._jobs += [job] * count
            self._called.notify(count)

    def withdraw(self, job: _Job) -> None:
        """Let nobody begin to help any more."""
        with self._called:
            self._jobs = [other for other in self._jobs if other is not job]

    def _serve(self) -> None:
        torch.ones(1).exp_()  # torch sets up its thread before it is told to be alone
        with alone():
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
    global _pool  # noqa: PLW0603 - a forked process has none of its parent's threads
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remake)


def run(tasks: Iterable[Task], worker: Callable[[], Work], *, count: int) -> None:
    """Do all tasks in so many threads, this one among them.

    Args:
        tasks: What there is to do; those that share a place are done in this order.
        worker: Makes what a thread does tasks with, called once in each thread that does any: its buffers are its own.
        count: How many threads; 1: this one alone, with calls shared among OpenMP threads as torch has it.

    Raises:
        BaseException: What a task raised first; the others that were begun are finished, and no more are.
    """
    if count == 1:
        work = worker()
        for task in tasks:
            work(*task.arguments)
        return
    job, pool = _Job(tasks, worker, AHEAD * count), _pool
    pool.lend(job, count - 1)
    try:
        with alone():
            job.run()
    except BaseException as error:
        job.error = job.error or error  # an interrupt: nobody begins another task
        raise
    finally:
        pool.withdraw(job)
        job.finish()
    if job.error is not None:
        raise job.error
