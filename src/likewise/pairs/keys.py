"""Equality of keys, [key_i = key'_r]: tiles, sums over the equal, and which tiles hold none."""

from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from likewise.pairs.segments import SeenSegments, UnseenSegments

SEEN = ("cpu",)
"""The types of devices whose keys are looked at: looking makes a GPU wait, and breaks the capture of a CUDA graph."""


class Keys:
    """A key for each of N anchors and one for each of R references; pairs with equal keys are in.

    A sum over the references with an anchor's key is a class sum, looked up, in O((N + R)·D) and without atomics.

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
        self._numbers: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

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
            if self.shift is None:
                anchors = self.anchors.to(device)
                references = anchors if self.is_symmetric else self.references.to(device)
            else:  # made there, since what is copied to a GPU is waited for
                n, r = len(self.anchors), len(self.references)
                references = torch.arange(r, device=device)
                anchors = references if self.distinct else torch.arange(self.shift, self.shift + n, device=device)
            self._moved[device] = Keys(anchors, references, shift=self.shift)
        return self._moved[device]

    def joined(self, other: "Keys") -> "Keys":
        """The keys that are equal where both are: one key for each pair of keys."""
        same = self.shift is not None and self.shift == other.shift
        if self is other or same or (self.distinct and other.is_symmetric):
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

    def fill(self, out: Float[Tensor, "n r"], rows: slice, columns: slice) -> None:
        """Put 1 where pairs of a tile have equal keys, and 0 elsewhere."""
        anchors, references = self._comparable(out.dtype) if self._seen else (self.anchors, self.references)
        torch.eq(anchors[rows, None], references[columns], out=out)

    def _comparable(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return keys that compare fast: as consecutive numbers of the dtype in which tiles are filled."""
        if dtype not in self._numbers:
            anchors, references, count = self.compact
            if count <= 2 / torch.finfo(dtype).eps:  # beyond, not every number is one of the dtype
                numbers = anchors.to(dtype)
                self._numbers[dtype] = numbers, numbers if self.is_symmetric else references.to(dtype)
            else:
                self._numbers[dtype] = anchors, references
        return self._numbers[dtype]

    def constant(self, rows: slice, columns: slice) -> bool | None:
        """The one value of a tile where the ranges of its keys tell, else None; keys on a GPU are not looked at."""
        if not (self._seen or self.shift is not None) or rows.start >= rows.stop or columns.start >= columns.stop:
            return None
        low, high = self._range(rows, of_references=False)
        low_r, high_r = self._range(columns, of_references=True)
        if high < low_r or high_r < low:
            return False
        return True if low == high == low_r == high_r else None

    def _range(self, part: slice, *, of_references: bool) -> tuple[int, int]:
        if self.shift is not None:
            shift = 0 if of_references else self.shift
            return part.start + shift, part.stop + shift - 1
        key = (of_references and not self.is_symmetric, part.start, part.stop)
        if key not in self._ranges:
            low, high = (self.references if of_references else self.anchors)[part].aminmax()
            self._ranges[key] = (int(low), int(high))
        return self._ranges[key]

    @cached_property
    def compact(self) -> tuple[Tensor, Tensor, int]:
        """Both keys as numbers from 0, and how many there are of them; some may occur nowhere."""
        if self.is_symmetric and not self._seen:
            return self._unseen.first, self._unseen.first, len(self.anchors)
        keys = self.anchors if self.is_symmetric else torch.cat([self.anchors, self.references])
        if not self._seen:
            count, keys = len(keys), torch.searchsorted(keys.sort().values, keys)
        else:
            if len(keys):
                low, high = (int(end) for end in keys.aminmax())
                if low >= 0 and high < len(keys):  # class labels, as they mostly come
                    return self.anchors, self.references, high + 1
            values, keys = torch.unique(keys, return_inverse=True)
            count = len(values)
        anchors = keys[: len(self.anchors)]
        return anchors, anchors if self.is_symmetric else keys[len(self.anchors) :], count

    @property
    def _seen(self) -> bool:
        return self.anchors.device.type in SEEN

    @cached_property
    def _unseen(self) -> UnseenSegments:
        return UnseenSegments(self.anchors, self.references)

    @cached_property
    def _segments(self) -> SeenSegments | UnseenSegments:
        return SeenSegments(*self.compact) if self._seen else self._unseen

    def sum(self, values: Float[Tensor, "r d"]) -> Float[Tensor, "n d"]:
        """Return for each anchor the sum of the values of the references with its key; ``values`` where distinct."""
        if self.distinct:
            return values
        if self.shift is None:
            return self.to(values.device)._segments.sum(values)  # noqa: SLF001 - its own class's
        n, r = len(self.anchors), len(self.references)
        low, high = min(max(self.shift, 0), r), max(min(self.shift + n, r), 0)
        before = min(max(-self.shift, 0), n)
        own = values[low : max(low, high)]
        return own if len(own) == n else pad(own, (0, 0, before, n - before - len(own)))

    def counts(self, device: torch.device) -> Int[Tensor, " n"] | int:
        """Return how many references have each anchor's key; one number where that is the same for all."""
        if self.shift is None:
            return self.to(device)._segments.counts  # noqa: SLF001 - its own class's
        n, r = len(self.anchors), len(self.references)
        if self.shift >= 0 and self.shift + n <= r:
            return 1
        partner = torch.arange(self.shift, self.shift + n, device=device)
        return ((partner >= 0) & (partner < r)).long()
