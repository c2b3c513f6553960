"""What the headers of image files say, kept from one start to the next."""

import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from likewise.files.waiting import waited_for

T = TypeVar("T")
R = TypeVar("R")
FEWEST = 1000  # headers that are worth keeping
AHEAD = 256  # files that threads read before they are asked for
FORMAT = 1  # of what is kept; another one is read anew
PARTIAL = ".partial"
ODD = ("utf-8", "surrogateescape")  # of names that are no text


class Header(NamedTuple):
    """What the header of an image file says."""

    grey: bool
    kind: str
    size: tuple[int, int]
    """Height and width, in pixels."""


def headers_of(paths: Sequence[str | None], read: Callable[[int], Header | None], how: str) -> list[Header | None]:
    """Return what the headers of images say, read in threads; None of one that cannot be read.

    Of files it is kept in the user's cache folder, by path, time of change and length: a second start looks at these
    alone, and reads what is new. Of several processes that start at once one reads. Where nothing can be kept, a
    warning says why, and all is read.

    Args:
        paths: Where each image is; None of one that is no file of its own, of which nothing is kept.
        read: Reads one, by its number.
        how: What else it depends on: what was read in another way is kept apart.

    Memory:
        100 bytes an image, while it runs, and what is returned.
    """
    files = [row for row, path in enumerate(paths) if path is not None]
    if len(files) < FEWEST:
        return list(_read(range(len(paths)), read))
    names = [os.path.abspath(str(paths[row])) for row in files]  # noqa: PTH100 - ten times as fast as Path
    place = _place(names, how)
    found: list[Header | None] = [None] * len(paths)
    with _alone(place):
        states = _states(names)
        known = _Kept.of(place, names, states)
        for row, header in zip(files, known, strict=True):
            found[row] = header
        unknown = [row for row, header in enumerate(found) if header is None]
        for row, header in zip(unknown, _read(unknown, read), strict=True):
            found[row] = header
        if unknown:
            _Kept.save(place, names, states, [found[row] for row in files])
    return found


def folder() -> Path:
    """Return where headers are kept: LIKEWISE_CACHE, or a folder of the user's cache."""
    if given := os.environ.get("LIKEWISE_CACHE"):
        return Path(given).expanduser()
    usual = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    return Path(os.environ.get(usual) or Path.home() / ".cache") / "likewise"


def in_threads(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield a function's results in order, computed in threads, a chunk ahead at most."""
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(items), AHEAD):
            yield from pool.map(function, items[start : start + AHEAD])


def _read(rows: Sequence[int], read: Callable[[int], Header | None]) -> Iterator[Header | None]:
    for _, header in zip(waited_for(rows, "reading sizes of images"), in_threads(read, rows), strict=True):
        yield header


def _place(names: Sequence[str], how: str) -> Path:
    """Return the file that headers of some files are kept in: one for all that lie below the same folder."""
    root = os.path.commonpath([min(names), max(names)])  # what the first and the last share, all share
    return folder() / f"headers-{hashlib.sha256(f'{FORMAT} {how} {root}'.encode(*ODD)).hexdigest()[:32]}.npz"


def _states(names: Sequence[str]) -> NDArray[np.int64]:
    """Return when each file was changed last, in ns, and its length in bytes, (n, 2); -1 of one that is not there."""
    states = np.full((len(names), 2), -1, dtype=np.int64)
    for row, name in enumerate(names):
        with suppress(OSError, ValueError):
            state = os.stat(name)  # noqa: PTH116 - likewise
            states[row] = state.st_mtime_ns, state.st_size
    return states


class _Kept:
    """Headers in a file: names, states, and what was read."""

    @staticmethod
    def of(place: Path, names: Sequence[str], states: NDArray[np.int64]) -> list[Header | None]:
        """Return what is kept of files that are as they were; None of others."""
        try:
            with place.open("rb") as file, np.load(file) as kept:
                before = bytes(kept["names"]).decode(*ODD).split("\0")
                known, sizes, kinds, grey = (kept[name] for name in ("states", "sizes", "kinds", "grey"))
                words = bytes(kept["words"]).decode().split("\0")
        except Exception:  # noqa: BLE001 - what is not there, or is damaged, is read anew
            return [None] * len(names)
        if before == names:
            rows = np.arange(len(names))
        else:
            numbers = {name: number for number, name in enumerate(before)}
            rows = np.array([numbers.get(name, -1) for name in names])
        same = (rows >= 0) & (states[:, 0] >= 0) & (known[rows] == states).all(axis=1) & (kinds[rows] >= 0)
        columns = (of[rows].tolist() for of in (grey, kinds, sizes))
        return [
            Header(is_grey, words[kind], (size[0], size[1])) if one else None
            for one, is_grey, kind, size in zip(same.tolist(), *columns, strict=True)
        ]

    @staticmethod
    def save(place: Path, names: Sequence[str], states: NDArray[np.int64], found: Sequence[Header | None]) -> None:
        """Write the headers of files, those that could not be read as unknown; a warning says if that fails."""
        words = list(dict.fromkeys(header.kind for header in found if header is not None))
        numbers = {word: number for number, word in enumerate(words)}
        arrays: dict[str, Any] = {
            "names": np.frombuffer("\0".join(names).encode(*ODD), dtype=np.uint8),
            "states": states,
            "sizes": np.array([(0, 0) if header is None else header.size for header in found], dtype=np.int32),
            "kinds": np.array([-1 if header is None else numbers[header.kind] for header in found], dtype=np.int16),
            "grey": np.array([header is not None and header.grey for header in found]),
            "words": np.frombuffer("\0".join(words).encode(), dtype=np.uint8),
        }
        partial = place.with_suffix(PARTIAL)
        try:
            with partial.open("wb") as file:
                np.savez(file, **arrays)
            partial.replace(place)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            _warn(place, error)


@contextmanager
def _alone(place: Path) -> Generator[None]:
    """Let one process at a time read headers, where there are locks; one that cannot lock goes on without."""
    file: Any = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        import fcntl  # noqa: PLC0415 - not on Windows

        file = place.with_suffix(".lock").open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
    except (ImportError, OSError):
        pass  # what cannot be kept is told when it is saved
    try:
        yield
    finally:
        if file is not None:
            file.close()


def _warn(place: Path, error: OSError) -> None:
    why = error.strerror or type(error).__name__
    remedy = "LIKEWISE_CACHE names another folder"
    warnings.warn(
        f"sizes of images are read again next time, as {place.parent} takes none ({why}): {remedy}", stacklevel=2
    )
