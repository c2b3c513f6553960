"""What the headers of image files say, kept from one start to the next."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from likewise.data.kept import alone, packed, place_of, save_or_warn, unpacked
from likewise.files.waiting import waited_for

T = TypeVar("T")
R = TypeVar("R")
FEWEST = 1000  # headers that are worth keeping
AHEAD = 256  # files that threads read before they are asked for
TOGETHER = 32  # headers that one thread reads: in memory they take 40 µs each
FORMAT = 3  # of what is kept; another one is read anew
MOST_OTHERS = 4  # times as many files of the same folder as a start reads
WHAT = "sizes of images"
DOING, WAITING = f"reading {WHAT}", f"waiting for another start, which reads {WHAT}"


class Header(NamedTuple):
    """What the header of an image file says."""

    grey: bool
    kind: str
    size: tuple[int, int]
    """Height and width, in pixels."""


def headers_of(
    paths: Sequence[str | None], item: Callable[[int], T], read: Callable[[T], Header | None], how: str
) -> list[Header | None]:
    """Return what the headers of images say, read in threads; None of one that cannot be read.

    Of files it is kept in the user's cache folder, by path, time of change and length: a second start looks at these
    alone, and reads what is new. Of several processes that start at once one reads. Where nothing can be kept, a
    warning says why, and all is read.

    Args:
        paths: Where each image is: a file; of one within a file, that, NUL, and its place there; or None, of which
            nothing is kept.
        item: Returns what is read of one, by its number.
        read: Reads it, in a thread.
        how: What else it depends on: what was read in another way is kept apart.
    """
    files = [row for row, path in enumerate(paths) if path is not None]
    given = [str(paths[row]) for row in files]
    names = [os.path.abspath(path.replace("\0", "/", 1)) for path in given]  # noqa: PTH100 - ten times as fast as Path
    place = _place(names, how) if len(files) >= FEWEST else None
    if place is None:
        return list(_read(range(len(paths)), item, read))
    found: list[Header | None] = [None] * len(paths)
    with alone(place, WAITING):
        states, kept = states_of([path.partition("\0")[0] for path in given]), _Kept.opened(place)
        for row, header in zip(files, kept.of(names, states), strict=True):
            found[row] = header
        unknown = [row for row, header in enumerate(found) if header is None]
        for row, header in zip(unknown, _read(unknown, item, read), strict=True):
            found[row] = header
        if any(paths[row] is not None and found[row] is not None for row in unknown):
            kept.joined(names, states, [found[row] for row in files]).save(place)
    return found


def in_threads(function: Callable[[T], R], items: Iterable[T], together: int = 1) -> Iterator[R]:
    """Yield a function's results in order, computed in threads, a chunk ahead at most.

    Where one takes less time than handing it to a thread, several go together.
    """

    def each(some: Sequence[T]) -> list[R]:
        return list(map(function, some))

    left = iter(items)
    with ThreadPoolExecutor() as pool:
        while some := list(islice(left, AHEAD)):
            parts = [some[start : start + together] for start in range(0, len(some), together)]
            yield from chain.from_iterable(pool.map(each, parts))


def _read(rows: Sequence[int], item: Callable[[int], T], read: Callable[[T], Header | None]) -> Iterator[Header | None]:
    found = in_threads(read, map(item, rows), TOGETHER)
    for _, header in zip(waited_for(rows, DOING), found, strict=True):
        yield header


def _place(names: Sequence[str], how: str) -> Path | None:
    """Return the file that headers are kept in, one for all that lies below a folder; None if there can be none."""
    try:
        root = os.path.commonpath([min(names), max(names)])  # what the first and the last share, all share
        return place_of("headers", f"{FORMAT} {how} {root}")
    except (RuntimeError, ValueError):  # no home, or files on two drives
        return None


def states_of(names: Sequence[str]) -> NDArray[np.int64]:
    """Return when each file was changed last, in ns, and its length in bytes, (n, 2); -1 of one that is not there."""
    states = np.full((len(names), 2), -1, dtype=np.int64)
    for row, name in enumerate(names):
        if row and name == names[row - 1]:  # images within a file follow each other
            states[row] = states[row - 1]
            continue
        with suppress(OSError, ValueError):
            state = os.stat(name)  # noqa: PTH116 - likewise
            states[row] = state.st_mtime_ns, state.st_size
    return states


@final
@dataclass(frozen=True, eq=False)
class _Kept:
    """Headers that are kept: the state of each file, height and width, its kind among words, whether it is grey."""

    names: list[str]
    states: NDArray[np.int64]
    sizes: NDArray[np.int32]
    kinds: NDArray[np.int16]
    grey: NDArray[np.bool_]
    words: list[str]

    @classmethod
    def made(cls, names: Sequence[str], states: NDArray[np.int64], found: Sequence[Header | None]) -> "_Kept":
        """Return what is to be kept of files: not those that could not be read, so that they are asked again."""
        rows = [row for row, header in enumerate(found) if header is not None and "\0" not in names[row]]
        headers = [header for header in (found[row] for row in rows) if header is not None]
        words = list(dict.fromkeys(header.kind for header in headers))
        numbers = {word: number for number, word in enumerate(words)}
        return cls(
            [names[row] for row in rows],
            states[rows],
            np.array([header.size for header in headers], dtype=np.int32).reshape(-1, 2),
            np.array([numbers[header.kind] for header in headers], dtype=np.int16),
            np.array([header.grey for header in headers], dtype=np.bool_),
            words,
        )

    @classmethod
    def opened(cls, place: Path) -> "_Kept":
        """Read what is kept: nothing where there is no such file, or it is damaged."""
        none = cls.made([], np.zeros((0, 2), dtype=np.int64), [])
        try:
            with place.open("rb") as file, np.load(file) as kept:
                names, words = (unpacked(kept[of]) for of in ("names", "words"))
                arrays = {of: kept[of] for of in ("states", "sizes", "kinds", "grey")}
            found = cls(names=names, words=words, **arrays)
        except Exception:  # noqa: BLE001 - a damaged file can raise anything
            return none
        lengths = {len(of) for of in (found.names, found.states, found.sizes, found.kinds, found.grey)}
        return found if lengths == {len(names)} and int(found.kinds.max(initial=-1)) < len(words) else none

    def of(self, names: Sequence[str], states: NDArray[np.int64]) -> list[Header | None]:
        """Return what is kept of files that are as they were; None of others."""
        if not self.names:
            return [None] * len(names)
        if self.names == names:
            rows = np.arange(len(names))
        else:
            numbers = {name: number for number, name in enumerate(self.names)}
            rows = np.array([numbers.get(name, -1) for name in names])
        same = (rows >= 0) & (states[:, 0] >= 0) & (self.states[rows] == states).all(axis=1)
        columns = (of[rows].tolist() for of in (self.grey, self.kinds, self.sizes))
        return [
            Header(is_grey, self.words[kind], (size[0], size[1])) if one else None
            for one, is_grey, kind, size in zip(same.tolist(), *columns, strict=True)
        ]

    def joined(self, names: Sequence[str], states: NDArray[np.int64], found: Sequence[Header | None]) -> "_Kept":
        """Return the headers of files, and those kept of others below the same folder, unless these are many."""
        new = self.made(names, states, found)
        given = set(names)
        rows = [row for row, name in enumerate(self.names) if name not in given]
        if len(rows) > MOST_OTHERS * max(FEWEST, len(names)):
            return new
        words = list(dict.fromkeys([*new.words, *self.words]))
        numbers = np.array([words.index(word) for word in self.words], dtype=np.int16)
        return _Kept(
            [*new.names, *(self.names[row] for row in rows)],
            np.concatenate([new.states, self.states[rows]]),
            np.concatenate([new.sizes, self.sizes[rows]]),
            np.concatenate([new.kinds, numbers[self.kinds[rows]]]) if rows else new.kinds,
            np.concatenate([new.grey, self.grey[rows]]),
            words,
        )

    def save(self, place: Path) -> None:
        arrays = {"names": packed(self.names), "words": packed(self.words), "states": self.states}
        save_or_warn(place, arrays | {"sizes": self.sizes, "kinds": self.kinds, "grey": self.grey}, WHAT)
