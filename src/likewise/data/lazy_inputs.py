"""Inputs and ids read on demand, worker processes that read inputs ahead of time, and progress bars for reading."""

import math
import os
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, final

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from likewise.files.formats import as_text, first_of

T = TypeVar("T")
MAX_INPUTS = 256  # inputs read at a time, unless they set `read_together`
MAX_NUMBERS = 2**22  # numbers in the inputs read at a time
# of the temporary folder: workers add sockets' names of 32 characters, and a socket's path has at most 104
MAX_PATH_LENGTH = 70
MAX_WORKERS = 8
# parts of PyTorch's errors when shared memory is full
FULL_MEMORY_ERRORS = ("Bus error", "out of shared memory", "write to file </torch", "unable to allocate shared memory")
MAX_IDS = 4096  # ids read at a time
_bar: ContextVar[Callable[[Iterable[Any], str], Iterable[Any]] | None] = ContextVar("bar", default=None)


class LazyInputs(Protocol):
    """Inputs outside memory, read on demand, by worker processes too: indexing returns a tensor.

    If some may turn out to be unreadable, a method `unreadable` lists them, and `note_unreadable` records those found
    by a worker; see `ImageFiles`. Inputs made from strings in memory set `in_memory`, and `read_together`, the number
    read at a time; see `Texts`.
    """

    shape: tuple[int, ...]
    """(N, ...), as for a tensor of all rows."""
    dtype: torch.dtype
    """The dtype of the rows."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Read the rows given by their indices, (n,), as a tensor (n, ...)."""
        ...

    def take(self, rows: Tensor) -> "Tensor | LazyInputs":
        """Return a subset of the rows, given by their indices, without reading them."""
        return SomeRows(self, rows)


class Unreadable(NamedTuple):
    """An input that could not be read."""

    place: int  # its position among the requested rows
    item: int  # its number in the source
    name: str  # its file


def unreadable(inputs: Tensor | LazyInputs, rows: Int[Tensor, " n"]) -> list[Unreadable]:
    """Return the inputs at some rows that turned out to be unreadable."""
    method = getattr(inputs, "unreadable", None)
    return [] if method is None else method(rows)


def note_unreadable(inputs: Tensor | LazyInputs, rows: Int[Tensor, " n"]) -> None:
    """Record some rows as unreadable that a worker failed to read."""
    note = getattr(inputs, "note_unreadable", None)
    if note is not None and len(rows):
        note(rows)


