"""What one start keeps for the next, in a folder of the user's cache: arrays, each file written whole or not at all."""

import hashlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likewise.files.formats import PARTIAL
from likewise.files.waiting import waited_for

POLLED, LONGEST_WAIT = 0.1, 600.0  # seconds
ODD = ("utf-8", "surrogateescape")  # of names that are no text


def folder() -> Path:
    """Return LIKEWISE_CACHE, or a folder of the user's cache; a RuntimeError says that nobody's home is known."""
    if given := os.environ.get("LIKEWISE_CACHE"):
        return Path(given).expanduser()
    usual = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    return Path(os.environ.get(usual) or Path.home() / ".cache") / "likewise"


def place_of(kind: str, said: str) -> Path:
    """Return the file of a kind that is kept for what is said, such as paths; for errors see `folder`."""
    return folder() / f"{kind}-{hashlib.sha256(said.encode(*ODD)).hexdigest()[:32]}.npz"


def packed(words: Sequence[str]) -> NDArray[np.uint8]:
    """Return words, none of which has NUL in it, as one array."""
    return np.frombuffer("".join(f"\0{word}" for word in words).encode(*ODD), dtype=np.uint8)


def unpacked(words: NDArray[np.uint8]) -> list[str]:
    """Return the words of `packed`."""
    return bytes(words).decode(*ODD).split("\0")[1:]


def save(place: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays into a file, which takes its place when it is whole; after an OSError the old one is still there."""
    beside = place.with_suffix(PARTIAL)
    try:
        with beside.open("wb") as file:
            np.savez(file, **arrays)
        beside.replace(place)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise


def save_or_warn(place: Path, arrays: Mapping[str, Any], what: str) -> None:
    """Write arrays as `save` does; a warning says what is read again next time if that fails."""
    try:
        save(place, arrays)
    except OSError as error:
        why = error.strerror or type(error).__name__
        remedy = "LIKEWISE_CACHE names another folder"
        warnings.warn(f"{what} are read again next time, as {place.parent} takes none ({why}): {remedy}", stacklevel=2)


@contextmanager
def alone(place: Path, doing: str, longest: float | None = None) -> Generator[None]:
    """Let one process at a time make a file, where there are locks; one that waits too long goes on without."""
    file: Any = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        import fcntl  # noqa: PLC0415 - not on Windows

        file = place.with_suffix(".lock").open("w")
        lock = partial(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for _ in waited_for(_until_locked(lock, LONGEST_WAIT if longest is None else longest), doing):
            time.sleep(POLLED)
    except (ImportError, OSError):
        pass  # what cannot be kept is told when it is saved
    try:
        yield
    finally:
        if file is not None:
            file.close()


def _until_locked(lock: Callable[[], None], longest: float) -> Iterator[None]:
    until = time.monotonic() + longest
    while time.monotonic() < until:
        try:
            return lock()
        except BlockingIOError:
            yield
