"""Samplers: the order of samples in an epoch's batches, a function of only seed and epoch."""

import hashlib
from abc import ABC, abstractmethod
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data.samples import Samples, rows_by_class
from likewise.data.texts import TokenRows
from likewise.instantiate import Described, describe

USUAL_SAMPLES_PER_CLASS = 4  # in a batch


class Sampler(Described, ABC):
    """Abstract: an order of the samples for each epoch."""

    __repr__ = describe

    @abstractmethod
    def order(self, samples: Samples, batch_size: int, *, seed: int, epoch: int) -> Int[Tensor, "batches b"]:
        """Return the rows of every batch of an epoch, (batches, B). The same arguments give the same rows."""


@final
class Shuffled(Sampler):
    """Every sample once per epoch, shuffled anew; an incomplete last batch is dropped, unless it is the only one.

    Example:
        >>> samples = Samples(torch.zeros(10, 1))
        >>> Shuffled().order(samples, 4, seed=0, epoch=0).shape
        torch.Size([2, 4])
    """

    def order(self, samples: Samples, batch_size: int, *, seed: int, epoch: int) -> Int[Tensor, "batches b"]:
        size = min(batch_size, len(samples))
        order = torch.randperm(len(samples), generator=_generator(seed, epoch))
        return order[: len(samples) // size * size].view(-1, size)


@final
class SimilarLength(Sampler):
    """Every text once per epoch, shuffled anew, with texts of similar length together: less padding, faster steps.

    Portions of shuffled texts are sorted by length, and cut into batches, which come in random order.

    Args:
        portion: Batches per portion. Larger portions give more similar lengths and less random batches.

    Raises:
        ValueError: portion is below 1, or samples are not tokenised texts.

    Example:
        >>> samples = Samples(TokenRows.of([[2] * length for length in (9, 1, 8, 2, 7, 3)]))
        >>> rows = SimilarLength().order(samples, 2, seed=0, epoch=0)
        >>> sorted(samples.inputs.lengths[rows].sort(dim=1).values.tolist())
        [[1, 2], [3, 7], [8, 9]]
    """

    def __init__(self, portion: int = 50) -> None:
        if portion < 1:
            raise ValueError(f"expected portion of at least 1 batch, got {portion}")
        self.portion = portion

    def order(self, samples: Samples, batch_size: int, *, seed: int, epoch: int) -> Int[Tensor, "batches b"]:
        if not isinstance(samples.inputs, TokenRows):
            message = "SimilarLength expected texts, got other inputs, which all have one length: choose Shuffled"
            raise ValueError(message)  # noqa: TRY004 - bad input is always a ValueError
        size = min(batch_size, len(samples))
        generator = _generator(seed, epoch)
        shuffled = torch.randperm(len(samples), generator=generator)[: len(samples) // size * size]
        lengths = samples.inputs.lengths
        portions = [rows[lengths[rows].argsort(stable=True)] for rows in shuffled.split(self.portion * size)]
        batches = torch.cat(portions).view(-1, size)
        return batches[torch.randperm(len(batches), generator=generator)]


@final
class Balanced(Sampler):
    """The same number of samples per class in a batch, and each class in equally many batches, give or take one.

    Every sample of a class comes once before any is repeated, and twice in a batch only if its class is too small. An
    epoch has N / batch_size batches, rounded down, and at least one.

    Args:
        samples_per_class: Samples per class in a batch, which has batch_size / samples_per_class classes. None: 4 if
            classes have as many, more if there are few classes; a batch of all samples, and samples without one class
            each, are shuffled.

    Raises:
        ValueError: samples_per_class is below 1; batch_size is not a multiple of it, or needs more classes than there
            are; or, unless it is None, samples do not have one class each.

    Example:
        >>> samples = Samples(torch.zeros(12, 1), torch.arange(12) % 3, ("ash", "elm", "oak"))
        >>> samples.labels[Balanced(2).order(samples, 4, seed=0, epoch=0)].sort().values.tolist()
        [[0, 0, 1, 1], [1, 1, 2, 2], [0, 0, 2, 2]]
    """

    def __init__(self, samples_per_class: int | None = 8) -> None:
        if samples_per_class is not None and samples_per_class < 1:
            raise ValueError(f"expected samples_per_class of at least 1, got {samples_per_class}")
        self.samples_per_class = samples_per_class

    def order(self, samples: Samples, batch_size: int, *, seed: int, epoch: int) -> Int[Tensor, "batches b"]:
        whole = len(samples) <= batch_size or samples.label_kind != "classes"
        if self.samples_per_class is None and whole:
            return Shuffled().order(samples, batch_size, seed=seed, epoch=epoch)
        labels = samples.classes_for("Balanced", "choose Shuffled")
        occurring = samples.counts.nonzero().flatten()
        if self.samples_per_class is None:
            each = max(2, min(USUAL_SAMPLES_PER_CLASS, len(samples) // len(occurring)))
            ways = min(max(1, batch_size // each), len(occurring))
        else:
            self._check(batch_size, len(occurring), self.samples_per_class)
            ways = batch_size // self.samples_per_class
        generator = _generator(seed, epoch)
        slots = _classes_of_batches(max(1, len(samples) // batch_size), ways, len(occurring), generator)
        sizes = batch_size // ways + (torch.arange(ways) < batch_size % ways).long()  # samples per class
        order = torch.empty(len(slots), batch_size, dtype=torch.int64)
        places = rows_by_class(slots.repeat_interleave(sizes, dim=1).flatten(), len(occurring))
        taken = sizes.expand_as(slots).flatten()
        rows_of = rows_by_class(labels, len(samples.names))
        of_slots = rows_by_class(slots.flatten(), len(occurring))
        for label, positions, class_slots in zip(occurring.tolist(), places, of_slots, strict=True):
            order.view(-1)[positions] = _rows_of_class(rows_of[label], taken[class_slots].tolist(), generator)
        return order

    def _check(self, batch_size: int, classes: int, each: int) -> None:
        if batch_size % each:
            raise ValueError(f"expected batch_size as a multiple of samples_per_class={each}, got {batch_size}")
        if batch_size > classes * each:
            most = f"{classes * each}, {each} samples of each of {classes} classes"
            remedy = f"lower batch_size, or raise samples_per_class to {-(-batch_size // classes)} or more"
            raise ValueError(f"expected batch_size of at most {most}, got {batch_size}: {remedy}")


def _generator(seed: int, epoch: int) -> torch.Generator:
    mixed = hashlib.blake2b(f"{seed}, {epoch}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(mixed, "big") >> 1)


def _classes_of_batches(batches: int, ways: int, classes: int, generator: torch.Generator) -> Tensor:
    """Choose each batch's classes, (batches, ways): the least used so far, with ties broken at random."""
    came = torch.zeros(classes)
    chosen = torch.empty(batches, ways, dtype=torch.int64)
    for batch in chosen:
        lots = torch.rand(classes, generator=generator)
        batch.copy_((came + lots).topk(ways, largest=False).indices)
        came[batch] += 1
    return chosen


def _rows_of_class(rows: Tensor, sizes: list[int], generator: torch.Generator) -> Tensor:
    """Return the rows of one class for its batches of the given `sizes`, from one shuffle after another."""
    taken, left = list[Tensor](), rows[:0]
    for size in sizes:
        chosen, left = left[:size], left[size:]
        while len(chosen) < size:
            shuffle = rows[torch.randperm(len(rows), generator=generator)]
            twice = torch.isin(shuffle, chosen)
            left = torch.cat([shuffle[~twice], shuffle[twice]])
            lacking = size - len(chosen)
            chosen, left = torch.cat([chosen, left[:lacking]]), left[lacking:]
        taken.append(chosen)
    return torch.cat([*taken, rows[:0]])
