"""What the headers of image files say, kept from one start to the next."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from likewise.data.kept import alone, packed, place_of, save_or_warn, unpacked
from likewise.files.waiting import waited_for

T = TypeVar("T")
R = TypeVar("R")
FEWEST = 1000  # headers that are worth keeping
AHEAD = 256  # files that threads read before they are asked for
TOGETHER = 32  # headers that one thread reads: in memory they take 40 µs each
FORMAT = 4  # of what is kept; another one is read anew
KEPT = np.dtype([("state", np.int64, 2), ("size", np.int32, 2), ("kind", np.int16), ("grey", np.bool_)])
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
    """Headers that are kept, by the names of files; their kinds are numbers of words."""

    names: list[str]
    words: list[str]
    table: NDArray[Any]

    @classmethod
    def made(cls, names: Sequence[str], states: NDArray[np.int64], found: Sequence[Header | None]) -> "_Kept":
        """Return what is to be kept of files: not those that could not be read, so that they are asked again."""
        known = [(row, of) for row, of in enumerate(found) if of is not None and "\0" not in names[row]]
        words = list(dict.fromkeys(header.kind for _, header in known))
        table = np.zeros(len(known), KEPT)
        table["state"] = states[[row for row, _ in known]]
        for name in ("size", "grey"):
            table[name] = np.array([getattr(header, name) for _, header in known]).reshape(table[name].shape)
        table["kind"] = [words.index(header.kind) for _, header in known]
        return cls([names[row] for row, _ in known], words, table)

    @classmethod
    def opened(cls, place: Path) -> "_Kept":
        """Read what is kept: nothing where there is no such file, or it is damaged."""
        try:
            with place.open("rb") as file, np.load(file) as kept:
                found = cls(unpacked(kept["names"]), unpacked(kept["words"]), kept["table"])
            whole = found.table.dtype == KEPT and len(found.table) == len(found.names)
            if whole and int(found.table["kind"].max(initial=-1)) < len(found.words):
                return found
        except Exception:  # noqa: BLE001, S110 - a damaged file can raise anything
            pass
        return cls([], [], np.zeros(0, KEPT))

    def of(self, names: Sequence[str], states: NDArray[np.int64]) -> list[Header | None]:
        """Return what is kept of files that are as they were; None of others."""
        if not self.names:
            return [None] * len(names)
        if self.names == names:
            rows = np.arange(len(names))
        else:
            numbers = {name: number for number, name in enumerate(self.names)}
            rows = np.array([numbers.get(name, -1) for name in names])
        same = (rows >= 0) & (states[:, 0] >= 0) & (self.table["state"][rows] == states).all(axis=1)
        columns = (self.table[name][rows].tolist() for name in ("grey", "kind", "size"))
        return [
            Header(is_grey, self.words[kind], (size[0], size[1])) if one else None
            for one, is_grey, kind, size in zip(same.tolist(), *columns, strict=True)
        ]

    def joined(self, names: Sequence[str], states: NDArray[np.int64], found: Sequence[Header | None]) -> "_Kept":
        """Return the headers of files, and those kept of others below the same folder, unless these are many."""
        new, given = self.made(names, states, found), set(names)
        rows = [row for row, name in enumerate(self.names) if name not in given]
        if len(rows) > MOST_OTHERS * max(FEWEST, len(names)):
            return new
        words, others = list(dict.fromkeys([*new.words, *self.words])), self.table[rows]
        others["kind"] = [words.index(self.words[kind]) for kind in others["kind"]]
        table = np.concatenate([new.table, others])
        return _Kept([*new.names, *(self.names[row] for row in rows)], words, table)

    def save(self, place: Path) -> None:
        words = {"names": packed(self.names), "words": packed(self.words)}
        save_or_warn(place, {**words, "table": self.table}, WHAT)
