"""The memory that a command's process keeps: blocks that were freed stay with it, since the next step needs them again.

glibc gives blocks above 128 KiB to 32 MiB back to the system as they are freed, and the system clears each page before
it is used again: up to half of the time of a training or of encoding on a CPU. With higher thresholds a process keeps
what it had at its largest until it ends. `LIKEWISE_KEEP_MEMORY=0`, or any of glibc's own settings, leaves it as it is.
"""

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt's names of them, in malloc.h
MAX_BYTES = 2**30, 2**31 - 1  # bytes: of a block in the heap, and of free memory at its end
GLIBC_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_memory() -> bool:
    """Raise glibc's thresholds for this process and those it forks; return whether they were raised."""
    if os.environ.get("LIKEWISE_KEEP_MEMORY") == "0" or any(name in os.environ for name in GLIBC_SETTINGS):
        return False
    try:
        library = ctypes.CDLL(None)
        mallopt, _ = library.mallopt, library.gnu_get_libc_version
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    block, end = MAX_BYTES
    return bool(mallopt(MMAP_THRESHOLD, block) and mallopt(TRIM_THRESHOLD, end))
