"""The loader: batches of the training part, in an order given by seed and epoch, from any step on.

Inputs that are not in memory are read by worker processes; for an image that cannot be decoded another takes its place.
"""

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from likewise.data import Batch, Batches, Samples, Share, TokenRows, mixed
from likewise.data.rows import Unreadable, files_of, unreadable

ON_DEVICE = 0.25  # largest fraction of an accelerator's free memory for the inputs of the training part
ORDER, DRAW, INSTEAD = 0, 1, 3  # purposes of seeds; 2 is for dropout
LONGEST_PATH = 70  # of the temporary folder, in which workers put sockets with names of 32 characters; 104 may be bound
NOBODY = -1


class Place(NamedTuple):
    """The state of a training: its epoch, the batches done in it, and which of how many processes this is."""

    epoch: int = 0
    batch: int = 0
    rank: int = 0
    processes: int = 1
    device: torch.device = torch.device("cpu")


@final
class Loader:
    """Batches of samples, split equally among the processes.

    `place` returns the state of the training, and is called when iteration starts; `workers` are processes that read
    inputs not in memory; `lost` are the images that could not be decoded, by their numbers in the source. The inputs
    are copied to an accelerator if they take at most a quarter of its free memory.
    """

    def __init__(
        self,
        samples: Samples,
        batches: Batches,
        *,
        seed: int,
        place: Callable[[], Place] = Place,
        workers: int = 0,
    ) -> None:
        self.samples = samples
        self.batches = batches
        self.seed = seed
        self.workers = workers
        self.lost: dict[int, str] = {}
        self._place = place
        self._length, self.batch_size = self._order(0).shape
        self._there: Tensor | None = None

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        """Iterate from the current state of the training, queried at the first batch."""
        place = self._place()
        order = self._order(place.epoch)
        size = order.shape[1]
        held, over = divmod(size, place.processes)
        if over:
            raise ValueError(
                f"expected batches that {place.processes} processes can share equally, got {size} samples: "
                f"choose a size that {place.processes} divides, such as {max(held, 1) * place.processes}"
            )
        own = slice(place.rank * held, (place.rank + 1) * held)
        for index, (inputs, rows) in enumerate(self._inputs(order, own, place), place.batch):
            yield self._batch(inputs, rows, Share(mixed(self.seed, DRAW, place.epoch, index), size, own.start))

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the trainer keeps the state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the state."""

    def _order(self, epoch: int) -> Tensor:
        return self.batches.order(self.samples, seed=mixed(self.seed, ORDER), epoch=epoch)

    def _batch(self, inputs: Tensor, rows: Tensor, share: Share) -> Batch:
        batch = Batch(inputs=inputs, sample_index=rows, share=share)
        if self.samples.labels is not None:
            batch["labels"] = self.samples.labels[rows]
        return batch

    def _inputs(self, order: Tensor, own: slice, place: Place) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs and rows of every batch that is left: from the device, from memory, or read on demand."""
        inputs, left, device = self.samples.inputs, order[place.batch :], place.device
        if isinstance(inputs, TokenRows):
            for whole in left:  # as long as on any other process
                yield inputs.padded(whole[own], int(inputs.lengths[whole].max())), whole[own]
        elif not isinstance(inputs, Tensor):
            yield from self._fetched(left, own, place)
        elif device.type == "cuda" and self._fits(inputs, device):
            for there, rows in zip(left[:, own].to(device), left[:, own], strict=True):
                yield (self._there[there] if self._there is not None else inputs[there]), rows
        else:
            for rows in left[:, own]:
                yield inputs[rows], rows

    def _fetched(self, left: Tensor, own: slice, place: Place) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs of every batch that is left, read on demand, and the rows that were read."""
        _check_sockets(self.workers)
        seeds = [mixed(self.seed, INSTEAD, place.epoch, place.batch + step) for step in range(len(left))]
        fetched = DataLoader(
            Fetching(self.samples, left, own, seeds, self.batches.together),
            batch_size=None,
            num_workers=self.workers,
            pin_memory=place.device.type == "cuda",
            worker_init_fn=_outlive,
        )
        for inputs, rows, lost in fetched:
            self.lost |= lost
            if bool((rows == NOBODY).any()):
                raise ValueError(
                    f"expected an image of every class that is drawn, got none that can be decoded in place of "
                    f"{next(iter(lost.values()))}: repair the files, or remove the class"
                )
            yield inputs, rows

    def _fits(self, inputs: Tensor, device: torch.device) -> bool:
        """Put the inputs on the device if they fit there."""
        if self._there is None:
            free, _ = torch.cuda.mem_get_info(device)
            if inputs.nbytes <= ON_DEVICE * free:
                self._there = inputs.to(device)
        return self._there is not None


def _check_sockets(workers: int) -> None:
    """Raise a ValueError where workers could send nothing, which PyTorch would wait for without end."""
    folder = tempfile.gettempdir()
    if workers and sys.platform != "win32" and len(folder) > LONGEST_PATH:
        raise ValueError(
            f"expected a temporary folder whose path has at most {LONGEST_PATH} characters, got {folder}: set TMPDIR "
            "to a shorter one, such as /tmp"
        )


def _outlive(_: int) -> None:
    """Ignore SIGTERM in workers: the training ends them after it has saved."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Fetched(NamedTuple):
    """A process's share of a batch."""

    inputs: Tensor
    """(b, ...)."""
    rows: Tensor
    """The rows that were read, (b,); NOBODY where none could be."""
    lost: dict[int, str]
    """The files that could not be, by their numbers in the source."""


