"""Sampling of episodes, which are classes with samples to learn from and others to classify; and PatchMix."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from likewise.data.augmentation import Draw
from likewise.runs.scores import format_count

CHUNK = 2**22  # random numbers at a time: 32 MiB

OptionPrefix = Literal["batches", "evaluations"]


class EpisodeShape(NamedTuple):
    """The size of episodes.

    Example:
        >>> EpisodeShape(4, ways=5, shots=1, queries=15).samples
        80
    """

    episodes: int
    """Number of episodes, E."""
    ways: int
    """Classes per episode, N."""
    shots: int
    """Samples per class to learn from, K: the support."""
    queries: int
    """Samples per class to classify, Q: the queries."""

    @property
    def each(self) -> int:
        """Samples per class, K + Q."""
        return self.shots + self.queries

    @property
    def samples(self) -> int:
        """Samples per episode, N·(K + Q)."""
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
    """A sampler of episodes without replacement: no class twice in an episode, no sample twice in a class.

    Args:
        labels: Class of each sample, (M,).
        names: The classes' names.
        shape: The size of episodes.
        room: The prefix of the shape's options in error messages: "batches" or "evaluations".

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
        """Return rows of episodes, (E, N, K + Q), with the support of each class first."""
        shape = self.shape
        all_of_them = torch.full((shape.episodes,), len(self._counts))
        classes = distinct(all_of_them, shape.ways, generator)
        within = distinct(self._counts[classes.flatten()], shape.each, generator)
        return self._rows[self._first[classes].unsqueeze(2) + within.view(*classes.shape, shape.each)]


def shortage(
    counts: Int[Tensor, " c"], names: Sequence[str], shape: EpisodeShape, prefix: OptionPrefix
) -> tuple[str, str, str] | None:
    """Describe the samples that episodes need, the available ones and the remedy; None if there are enough."""
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
    """Return the shape with ways and queries limited to the classes and samples, unless `options` set them."""
    occurring = counts[counts > 0]
    queries = int(occurring.min()) - shape.shots if len(occurring) else 1
    most = {"ways": max(2, len(occurring)), "queries": max(1, queries)}
    return shape._replace(**{name: min(getattr(shape, name), most[name]) for name in most if options[name] is None})


def fitting(counts: Int[Tensor, " c"], shape: EpisodeShape) -> EpisodeShape | None:
    """Return the shape with ways and queries limited to the classes and samples; None if these are too few."""
    fits = fitted(counts, shape, {"ways": None, "queries": None})
    occurring = counts[counts > 0]
    return fits if len(occurring) > 1 and int(occurring.min()) >= fits.each else None


def fitting_words(counts: Int[Tensor, " c"], names: Sequence[str], wanted: EpisodeShape, fits: EpisodeShape) -> str:
    """Describe how the fitting shape differs from the wanted one, and why; return "" if it does not."""
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
    many = counts >= k * k  # then at least 6 in 10 rows have no repeated number
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
    """The box replaced in the queries of each episode, and for each query, the query from which its box comes.

    Source:
        C. Liu et al., Learning a Few-shot Embedding Model with Contrastive Learning, 2021, section 3.3.
    """

    boxes: Int[Tensor, "e 4"]
    """Top, bottom, left and right of the box of each episode, in pixels, (E, 4); bottom and right are exclusive."""
    partners: Int[Tensor, "e q"]
    """The source of each query's box, (E, Q): a permutation of the queries, possibly the query itself."""


def draw_mix(draw: Draw, queries: int, height: int, width: int) -> Mix:
    """Draw a box and a permutation for each episode.

    With λ uniform from 0 to 1 the box has the sides ⌊S √(1 − λ)⌋, halved by integer division, around a centre uniform
    in the image, and is clipped at the image's edges: 31 % of 84 x 84 pixels on average.
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
    """Return a mask of the cells of a feature map that lie more than half within the box, and so show the partner.

    Cell i covers the pixels from start + i·stride to start + (i + 1)·stride, within the image.

    Args:
        mix: The boxes.
        map_shape: Height and width of the maps, in cells.
        stride: Pixels between neighbouring cells.
        image: Height and width of the images, in pixels.
        start: Start of the first cell, in pixels; a whole number or a half.

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
