"""Batches that are read on demand, by worker processes; for an image that cannot be decoded another takes its place."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.utils.data import Dataset

from likewise.data import Samples
from likewise.data.rows import Unreadable, files_of, unreadable

NOBODY = -1


class Fetched(NamedTuple):
    """A process's share of a batch."""

    inputs: Tensor
    """(b, ...)."""
    rows: Tensor
    """The rows that were read, (b,); NOBODY where none could be."""
    lost: dict[int, str]
    """The files that could not be, by their numbers in the source."""


@final
class Fetching(Dataset[Fetched]):
    """The batches of an epoch: rows (batches, B), of which this process reads its own, each by one indexing operation.

    Where an input cannot be read, another sample of its class takes its place; without classes any other. Which one is
    a function of the batch and its seed alone, whoever reads it. One that is not drawn already comes first; where many
    are broken, two places may get the same.
    """

    def __init__(self, samples: Samples, order: Tensor, own: slice, seeds: Sequence[int], together: int | None) -> None:
        self._samples = samples
        self._order = order
        self._own = own
        self._seeds = seeds
        self._together = together

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Fetched:
        rows = self._order[index, self._own].clone()
        inputs = self._samples.inputs[rows]
        lost = unreadable(self._samples.inputs, rows)
        for place in [one.place for one in lost]:
            rows[place] = NOBODY
            for row in self._others(self._order[index], self._own.start + place, self._seeds[index]):
                read, problem = self._read(row)
                lost += problem
                if not problem:
                    inputs[place], rows[place] = read[0], row
                    break
        return Fetched(inputs, rows, files_of(lost))

    def _read(self, row: Tensor) -> tuple[Tensor, list[Unreadable]]:
        """Read one input."""
        one = row.view(1)
        read = self._samples.inputs[one]
        return read, unreadable(self._samples.inputs, one)

    def _others(self, batch: Tensor, place: int, seed: int) -> Iterator[Tensor]:
        """Yield the samples that may take a place in a batch, in the order in which they are tried.

        Those of its class that are not drawn with it are shuffled and dealt to all places of the class, so that two
        places get different ones even if neither knows of the other. Then come those dealt to other places, and those
        that are drawn already. At last come those of other classes, but not where samples belong
        together, and a place has a class.
        """
        together = self._together or len(batch)
        first, own = place // together * together, place % together
        drawn = batch[first : first + together]
        labels = self._samples.labels
        if labels is None or labels.ndim > 1:
            labels = torch.zeros(len(self._samples), dtype=torch.int64)
        places = (labels[drawn] == labels[drawn[own]]).nonzero().flatten().tolist()
        generator = torch.Generator().manual_seed(seed)
        alike = (labels == labels[drawn[own]]).nonzero().flatten()
        alike = alike[torch.randperm(len(alike), generator=generator)]
        taken = torch.isin(alike, drawn)
        yield from alike[~taken][places.index(own) :: len(places)]
        yield from alike[~taken]
        yield from alike[taken]
        if self._together is None:
            yield from torch.randperm(len(labels), generator=generator)


def as_fetched(batch: Any) -> Any:
    """Return what was fetched as it is."""
    return batch
