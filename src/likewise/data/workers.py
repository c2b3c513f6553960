"""Worker processes that read inputs which are not in memory."""

import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import TypeVar

from torch.utils.data import DataLoader, Dataset

T = TypeVar("T")
# of the temporary folder, in which workers put sockets with names of 32 characters; 104 may be bound
MAX_PATH_LENGTH = 70
MAX_WORKERS = 8
FULL_MEMORY_ERRORS = (
    "Bus error",
    "out of shared memory",
    "unable to write to file </torch",
    "unable to allocate shared memory",
)
"""Parts of PyTorch's errors when shared memory is full."""


def fetch(items: Dataset[T], workers: int, *, pinned: bool = False) -> Iterator[T]:
    """Return items in their order, made by workers ahead of time, or one by one where there are none."""
    folder = tempfile.gettempdir()
    if workers and sys.platform != "win32" and len(folder) > MAX_PATH_LENGTH:
        got = f"{folder}: set TMPDIR to a shorter one, such as /tmp"
        raise ValueError(f"expected a temporary folder of a path of at most {MAX_PATH_LENGTH} characters, got {got}")
    return _each(DataLoader(items, batch_size=None, num_workers=workers, pin_memory=pinned, worker_init_fn=_outlive))


def _each(loader: DataLoader[T]) -> Iterator[T]:
    try:
        yield from loader
    except RuntimeError as error:
        text = f"{error} {error.__cause__} {error.__context__}"
        if not any(message in text for message in FULL_MEMORY_ERRORS):
            raise
        remedy = "give a container more, as with --shm-size 16g or --ipc host, or take fewer --workers"
        expected = f"expected shared memory for what workers read, got too little in /dev/shm: {remedy}"
        raise ValueError(expected) from error


def _outlive(_: int) -> None:
    """Ignore SIGTERM in workers: the main process ends them after it has saved."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
