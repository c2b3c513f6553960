"""The training part for Lightning's trainer: views, and batches in an order set by seed and epoch, from any step on.

Worker processes read inputs that are not in memory; another image replaces one that cannot be read.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import lightning
import torch
from torch import Tensor
from torch.utils.data import Dataset

from likewise import distributed
from likewise.data import Batch, Batches, LazyInputs, LocalBatch, Samples, TokenRows, Views, derive_seed, never_apart
from likewise.data.image_files import Crops
from likewise.data.lazy_inputs import MAX_WORKERS, Unreadable, fetch, files_of, in_words, on_demand, unreadable

MAX_DEVICE_SHARE = 0.25  # largest fraction of an accelerator's free memory for the inputs of the training part
ORDER, DRAW, DROPOUT, REPLACEMENT, NEGATIVES, CROPS = range(6)  # purposes of seeds
MISSING = -1


class Position(NamedTuple):
    """The state of a training: its epoch, the finished batches in it, and the rank and number of processes."""

    epoch: int = 0
    batch: int = 0
    rank: int = 0
    processes: int = 1
    device: torch.device = torch.device("cpu")


@final
class Loader:
    """Batches of samples, split equally among the processes.

    `position`, called at the start of an iteration, returns the state of the training; `workers` is the number of
    processes that read inputs not in memory; `lost` holds the unreadable images by their numbers in the source. The
    inputs are copied to an accelerator if they take at most a quarter of its free memory.
    """

    def __init__(
        self,
        samples: Samples,
        batches: Batches,
        *,
        seed: int,
        position: Callable[[], Position] = Position,
        workers: int = 0,
    ) -> None:
        self.samples = samples
        self.batches = batches
        self.seed = seed
        self.workers = workers
        self.lost: dict[int, str] = {}
        self._place = position
        self._crops = batches.crops(samples)
        self._length, self.batch_size = self._order(0).shape
        self._there: Tensor | None = None
        self._others = None if samples.counterparts is None else samples.counterparts.inputs
        alike = None if samples.counterparts is None else never_apart(samples)
        twice = on_demand(samples.inputs) or on_demand(self._others)  # a pair may replace a broken one
        needed = alike is not None and (twice or samples.negatives is not None or len(alike.unique()) < len(alike))
        self._alike = alike if needed else None
        self._of_items = _by_item(samples, alike)
        places = torch.zeros(0, dtype=torch.int64) if samples.negatives is None else samples.negatives.places
        self._known = places[places >= 0].unique()  # not those of other parts

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        """Iterate from the current state of the training, queried at the first batch."""
        position = self._place()
        order = self._order(position.epoch)
        size = order.shape[1]
        held, over = divmod(size, position.processes)
        if over:
            raise ValueError(
                f"expected batches that {position.processes} processes can share equally, got {size} samples: "
                f"choose a size that {position.processes} divides, such as {max(held, 1) * position.processes}"
            )
        shard = slice(position.rank * held, (position.rank + 1) * held)
        for index, fetched_ones in enumerate(self._inputs(order, shard, position), position.batch):
            share = LocalBatch(derive_seed(self.seed, DRAW, position.epoch, index), size, shard.start)
            yield self._batch(fetched_ones, share, order[index])

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the trainer keeps the state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the state."""

    def _order(self, epoch: int) -> Tensor:
        return self.batches.order(self.samples, seed=derive_seed(self.seed, ORDER), epoch=epoch)

    def _batch(self, fetched_batch: "Fetched", share: LocalBatch, whole: Tensor) -> Batch:
        rows, samples = fetched_batch.rows, self.samples
        batch = Batch(inputs=fetched_batch.inputs, sample_index=rows, share=share)
        if self._crops is not None:
            batch["cropped"] = True
        if samples.labels is not None:
            batch["labels"] = samples.labels[rows]
        if fetched_batch.counterparts is None:
            return batch
        batch["counterparts"] = fetched_batch.counterparts
        if self._alike is not None:
            batch["alike"] = self._alike[rows]
        if samples.labels is None:
            batch["labels"] = batch.get("alike", rows)
        if samples.negatives is not None:
            self._add_negatives(batch, share, whole)
        return batch

    def _add_negatives(self, batch: Batch, share: LocalBatch, whole: Tensor) -> None:
        """Draw hard negatives for the whole batch, so texts are equally long on all processes; skip unreadable ones."""
        samples, rows, count = self.samples, batch["sample_index"], self.batches.negatives
        negatives = samples.negatives
        if negatives is None or not len(self._known):
            return
        generator = torch.Generator().manual_seed(derive_seed(share.seed, NEGATIVES))
        shard, width = slice(share.first, share.first + len(rows)), negatives.places.shape[1]
        turns = torch.rand(share.samples, width, generator=generator)
        any_of_all = self._known[torch.randint(len(self._known), (share.samples, count), generator=generator)]
        whole = whole.clone()
        whole[shard] = rows
        lost = list[Unreadable]()
        places = negatives.places[whole]
        for _ in range(width + len(self._known)):
            known = (places >= 0).sum(dim=1, keepdim=True)
            order = turns.masked_fill(places < 0, 2.0).argsort(dim=1)  # a sample's own negatives come first
            chosen = places.gather(1, order.gather(1, torch.arange(count) % known.clamp(min=1)))
            chosen = chosen.where(known > 0, any_of_all)
            every, chosen = chosen.flatten(), chosen[shard]
            read = _of_rows(negatives.inputs, chosen.flatten(), every)
            lost = unreadable(negatives.inputs, chosen.flatten())
            if not lost:
                batch["negatives"] = read.unflatten(0, chosen.shape)
                batch["negative_alike"] = self._of_items[negatives.items[chosen]]
                return
            self.lost |= files_of(failure._replace(item=-1 - failure.item) for failure in lost)
            gone = chosen.flatten()[[failure.place for failure in lost]]
            places = places.masked_fill(torch.isin(places, gone), -1)
            after = self._known[(torch.searchsorted(self._known, any_of_all) + 1) % len(self._known)]
            any_of_all = after.where(torch.isin(any_of_all, gone), any_of_all)
        raise ValueError(
            f"expected hard negatives, got none that can be read, the first {lost[0].name}: repair the files"
        )

    def _inputs(self, order: Tensor, shard: slice, position: Position) -> "Iterator[Fetched]":
        """Yield the remaining batches: from the device, from memory, or read on demand."""
        inputs, counterparts, left, device = self.samples.inputs, self._others, order[position.batch :], position.device
        if on_demand(inputs) or on_demand(counterparts):
            yield from self._fetched(left, shard, position)
            return
        held = isinstance(inputs, Tensor) and device.type == "cuda" and self._fits(inputs, device)
        for there, whole in zip(left[:, shard].to(device) if held else left, left, strict=True):
            rows = whole[shard]
            seen = self._there[there] if held and self._there is not None else _of_rows(inputs, rows, whole)
            yield Fetched(seen, rows, {}, None if counterparts is None else _of_rows(counterparts, rows, whole))

    def _fetched(self, left: Tensor, shard: slice, position: Position) -> "Iterator[Fetched]":
        seeds, draws = (
            [derive_seed(self.seed, purpose, position.epoch, position.batch + step) for step in range(len(left))]
            for purpose in (REPLACEMENT, CROPS)
        )
        batches = Fetching(self.samples, left, shard, seeds, self.batches.together, self._crops, draws)
        for fetched_batch in fetch(batches, self.workers, pinned=position.device.type == "cuda"):
            self.lost |= fetched_batch.lost
            if bool((fetched_batch.rows == MISSING).any()):
                raise ValueError(
                    f"expected an image of every class that is drawn, got none that can be read in place of "
                    f"{next(iter(fetched_batch.lost.values()))}: repair the files, or remove the class"
                )
            yield fetched_batch

    def _fits(self, inputs: Tensor, device: torch.device) -> bool:
        if self._there is None:
            free, _ = torch.cuda.mem_get_info(device)
            if inputs.nbytes <= MAX_DEVICE_SHARE * free:
                self._there = inputs.to(device)
        return self._there is not None


