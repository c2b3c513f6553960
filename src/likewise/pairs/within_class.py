"""Pair weights that are zero between classes, evaluated, summed and multiplied in blocks of classes of one size."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.pairs.expressions import PairWeight, Split
from likewise.pairs.weight import blocks

BLOCK = 2**18
"""The number of weights computed at a time, unless a single row has more."""

MAX_KEPT = 2**21
"""Up to this many weights, and their deviations from uniform ones, are kept once computed; more are recomputed."""


class Block(NamedTuple):
    """G classes of one size, or some anchors of one class.

    Rows and columns are the positions of its anchors and references after sorting by class.
    """

    rows: slice
    columns: slice
    members: tuple[Int[Tensor, "g _"], ...]
    """The indices of the anchors, the references, and the members of each further list, for each class."""

    def shaped(
        self, anchors: Float[Tensor, "n d"], references: Float[Tensor, "r d"]
    ) -> tuple[Float[Tensor, "g n d"], Float[Tensor, "g m d"]]:
        """Return the rows of the block among sorted anchors and sorted references."""
        classes = len(self.members[0])
        return (
            anchors[self.rows].view(classes, -1, anchors.shape[1]),
            references[self.columns].view(classes, -1, references.shape[1]),
        )


Weighed = Iterator[tuple[Block, Float[Tensor, "g n m"]]]


class WithinClass(PairWeight):
    r"""Abstract: weights $w_{ir} \ge 0$ that are zero unless anchor and reference have the same class.

    A subclass defines a block of weights. Anchors and references are sorted by class, and classes by size: classes of
    one size form a batch of small matrices. Python loops over the different sizes, at most about √(2N), and over the
    parts of blocks with more than `BLOCK` weights. Every anchor belongs to one class, so nothing is scattered, and
    everything is added in the order of the blocks.

    Args:
        labels: Class of each anchor, any integers, shape (N,).
        reference_labels: Class of each reference, shape (R,); the same tensor when anchors are the references.
        further: Labels of other lists whose members a block should also contain.
        uniform: Weights with the same row sums, equal for all positives of an anchor: the part of a pull within tiles.

    Memory:
        O(N + R), a block, and up to `MAX_KEPT` weights.
    """

    within_tiles = False

    def __init__(
        self, labels: Int[Tensor, " n"], reference_labels: Int[Tensor, " r"], *further: Int[Tensor, " _"],
        uniform: PairWeight | None = None,
    ) -> None:  # fmt: skip
        super().__init__((len(labels), len(reference_labels)), is_set=False, is_nonnegative=True, symmetric_at=None)
        self.uniform = uniform
        self._orders, self._sizes = _in_order((labels, reference_labels, *further))
        self._keeps = sum(classes * n * m for classes, n, m, *_ in self._sizes) <= MAX_KEPT
        self._kept: list[Float[Tensor, "g n m"]] = []
        self._apart: list[Float[Tensor, "g n m"]] = []

    def split(self) -> Split:
        """Split the weights into uniform ones, as cheap within tiles as SupCon's pull, and deviations from these."""
        return super().split() if self.uniform is None else Split(self.uniform, Deviation(self, self.uniform))

    @abstractmethod
    def weights(self, block: Block) -> Float[Tensor, "g n m"]:
        """Return the weights of a block: for each of its classes, all anchors by all references."""

    def positives(self, block: Block) -> Bool[Tensor, "g n m"]:
        """Return a mask of the pairs of a block with a uniform weight: all of them."""
        anchors, references = block.members[:2]
        return anchors.new_ones(*anchors.shape, references.shape[1], dtype=torch.bool)

    def _blocks(self) -> Iterator[Block]:
        starts = [0] * len(self._orders)
        for classes, *sizes in self._sizes:
            n, m = sizes[:2]
            for some in blocks(classes if n * m else 0, max(1, BLOCK // max(1, n * m))):
                each = [*zip(starts, sizes, strict=True)]
                places = [slice(start + some.start * size, start + some.stop * size) for start, size in each]
                members = zip(self._orders, places, sizes, strict=True)
                anchors, *other_lists = (order[at].view(some.stop - some.start, size) for order, at, size in members)
                for part in blocks(n, max(1, BLOCK // m)):  # all n, except for a single large class
                    rows = slice(places[0].start + part.start, places[0].stop - n + part.stop)
                    yield Block(rows, places[1], (anchors[:, part], *other_lists))
            starts = [start + classes * size for start, size in zip(starts, sizes, strict=True)]

    def _weighed(self) -> Weighed:
        for k, block in enumerate(self._blocks()):
            yield block, self._kept[k] if k < len(self._kept) else self._keep(k, self.weights(block))

    def _keep(self, k: int, weights: Float[Tensor, "g n m"]) -> Float[Tensor, "g n m"]:
        if self._keeps and k == len(self._kept):
            self._kept.append(weights)
        return weights

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return any tile, collected from all blocks, for tests and pictures."""
        n, r = rows.stop - rows.start, columns.stop - columns.start
        tile = torch.zeros(n, r, dtype=dtype, device=device)
        for block, weights in self._weighed():
            i, j = (member - part.start for member, part in zip(block.members, (rows, columns), strict=False))
            inside = ((i >= 0) & (i < n))[:, :, None] & ((j >= 0) & (j < r))[:, None]
            places = (i[:, :, None] * r + j[:, None])[inside]
            tile.view(-1)[places.to(device)] = weights[inside].to(tile)
        return tile

    def product(self, references: Tensor) -> Tensor:
        return self.times(self._weighed(), references)

    def transposed_product(self, anchors: Tensor) -> Tensor:
        return self.transposed_times(self._weighed(), anchors)

    def times(self, weighed: Weighed, references: Float[Tensor, "r d"]) -> Float[Tensor, "n d"]:
        """Return the product of weights, given as blocks, with the references."""
        references = references[self._orders[1].to(references.device)]
        result = references.new_zeros(self.shape[0], references.shape[1])
        for block, weights in weighed:
            into, values = block.shaped(result, references)
            into.baddbmm_(weights.to(references), values)
        return _restored(result, self._orders[0])

    def transposed_times(self, weighed: Weighed, anchors: Float[Tensor, "n d"]) -> Float[Tensor, "r d"]:
        """Return the product of transposed weights, given as blocks, with the anchors."""
        anchors = anchors[self._orders[0].to(anchors.device)]
        result = anchors.new_zeros(self.shape[1], anchors.shape[1])
        for block, weights in weighed:
            values, into = block.shaped(anchors, result)
            into.baddbmm_(weights.to(anchors).mT, values)
        return _restored(result, self._orders[1])

    def deviations(self) -> Weighed:
        """Yield each block with the deviations of its weights from uniform ones; see `Deviation`."""
        for k, (block, weights) in enumerate(self._weighed()):
            if k < len(self._apart):
                yield block, self._apart[k]
                continue
            inside = self.positives(block)
            shares = weights.sum(dim=2, keepdim=True) / inside.sum(dim=2, keepdim=True).clamp_(min=1)
            apart = torch.addcmul(weights, inside, shares, value=-1)
            if self._keeps:
                self._apart.append(apart)
            yield block, apart

    def _support(self, device: torch.device) -> Tensor:
        support = torch.zeros(self.shape[0], dtype=torch.bool, device=device)
        for block, weights in self._weighed():
            support[block.rows] = weights.ne(0).any(dim=2).flatten().to(device)
        return _restored(support, self._orders[0])


@final
class Deviation(PairWeight):
    """The deviation of weights within classes from uniform ones, d = w − u: each row sums to zero.

    Multiplied directly, instead of as a difference of two products, small deviations have small rounding errors.
    """

    within_tiles = False

    def __init__(self, weight: WithinClass, uniform: PairWeight) -> None:
        super().__init__(weight.shape, is_set=False, is_nonnegative=False, symmetric_at=None)
        self.weight, self.uniform = weight, uniform

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.weight.tile(rows, columns, dtype, device) - self.uniform.tile(rows, columns, dtype, device)

    def product(self, references: Tensor) -> Tensor:
        return self.weight.times(self.weight.deviations(), references)

    def transposed_product(self, anchors: Tensor) -> Tensor:
        return self.weight.transposed_times(self.weight.deviations(), anchors)


def _in_order(labels: tuple[Tensor, ...]) -> tuple[list[Tensor], list[list[int]]]:
    """Return lists' members sorted by class, and numbers of classes and members by size; synchronise a GPU once."""
    values, keys = torch.unique(torch.cat(labels), return_inverse=True)
    keys = keys.split([len(of_list) for of_list in labels])
    counts = torch.stack([torch.bincount(key, minlength=len(values)) for key in keys], dim=1)
    sizes, size, classes = torch.unique(counts, dim=0, return_inverse=True, return_counts=True)
    position = torch.argsort(torch.argsort(size, stable=True))  # position of each class, sorted by size
    orders = [torch.argsort(position[key], stable=True) for key in keys]
    return orders, torch.cat([classes[:, None], sizes], dim=1).tolist()


def _restored(values: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(values).index_copy_(0, order.to(values.device), values)
