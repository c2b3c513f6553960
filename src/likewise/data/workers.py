"""Worker processes that read inputs which are not in memory."""

import signal
import sys
import tempfile
from typing import TypeVar

from torch.utils.data import DataLoader, Dataset

T = TypeVar("T")
LONGEST_PATH = 70  # of the temporary folder, in which workers put sockets with names of 32 characters; 104 may be bound
MOST_WORKERS = 8


def fetched(items: Dataset[T], workers: int, *, pinned: bool = False) -> DataLoader[T]:
    """Return a loader of items in their order, made by workers ahead of time, or one by one where there are none.

    Raises:
        ValueError: Workers could send nothing, which PyTorch would wait for without end.
    """
    folder = tempfile.gettempdir()
    if workers and sys.platform != "win32" and len(folder) > LONGEST_PATH:
        raise ValueError(
            f"expected a temporary folder whose path has at most {LONGEST_PATH} characters, got {folder}: set TMPDIR "
            "to a shorter one, such as /tmp"
        )
    return DataLoader(items, batch_size=None, num_workers=workers, pin_memory=pinned, worker_init_fn=_outlive)


def _outlive(_: int) -> None:
    """Ignore SIGTERM in workers: the main process ends them after it has saved."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