@final
@dataclass(frozen=True, eq=False)
class Fetching(Dataset[Fetched]):
    """The batches of an epoch: rows (batches, B), of which this process reads its own, each by one indexing operation.

    Where an input cannot be read, another sample of its class takes its place; without classes any other. Which one is
    a function of the batch and its seed alone, whoever reads it. One that is not drawn already comes first; where many
    are broken, two places may get the same.
    """

    samples: Samples
    order: Tensor
    own: slice
    seeds: Sequence[int]
    together: int | None

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Fetched:
        rows = self.order[index, self.own].clone()
        inputs = self.samples.inputs[rows]
        lost = unreadable(self.samples.inputs, rows)
        for place in [one.place for one in lost]:
            rows[place] = NOBODY
            for row in self._others(self.order[index], self.own.start + place, self.seeds[index]):
                read, problem = self._read(row)
                lost += problem
                if not problem:
                    inputs[place], rows[place] = read[0], row
                    break
        return Fetched(inputs, rows, files_of(lost))

    def _read(self, row: Tensor) -> tuple[Tensor, list[Unreadable]]:
        """Read one input."""
        one = row.view(1)
        read = self.samples.inputs[one]
        return read, unreadable(self.samples.inputs, one)

    def _others(self, batch: Tensor, place: int, seed: int) -> Iterator[Tensor]:
        """Yield the samples that may take a place in a batch, in the order in which they are tried.

        Those of its class that are not drawn with it are shuffled and dealt to all places of the class, so that two
        places get different ones even if neither knows of the other. Then come those dealt to other places, and those
        that are drawn already. At last come those of other classes, but not where samples belong
        together, and a place has a class.
        """
        together = self.together or len(batch)
        first, own = place // together * together, place % together
        drawn = batch[first : first + together]
        labels = self.samples.labels
        if labels is None or labels.ndim > 1:
            labels = torch.zeros(len(self.samples), dtype=torch.int64)
        places = (labels[drawn] == labels[drawn[own]]).nonzero().flatten().tolist()
        generator = torch.Generator().manual_seed(seed)
        alike = (labels == labels[drawn[own]]).nonzero().flatten()
        alike = alike[torch.randperm(len(alike), generator=generator)]
        taken = torch.isin(alike, drawn)
        yield from alike[~taken][places.index(own) :: len(places)]
        yield from alike[~taken]
        yield from alike[taken]
        if self.together is None:
            yield from torch.randperm(len(labels), generator=generator)
