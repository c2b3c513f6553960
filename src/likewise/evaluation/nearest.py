"""Exact search by cosine similarity, tile by tile: nearest vectors, queries' own rows, near duplicates."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.evaluation.features import CHECK_BATCH, Bar, Features, silent
from likewise.evaluation.label_metrics import jaccard
from likewise.runs.scores import ENCODER

TILE = 2**23  # similarities at a time: 32 MiB in float32
MAX_TILE = 2**25  # similarities at a time for many references: products are fast with that many queries
MIN_ROWS = 256  # queries of a tile
MAX_PREPARED_NUMBERS = 2**25  # of references normalised and shuffled once, 128 MiB; beyond it, a tile at a time
LARGE_ROWS = 2048  # queries per preparation of such a tile
MAX_NEIGHBOURS = 2**22  # neighbours at a time
CACHE_TILE = {"cpu": 2**21}  # similarities of `Nearest`: 8 MiB fits a cache; elsewhere more are faster
BLOCK = 64  # similarities whose largest is compared first
MIN_BLOCKS = 32  # of a tile
MIN_BLOCK = 4  # columns whose maximum `largest` takes first
LAST_PLACE = 2**32 - 1  # beyond every reference
PROJECTIONS = 8
ROUNDING = 1e-5  # of a row's norm; float32 rows of one input differ by less between batch sizes
WINDOW = 64  # gallery rows, nearest by their first projection, compared with a query
MIN_WAITING_PAIRS = 2**20  # least number of pairs collected before groups are merged
_NONE = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)


def nearest(
    queries: Float[Tensor, "m d"],
    references: Float[Tensor, "r d"] | None,
    count: int,
    *,
    own_index: Int[Tensor, " m"] | None = None,
    progress: Bar = silent,
    doing: str = "neighbours",
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield slices of queries with cosines and indices, (m, count) each, of their nearest references, nearest first.

    Without references, the other queries serve as references; with `own_index`, (M,), all except the one at that index.
    Ties are broken in a fixed random order: the order of the data, often by class, has no effect. Memory is a tile of
    2²⁵ similarities, and a copy of the references if they have at most 2²⁵ numbers.
    """
    vectors = queries.detach()
    candidates = vectors if references is None else references.detach()
    own_index = torch.arange(len(vectors)) if references is None else own_index
    order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(0)).to(vectors.device)
    count, large = min(count, len(candidates) - (own_index is not None)), candidates.numel() > MAX_PREPARED_NUMBERS
    shuffled = None if large else functional.normalize(candidates)[order]
    rows = max(MIN_ROWS, LARGE_ROWS if large else TILE // max(1, len(candidates)))
    rows = min(rows, max(1, MAX_NEIGHBOURS // max(1, count)))
    columns = max(1, MAX_TILE // rows)
    positions = order if own_index is None else order.argsort()[own_index.to(order.device)]
    buffer = vectors.new_empty(min(rows, len(vectors)) * min(columns, len(candidates)))
    for start in progress(range(0, len(vectors), rows), doing):
        part = slice(start, min(start + rows, len(vectors)))
        some = functional.normalize(vectors[part])
        similarities = some.new_empty(len(some), 0)
        indices = order.new_empty(len(some), 0)
        for first in range(0, len(candidates), columns):
            these = slice(first, first + columns)
            among = functional.normalize(candidates[order[these]]) if shuffled is None else shuffled[these]
            tile = buffer[: len(some) * len(among)].view(len(some), len(among))
            torch.mm(some, among.T, out=tile)
            if own_index is not None:
                column = positions[part] - first
                there = ((column >= 0) & (column < len(among))).nonzero().flatten()
                tile[there, column[there]] = -torch.inf
            values, places = largest(tile, min(count, len(among)))
            similarities, indices = torch.cat([similarities, values], 1), torch.cat([indices, places + first], 1)
            if first:
                similarities, best = similarities.topk(min(count, similarities.shape[1]), dim=1)
                indices = indices.gather(1, best)
        yield part, similarities, order[indices]


def largest(tile: Float[Tensor, "m n"], count: int) -> tuple[Float[Tensor, "m k"], Int[Tensor, "m k"]]:
    """Return the largest values of each row, in descending order, and their columns, like `topk` but faster.

    The k largest values of a row lie in its k blocks with the largest maxima. Blocks of √(n/k) columns leave the least
    to sort: √(n·k) maxima, and as many values.
    """
    width = tile.shape[1]
    block = int((width / max(1, count)) ** 0.5)
    if block < MIN_BLOCK:
        values, columns = tile.topk(count, dim=1)
        return values, columns
    whole = width // block
    maxima = tile[:, : whole * block].unflatten(1, (block, whole)).amax(1)  # a block is every whole-th column
    chosen = maxima.topk(min(count, whole), dim=1, sorted=False).indices
    columns = (chosen.unsqueeze(2) + whole * torch.arange(block, device=tile.device)).flatten(1)
    values = tile.gather(1, columns)
    if whole * block < width:
        rest = torch.arange(whole * block, width, device=tile.device).expand(len(tile), -1)
        values, columns = torch.cat([values, tile[:, whole * block :]], 1), torch.cat([columns, rest], 1)
    top = values.topk(count, dim=1)
    return top.values, columns.gather(1, top.indices)


@final
class Nearest:
    """The nearest references of queries by cosine similarity; references may be added piece by piece.

    Similarities are in float32. In a tile of them, the largest of each block is compared with the k-th best so far, and
    blocks without an improvement are skipped. For equal similarities, the earlier reference comes first.

    Similarities below `least` don't count. Neither do the one at each query's `own_index` and those in the mask (m, r)
    returned by `but`, which is called once for each tile with slices of queries and references and their similarities.
    """

    def __init__(
        self,
        queries: Float[Tensor, "m d"],
        count: int,
        *,
        least: float = -torch.inf,
        own_index: Int[Tensor, " m"] | None = None,
        but: Callable[[slice, slice, Tensor], Tensor] | None = None,
    ) -> None:
        self._units, self._least, self._own, self._but = functional.normalize(queries.float()), least, own_index, but
        self._keys = sort_keys(self._units.new_full((len(queries), count), -torch.inf), LAST_PLACE)
        self._bound = self._units.new_full((len(queries), 1), max(least, torch.finfo().min))
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []
        self._found = torch.zeros_like(self._keys[:, 0])
        self._seen = 0

    def add(self, references: Float[Tensor, "r d"]) -> None:
        """Compare the queries with the next references."""
        count = self._keys.shape[1]
        for start, first, tile in _tiles(self._units, functional.normalize(references.float()), max(MIN_BLOCKS, count)):
            rows = slice(start, start + len(tile))
            if self._own is not None:
                own_column = self._own[rows] - (self._seen + first)
                there = ((own_column >= 0) & (own_column < tile.shape[1])).nonzero().flatten()
                tile[there, own_column[there]] = -torch.inf
            if self._but is not None:
                within = tile[:, : len(references) - first]
                begin = self._seen + first
                within.masked_fill_(self._but(rows, slice(begin, begin + within.shape[1]), within), -torch.inf)
            blocks = tile.unflatten(1, (-1, BLOCK))
            maxima, bound = blocks.amax(2), self._bound[rows]
            hits = (maxima >= bound).flatten().nonzero().flatten()
            if 2 * len(hits) > maxima.numel() and count <= tile.shape[1]:  # as among the first references
                bound = bound.maximum(tile.topk(count, sorted=False).values.amin(1, keepdim=True))
                hits = (maxima >= bound).flatten().nonzero().flatten()
            values = blocks.flatten(0, 1)[hits]
            mask = values >= bound[hits // maxima.shape[1]]
            hit, column = mask.nonzero(as_tuple=True)
            row, block = hits[hit] // maxima.shape[1], hits[hit] % maxima.shape[1]
            self._wait(row + start, sort_keys(values[mask], block * BLOCK + column + (self._seen + first)))
            if sum(len(indices) for indices, *_ in self._waiting) > count * len(tile):
                self._merge()
        self._merge()
        self._seen += len(references)

    @property
    def similarities(self) -> Float[Tensor, "m k"]:
        """The largest similarities, (M, k), in descending order; −∞ where fewer references count."""
        return _similarities(self._keys.sort(dim=1, descending=True).values)

    @property
    def indices(self) -> Int[Tensor, "m k"]:
        """The indices of the nearest among all references, (M, k); -1 where fewer count."""
        places = LAST_PLACE - (self._keys.sort(dim=1, descending=True).values & LAST_PLACE)
        return places.masked_fill(places == LAST_PLACE, -1)

    def _wait(self, row: Int[Tensor, " n"], keys: Int[Tensor, " n"]) -> None:
        counts = torch.bincount(row, minlength=len(self._found))
        slot = torch.arange(len(row), device=row.device) + (self._found - counts.cumsum(0) + counts)[row]
        self._waiting.append((row, slot, keys))
        self._found += counts

    def _merge(self) -> None:
        rows = self._found.nonzero().flatten()
        if len(rows):
            row, slot, keys = map(torch.cat, zip(*self._waiting, strict=True))
            before = self._keys[rows]
            wide = functional.pad(before, (0, int(self._found.max())), value=int(before.min()))
            wide[torch.searchsorted(rows, row), slot + before.shape[1]] = keys
            self._keys[rows] = best = wide.topk(before.shape[1], sorted=False).values
            last = _similarities(best.amin(1, keepdim=True))
            self._bound[rows] = last.nextafter(last.new_tensor(torch.inf)).clamp(min=self._least)
        self._found.zero_()
        self._waiting = []


def sort_keys(similarities: Float[Tensor, "..."], places: Int[Tensor, "..."] | int) -> Int[Tensor, "..."]:
    """Pack each similarity and place into one integer: larger for larger similarities, and for earlier ones in ties."""
    bits = (similarities + 0.0).view(torch.int32)  # turns −0 into 0
    return ((bits ^ ((bits >> 31) & 0x7FFF_FFFF)).long() << 32) + (LAST_PLACE - places)


def _similarities(keys: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    bits = (keys >> 32).int()
    return (bits ^ ((bits >> 31) & 0x7FFF_FFFF)).view(torch.float32)


def close_pairs(
    queries: Float[Tensor, "m d"], references: Float[Tensor, "r d"], least: float
) -> Iterator[tuple[Int[Tensor, " p"], Int[Tensor, " p"], Float[Tensor, " p"]]]:
    """Yield the pairs of a query and a reference of at least a similarity: their indices, and the similarities."""
    units, gallery_units = functional.normalize(queries.float()), functional.normalize(references.float())
    for start, first, tile in _tiles(units, gallery_units, MIN_BLOCKS):
        row, column = (tile >= least).nonzero(as_tuple=True)
        if len(row):
            yield row + start, column + first, tile[row, column]


def _tiles(
    queries: Float[Tensor, "m d"], references: Float[Tensor, "r d"], blocks: int
) -> Iterator[tuple[int, int, Float[Tensor, "m n"]]]:
    """Yield each tile's first row and column, and its similarities, with −∞ up to whole blocks of columns."""
    size = CACHE_TILE.get(queries.device.type, TILE * 8)
    blocks = min(max(blocks, size // (BLOCK * max(1, len(queries)))), -(-len(references) // BLOCK))
    rows = max(1, size // (BLOCK * max(1, blocks)))
    buffer = queries.new_empty(min(rows, len(queries)) * blocks * BLOCK)
    for start in range(0, len(queries), rows):
        some = queries[start : start + rows]
        for first in range(0, len(references), max(1, blocks) * BLOCK):
            chunk = references[first : first + blocks * BLOCK]
            wide = -(-len(chunk) // BLOCK) * BLOCK
            tile = buffer[: len(some) * wide].view(len(some), wide)
            torch.mm(some, chunk.T, out=tile[:, : len(chunk)])
            tile[:, len(chunk) :] = -torch.inf
            yield start, first, tile


@final
@dataclass(frozen=True)
class RowFingerprints:
    """Fingerprints for finding equal rows, on the CPU."""

    keys: Int[Tensor, " n"]  # a hash of each row's bits and label
    labels: Int[Tensor, " n"]  # a hash of each label; 0 where labels don't count
    projections: Float[Tensor, "n p"]  # inner products with random directions, float64
    norms: Float[Tensor, " n"]  # float64

    @classmethod
    def of(cls, pieces: Iterable[Float[Tensor, "n d"]], labels: Float[Tensor, "n l"] | None = None) -> Self:
        """Return the fingerprints of rows, read in pieces."""
        fingerprints: list[tuple[Tensor, Tensor, Tensor]] = []
        for some in (some for piece in pieces for some in piece.detach().split(CHECK_BATCH)):
            directions = torch.randn(some.shape[1], PROJECTIONS, generator=torch.Generator().manual_seed(0))
            wide = some.double()
            projections = wide @ directions.to(wide.device, wide.dtype)
            fingerprints.append((row_keys(some), projections.cpu(), wide.norm(dim=1).cpu()))
        keys, projections, norms = (torch.cat(tensors) for tensors in zip(*fingerprints, strict=True))
        hashed = torch.zeros_like(keys) if labels is None else row_keys(labels)
        return cls(keys + 3 * hashed, hashed, projections, norms)


def row_keys(vectors: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
    """Return a 64-bit hash of each row, the same for bitwise equal rows, on the CPU."""
    drawn = torch.randint(-(2**62), 2**62, (vectors.shape[1],), generator=torch.Generator().manual_seed(0))
    mixed = (vectors.float() + 0.0).view(torch.int32).long() * (2 * drawn + 1).to(vectors.device)  # −0 becomes 0
    return (mixed ^ (mixed >> 29)).sum(dim=1).cpu()


def places_of_equal(queries: Int[Tensor, " m"], gallery: Int[Tensor, " r"]) -> Int[Tensor, " m"]:
    """Return the index of each query's equal in the gallery, by their keys, or -1; duplicates are matched in order."""
    ordered, order = gallery.sort(stable=True)
    first, end = (torch.searchsorted(ordered, queries, right=right) for right in (False, True))
    known, by_key = queries.sort(stable=True)
    turn = torch.empty_like(by_key)
    turn[by_key] = torch.arange(len(known)) - torch.searchsorted(known, known)
    position = torch.minimum(first + turn, end - 1).clamp(min=0)
    return torch.full_like(queries, -1) if not len(order) else order[position].where(end > first, -1)


def places_of_close(queries: RowFingerprints, gallery: RowFingerprints) -> Int[Tensor, " m"]:
    """Return the index of a gallery row equal to each query up to rounding, with the same label, or -1.

    Rows x and y with a difference of norm ε differ by about ε in every projection. The rows nearest by the first
    projection are therefore the candidates, and the other projections decide. Memory is O(M + R).
    """
    ordered, order = gallery.projections[:, 0].sort(stable=True)
    matches = torch.full_like(queries.keys, -1)
    if not len(order):
        return matches
    around = torch.arange(min(WINDOW, len(order)))
    for rows in torch.arange(len(matches)).split(CHECK_BATCH // 4):
        middle = torch.searchsorted(ordered, queries.projections[rows, 0].contiguous())
        first = (middle - WINDOW // 2).clamp(max=len(order) - len(around)).clamp(min=0)
        places = order[first.unsqueeze(1) + around]
        away = (gallery.projections[places] - queries.projections[rows].unsqueeze(1)).abs().amax(dim=2)
        away = away.where(gallery.labels[places] == queries.labels[rows].unsqueeze(1), torch.inf)
        least, closest = away.min(dim=1)
        close = least <= ROUNDING * queries.norms[rows]
        matches[rows] = places.gather(1, closest.unsqueeze(1)).squeeze(1).where(close, -1)
    return matches


def classes_among(queries: Features, gallery: Features) -> Int[Tensor, " m"]:
    """Return the queries' classes in the gallery's numbering, which may differ; -1 for a class not in the gallery."""
    numbers = {name: number for number, name in enumerate(gallery.names)}
    return torch.tensor([numbers.get(name, -1) for name in queries.names], dtype=torch.int64)[queries.classes]


def own_places(
    queries: RowFingerprints, gallery: RowFingerprints, *, included: bool
) -> tuple[Int[Tensor, " m"] | None, tuple[str, ...]]:
    """Return the index of each query's own row in a gallery that includes them, or None, and notes on equal rows.

    If at least half of the queries are rows of a gallery not declared to include them, there is also a warning.
    """
    own_index = places_of_equal(queries.keys, gallery.keys)
    own_index = own_index.where(own_index >= 0, places_of_close(queries, gallery))
    if included and (missing := int((own_index < 0).sum())):
        error = f"expected each query's own row in the gallery, got {missing:,} of {len(own_index):,} queries without"
        raise ValueError(f"{error}: leave out gallery_includes_queries, or add their rows, with their labels")
    match_count = int(((own_index >= 0) & (queries.norms > 0)).sum())  # zeros are similar to nothing
    if included or not match_count:
        return own_index if included else None, ()
    note = f"{match_count:,} of {len(own_index):,} queries are rows of the gallery, too"
    if 2 * match_count >= len(own_index):
        remedy = "gallery_includes_queries leaves each query's own row out, or drop these rows"
        warnings.warn(f"{note}, and find themselves: {remedy}", stacklevel=6)
    return None, (note,)


def own_rows(
    queries: Features, gallery: Features, *, included: bool
) -> tuple[Int[Tensor, " m"] | None, tuple[str, ...]]:
    """Return the result of `own_places` for features: a query's own row has its label; raw inputs get no notes."""
    if not included and (queries.part, queries.kind) != ("test", ENCODER):
        return None, ()
    labels: tuple[Tensor | None, Tensor | None] = (None, None)
    if included and queries.labels is not None and gallery.labels is not None:
        of_sets = queries.label_kind == "label sets"
        labels = (queries.sets, gallery.sets) if of_sets else (classes_among(queries, gallery), gallery.classes)
    fingerprints = (
        RowFingerprints.of([features.vectors], None if marks is None else marks.float().reshape(len(marks), -1))
        for features, marks in zip((queries, gallery), labels, strict=True)
    )
    return own_places(*fingerprints, included=included)


@final
class Groups:
    """Groups of samples connected by chains of close pairs, few of which are in memory."""

    def __init__(self, count: int) -> None:
        self.closest = torch.full((count,), -torch.inf)
        self._group = np.arange(count)
        self._waiting = [_NONE]

    def link(self, rows: Int[Tensor, " p"], columns: Int[Tensor, " p"], similarities: Float[Tensor, " p"]) -> None:
        """Link the samples of close pairs, given by their indices."""
        for index in (rows, columns):
            self.closest.scatter_reduce_(0, index, similarities.float(), "amax")
        group = torch.from_numpy(self._group)
        new = group[rows] != group[columns]
        self._waiting.append((rows[new], columns[new]))
        if sum(len(indices) for indices, _ in self._waiting) > max(MIN_WAITING_PAIRS, len(group)):
            self._merge()

    def members(self) -> list[Int[Tensor, " n"]]:
        """Return the indices of the samples of each group with at least two, largest groups first."""
        self._merge()
        group = torch.from_numpy(self._group)
        order = group.argsort(stable=True)
        groups = [rows for rows in order.split(torch.bincount(group).tolist()) if len(rows) > 1]
        return sorted(groups, key=lambda rows: (-len(rows), -float(self.closest[rows].max()), int(rows[0])))

    def _merge(self) -> None:
        from scipy.sparse import coo_array  # noqa: PLC0415 - a first prediction need not wait for it
        from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 - as above

        rows, columns = (self._group[torch.cat(indices).numpy()] for indices in zip(*self._waiting, strict=True))
        links = coo_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=(len(self._group),) * 2)
        self._group = connected_components(links, directed=False)[1][self._group]
        self._waiting = [_NONE]


def neighbours_labels(
    labels: Int[Tensor, " n"] | Bool[Tensor, "n l"], rows: slice, indices: Int[Tensor, "m k"]
) -> tuple[Float[Tensor, " m"], Int[Tensor, " m"] | Bool[Tensor, "m l"]]:
    """Return the agreement of neighbours with the labels of samples, and the labels predicted by the neighbours.

    For classes: the share of the k neighbours with the sample's class, and their most frequent class; for label sets:
    the mean Jaccard similarity, and the labels of more than half of the neighbours.
    """
    mine, near = labels[rows].unsqueeze(1), labels[indices]
    if labels.ndim == 2:
        return jaccard(mine, near).mean(dim=1).float(), 2 * near.sum(dim=1) > near.shape[1]
    return (near == mine).float().mean(dim=1), near.mode(dim=1).values
