"""Inputs that are not in memory, read ahead by worker processes, some at a time."""

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.utils.data import Dataset

from likewise.data.lazy_inputs import LazyInputs, files_of, note_unreadable, readable, unreadable
from likewise.data.texts import Texts, TokenRows
from likewise.data.workers import MAX_WORKERS, fetch

MAX_INPUTS, MAX_TEXTS = 256, 4096  # read at a time; texts are sorted by their length
MAX_NUMBERS = 2**22  # in the inputs that are read at a time


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