def readable(inputs: Tensor | LazyInputs, rows: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Return a mask of some rows, False for those that turned out to be unreadable."""
    could = torch.ones(len(rows), dtype=torch.bool)
    could[[failure.place for failure in unreadable(inputs, rows)]] = False
    return could


def files_of(failures: Iterable[Unreadable]) -> dict[int, str]:
    """Return the unreadable files, by their numbers in the source."""
    return {failure.item: failure.name for failure in failures}


def in_words(files: Mapping[Any, str]) -> str:
    """Describe the omitted files, as in "left out 1 image, which cannot be read: cat/7.jpg"."""
    plural = "s" if len(files) > 1 else ""
    return f"left out {len(files):,} image{plural}, which cannot be read: {first_of(list(files.values()))}"


@final
class SomeRows(LazyInputs):
    """A subset of the rows of other inputs, given by their indices, (n,)."""

    def __init__(self, all_rows: LazyInputs, rows: Tensor) -> None:
        self.all_rows, self.rows = all_rows, rows
        self.shape, self.dtype = (len(rows), *all_rows.shape[1:]), all_rows.dtype

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.all_rows[self.rows[rows]]

    def unreadable(self, rows: Tensor) -> list[Unreadable]:
        return unreadable(self.all_rows, self.rows[rows])

    def note_unreadable(self, rows: Tensor) -> None:
        note_unreadable(self.all_rows, self.rows[rows])

    def take(self, rows: Tensor) -> "SomeRows":
        return SomeRows(self.all_rows, self.rows[rows])


@final
class JoinedRows(LazyInputs):
    """Rows followed by other rows of the same shape; either may be in memory."""

    def __init__(self, first: Tensor | LazyInputs, second: Tensor | LazyInputs) -> None:
        self.first, self.second = first, second
        self.shape, self.dtype = (len(first) + len(second), *first.shape[1:]), first.dtype

    def sides(self, rows: Tensor) -> Iterator[tuple[Tensor | LazyInputs, Tensor, Tensor]]:
        """Yield each side's inputs, the mask of its rows, and their indices within the side."""
        late = rows >= len(self.first)
        yield self.first, ~late, rows[~late]
        yield self.second, late, rows[late] - len(self.first)

    def __getitem__(self, rows: Tensor) -> Tensor:
        read = torch.empty(len(rows), *self.shape[1:], dtype=self.dtype)
        for inputs, there, side_rows in self.sides(rows):
            read[there] = inputs[side_rows]
        return read

    def unreadable(self, rows: Tensor) -> list[Unreadable]:
        failures = list[Unreadable]()
        for inputs, there, side_rows in self.sides(rows):
            places = there.nonzero().flatten().tolist()
            failures += [failure._replace(place=places[failure.place]) for failure in unreadable(inputs, side_rows)]
        return failures

    def note_unreadable(self, rows: Tensor) -> None:
        for inputs, _, side_rows in self.sides(rows):
            note_unreadable(inputs, side_rows)

    def take(self, rows: Tensor) -> Tensor | LazyInputs:
        for inputs, there, side_rows in self.sides(rows):
            if bool(there.all()):
                return inputs[side_rows] if isinstance(inputs, Tensor) else inputs.take(side_rows)
        return SomeRows(self, rows)


class Read(NamedTuple):
    """The result of reading some inputs."""

    rows: Int[Tensor, " n"]  # the readable rows
    inputs: Shaped[Tensor, "n ..."]
    lost: Int[Tensor, " l"]  # the unreadable rows
    files: dict[int, str]  # their files, by their numbers in the source


def track(items: Iterable[T], doing: str) -> Iterator[T]:
    """Iterate over slow items, with a progress bar if bars are drawn."""
    bar = _bar.get()
    return iter(items if bar is None else bar(items, doing))


@contextmanager
def use_progress(bar: Callable[[Iterable[Any], str], Iterable[Any]] | None) -> Generator[None]:
    """Let a function draw the progress bars within the block; None draws no bars."""
    before = _bar.set(bar)
    try:
        yield
    finally:
        _bar.reset(before)


def on_demand(inputs: Tensor | LazyInputs | None) -> bool:
    """Tell whether inputs are read on indexing, like images in files."""
    return inputs is not None and not (isinstance(inputs, Tensor) or getattr(inputs, "in_memory", False))


def spans_of(inputs: Tensor | LazyInputs, shards: Sequence[range], batch_size: int | None = None) -> list[range]:
    """Cut shards into the spans that are read and encoded at a time."""
    most = getattr(inputs, "read_together", MAX_INPUTS)
    size = batch_size or max(1, min(most, MAX_NUMBERS // max(1, math.prod(inputs.shape[1:]))))
    return [shard[start : start + size] for shard in shards for start in range(0, len(shard), size)]


def read_ahead(inputs: LazyInputs, spans: Sequence[range], workers: int | None = None) -> Iterator[Read]:
    """Read spans of inputs in order and ahead of time, by workers: one per core, up to 8, if None.

    Each worker holds two spans. Unreadable inputs are recorded, as if they had been read here.
    """
    count = min(MAX_WORKERS, os.cpu_count() or 1, len(spans)) if workers is None else workers
    for read in fetch(_Reading(inputs, spans), count):
        note_unreadable(inputs, read.lost)
        yield read


@final
class _Reading(Dataset[Read]):
    def __init__(self, inputs: LazyInputs, spans: Sequence[range]) -> None:
        self.inputs, self.spans = inputs, spans

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> Read:
        rows = torch.arange(self.spans[index].start, self.spans[index].stop)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "an image that cannot be read")  # all are reported at the end
            inputs = self.inputs[rows]
        if not (failures := unreadable(self.inputs, rows)):
            return Read(rows, inputs, rows[:0], {})
        could = readable(self.inputs, rows)
        return Read(rows[could], inputs[could], rows[~could], files_of(failures))


def fetch(items: Dataset[T], workers: int, *, pinned: bool = False) -> Iterator[T]:
    """Yield items in order, made by workers ahead of time, or one by one without workers."""
    folder = tempfile.gettempdir()
    if workers and sys.platform != "win32" and len(folder) > MAX_PATH_LENGTH:
        got = f"{folder}: set TMPDIR to a shorter one, such as /tmp"
        raise ValueError(f"expected a temporary folder of a path of at most {MAX_PATH_LENGTH} characters, got {got}")
    loader = DataLoader(items, batch_size=None, num_workers=workers, pin_memory=pinned, worker_init_fn=_outlive)
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


@final
class Ids:
    """The ids of samples, in order and all distinct.

    Args:
        read: A function from the numbers of rows in the source to their ids. None: the numbers are the ids.
        rows: The row of each sample in the source, (N,).

    Example:
        >>> ids = Ids.of(["cat/1.jpg", "cat/2.jpg", "dog/1.jpg"])
        >>> list(ids[torch.tensor([2, 0])]), list(Ids.numbers(torch.tensor([7, 8])))
        (['dog/1.jpg', 'cat/1.jpg'], ['7', '8'])
    """

    def __init__(self, read: Callable[[list[int]], Iterable[str]] | None, rows: Int[Tensor, " n"]) -> None:
        self._read, self._rows = read, rows

    @classmethod
    def of(cls, names: Iterable[str]) -> "Ids":
        """Return ids in memory, as text; the second occurrence of a name becomes "name (2)"."""
        listed = distinct(names)
        read: Any = partial(map, listed.__getitem__)  # a partial can be pickled
        return cls(read, torch.arange(len(listed)))

    @classmethod
    def numbers(cls, rows: Int[Tensor, " n"]) -> "Ids":
        """Return row numbers as ids, (N,), for samples without names."""
        return cls(None, rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Tensor) -> "Ids":
        return Ids(self._read, self._rows[index])

    def __iter__(self) -> Iterator[str]:
        for rows in self._rows.split(MAX_IDS):
            yield from map(str, rows.tolist()) if self._read is None else self._read(rows.tolist())

    def __add__(self, other: "Ids") -> "Ids":
        if self.plain and other.plain:
            return Ids(None, torch.cat([self._rows, other._rows]))
        return Ids.of([*self, *other])

    def agree(self, other: "Ids") -> bool:
        """Tell whether both may name the same samples: they are equal, or either has only numbers, not names."""
        return self.plain or other.plain or list(self) == list(other)

    @property
    def plain(self) -> bool:
        return self._read is None


def distinct(names: Iterable[str]) -> list[str]:
    """Return names as text, with repeated names numbered: the second "a" becomes "a (2)", unless that is taken."""
    names = [as_text(name) for name in names]
    taken = set(names)
    if len(taken) == len(names):
        return names
    seen, unique_names = Counter[str](), list[str]()
    for name in names:
        seen[name] += 1
        if seen[name] == 1:
            unique_names.append(name)
            continue
        while (new := f"{name} ({seen[name]})") in taken:
            seen[name] += 1
        taken.add(new)
        unique_names.append(new)
    return unique_names