class Fetched(NamedTuple):
    """A process's share of a batch; for pairs, also the other sides of the inputs."""

    inputs: Tensor  # (b, ...)
    rows: Tensor  # the rows read, (b,); MISSING where none could be
    lost: dict[int, str]  # the unreadable files, by their numbers in the source
    counterparts: Tensor | None = None  # (b, ...)


def _by_item(samples: Samples, alike: Tensor | None) -> Tensor:
    """Return for each item number of the other side the `alike` number of its pairs, MISSING for negatives in none."""
    if samples.counterparts is None or samples.negatives is None or alike is None:
        return torch.zeros(0, dtype=torch.int64)
    items, negative_items = samples.counterparts.items, samples.negatives.items
    items = torch.arange(len(samples)) if items is None else items
    numbers = torch.full((int(torch.cat([items, negative_items]).max()) + 1,), MISSING)
    numbers[items] = alike
    return numbers


def _of_rows(inputs: Tensor | LazyInputs, rows: Tensor, whole: Tensor) -> Tensor:
    """Return the inputs of some rows; texts are padded to the longest of the whole batch, on any process."""
    if isinstance(inputs, TokenRows):
        return inputs.padded(rows, inputs.longest(torch.cat([whole, rows])))
    return inputs[rows]


@final
@dataclass(frozen=True, eq=False)
class Fetching(Dataset[Fetched]):
    """The batches of an epoch, rows (batches, B); this process reads its own, each batch by one indexing operation.

    Another sample of its class replaces an unreadable input; without classes, any other sample does. The choice depends
    only on the batch and its seed, not on the reading process. Samples outside the batch come first; if many are
    broken, two places may get the same one. With `crops`, images are cropped on decoding, (b, V, ...), by random
    numbers from the step's seed in `draws` and the place in the batch.
    """

    samples: Samples
    order: Tensor
    own: slice
    seeds: Sequence[int]
    together: int | None
    crops: Crops | None = None
    draws: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Fetched:
        whole, rows = self.order[index], self.order[index, self.own].clone()
        numbers = None
        if self.crops is not None:
            numbers = self.crops.numbers(self.draws[index], len(whole), self.own)
        sides, lost = self._read(rows, whole, numbers)
        for position in dict.fromkeys(failure.place for failure in lost):
            rows[position] = MISSING
            for row in self._others(whole, self.own.start + position, self.seeds[index]):
                its_numbers = None if numbers is None else numbers[position : position + 1]
                _, problem = self._read(row.view(1), whole, its_numbers)
                lost += problem
                if not problem:
                    rows[position] = row
                    break
        if lost:
            sides, _ = self._read(rows.clamp(min=0), whole, numbers)
        return Fetched(sides[0], rows, files_of(lost), *sides[1:])

    def _read(self, rows: Tensor, whole: Tensor, numbers: Tensor | None) -> tuple[list[Tensor], list[Unreadable]]:
        sides = [self.samples] if self.samples.counterparts is None else [self.samples, self.samples.counterparts]
        read = [_of_rows(side.inputs, rows, whole) for side in (sides if numbers is None else sides[1:])]
        if self.crops is not None and numbers is not None:
            read = [self.crops.read(self.samples.inputs, rows, numbers), *read]
        lost = [(second, failure) for second, side in enumerate(sides) for failure in unreadable(side.inputs, rows)]
        return read, [failure._replace(item=-1 - failure.item) if second else failure for second, failure in lost]

    def _others(self, batch: Tensor, position: int, seed: int) -> Iterator[Tensor]:
        """Yield the candidates for a place in a batch, in the order of trial.

        First come samples of the same class that the batch lacks, shuffled and dealt to all places of the class, so
        two places get different ones without knowing of each other. Then come samples dealt to other places, then
        those in the batch, and last other classes, unless samples belong together and each place has its class.
        """
        together = self.together or len(batch)
        first, offset = position // together * together, position % together
        drawn = batch[first : first + together]
        labels = self.samples.labels
        if labels is None or labels.ndim > 1:
            labels = torch.zeros(len(self.samples), dtype=torch.int64)
        places = (labels[drawn] == labels[drawn[offset]]).nonzero().flatten().tolist()
        generator = torch.Generator().manual_seed(seed)
        alike = (labels == labels[drawn[offset]]).nonzero().flatten()
        alike = alike[torch.randperm(len(alike), generator=generator)]
        taken = torch.isin(alike, drawn)
        yield from alike[~taken][places.index(offset) :: len(places)]
        yield from alike[~taken]
        yield from alike[taken]
        if self.together is None:
            yield from torch.randperm(len(labels), generator=generator)


