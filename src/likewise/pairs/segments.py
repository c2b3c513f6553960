"""Sums over equal keys: references sorted by key, and summed segment by segment, in the same order every time.

A long segment is summed in pieces of about √R, and these are summed: the rounding of one long running sum would grow
with its length, and on a GPU one thread would make it. There are two ways, which return the same: one that looks at the
keys, for what is on the CPU, and one whose shapes are known without, so that no GPU is waited for and a CUDA graph can
hold it.
"""

import math
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor


def piece_size(references: int) -> int:
    """Return how many rows are summed one after another at most."""
    return max(32, math.isqrt(references))


@final
class SeenSegments:
    """Segments whose number and lengths are looked at: as many sums as there are keys.

    Args:
        anchors: Key of each anchor, 0 … K − 1, shape (N,).
        references: Key of each reference, 0 … K − 1, shape (R,).
        count: K; some keys may occur nowhere.
    """

    def __init__(self, anchors: Int[Tensor, " n"], references: Int[Tensor, " r"], count: int) -> None:
        self.anchors = anchors
        self.references = references
        self.lengths = torch.bincount(references, minlength=count)

    @cached_property
    def starts(self) -> Int[Tensor, " k"]:
        """Where each key's segment starts, in the order of keys."""
        return self.lengths.cumsum(dim=0).sub_(self.lengths)

    @cached_property
    def counts(self) -> Int[Tensor, " n"]:
        """How many references have each anchor's key."""
        return self.lengths.index_select(0, self.anchors)

    @cached_property
    def _order(self) -> Tensor:
        return torch.argsort(self.references, stable=True)

    @cached_property
    def _pieces(self) -> tuple[Tensor, Tensor | None]:
        """Where each piece of a segment starts, and each segment's first piece; None where no segment is cut."""
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
    """Segments of which nothing is looked at: as many sums as there could be keys, most of them of nothing.

    A segment's sum is in the place, 1 … R, where it ends in the order of keys; in all other places is the sum of
    nothing, in place 0 for anchors whose key no reference has.

    Args:
        anchors: Key of each anchor, any integers, shape (N,).
        references: Key of each reference, shape (R,).
    """

    def __init__(self, anchors: Int[Tensor, " n"], references: Int[Tensor, " r"]) -> None:
        self.is_symmetric = anchors is references
        self.references = len(references)
        self.ordered, self.order = references.sort(stable=True)
        self.first = torch.searchsorted(self.ordered, anchors)
        """Where each anchor's segment starts: also a number, 0 … R, that no two keys of references share."""
        self.end = torch.searchsorted(self.ordered, anchors, right=True)

    @cached_property
    def counts(self) -> Int[Tensor, " n"]:
        """How many references have each anchor's key."""
        return self.end - self.first

    @cached_property
    def _places(self) -> Tensor:
        """The place of each anchor's sum."""
        return self.end if self.is_symmetric else self.end.masked_fill(self.counts == 0, 0)

    @cached_property
    def _pieces(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where each piece starts, R beyond the last; all positions; and each place's first piece, with the last's end.

        The pieces of a place are those from its own first piece to the next place's, which within a segment is the
        same.
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
