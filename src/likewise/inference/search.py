"""Search among features, in memory or in files: the nearest, near-duplicates, and labels that neighbours doubt."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from likewise.evaluation.features import Bar, silent
from likewise.evaluation.nearest import Groups, Nearest, RowFingerprints, close_pairs, neighbours_labels, own_places
from likewise.inference.stored import Stored

HALF = 0.5
QUERIES = 4096  # whose negatives are looked for at a time
ROUNDING = 1e-6  # of a cosine in float32: that of two equal samples may be a little below 1


@final
@dataclass(frozen=True)
class Neighbours:
    """The nearest of queries, nearest first.

    Args:
        ids: What they are called, k or fewer for each query.
        indices: Their places, (M, k); -1 where fewer were found.
        similarities: By cosine, (M, k); -inf where fewer were found.
        texts: What they say, as `ids`. None: they are no texts, or only their features are at hand.
    """

    ids: list[list[str]]
    indices: Int[NDArray[np.int64], "m k"]
    similarities: Float[NDArray[np.float32], "m k"]
    texts: list[list[str]] | None = None


class Doubt(NamedTuple):
    """A sample whose neighbours have other labels: its place, how far they agree with its own, and what they have."""

    place: int
    agreement: float
    label: Tensor


def neighbours(
    queries: Stored,
    among: Stored | None,
    k: int,
    at_least: float | None = None,
    bar: Bar = silent,
    *,
    own_index: Int[Tensor, " n"] | None = None,
) -> Iterator[tuple[int, Float[Tensor, "m k"], Int[Tensor, "m k"]]]:
    """Yield, for each piece of the queries, its first row, and similarities and places of their k nearest, or fewer.

    With `among` None, each query is compared with the others. Similarities below `at_least` don't count, and each
    query's own row, whose place in the gallery is `own_index`, as `own_of` finds it, is left out.
    """
    gallery = queries if among is None else among
    check_search(queries, gallery, k, at_least)
    own_index = torch.arange(len(queries)) if among is None else own_index
    least = -torch.inf if at_least is None else at_least - ROUNDING
    count = min(k, len(gallery) - (own_index is not None))
    for start, vectors in queries.pieces():
        mine = None if own_index is None else own_index[start : start + len(vectors)]
        nearest = Nearest(vectors, count, least=least, own_index=mine)
        for _, piece in bar(gallery.pieces(), "searching"):
            nearest.add(piece)
        yield start, nearest.similarities, nearest.indices


def own_of(queries: Stored, among: Stored, *, included: bool) -> Int[Tensor, " n"] | None:
    """Return the place of each query's own row in what is searched, if that includes them; else a warning may tell."""
    check_search(queries, among, 1, None)
    fingerprints = (RowFingerprints.of(vectors for _, vectors in stored.pieces()) for stored in (queries, among))
    return own_places(*fingerprints, included=included)[0]


def duplicates(samples: Stored, least: float, bar: Bar = silent) -> Groups:
    """Link all pairs of samples with at least a similarity."""
    check_search(samples, samples, 1, least)
    groups = Groups(len(samples))
    for start, vectors in bar(samples.pieces(), "comparing"):
        for first, references in samples.pieces():
            if first < start:
                continue
            for rows, places, similarities in close_pairs(vectors, references, least - ROUNDING):
                once = rows + start < places + first
                groups.link(rows[once] + start, places[once] + first, similarities[once])
    return groups


def mistakes(samples: Stored, k: int, bar: Bar = silent) -> list[Doubt]:
    """Return the samples with whose label most of their k nearest disagree, least agreement first."""
    labels = samples.labels
    if labels is None:
        raise ValueError("expected samples with labels, got none: --mistakes compares them with those of neighbours")
    doubts: list[Doubt] = []
    for start, _, indices in neighbours(samples, None, k, bar=bar):
        agreement, suggestions = neighbours_labels(labels, slice(start, start + len(indices)), indices)
        doubtful = (agreement < HALF).nonzero().flatten().tolist()
        doubts += [Doubt(start + row, float(agreement[row]), suggestions[row]) for row in doubtful]
    return sorted(doubts, key=lambda doubt: doubt.agreement)


def hard_negatives(
    queries: Float[Tensor, "n d"],
    candidates: Float[Tensor, "u d"],
    positives: Int[Tensor, " n"],
    apart: tuple[Int[Tensor, " n"], Int[Tensor, " u"]],
    k: int,
    *,
    from_rank: int = 1,
    margin: float | None = None,
    least: float | None = None,
    bar: Bar = silent,
) -> Iterator[tuple[Float[Tensor, "m k"], Int[Tensor, "m k"]]]:
    """Yield, for one group of queries after the other, similarities and places of hard negatives, most similar first.

    Candidates are the other side of pairs, each input once, and `positives` the place of each query's counterpart among
    them. `apart` is a number for each query, and for each candidate: those with the same number are no negatives. The
    most similar that may be a negative has rank 1; those before `from_rank` are left out. So is, with a margin, what is
    more similar than the counterpart, less the margin, though it keeps its rank: it may well be right. Where there are
    fewer than k, places are -1. Memory: the k + from_rank nearest of 4,096 queries, and a tile.
    """
    units = functional.normalize(candidates)
    count = min(k + from_rank - 1, len(candidates))
    for rows in bar(torch.arange(len(queries)).split(QUERIES), "searching"):
        vectors, limit = functional.normalize(queries[rows]), torch.full((len(rows), 1), torch.inf)
        if margin is not None:
            limit = (vectors * units[positives[rows]]).sum(dim=1, keepdim=True) - margin + ROUNDING
        wrong = _Wrong(apart[0][rows].unsqueeze(1), apart[1].unsqueeze(0), limit)
        nearest = Nearest(vectors, count, least=-torch.inf if least is None else least - ROUNDING, but=wrong)
        nearest.add(units)
        places = (from_rank - 1 - wrong.nearer).clamp(min=0) + torch.arange(k)
        beyond, places = places >= count, places.clamp(max=count - 1)
        similarities = nearest.similarities.gather(1, places).masked_fill(beyond, -torch.inf)
        yield similarities, nearest.indices.gather(1, places).masked_fill(beyond, -1)


@final
class _Wrong:
    """Tells what is no hard negative, of a tile: what has the query's number, or is more similar than a limit."""

    def __init__(self, mine: Int[Tensor, "m 1"], candidates: Int[Tensor, "1 u"], limit: Float[Tensor, "m 1"]) -> None:
        self._mine, self._others, self._limit = mine, candidates, limit
        self.nearer = torch.zeros_like(mine)  # how many were left out by the limit alone

    def __call__(self, rows: slice, columns: slice, similarities: Float[Tensor, "n c"]) -> Bool[Tensor, "n c"]:
        same, above = self._mine[rows] == self._others[:, columns], similarities > self._limit[rows]
        self.nearer[rows] += (above & ~same).sum(dim=1, keepdim=True)
        return same | above


def check_search(queries: Stored, gallery: Stored, k: int, at_least: float | None) -> None:
    """Raise a ValueError unless a search makes sense."""
    if k < 1:
        raise ValueError(f"expected k of at least 1, got {k}")
    if at_least is not None and not -1 <= at_least <= 1:
        raise ValueError(f"expected a similarity from -1 to 1, got {at_least}: 0.98 is nearly the same")
    if len(gallery) < 1 + (queries is gallery) or not len(queries):
        raise ValueError(f"expected samples to search among, got {len(gallery)}: check the file or folder")
    if queries.width != gallery.width:
        raise ValueError(f"expected queries of {gallery.width} numbers, got {queries.width}: embed both with one run")
