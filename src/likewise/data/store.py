"""A store: the images of a set, resized once and kept on disk as pixels, so that no training decodes them again."""

import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from likewise.data.headers import Header, in_threads
from likewise.data.kept import alone, place_of, save
from likewise.files.waiting import waited_for

WAITING = "waiting for another start, which stores images"
FORMAT = 2  # of what is kept; another one is made anew
BETWEEN = 1000  # images after which what is done is noted
Pixels = NDArray[np.uint8]


@final
class Store(Sequence[Pixels | None]):
    """Pixels of images, (height, width) or (height, width, 3), mapped from a file; None of one that cannot be read.

    The file has those of all images, one after the other; shapes are height, width and channels, (n, 3), 0 of one that
    cannot be read. That is 20 bytes an image; what is mapped is not pickled.
    """

    def __init__(self, file: Path, shapes: NDArray[np.int32]) -> None:
        self.file, self.shapes = file, shapes
        self._ends = shapes.astype(np.int64).prod(axis=1).cumsum()
        self._pixels: Any = None

    def __len__(self) -> int:
        return len(self.shapes)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pixels": None}

    def __getitem__(self, row: Any) -> Any:
        height, width, channels = self.shapes[row].tolist()
        if channels == 0:
            return None
        if self._pixels is None:
            self._pixels = np.memmap(self.file, np.uint8, "r")
        end = int(self._ends[row])
        pixels = np.asarray(self._pixels[end - height * width * channels : end])
        return pixels.reshape((height, width) if channels == 1 else (height, width, channels))


def stored(
    names: Sequence[str],
    states: NDArray[np.int64],
    headers: Sequence[Header | None],
    read: Callable[[int], Pixels | None],
    side: int,
    *,
    how: Any = None,
) -> Store:
    """Return the store of images, which is made if it isn't there, or as far as it isn't; one process makes it.

    Args:
        names: Where each image is.
        states: As `states_of` returns them, (n, 2): of others a store of their own is made.
        headers: What their headers say.
        read: Decodes one, by its number, as it is to be kept; None if that fails. It is called in threads.
        side: The shorter side of what is kept, in pixels.
        how: What else it depends on: what was read in another way is kept apart.

    Raises:
        ValueError: It can't be written, or there is too little room for it.
    """
    try:
        place = place_of("store", "\0".join([f"{FORMAT} {side} {how} {states.tolist()}", *names]))
        place.parent.mkdir(parents=True, exist_ok=True)
        with alone(place, WAITING, math.inf):  # it may take hours, and two would write into one file
            return _made(place, headers, read, side)
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"expected room for {_words(bytes_of(headers, side))} of data.store, got none ({why}): LIKEWISE_CACHE "
            "names another folder, and what is done is kept"
        ) from error


def _made(place: Path, headers: Sequence[Header | None], read: Callable[[int], Pixels | None], side: int) -> Store:
    file, shapes = place.with_suffix(".pixels"), np.zeros((len(headers), 3), np.int32)
    done = _done(place, file)
    if len(done) == len(headers):
        return Store(file, done)
    shapes[: len(done)] = done
    begun, needed = int(done.astype(np.int64).prod(axis=1).sum()), bytes_of(headers, side)
    free = shutil.disk_usage(place.parent).free
    if needed - begun > free:
        raise ValueError(
            f"expected {_words(needed)} on disk for data.store, got {_words(free)} in {place.parent}: free some, "
            "LIKEWISE_CACHE names another folder, or give a smaller store"
        )
    left = range(len(done), len(headers))
    with file.open("r+b" if file.exists() else "w+b") as pixels:
        pixels.seek(begun)
        doing = f"storing {_words(needed)} of images"
        for row, found in zip(waited_for(left, doing), in_threads(read, left), strict=True):
            if found is not None:
                shapes[row] = (*found.shape, 1)[:3]
                pixels.write(np.ascontiguousarray(found).tobytes())
            if (row + 1) % BETWEEN == 0 or row + 1 == len(headers):
                pixels.flush()
                os.fsync(pixels.fileno())
                save(place, {"shapes": shapes[: row + 1]})
    return Store(file, shapes)


def _done(place: Path, file: Path) -> NDArray[np.int32]:
    none = np.zeros((0, 3), np.int32)
    try:
        with np.load(place) as kept:
            shapes = kept["shapes"]
        return shapes if file.stat().st_size >= int(shapes.astype(np.int64).prod(axis=1).sum()) else none
    except Exception:  # noqa: BLE001 - a damaged file can raise anything
        return none


def size_in_store(height: int, width: int, side: int) -> tuple[int, int]:
    """Return height and width of an image in a store: it is never enlarged.

    Example:
        >>> size_in_store(300, 600, 256), size_in_store(100, 50, 256)
        ((256, 512), (100, 50))
    """
    scale = min(1.0, side / min(height, width))
    return round(height * scale), round(width * scale)


def bytes_of(headers: Sequence[Header | None], side: int) -> int:
    """Return how large a store is."""
    known = (header for header in headers if header is not None)
    return sum(math.prod(size_in_store(*header.size, side)) * (1 if header.grey else 3) for header in known)


def _words(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"
