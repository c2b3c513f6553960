"""Sums over equal keys: references are sorted by key and summed segment by segment, always in the same order.

A long segment is summed in pieces of about √R, and then the pieces are summed: the rounding error of one long running
sum would grow with its length, and on a GPU a single thread would compute it. There are two implementations with the
same results: one reads the keys, for the CPU; the other has shapes that do not depend on the keys, so that nothing
waits for the GPU and a CUDA graph can capture it.
"""

import math
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor


def piece_size(references: int) -> int:
    """Return the maximum number of rows in one running sum."""
    return max(32, math.isqrt(references))


@final
class SeenSegments:
    """Segments whose number and lengths are read from the keys: one sum for each key.

    Keys are 0 … K − 1, some of which may not occur.
    """

    def __init__(self, anchors: Int[Tensor, " n"], references: Int[Tensor, " r"], count: int) -> None:
        self.anchors = anchors
        self.references = references
        self.lengths = torch.bincount(references, minlength=count)

    @cached_property
    def starts(self) -> Int[Tensor, " k"]:
        """The start of each key's segment, in the order of keys."""
        return self.lengths.cumsum(dim=0).sub_(self.lengths)

    @cached_property
    def counts(self) -> Int[Tensor, " n"]:
        """The number of references with each anchor's key."""
        return self.lengths.index_select(0, self.anchors)

    @cached_property
    def _order(self) -> Tensor:
        return torch.argsort(self.references, stable=True)

    @cached_property
    def _pieces(self) -> tuple[Tensor, Tensor | None]:
        """The start of each piece of a segment, and each segment's first piece, or None if no segment is split."""
        size = piece_size(len(self.references))
        if len(self.lengths) == 0 or self.lengths.amax() <= size:
            return self.starts, None
        pieces = (self.lengths + (size - 1)).div(size, rounding_mode="floor")
        first = pieces.cumsum(dim=0).sub_(pieces)
        within = torch.arange(int(pieces.sum())) - first.repeat_interleave(pieces)
        return self.starts.repeat_interleave(pieces) + size * within, first

    def sum(self, values: Float[Tensor, "r d"]) -> Float[Tensor, "n d"]:
        """Return for each anchor the sum of the values of the references with its key."""
        starts, first = self._pieces
        sums = torch.embedding_bag(values, self._order, starts)[0]
        if first is not None:
            sums = torch.embedding_bag(sums, torch.arange(len(sums)), first)[0]
        return sums.index_select(0, self.anchors)


@final
class UnseenSegments:
    """Segments found without reading key values: as many sums as there could be keys, most of them empty.

    A segment's sum is stored at the position, 1 … R, where it ends in the order of keys. All other positions hold an
    empty sum; anchors whose key no reference has use position 0.
    """

    def __init__(self, anchors: Int[Tensor, " n"], references: Int[Tensor, " r"]) -> None:
        self.is_symmetric = anchors is references
        self.references = len(references)
        self.ordered, self.order = references.sort(stable=True)
        self.first = torch.searchsorted(self.ordered, anchors)
        """The start of each anchor's segment, 0 … R: different for any two keys of references."""
        self.end = torch.searchsorted(self.ordered, anchors, right=True)

    @cached_property
    def counts(self) -> Int[Tensor, " n"]:
        """The number of references with each anchor's key."""
        return self.end - self.first

    @cached_property
    def _places(self) -> Tensor:
        """The position of each anchor's sum."""
        return self.end if self.is_symmetric else self.end.masked_fill(self.counts == 0, 0)

    @cached_property
    def _pieces(self) -> tuple[Tensor, Tensor, Tensor]:
        """The start of each piece, with R at the end; all positions; and each position's first piece, with the end.

        The pieces of a position run from its first piece to that of the next position; within a segment the two are
        the same, so there are none.
        """
        position = torch.arange(self.references, device=self.ordered.device)
        first = torch.searchsorted(self.ordered, self.ordered)
        starts_piece = (position - first).remainder_(piece_size(self.references)) == 0
        before = position.new_zeros(self.references + 1)  # how many pieces start before each position, and before R
        through = torch.cumsum(starts_piece, dim=0, out=before[1:])
        starts = torch.searchsorted(through, position, right=True)
        return starts, position, torch.cat([before[:1], before.index_select(0, first), before[-1:]])

    def sum(self, values: Float[Tensor, "r d"]) -> Float[Tensor, "n d"]:
        """Return for each anchor the sum of the values of the references with its key."""
        if not self.references:
            return values.new_zeros(len(self.first), values.shape[1])
        starts, positions, pieces = self._pieces
        sums = torch.embedding_bag(values, self.order, starts)[0]
        sums = torch.embedding_bag(sums, positions, pieces, include_last_offset=True)[0]
        return sums.index_select(0, self._places)
