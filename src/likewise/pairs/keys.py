"""Equality of keys, [key_i = key'_r]: tiles, sums over the equal, and which tiles hold none."""

import math
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Keys:
    """A key for each of N anchors and one for each of R references; pairs with equal keys are in.

    A sum over the references with an anchor's key is a class sum, looked up: the references are sorted by key once
    and summed segment by segment, in the same order every time and without atomics, in O((N + R)·D).

    Args:
        anchors: Integer keys, shape (N,).
        references: Integer keys, shape (R,); the same tensor when anchors are the references.
        shift: Where only pairs (i, i + shift) are in, the shift: keys need not be looked at then.
    """

    def __init__(self, anchors: Int[Tensor, " n"], references: Int[Tensor, " r"], *, shift: int | None = None) -> None:
        self.anchors = anchors
        self.references = references
        self.shift = shift
        self.distinct = shift == 0 and self.is_symmetric
        """Whether anchors are the references and only i = r is in."""
        self._moved: dict[torch.device, Keys] = {anchors.device: self}
        self._ranges: dict[tuple[bool, int, int], tuple[int, int]] = {}

    @property
    def is_symmetric(self) -> bool:
        """Whether anchors are the references."""
        return self.anchors is self.references

    @cached_property
    def transposed(self) -> "Keys":
        """Anchors and references exchanged."""
        if self.is_symmetric:
            return self
        return Keys(self.references, self.anchors, shift=None if self.shift is None else -self.shift)

    def to(self, device: torch.device) -> "Keys":
        """The same keys on a device, moved there once."""
        if device not in self._moved:
            anchors = self.anchors.to(device)
            references = anchors if self.is_symmetric else self.references.to(device)
            self._moved[device] = Keys(anchors, references, shift=self.shift)
        return self._moved[device]

    def joined(self, other: "Keys") -> "Keys":
        """The keys that are equal where both are: one key for each pair of keys."""
        if self is other or (self.distinct and other.is_symmetric):
            return self
        if other.distinct and self.is_symmetric:
            return other
        device = self.anchors.device if self.anchors.device.type != "cpu" else other.anchors.device
        (one, one_r, one_count), (two, two_r, two_count) = self.to(device).compact, other.to(device).compact
        if one_count < two_count:  # the finer key leads, so that keys sorted by it still leave whole tiles empty
            one, one_r, two, two_r, two_count = two, two_r, one, one_r, one_count
        anchors = one * two_count + two
        references = anchors if self.is_symmetric and other.is_symmetric else one_r * two_count + two_r
        return Keys(anchors, references)

    def equal(self, rows: slice, columns: slice) -> Tensor:
        """Which pairs of a tile have equal keys, as booleans."""
        return self.anchors[rows, None] == self.references[columns]

    def constant(self, rows: slice, columns: slice) -> bool | None:
        """The one value of a tile where the ranges of its keys tell, else None; keys on a GPU are not looked at."""
        if self.anchors.device.type != "cpu" or rows.start >= rows.stop or columns.start >= columns.stop:
            return None
        low, high = self._range(rows, of_references=False)
        low_r, high_r = self._range(columns, of_references=True)
        if high < low_r or high_r < low:
            return False
        return True if low == high == low_r == high_r else None

    def _range(self, part: slice, *, of_references: bool) -> tuple[int, int]:
        if self.distinct:
            return part.start, part.stop - 1
        key = (of_references and not self.is_symmetric, part.start, part.stop)
        if key not in self._ranges:
            low, high = (self.references if of_references else self.anchors)[part].aminmax()
            self._ranges[key] = (int(low), int(high))
        return self._ranges[key]

    @cached_property
    def compact(self) -> tuple[Tensor, Tensor, int]:
        """Both keys as numbers from 0, and how many there are of them; some may occur nowhere."""
        keys = self.anchors if self.is_symmetric else torch.cat([self.anchors, self.references])
        if keys.device.type == "cpu" and len(keys):
            low, high = (int(end) for end in keys.aminmax())
            if low >= 0 and high < len(keys):  # class labels, as they mostly come
                return self.anchors, self.references, high + 1
        values, keys = torch.unique(keys, return_inverse=True)
        anchors = keys[: len(self.anchors)]
        return anchors, anchors if self.is_symmetric else keys[len(self.anchors) :], len(values)

    @cached_property
    def _segments(self) -> tuple[Tensor, Tensor, Tensor]:
        """The references sorted by key, where each key's segment starts, and how long it is."""
        _, references, count = self.compact
        lengths = torch.bincount(references, minlength=count)
        return torch.argsort(references, stable=True), lengths.cumsum(dim=0).sub_(lengths), lengths

    @cached_property
    def _pieces(self) -> tuple[Tensor, Tensor | None]:
        """Where each piece of a segment starts, and each segment's first piece; None where no segment is cut.

        A long segment is summed in pieces of about √R, and these are summed: the rounding of one long running sum would
        grow with its length.
        """
        _, starts, lengths = self._segments
        size = max(32, math.isqrt(len(self.references)))
        if len(lengths) == 0 or lengths.amax() <= size:
            return starts, None
        pieces = (lengths + (size - 1)).div(size, rounding_mode="floor")
        first = pieces.cumsum(dim=0).sub_(pieces)
        within = torch.arange(int(pieces.sum()), device=starts.device) - first.repeat_interleave(pieces)
        return starts.repeat_interleave(pieces) + size * within, first

    def sum(self, values: Float[Tensor, "r d"]) -> Float[Tensor, "n d"]:
        """Return for each anchor the sum of the values of the references with its key; ``values`` where distinct."""
        if self.distinct:
            return values
        starts, first = self._pieces
        sums = torch.embedding_bag(values, self._segments[0], starts)[0]
        if first is not None:
            everything = torch.arange(len(sums), device=sums.device)
            sums = torch.embedding_bag(sums, everything, first)[0]
        return sums.index_select(0, self.compact[0])

    @cached_property
    def counts(self) -> Int[Tensor, " n"] | int:
        """How many references have each anchor's key."""
        if self.distinct:
            return 1
        return self._segments[2].index_select(0, self.compact[0])
