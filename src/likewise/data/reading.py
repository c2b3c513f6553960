"""Inputs that are not in memory, read ahead by worker processes, some at a time."""

import math
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar, final

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from likewise.data.lazy_inputs import LazyInputs, files_of, note_unreadable, readable, unreadable
from likewise.data.texts import Texts, TokenRows

T = TypeVar("T")
MAX_INPUTS, MAX_TEXTS = 256, 4096  # read at a time; texts are sorted by their length
MAX_NUMBERS = 2**22  # in the inputs that are read at a time
# of the temporary folder, in which workers put sockets with names of 32 characters; 104 may be bound
MAX_PATH_LENGTH = 70
MAX_WORKERS = 8
# parts of PyTorch's errors when shared memory is full
FULL_MEMORY_ERRORS = ("Bus error", "out of shared memory", "write to file </torch", "unable to allocate shared memory")


class Read(NamedTuple):
    """Some inputs that were read."""

    rows: Int[Tensor, " n"]  # the rows that could be read
    inputs: Shaped[Tensor, "n ..."]
    lost: Int[Tensor, " l"]  # the rows that could not
    files: dict[int, str]  # their files, by their numbers in the source


def on_demand(inputs: Tensor | LazyInputs | None) -> bool:
    """Tell whether inputs are read when they are indexed, as images in files are."""
    return inputs is not None and not isinstance(inputs, Tensor | Texts | TokenRows)


def spans_of(inputs: Tensor | LazyInputs, shards: Sequence[range], batch_size: int | None = None) -> list[range]:
    """Cut shards into what is read and encoded at a time."""
    most = MAX_TEXTS if isinstance(inputs, Texts) else MAX_INPUTS
    size = batch_size or max(1, min(most, MAX_NUMBERS // max(1, math.prod(inputs.shape[1:]))))
    return [shard[start : start + size] for shard in shards for start in range(0, len(shard), size)]


def read_ahead(inputs: LazyInputs, spans: Sequence[range], workers: int | None = None) -> Iterator[Read]:
    """Read pieces of inputs in their order, ahead, by workers: one per core, up to 8, where it is None.

    Each holds two pieces. Inputs that could not be read are noted, as if they had been read here.
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
            warnings.filterwarnings("ignore", "an image that cannot be read")  # all are told at the end
            inputs = self.inputs[rows]
        if not (failures := unreadable(self.inputs, rows)):
            return Read(rows, inputs, rows[:0], {})
        could = readable(self.inputs, rows)
        return Read(rows[could], inputs[could], rows[~could], files_of(failures))


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
