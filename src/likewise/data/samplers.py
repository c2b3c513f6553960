"""Samplers: the order of samples in an epoch's batches, by seed and epoch alone; and episodes, with PatchMix."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from likewise.data.augmentation import Draw
from likewise.data.samples import Samples, rows_by_class
from likewise.data.texts import TokenRows
from likewise.instantiate import Described, describe
from likewise.runs.score_format import format_count

USUAL_SAMPLES_PER_CLASS = 4  # in a batch
CHUNK = 2**22  # random numbers at a time: 32 MiB

OptionPrefix = Literal["batches", "evaluations"]


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
    """Every text once per epoch, shuffled anew, texts of similar length together: less padding, faster steps.

    Portions of shuffled texts are sorted by length, and cut into batches, which come in random order.

    Args:
        portion: Batches of a portion. More: more similar lengths, and less random batches.

    Raises:
        ValueError: portion is below 1, or samples are not texts that an encoder has tokenised.

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
    """The same number of samples of each class in a batch, and each class in equally many batches, give or take one.

    Every sample of a class comes once before any comes again, and twice in a batch only where its class has too few. An
    epoch has N / batch_size batches, rounded down, and at least one.

    Args:
        samples_per_class: Samples of each class in a batch, which has batch_size / samples_per_class classes. None: 4
            where classes have as many, more where there are few classes; a batch of all samples, and samples that do
            not have one class each, are shuffled.

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
        sizes = batch_size // ways + (torch.arange(ways) < batch_size % ways).long()  # of a batch's slots
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
    """Return the rows of one class for its batches, which take `sizes`: one shuffle after another."""
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


class EpisodeShape(NamedTuple):
    """The size of episodes.

    Example:
        >>> EpisodeShape(4, ways=5, shots=1, queries=15).samples
        80
    """

    episodes: int
    """Episodes, E."""
    ways: int
    """Classes of an episode, N."""
    shots: int
    """Samples of each class to learn from, K: the support."""
    queries: int
    """Samples of each class to classify, Q."""

    @property
    def each(self) -> int:
        """Samples of a class, K + Q."""
        return self.shots + self.queries

    @property
    def samples(self) -> int:
        """Samples of an episode, N·(K + Q)."""
        return self.ways * self.each

    @classmethod
    def usual(cls, episodes: int, ways: int | None, shots: int, queries: int | None) -> "EpisodeShape":
        return cls(episodes, 5 if ways is None else ways, shots, 15 if queries is None else queries)

    def check(self) -> None:
        for name, value, least in zip(self._fields, self, (1, 2, 1, 1), strict=True):
            if value < least or value != int(value):
                whole = "" if value < least else ", a whole number"
                raise ValueError(f"expected {name} of at least {least}{whole}, got {value}: 5 ways, 1 shot is usual")


@final
class EpisodeSampler:
    """Samples episodes without replacement: every class of an episode once, every sample of a class once.

    Args:
        labels: Class of each sample, (M,).
        names: The classes' names.
        shape: The size of episodes.
        room: The options that the shape comes from, "batches" or "evaluations", for error messages.

    Raises:
        ValueError: There are fewer classes than ways, or a class has fewer samples than shots and queries.

    Memory:
        O(M), and 32 MiB.

    Example:
        >>> shape = EpisodeShape(2, ways=3, shots=1, queries=5)
        >>> EpisodeSampler(torch.arange(40) % 4, ["ash", "elm", "fir", "oak"], shape)(torch.Generator()).shape
        torch.Size([2, 3, 6])
    """

    def __init__(
        self, labels: Int[Tensor, " m"], names: Sequence[str], shape: EpisodeShape, room: OptionPrefix = "batches"
    ) -> None:
        shape.check()
        counts = torch.bincount(labels, minlength=len(names))
        if len(counts) > len(names):
            raise ValueError(f"expected a name for each of {len(counts)} classes, got {len(names)}")
        lacking = shortage(counts, names, shape, room)
        if lacking is not None:
            raise ValueError("expected {}, got {}: {}".format(*lacking))
        occurring = counts.nonzero().flatten()
        self.shape = shape
        self._counts = counts[occurring]
        self._rows = labels.argsort(stable=True)
        self._first = self._counts.cumsum(0) - self._counts

    def __call__(self, generator: torch.Generator) -> Int[Tensor, "e n s"]:
        """Return rows of episodes, (E, N, K + Q), of each class the support first."""
        shape = self.shape
        all_of_them = torch.full((shape.episodes,), len(self._counts))
        classes = distinct(all_of_them, shape.ways, generator)
        within = distinct(self._counts[classes.flatten()], shape.each, generator)
        return self._rows[self._first[classes].unsqueeze(2) + within.view(*classes.shape, shape.each)]


def shortage(
    counts: Int[Tensor, " c"], names: Sequence[str], shape: EpisodeShape, prefix: OptionPrefix
) -> tuple[str, str, str] | None:
    """Say what episodes need, what there is, and the remedy; None where there is enough."""
    occurring = counts.nonzero().flatten()
    if len(occurring) < shape.ways:
        return f"at least {shape.ways} classes, as many as an episode has", str(len(occurring)), f"lower {prefix}.ways"
    fewest = int(occurring[counts[occurring].argmin()])
    held = int(counts[fewest])
    if held >= shape.each:
        return None
    lower = f"queries or {prefix}.shots" if held > shape.shots else "shots"
    summary = f"{format_count(shape.shots, 'shot')} and {format_count(shape.queries, 'query', 'queries')}"
    needed = f"at least {shape.each} samples of every class, {summary}"
    remedy = f"lower {prefix}.{lower}, or leave out such classes with --min_per_class {shape.each}"
    return needed, f"{held} of {names[fewest]!r}", remedy


def fitted(counts: Int[Tensor, " c"], shape: EpisodeShape, options: Mapping[str, object]) -> EpisodeShape:
    """Return the shape with no more ways and queries than classes and samples, where `options` leave them open."""
    occurring = counts[counts > 0]
    queries = int(occurring.min()) - shape.shots if len(occurring) else 1
    most = {"ways": max(2, len(occurring)), "queries": max(1, queries)}
    return shape._replace(**{name: min(getattr(shape, name), most[name]) for name in most if options[name] is None})


def fitting(counts: Int[Tensor, " c"], shape: EpisodeShape) -> EpisodeShape | None:
    """Return the shape with no more ways and queries than there are classes and samples; None where 1 is too many."""
    fits = fitted(counts, shape, {"ways": None, "queries": None})
    occurring = counts[counts > 0]
    return fits if len(occurring) > 1 and int(occurring.min()) >= fits.each else None


def fitting_words(counts: Int[Tensor, " c"], names: Sequence[str], wanted: EpisodeShape, fits: EpisodeShape) -> str:
    """Say how a shape that fits differs from the one that was wanted, and why; nothing where it doesn't."""
    occurring = counts.nonzero().flatten()
    fewest = int(occurring[counts[occurring].argmin()])
    ways = f"{fits.ways}-way, as there are {len(occurring)} classes"
    held = int(counts[fewest])
    queries = f"with {format_count(fits.queries, 'query', 'queries')}, as there are {held} samples of {names[fewest]!r}"
    clauses = ((ways, fits.ways != wanted.ways), (queries, fits.queries != wanted.queries))
    return ", and ".join(clause for clause, differs in clauses if differs)


