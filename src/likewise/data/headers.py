"""Headers of image files, kept in the user's cache from one start to the next."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from likewise.files.formats import PARTIAL_SUFFIX
from likewise.files.waiting import track

T = TypeVar("T")
R = TypeVar("R")
MIN_CACHED = 1000  # headers; fewer are not worth keeping
MAX_AHEAD = 256  # items that threads handle before they are asked for
HEADERS_PER_TASK = 32  # headers that one thread reads: in memory they take 40 µs each


class Header(NamedTuple):
    """The facts in the header of an image file."""

    grey: bool
    kind: str
    size: tuple[int, int]  # height and width, in pixels


def read_headers(
    keys: Sequence[str | None], item: Callable[[int], T], read: Callable[[T], Header | None], how: str
) -> list[Header | None]:
    """Read the headers of images in threads; None for one that cannot be read.

    From `MIN_CACHED` on they are cached by path, time of change and length. Keys say where each image is: a file; for
    one within a file, that file, NUL and its place there; or None, if nothing is to be cached.
    """
    known = [os.path.abspath(key) for key in keys if key is not None]  # noqa: PTH100 - ten times as fast as Path
    cache = _cache_path(known, how) if len(known) == len(keys) >= MIN_CACHED else None
    if cache is None:
        return list(_read_in_threads(range(len(keys)), item, read))
    state_of = lru_cache(maxsize=1)(_state)  # images within a file follow each other
    states, entries = [state_of(key.partition("\0")[0]) for key in known], _entries(cache)
    headers = [_header(entries.get(key), state) for key, state in zip(known, states, strict=True)]
    unknown = [row for row, header in enumerate(headers) if header is None]
    for row, header in zip(unknown, _read_in_threads(unknown, item, read), strict=True):
        headers[row] = header
    if any(headers[row] for row in unknown):
        for key, state, header in zip(known, states, headers, strict=True):
            if header is not None:
                entries[key] = [*state, header.grey, header.kind, *header.size]
        _save(cache, entries)
    return headers


def in_threads(function: Callable[[T], R], items: Iterable[T], together: int = 1) -> Iterator[R]:
    """Yield a function's results in order, computed in threads, some together, a chunk ahead at most."""

    def each(some: Sequence[T]) -> list[R]:
        return list(map(function, some))

    left = iter(items)
    with ThreadPoolExecutor() as pool:
        while some := list(islice(left, MAX_AHEAD)):
            parts = [some[start : start + together] for start in range(0, len(some), together)]
            yield from chain.from_iterable(pool.map(each, parts))


def _read_in_threads(
    rows: Sequence[int], item: Callable[[int], T], read: Callable[[T], Header | None]
) -> Iterator[Header | None]:
    headers = in_threads(read, map(item, rows), HEADERS_PER_TASK)
    for _, header in zip(track(rows, "reading sizes of images"), headers, strict=True):
        yield header


def _cache_path(keys: Sequence[str], how: str) -> Path | None:
    try:
        root = os.path.commonpath([min(keys), max(keys)])  # what the first and the last share, all share
        folder = os.environ.get("LIKEWISE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "likewise")
        digest = hashlib.sha256(f"{how} {root}".encode(errors="surrogateescape")).hexdigest()[:32]
        return Path(folder).expanduser() / f"headers-{digest}.json"
    except (RuntimeError, ValueError):  # no home, or files on two drives
        return None


def _state(file: str) -> tuple[int, int]:
    with suppress(OSError, ValueError):
        state = os.stat(file)  # noqa: PTH116 - faster than Path
        return state.st_mtime_ns, state.st_size
    return -1, -1


def _entries(cache: Path) -> dict[str, Any]:
    try:
        entries = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _header(entry: Any, state: tuple[int, int]) -> Header | None:
    match entry:
        case [int(changed), int(length), bool(grey), str(mode), int(height), int(width)] if (changed, length) == state:
            return Header(grey, mode, (height, width))
        case _:
            return None


def _save(cache: Path, entries: dict[str, Any]) -> None:
    partial = cache.with_suffix(f".{os.getpid()}{PARTIAL_SUFFIX}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(entries), encoding="utf-8")
        partial.replace(cache)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        why = error.strerror or type(error).__name__
        message = f"sizes of images are read again next time, as {cache.parent} takes none ({why})"
        warnings.warn(f"{message}: LIKEWISE_CACHE names another folder", stacklevel=2)