@final
class TrainingData(lightning.LightningDataModule):
    """The training part as a data module for Lightning's trainer.

    The random numbers of a step are a function of the seed and the step. So no random state is saved, and a resumed
    training continues bit for bit (on a CPU, in one process). Before every step, PyTorch's global generator is seeded
    too, by seed, step and rank, for dropout and the like.

    Args:
        samples: The training part.
        batches: The kind of batches. None: Views().
        seed: Seed of all random numbers.
        workers: Processes that read inputs not in memory. None: one per core, up to 8.

    Attributes:
        lost: The unreadable images, by their numbers in the source; another sample replaced each. After the training
            they are those of all processes, and a warning counts them.

    Example:
        >>> data = TrainingData(Samples(torch.rand(8, 3)), Views(batch_size=4))
        >>> len(data.train_dataloader())
        2
    """

    def __init__(
        self, samples: Samples, batches: Batches | None = None, *, seed: int = 0, workers: int | None = None
    ) -> None:
        super().__init__()
        self.samples = samples
        self.batches = Views() if batches is None else batches
        self.seed = seed
        self.workers = min(MAX_WORKERS, os.cpu_count() or 1) if workers is None else workers
        self.lost: dict[int, str] = {}
        self.batches.fit(samples)

    def epoch_shape(self) -> tuple[int, int]:
        """Return the batches per epoch and the samples per batch; raise a ValueError if samples cannot fill them."""
        steps, size = self.batches.order(self.samples, seed=derive_seed(self.seed, ORDER), epoch=0).shape
        return steps, size

    def train_dataloader(self) -> Loader:
        """Return the loader of batches, which continues from the trainer's current step."""
        loader = Loader(self.samples, self.batches, seed=self.seed, position=self._place, workers=self.workers)
        loader.lost = self.lost
        return loader

    def teardown(self, stage: str) -> None:
        """Collect the undecodable images of all processes, and warn of them."""
        if self.trainer is None or isinstance(self.samples.inputs, Tensor):
            return
        everyone = distributed.exchange_texts(json.dumps(list(self.lost.items())), self.trainer.strategy.root_device)
        self.lost |= {item: name for theirs in everyone for item, name in json.loads(theirs)}
        if self.lost:
            warnings.warn(in_words(self.lost), stacklevel=2)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Make the views on the training device."""
        ready = self.batches.on_device(batch)
        if "share" in batch:
            torch.manual_seed(derive_seed(batch["share"].seed, DROPOUT, self._place().rank))
        return ready

    def _place(self) -> Position:
        trainer = self.trainer
        if trainer is None:
            return Position()
        done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        return Position(
            trainer.current_epoch, done, trainer.global_rank, trainer.world_size, trainer.strategy.root_device
        )