def distinct(counts: Int[Tensor, " r"], k: int, generator: torch.Generator) -> Int[Tensor, "r k"]:
    """Draw k different numbers below each count, (R,) and at least k; every ordered choice is equally likely."""
    drawn = torch.empty(len(counts), k, dtype=torch.int64)
    many = counts >= k * k  # then at least 6 of 10 rows have no number twice
    drawn[many] = _drawn_again(counts[many], k, generator)
    few = (~many).nonzero().flatten()
    width = int(counts[few].max()) if len(few) else 1
    for some in few.split(max(1, CHUNK // width)) if len(few) else ():
        lots = torch.rand(len(some), width, generator=generator)
        lots[torch.arange(width) >= counts[some].unsqueeze(1)] = 2
        drawn[some] = lots.topk(k, dim=1, largest=False).indices
    return drawn


def _drawn_again(counts: Int[Tensor, " r"], k: int, generator: torch.Generator) -> Int[Tensor, "r k"]:
    drawn = torch.empty(len(counts), k, dtype=torch.int64)
    left = torch.arange(len(counts))
    while len(left):
        uniform = torch.rand(len(left), k, generator=generator, dtype=torch.float64)
        drawn[left] = (uniform * counts[left].unsqueeze(1)).long()
        in_order = drawn[left].sort(dim=1).values
        left = left[(in_order[:, 1:] == in_order[:, :-1]).any(dim=1)]
    return drawn


class Mix(NamedTuple):
    """For each episode the box of its queries that is replaced, and the query that each one's box comes from.

    Source:
        C. Liu et al., Learning a Few-shot Embedding Model with Contrastive Learning, 2021, section 3.3.
    """

    boxes: Int[Tensor, "e 4"]
    """Top, bottom, left and right of the box of each episode, in pixels, (E, 4); bottom and right are outside."""
    partners: Int[Tensor, "e q"]
    """For each query the one that its box comes from, (E, Q): a permutation; it may be the query itself."""


def draw_mix(draw: Draw, queries: int, height: int, width: int) -> Mix:
    """Draw a box and a permutation for each episode.

    With λ uniform from 0 to 1 the box has the sides ⌊S √(1 − λ)⌋, halved by integer division, around a centre that is
    uniform in the image, and is cut off at its edges: 31 % of the pixels of 84 x 84 on average.
    """
    numbers = draw.uniform(3)
    share = (1 - numbers[:, 0]).sqrt()
    edges: list[Tensor] = []
    for column, side in enumerate((height, width), 1):
        centre, half = (numbers[:, column] * side).long(), (share * side).long() // 2
        edges += [(centre - half).clamp(0, side), (centre + half).clamp(0, side)]
    return Mix(torch.stack(edges, dim=1), draw.uniform(queries).argsort(dim=1))


def patched(queries: Shaped[Tensor, "e q ch h w"], mix: Mix) -> Shaped[Tensor, "e q ch h w"]:
    """Replace the box of every query by its partner's."""
    height, width = queries.shape[-2:]
    top, bottom, left, right = mix.boxes.T.unsqueeze(2)
    rows, columns = (torch.arange(side, device=queries.device) for side in (height, width))
    inside = ((rows >= top) & (rows < bottom)).unsqueeze(2) & ((columns >= left) & (columns < right)).unsqueeze(1)
    episodes = torch.arange(len(queries), device=queries.device).unsqueeze(1)
    return torch.where(inside[:, None, None], queries[episodes, mix.partners], queries)


def owned_by_partner(
    mix: Mix, map_shape: tuple[int, int], stride: int, image: tuple[int, int], *, start: float = 0.0
) -> Bool[Tensor, "e h w"]:
    """Tell which cells of a feature map lie for more than half within the box, and so show the partner.

    Cell i covers the pixels from start + i·stride to start + (i + 1)·stride, as far as the image goes.

    Args:
        mix: The boxes.
        map_shape: Height and width of the maps, in cells.
        stride: Pixels between neighbouring cells.
        image: Height and width of the images, in pixels.
        start: Where the first cell begins, in pixels; a whole number or a half.

    Example:
        >>> owned_by_partner(Mix(torch.tensor([[0, 8, 0, 5]]), torch.tensor([[0]])), (2, 2), 4, (8, 8)).tolist()
        [[[True, False], [True, False]]]
    """
    covered, sizes = list[Tensor](), list[Tensor]()
    for axis, (cells, side) in enumerate(zip(map_shape, image, strict=True)):
        edges = torch.arange(cells + 1, device=mix.boxes.device) * stride + start
        begin, end = edges.clamp(0, side).unfold(0, 2, 1).unbind(1)
        low, high = mix.boxes[:, 2 * axis, None], mix.boxes[:, 2 * axis + 1, None]
        covered.append((torch.minimum(end, high) - torch.maximum(begin, low)).clamp(min=0))
        sizes.append(end - begin)
    area = sizes[0].unsqueeze(1) * sizes[1]
    return 2 * covered[0].unsqueeze(2) * covered[1].unsqueeze(1) > area
