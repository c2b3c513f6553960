"""The hardest pairs of a data set: samples of one class far apart, samples of different classes close together."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.diagnostics.unit_rows import Array, with_labels
from likewise.evaluation.features import Bar, silent

TILE = 2**23  # similarities at a time: 32 MiB in float32
BLOCK = 256  # columns whose largest value is found first
NONE = -1


@final
@dataclass(frozen=True)
class HardPairs:
    """The hardest positive and the hardest negative of each sample.

    Args:
        positives: The least similar sample of the same class, or with a common label, (N,); -1 where there is none.
        positive_similarities: Its cosine, (N,), in float32; NaN where there is none.
        negatives: The most similar sample of another class, or without a common label, (N,); -1 where there is none.
        negative_similarities: Its cosine, (N,); NaN where there is none.
    """

    positives: Int[Tensor, " n"]
    positive_similarities: Float[Tensor, " n"]
    negatives: Int[Tensor, " n"]
    negative_similarities: Float[Tensor, " n"]

    def positive_pairs(self, count: int) -> Int[Tensor, "k 2"]:
        """Return the hardest positive pairs, the hardest first, at most `count`; no sample is in two of them."""
        return _pairs(self.positives, self.positive_similarities, count)

    def negative_pairs(self, count: int) -> Int[Tensor, "k 2"]:
        """Return the hardest negative pairs, the hardest first, at most `count`; no sample is in two of them."""
        return _pairs(self.negatives, -self.negative_similarities, count)


def hardest_pairs(
    features: Float[Array, "n d"], labels: Int[Array, " n"] | Bool[Array, "n l"], *, progress: Bar = silent
) -> HardPairs:
    """Find the hardest positive and the hardest negative of every sample, by cosine.

    Args:
        features: (N, D); L2-normalised here.
        labels: Classes, (N,), or label sets, multi-hot (N, L), where positives share a label.
        progress: Wraps the tiles.

    Returns:
        The pairs; the choice among equally hard ones is arbitrary, but always the same.

    Memory:
        O(N·(D + L)) and one tile of 2²³ similarities.

    Example:
        >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> pairs = hardest_pairs(points, torch.tensor([0, 0, 0, 1]))
        >>> pairs.positive_pairs(1).tolist(), pairs.negative_pairs(1).tolist()
        ([[0, 2]], [[2, 3]])
    """
    features, labels = with_labels(features, labels)
    count = len(features)
    order = labels.argsort(stable=True) if labels.ndim == 1 else torch.arange(count)
    units = functional.normalize(features.float())[order]
    tiles = _of_classes(units, labels[order]) if labels.ndim == 1 else _of_sets(units, labels)
    positives, negatives = torch.full((2, count), NONE)
    far, near = units.new_full((2, count), torch.nan)
    starts = progress(range(0, count, _count_tile_rows(count)), "hardest pairs")
    for start, ((low, of_low), (high, of_high)) in zip(starts, tiles, strict=True):
        part = order[start : start + _count_tile_rows(count)]
        there = torch.isfinite(low)
        far[part[there]], positives[part[there]] = low[there], order[of_low[there]]
        there = torch.isfinite(high)
        near[part[there]], negatives[part[there]] = high[there], order[of_high[there]]
    return HardPairs(positives, far, negatives, near)


Extremes = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
"""For each row of a tile, the least similar positive and the most similar negative: values and columns."""


def _of_classes(units: Tensor, labels: Tensor) -> Iterator[Extremes]:
    """Yield the extremes of tiles of rows sorted by class, where a row's positives are one block."""
    ends = labels.unique_consecutive(return_counts=True)[1].cumsum(0).tolist()
    class_index = 0
    memory = units.new_empty(_count_tile_rows(len(units)), len(units))
    for start in range(0, len(units), len(memory)):
        rows = units[start : start + len(memory)]
        tile = torch.mm(rows, units.T, out=memory[: len(rows)])
        low, of_low = tile.new_full((len(tile),), torch.inf), torch.full((len(tile),), NONE)
        row = 0
        while row < len(tile):
            while ends[class_index] <= start + row:
                class_index += 1
            first, end = (ends[class_index - 1] if class_index else 0), ends[class_index]
            stop = min(len(tile), end - start)
            block = tile[row:stop, first:end]
            if end - first > 1:
                self_columns = torch.arange(start + row, start + stop) - first
                block[torch.arange(stop - row), self_columns] = torch.inf
                low[row:stop], columns = block.min(dim=1)
                of_low[row:stop] = columns + first
            block.fill_(-torch.inf)
            row = stop
        yield (low, of_low), _largest(tile)


def _of_sets(units: Tensor, sets: Tensor) -> Iterator[Extremes]:
    members = sets.float()
    for start in range(0, len(units), _count_tile_rows(len(units))):
        part = slice(start, start + _count_tile_rows(len(units)))
        tile = units[part] @ units.T
        shares = members[part] @ members.T > 0
        negatives = tile.masked_fill(shares, -torch.inf)
        positives = tile.masked_fill_(~shares, torch.inf)
        positives.diagonal(start).fill_(torch.inf)
        negatives.diagonal(start).fill_(-torch.inf)
        low, of_low = _largest(positives.neg_())
        yield (-low, of_low), _largest(negatives)


def _largest(tile: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's largest value and its first column; finding its block first takes a quarter of `max`'s time."""
    whole = tile.shape[1] // BLOCK * BLOCK
    blocks = [tile[:, :whole].unflatten(1, (-1, BLOCK)).amax(dim=2)] if whole else []
    if whole < tile.shape[1]:
        blocks.append(tile[:, whole:].amax(dim=1, keepdim=True))
    values, block_index = torch.cat(blocks, dim=1).max(dim=1)
    columns = (block_index.unsqueeze(1) * BLOCK + torch.arange(min(BLOCK, tile.shape[1]))).clamp(max=tile.shape[1] - 1)
    return values, columns.gather(1, tile.gather(1, columns).argmax(dim=1, keepdim=True)).squeeze(1)


def _count_tile_rows(count: int) -> int:
    return max(1, TILE // max(1, count))


def _pairs(partners: Tensor, similarities: Tensor, count: int) -> Tensor:
    """Return pairs of a sample and its partner, by increasing similarity, with no sample in two pairs."""
    there = (partners != NONE).nonzero().flatten()
    ordered = there[similarities[there].argsort(stable=True)]
    used: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for sample, other in zip(ordered.tolist(), partners[ordered].tolist(), strict=True):
        if len(pairs) == count:
            break
        if sample not in used and other not in used:
            used |= {sample, other}
            pairs.append((sample, other))
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
