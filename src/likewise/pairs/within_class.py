"""A pair weight that is zero between classes: evaluated, summed and multiplied in blocks of classes of one size."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.pairs.expressions import PairWeight
from likewise.pairs.weight import blocks

BLOCK = 2**18
"""How many weights are computed at a time, unless a single row has more."""

KEPT = 2**21
"""Up to this many weights are kept after they are first computed; more are recomputed each time they are needed."""


class Block(NamedTuple):
    """G classes of one size, or some anchors of one class.

    The rows and columns are the positions of its anchors and references when all are sorted by class.
    """

    rows: slice
    columns: slice
    members: tuple[Int[Tensor, "g _"], ...]
    """The indices of the anchors, the references, and the members of each further list, for each class."""


class WithinClass(PairWeight):
    r"""Abstract: weights $w_{ir} \ge 0$ that are zero unless anchor and reference have the same class.

    A subclass defines a block of weights. Anchors and references are sorted by class, and classes by size, so that
    classes of one size form a batch of small matrices. Python loops over the sizes that occur, at most about √(2N), and
    over the parts of blocks that would hold more than `BLOCK` weights. Every anchor belongs to one class, so nothing is
    scattered, and everything is added in the order of the blocks.

    Args:
        labels: Class of each anchor, any integers, shape (N,).
        reference_labels: Class of each reference, shape (R,); the same tensor when anchors are the references.
        further: Labels of other lists whose members a block should contain.

    Memory:
        O(N + R), a block, and up to `KEPT` weights.
    """

    def __init__(
        self, labels: Int[Tensor, " n"], reference_labels: Int[Tensor, " r"], *further: Int[Tensor, " _"]
    ) -> None:
        super().__init__((len(labels), len(reference_labels)), is_set=False, is_nonnegative=True, symmetric_at=None)
        self._orders, self._sizes = _in_order((labels, reference_labels, *further))
        self._keeps = sum(classes * n * m for classes, n, m, *_ in self._sizes) <= KEPT
        self._kept: list[Float[Tensor, "g n m"]] = []

    @property
    def within_tiles(self) -> bool:
        return False

    @abstractmethod
    def weights(self, block: Block) -> Float[Tensor, "g n m"]:
        """Return the weights of a block: for each of its classes, those of all its anchors and references."""

    def _blocks(self) -> Iterator[Block]:
        starts = [0] * len(self._orders)
        for classes, *sizes in self._sizes:
            n, m = sizes[:2]
            for some in blocks(classes if n * m else 0, max(1, BLOCK // max(1, n * m))):
                places = [
                    slice(start + some.start * size, start + some.stop * size)
                    for start, size in zip(starts, sizes, strict=True)
                ]
                anchors, *others = (
                    order[place].view(some.stop - some.start, size)
                    for order, place, size in zip(self._orders, places, sizes, strict=True)
                )
                for part in blocks(n, max(1, BLOCK // m)):  # all n, except for a single large class
                    rows = slice(places[0].start + part.start, places[0].stop - n + part.stop)
                    yield Block(rows, places[1], (anchors[:, part], *others))
            starts = [start + classes * size for start, size in zip(starts, sizes, strict=True)]

    def _weighed(self) -> Iterator[tuple[Block, Float[Tensor, "g n m"]]]:
        for k, block in enumerate(self._blocks()):
            weights = self._kept[k] if k < len(self._kept) else self.weights(block)
            if self._keeps and k == len(self._kept):
                self._kept.append(weights)
            yield block, weights

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return any tile, collected from all blocks: for tests and pictures."""
        n, r = rows.stop - rows.start, columns.stop - columns.start
        tile = torch.zeros(n, r, dtype=dtype, device=device)
        for block, weights in self._weighed():
            i, j = (member - part.start for member, part in zip(block.members, (rows, columns), strict=False))
            inside = ((i >= 0) & (i < n))[:, :, None] & ((j >= 0) & (j < r))[:, None]
            places = (i[:, :, None] * r + j[:, None])[inside]
            tile.view(-1)[places.to(device)] = weights[inside].to(tile)
        return tile

    def product(self, references: Tensor) -> Tensor:
        references = references[self._orders[1].to(references.device)]
        result = references.new_zeros(self.shape[0], references.shape[1])
        for block, weights in self._weighed():
            classes, n, m = weights.shape
            into = result[block.rows].view(classes, n, -1)
            into.baddbmm_(weights.to(references), references[block.columns].view(classes, m, -1))
        return _restored(result, self._orders[0])

    def transposed_product(self, anchors: Tensor) -> Tensor:
        anchors = anchors[self._orders[0].to(anchors.device)]
        result = anchors.new_zeros(self.shape[1], anchors.shape[1])
        for block, weights in self._weighed():
            classes, n, m = weights.shape
            into = result[block.columns].view(classes, m, -1)
            into.baddbmm_(weights.to(anchors).mT, anchors[block.rows].view(classes, n, -1))
        return _restored(result, self._orders[1])

    def _support(self, device: torch.device) -> Tensor:
        found = torch.zeros(self.shape[0], dtype=torch.bool, device=device)
        for block, weights in self._weighed():
            found[block.rows] = weights.ne(0).any(dim=2).flatten().to(device)
        return _restored(found, self._orders[0])


def _in_order(labels: tuple[Tensor, ...]) -> tuple[list[Tensor], list[list[int]]]:
    """Return each list's members sorted by class, and for each size that occurs: classes, members of each list.

    Reading the sizes synchronises a GPU once.
    """
    values, keys = torch.unique(torch.cat(labels), return_inverse=True)
    keys = keys.split([len(of_list) for of_list in labels])
    counts = torch.stack([torch.bincount(key, minlength=len(values)) for key in keys], dim=1)
    sizes, size, classes = torch.unique(counts, dim=0, return_inverse=True, return_counts=True)
    place = torch.argsort(torch.argsort(size, stable=True))  # position of each class, sorted by size
    orders = [torch.argsort(place[key], stable=True) for key in keys]
    return orders, torch.cat([classes[:, None], sizes], dim=1).tolist()


def _restored(values: Tensor, order: Tensor) -> Tensor:
    """Return sorted rows in their original order."""
    return torch.empty_like(values).index_copy_(0, order.to(values.device), values)
