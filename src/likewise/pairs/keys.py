"""Equality of keys, [key_i = key'_r]: its tiles, sums over equal keys, and tests for tiles without equal keys.

For sums, references are sorted by key and summed segment by segment, always in the same order. A long segment is summed
in pieces of about √R, and then the pieces are summed: the rounding error of one long running sum would grow with its
length, and on a GPU a single thread would compute it. There are two implementations with the same results. One reads
the keys, for the CPU. The other has shapes independent of the keys: nothing waits for the GPU, and a CUDA graph can
capture it.
"""

import math
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad


def piece_size(references: int) -> int:
    """Return the maximum number of rows in one running sum."""
    return max(32, math.isqrt(references))


@final
class SeenSegments:
    """Segments whose number and lengths are read from the keys: one sum for each key.

    Keys are 0 … K − 1; some may not occur.
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
        """Return, for each anchor, the sum of the values of the references with its key."""
        starts, first = self._pieces
        sums = torch.embedding_bag(values, self._order, starts)[0]
        if first is not None:
            sums = torch.embedding_bag(sums, torch.arange(len(sums)), first)[0]
        return sums.index_select(0, self.anchors)


@final
class UnseenSegments:
    """Segments found without reading key values: as many sums as there could be keys, most of them empty.

    A segment's sum is stored at its end position, 1 … R, in the order of keys. All other positions hold an empty sum;
    anchors without a matching reference use position 0.
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

        The pieces of a position run from its first piece to the first piece of the next position; within a segment the
        two are the same, so there are none.
        """
        position = torch.arange(self.references, device=self.ordered.device)
        first = torch.searchsorted(self.ordered, self.ordered)
        starts_piece = (position - first).remainder_(piece_size(self.references)) == 0
        before = position.new_zeros(self.references + 1)  # number of piece starts before each position, and before R
        through = torch.cumsum(starts_piece, dim=0, out=before[1:])
        starts = torch.searchsorted(through, position, right=True)
        return starts, position, torch.cat([before[:1], before.index_select(0, first), before[-1:]])

    def sum(self, values: Float[Tensor, "r d"]) -> Float[Tensor, "n d"]:
        """Return, for each anchor, the sum of the values of the references with its key."""
        if not self.references:
            return values.new_zeros(len(self.first), values.shape[1])
        starts, positions, pieces = self._pieces
        sums = torch.embedding_bag(values, self.order, starts)[0]
        sums = torch.embedding_bag(sums, positions, pieces, include_last_offset=True)[0]
        return sums.index_select(0, self._places)


INSPECTED_DEVICES = ("cpu",)
"""Device types with inspected key values: elsewhere inspection would synchronise, and break CUDA graph capture."""


class Keys:
    """A key for each of N anchors and of R references; pairs with equal keys are in the set.

    A sum over the references with an anchor's key is looked up in a table of class sums, in O((N + R)·D) and without
    atomics. ``place``, given as offset, is the index of the first anchor among the references, if the anchors are
    consecutive references.
    """

    shift: int | None = None
    """The shift, if the set consists of the pairs (i, i + shift)."""
    distinct: bool = False
    """Whether anchors are the references and the set consists of the pairs i = r."""

    def __init__(self, anchors: Int[Tensor, " n"], references: Int[Tensor, " r"], offset: int | None = None) -> None:
        self.anchors = anchors
        self.references = references
        same = anchors is references
        self._begin((len(anchors), len(references)), anchors.device, is_symmetric=same, offset=0 if same else offset)

    def _begin(self, shape: tuple[int, int], device: torch.device, *, is_symmetric: bool, offset: int | None) -> None:
        self._shape, self._device = shape, device
        self.place = offset
        self.is_symmetric = is_symmetric
        """Whether anchors are the references."""
        # reading values breaks the graph of a compiler
        self._seen = device.type in INSPECTED_DEVICES and not torch.compiler.is_compiling()
        self._moved: dict[torch.device, Keys] = {}
        self._ranges: dict[tuple[bool, int, int], tuple[int, int]] = {}
        self._numbers: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    @cached_property
    def transposed(self) -> "Keys":
        """The keys with anchors and references swapped."""
        return self if self.is_symmetric else Keys(self.references, self.anchors)

    def to(self, device: torch.device) -> "Keys":
        """Return the same keys on a device, moved there once."""
        if device == self._device:
            return self
        if device not in self._moved:
            anchors = self.anchors.to(device)
            references = anchors if self.is_symmetric else self.references.to(device)
            self._moved[device] = Keys(anchors, references, self.place)
        return self._moved[device]

    def joined(self, other: "Keys") -> "Keys":
        """Return the conjunction of both: one key for each pair of keys."""
        same = self.shift is not None and self.shift == other.shift
        here = self.place is not None and self.place == other.place  # a reference has its own key
        if self is other or same or (here and self.shift is not None):
            return self
        if here and other.shift is not None:
            return other
        device = self._device if self._device.type != "cpu" else other._device  # noqa: SLF001 - the same class
        (one_keys, one_r, one_count), (two, two_r, two_count) = self.to(device).compact, other.to(device).compact
        if one_count < two_count:  # the finer key comes first, so that keys sorted by it still leave whole tiles empty
            one_keys, one_r, two, two_r, two_count = two, two_r, one_keys, one_r, one_count
        anchors = one_keys * two_count + two
        references = anchors if self.is_symmetric and other.is_symmetric else one_r * two_count + two_r
        return Keys(anchors, references, self.place if here else None)

    def equal(self, rows: slice, columns: slice) -> Tensor:
        """Return a boolean mask of the pairs of a tile with equal keys."""
        return self.anchors[rows, None] == self.references[columns]

    def fill(self, out: Float[Tensor, "n r"], rows: slice, columns: slice) -> None:
        """Fill ``out`` with 1 where pairs of a tile have equal keys, and 0 elsewhere."""
        anchors, references = self._numbers.get(out.dtype) or self._comparable(out.dtype)
        torch.eq(anchors[rows, None], references[columns], out=out)

    def _comparable(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return keys that compare fast: consecutive numbers in the dtype of the tiles."""
        if not self._seen:
            return self.anchors, self.references
        if dtype not in self._numbers:
            anchors, references, count = self.compact
            if count <= 2 / torch.finfo(dtype).eps:  # beyond this, the dtype cannot represent every integer
                numbers = anchors.to(dtype)
                self._numbers[dtype] = numbers, numbers if self.is_symmetric else references.to(dtype)
            else:
                self._numbers[dtype] = anchors, references
        return self._numbers[dtype]

    def constant(self, rows: slice, columns: slice) -> bool | None:
        """Return the value of a constant tile if the ranges of its keys determine it, else None; None on a GPU."""
        if not self._seen or rows.start >= rows.stop or columns.start >= columns.stop:
            return None
        if (rows.stop - rows.start, columns.stop - columns.start) == self._shape != (1, 1):
            return None  # all pairs together are hardly ever constant, and not worth checking
        low, high = self._range(rows, of_references=False)
        low_r, high_r = self._range(columns, of_references=True)
        if high < low_r or high_r < low:
            return False
        return True if low == high == low_r == high_r else None

    def _range(self, part: slice, *, of_references: bool) -> tuple[int, int]:
        key = (of_references and not self.is_symmetric, part.start, part.stop)
        if key not in self._ranges:
            keys = self.references if of_references else self.anchors
            low, high = (keys if part.stop - part.start == keys.shape[0] else keys[part]).aminmax()
            self._ranges[key] = (int(low), int(high))
        return self._ranges[key]

    def _range_of_all(self) -> tuple[int, int]:
        """Return the lowest and the highest key; keys that are positions are known without reading them."""
        low, high = self._range(slice(0, self._shape[0]), of_references=False) if self._shape[0] else (0, 0)
        if self.is_symmetric or not self._shape[1]:
            return low, high
        low_r, high_r = self._range(slice(0, self._shape[1]), of_references=True)
        return (min(low, low_r), max(high, high_r)) if self._shape[0] else (low_r, high_r)

    @cached_property
    def compact(self) -> tuple[Tensor, Tensor, int]:
        """Both keys renumbered to 0 … K − 1, and K; some numbers may not occur."""
        if self.is_symmetric and not self._seen:
            return self._unseen.first, self._unseen.first, self._shape[0]
        keys = self.anchors if self.is_symmetric else torch.cat([self.anchors, self.references])
        if not self._seen:
            count, keys = len(keys), torch.searchsorted(keys.sort().values, keys)
        else:
            if len(keys):
                low, high = self._range_of_all()
                if low >= 0 and high < len(keys):  # the usual class labels
                    return self.anchors, self.references, high + 1
            values, keys = torch.unique(keys, return_inverse=True)
            count = len(values)
        anchors = keys[: self._shape[0]]
        return anchors, anchors if self.is_symmetric else keys[self._shape[0] :], count

    @cached_property
    def _unseen(self) -> UnseenSegments:
        return UnseenSegments(self.anchors, self.references)

    @cached_property
    def _segments(self) -> SeenSegments | UnseenSegments:
        return SeenSegments(*self.compact) if self._seen else self._unseen

    def sum(self, values: Float[Tensor, "r d"]) -> Float[Tensor, "n d"]:
        """Return, for each anchor, the sum of the values of the references with its key; ``values`` if distinct."""
        return self.to(values.device)._segments.sum(values)  # noqa: SLF001 - the same class

    def counts(self, device: torch.device) -> Int[Tensor, " n"] | int:
        """Return the number of references with each anchor's key; a single number if it is the same for all."""
        return self.to(device)._segments.counts  # noqa: SLF001 - the same class


