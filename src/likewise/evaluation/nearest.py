"""The nearest vectors by cosine similarity, exact, tile by tile: never all pairs in memory."""

from collections.abc import Callable, Iterator
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.evaluation.features import Bar, silent

TILE = 2**23  # similarities at a time: 32 MiB in float32
MAX_TILE = 2**25  # similarities at a time where references are many: products are fast with so many queries
MIN_ROWS = 256  # queries of a tile
MAX_PREPARED_NUMBERS = 2**25  # of references normalised and shuffled once, 128 MiB; of more, a tile at a time
LARGE_ROWS = 2048  # queries for which such a tile of references is prepared anew
MAX_NEIGHBOURS = 2**22  # neighbours at a time
CACHE_TILE = {"cpu": 2**21}  # similarities of `Nearest`: 8 MiB, which a cache holds; elsewhere more are faster
BLOCK = 64  # similarities of which the largest is looked at first
MIN_BLOCKS = 32  # of a tile
MIN_BLOCK = 4  # columns of which `largest` looks at the maximum first
LAST_PLACE = 2**32 - 1  # beyond every reference's


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

    Without references, those of a query are the other queries; with `own_index`, (M,), all but the one at that index.
    Equal similarities come in a random order that is the same every time, so that the order of the data, which often is
    by class, decides nothing.
    Memory is a tile of 2²⁵ similarities, and a copy of the references if they have at most 2²⁵ numbers.
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
    """Return the largest of each row, largest first, and their columns, as `topk` does, in less time.

    The k largest of a row lie in the k blocks of it with the largest maxima. Blocks of √(n/k) columns leave the least
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


def rank_gallery(
    queries: Float[Tensor, "m d"],
    gallery: Float[Tensor, "r d"],
    pairs: Int[Tensor, "p 2"],
    depth: int,
    *,
    own_index: Int[Tensor, " m"] | None = None,
    progress: Bar = silent,
    doing: str = "ranking",
) -> tuple[Int[Tensor, " m"], Bool[Tensor, "m k"]]:
    """Rank a whole gallery for queries by cosine similarity: exact, a tile at a time, in the order of `nearest`.

    `pairs` are places of a query and of a right answer; `own_index` is the place in the gallery that is left out for
    each query, no right answer of it. Returned are the rank of each query's first right answer, from 1, or 0 without
    one, and which of the `depth` nearest are right.
    """
    units, gallery_units = functional.normalize(queries.float()), functional.normalize(gallery.float())
    order = torch.randperm(len(gallery_units), generator=torch.Generator().manual_seed(0))
    columns = torch.arange(len(gallery_units))
    back = order.argsort()
    query, position = pairs[:, 0], back[pairs[:, 1]]
    by_query = query.argsort()
    query, position = query[by_query], position[by_query]
    shuffled, right = gallery_units[order].T, query * len(gallery_units) + position
    first = torch.zeros(len(units), dtype=torch.int64)
    hits = torch.zeros(len(units), min(depth, len(gallery_units)), dtype=torch.bool)
    rows = max(1, CACHE_TILE["cpu"] // max(1, len(gallery_units)))
    for start in progress(range(0, len(units), rows), doing):
        part = slice(start, min(start + rows, len(units)))
        keys = _keys(units[part] @ shuffled, columns)
        if own_index is not None:
            keys.scatter_(1, back[own_index[part]].unsqueeze(1), torch.iinfo(torch.int64).min)
        these = slice(*torch.searchsorted(query, torch.tensor([part.start, part.stop])).tolist())
        row = query[these] - start
        best = torch.full((len(keys),), torch.iinfo(torch.int64).max)
        best.scatter_reduce_(0, row, keys[row, position[these]], "amax", include_self=False)
        first[part] = (keys >= best.unsqueeze(1)).sum(dim=1)
        near = keys.topk(hits.shape[1], dim=1).indices
        hits[part] = torch.isin(near + torch.arange(start, part.stop).unsqueeze(1) * len(gallery_units), right[these])
    return first, hits


@final
class Nearest:
    """The nearest references of queries by cosine similarity; references may come piece by piece.

    Similarities are in float32. Of a tile of them, the largest of each block is compared with the k-th best so far, and
    only blocks that change something are looked at. Of equal similarities, the earlier reference comes first.

    Similarities below `least` don't count, nor that to the reference at each query's `own_index`, nor those in the mask
    (m, r) that `but` returns of some queries and references, given as slices, with their similarities; it is asked once
    about each.
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
        self._keys = _keys(self._units.new_full((len(queries), count), -torch.inf), LAST_PLACE)
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
            self._wait(row + start, _keys(values[mask], block * BLOCK + column + (self._seen + first)))
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
        """The places of the nearest among all references, (M, k); -1 where fewer count."""
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


def _keys(similarities: Float[Tensor, "..."], places: Int[Tensor, "..."] | int) -> Int[Tensor, "..."]:
    """Pack each similarity and place into one integer: larger for larger similarities, of ties for earlier places."""
    bits = (similarities + 0.0).view(torch.int32)  # which turns −0 into 0
    return ((bits ^ ((bits >> 31) & 0x7FFF_FFFF)).long() << 32) + (LAST_PLACE - places)


def _similarities(keys: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    bits = (keys >> 32).int()
    return (bits ^ ((bits >> 31) & 0x7FFF_FFFF)).view(torch.float32)


def close_pairs(
    queries: Float[Tensor, "m d"], references: Float[Tensor, "r d"], least: float
) -> Iterator[tuple[Int[Tensor, " p"], Int[Tensor, " p"], Float[Tensor, " p"]]]:
    """Yield the pairs of a query and a reference with at least a similarity: their places, and the similarities."""
    units, gallery_units = functional.normalize(queries.float()), functional.normalize(references.float())
    for start, first, tile in _tiles(units, gallery_units, MIN_BLOCKS):
        row, column = (tile >= least).nonzero(as_tuple=True)
        if len(row):
            yield row + start, column + first, tile[row, column]


def _tiles(
    queries: Float[Tensor, "m d"], references: Float[Tensor, "r d"], blocks: int
) -> Iterator[tuple[int, int, Float[Tensor, "m n"]]]:
    """Yield tiles of similarities, in whole blocks of columns with −∞ beyond the last, and where each begins."""
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