@final
class Shifted(Keys):
    """Anchor i matches only reference i + shift: keys are positions, created only when needed."""

    def __init__(self, n: int, r: int, shift: int, device: torch.device | None = None) -> None:
        self.shift = shift
        self.distinct = n == r and shift == 0
        offset = shift if 0 <= shift <= r - n else None
        self._begin((n, r), device or torch.device("cpu"), is_symmetric=self.distinct, offset=offset)
        self._seen = True  # positions are known without reading values

    @cached_property
    def anchors(self) -> Int[Tensor, " n"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Each anchor's position among the references."""
        if self.distinct:
            return self.references
        return torch.arange(self.shift or 0, (self.shift or 0) + self._shape[0], device=self._device)

    @cached_property
    def references(self) -> Int[Tensor, " r"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Each reference's position."""
        return torch.arange(self._shape[1], device=self._device)

    @cached_property
    def transposed(self) -> Keys:
        """The keys with anchors and references swapped."""
        return self if self.is_symmetric else Shifted(self._shape[1], self._shape[0], -(self.shift or 0), self._device)

    def to(self, device: torch.device) -> Keys:
        """Return the same keys on a device, created there once."""
        if device == self._device:
            return self
        if device not in self._moved:
            self._moved[device] = Shifted(*self._shape, self.shift or 0, device)
        return self._moved[device]

    def _range(self, part: slice, *, of_references: bool) -> tuple[int, int]:
        shift = 0 if of_references else self.shift or 0
        return part.start + shift, part.stop + shift - 1

    def sum(self, values: Float[Tensor, "r d"]) -> Float[Tensor, "n d"]:
        """Return, for each anchor, the values of its reference; zero if it has none."""
        if self.distinct:
            return values
        (n, r), shift = self._shape, self.shift or 0
        low, high = min(max(shift, 0), r), max(min(shift + n, r), 0)
        before = min(max(-shift, 0), n)
        matched = values[low : max(low, high)]
        return matched if len(matched) == n else pad(matched, (0, 0, before, n - before - len(matched)))

    def counts(self, device: torch.device) -> Int[Tensor, " n"] | int:
        """Return whether each anchor is a reference, as 0 or 1; a single number if all are."""
        (n, r), shift = self._shape, self.shift or 0
        if shift >= 0 and shift + n <= r:
            return 1
        partner = torch.arange(shift, shift + n, device=device)
        return ((partner >= 0) & (partner < r)).long()


Terms = dict[Keys | None, int]
"""Σ coefficient · [key = key'], where None stands for keys that are always equal."""


def joined(first: Terms, other: Terms) -> Terms:
    """Return the product of two sums over equal keys: each pair of terms joins its keys."""
    terms: Terms = {}
    for keys, a in first.items():
        for other_keys, b in other.items():
            both = other_keys if keys is None else keys if other_keys is None else keys.joined(other_keys)
            terms[both] = terms.get(both, 0) + a * b
    return {keys: coefficient for keys, coefficient in terms.items() if coefficient}


def united(first: Terms, other: Terms) -> Terms:
    """Return the union of two sets written as sums over equal keys: a + b − a·b."""
    terms = dict(first)
    for other_keys, coefficient in (*other.items(), *((keys, -both) for keys, both in joined(first, other).items())):
        terms[other_keys] = terms.get(other_keys, 0) + coefficient
    return {keys: coefficient for keys, coefficient in terms.items() if coefficient}
