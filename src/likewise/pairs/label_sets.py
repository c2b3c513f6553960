"""Pair weights from label sets (multi-hot labels): a tile is a thin product of the sets of its rows and columns.

With y_i and y_r the multi-hot sets of an anchor and a reference,

    |y_i ∩ y_r| = y_i·y_r        |y_i ∪ y_r| = |y_i| + |y_r| − y_i·y_r
"""

from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.pairs.expressions import PairWeight
from likewise.pairs.form import EVERYTHING, ClosedForm, Term, ThinProduct
from likewise.pairs.sets import MultiHot, Sets
from likewise.pairs.weight import all_tiles, check_part


class LabelSets(PairWeight):
    """Abstract: a weight computed from the label sets of anchors and references.

    Args:
        label_sets: Multi-hot labels of the anchors, zeros and ones of any dtype, shape (N, L).
        reference_label_sets: Multi-hot labels of the references, shape (R, L); None: the anchors are the references.
        is_set: Whether every weight is 0 or 1.
        is_symmetric: Whether it is symmetric where the anchors are the references.
        offset: The index of the first anchor among the references; see `Equal`.
    """

    def __init__(
        self,
        label_sets: MultiHot | Sets,
        reference_label_sets: MultiHot | Sets | None,
        *,
        is_set: bool,
        is_symmetric: bool = True,
        offset: int | None = None,
    ) -> None:
        anchors = Sets.of(label_sets, "label_sets")
        references = anchors if reference_label_sets is None else Sets.of(reference_label_sets, "reference_label_sets")
        self._sets = anchors, references
        self.anchors, self.references = anchors.rows, references.rows
        if self.anchors.shape[1] != self.references.shape[1]:
            got = f"got {self.anchors.shape[1]} and {self.references.shape[1]}"
            raise ValueError(f"expected label sets of anchors and references over the same labels, {got}")
        check_part(self.anchors, self.references, offset, "reference_label_sets")
        super().__init__(
            (len(self.anchors), len(self.references)),
            is_set=is_set,
            is_nonnegative=True,
            symmetric_at=(0 if reference_label_sets is None else offset) if is_symmetric else None,
        )

    def overlap(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "n r"]:
        """Return |y_i ∩ y_r| for a tile."""
        return self.anchors[rows].to(device, dtype) @ self.references[columns].to(device, dtype).T

    def union(self, overlap: Float[Tensor, "n r"], rows: slice, columns: slice) -> Float[Tensor, "n r"]:
        """Return |y_i ∪ y_r| for a tile whose overlap is known."""
        sizes, reference_sizes = (size.to(overlap) for size in self._sizes)
        return (sizes[rows, None] - overlap).add_(reference_sizes[columns])

    @property
    def _sizes(self) -> tuple[Int[Tensor, " n"], Int[Tensor, " r"]]:
        """|y_i| and |y_r|."""
        anchors, references = self._sets
        return anchors.sizes, references.sizes


@final
class SharesLabel(LabelSets):
    """The pairs with at least one label in common, [y_i · y_r > 0].

    Memory:
        O((N + R)·L).

    Example:
        >>> SharesLabel(torch.tensor([[1, 0, 1], [0, 0, 1], [0, 1, 0]])).dense()
        tensor([[1., 1., 0.],
                [1., 1., 0.],
                [0., 0., 1.]])
    """

    def __init__(
        self,
        label_sets: MultiHot | Sets,
        reference_label_sets: MultiHot | Sets | None = None,
        *,
        offset: int | None = None,
    ) -> None:
        super().__init__(label_sets, reference_label_sets, is_set=True, offset=offset)

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.overlap(rows, columns, torch.float32, device).gt_(0).to(dtype)

    def form(self) -> ClosedForm:
        return (Term(EVERYTHING, overlaps=(ThinProduct(self.anchors, self.references, "present"),)),)

    def _support(self, device: torch.device) -> Tensor:
        occurs = self.references.to(device).any(dim=0)
        return (self.anchors.to(device) & occurs).any(dim=1)


class SharedLabels(LabelSets):
    """Abstract: a weight computed from the labels that two sets share, each of which has a worth for its anchor.

    Args:
        worth: a ≥ 0, the weight of each label of each anchor, shape (N, L); None: 1.
    """

    divided: ClassVar[bool] = False
    """Whether the weight is divided by the size of the union."""

    def __init__(
        self,
        label_sets: MultiHot | Sets,
        reference_label_sets: MultiHot | Sets | None = None,
        *,
        worth: Float[Tensor, "n l"] | None = None,
    ) -> None:
        super().__init__(label_sets, reference_label_sets, is_set=False, is_symmetric=worth is None)
        self.is_within_one = self.divided and worth is None
        self.worth = _worth(worth, self.anchors)

    def _support(self, device: torch.device) -> Tensor:
        return ((self.worth != 0).to(device) & self.references.to(device).any(dim=0)).any(dim=1)


@final
class Overlap(SharedLabels):
    r"""The number of labels that two sets share, |y_i ∩ y_r|, or the sum of the weights of an anchor's shared labels.

    $$w_{ir} = \sum_c a_{ic} \, y_{ic} \, y_{rc}$$

    Memory:
        O((N + R)·L); products and row sums are two thin products, (N, L) by (L, R).

    Example:
        >>> Overlap(torch.tensor([[1, 0, 1], [0, 1, 1]])).dense()
        tensor([[2., 1.],
                [1., 2.]])
    """

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.worth[rows].to(device, dtype) @ self.references[columns].to(device, dtype).T

    def form(self) -> ClosedForm | None:
        if self.worth is not self.anchors:
            return None
        return (Term(EVERYTHING, overlaps=(ThinProduct(self.worth, self.references, "as it is"),)),)

    def product(self, references: Tensor) -> Tensor:
        return self.worth.to(references) @ (self.references.to(references).T @ references)

    def transposed_product(self, anchors: Tensor) -> Tensor:
        return self.references.to(anchors) @ (self.worth.to(anchors).T @ anchors)


@final
class Jaccard(SharedLabels):
    r"""The Jaccard index of two label sets, |y_i ∩ y_r| / |y_i ∪ y_r|, or the same with weighted labels.

    $$w_{ir} = \frac{1}{|y_i \cup y_r|} \sum_c a_{ic} \, y_{ic} \, y_{rc}$$

    and 0 where both sets are empty.

    Memory:
        O((N + R)·L).

    Example:
        >>> Jaccard(torch.tensor([[1, 0, 1], [0, 1, 1]])).dense()
        tensor([[1.0000, 0.3333],
                [0.3333, 1.0000]])
    """

    divided = True
    within_tiles = False

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        overlap = self.overlap(rows, columns, dtype, device)
        union = self.union(overlap, rows, columns).clamp_(min=1)
        if self.is_within_one:
            return overlap.div_(union)
        shared = torch.mm(self.worth[rows].to(device, dtype), self.references[columns].to(device, dtype).T, out=overlap)
        return shared.div_(union)

    def by_label(self, dtype: torch.dtype, device: torch.device) -> tuple[Float[Tensor, "n l"], Int[Tensor, " n"]]:
        """Return y_ic Σ_r y_rc / |y_i ∪ y_r|, (N, L), and how many references share a label with each anchor, (N,)."""
        sums = torch.zeros(self.anchors.shape, dtype=dtype, device=device)
        counts = torch.zeros(self.shape[0], dtype=torch.int64, device=device)
        for rows, columns in all_tiles(self.shape):
            overlap = self.overlap(rows, columns, dtype, device)
            union = self.union(overlap, rows, columns).clamp_(min=1)
            counts[rows] += overlap.count_nonzero(dim=1)
            sums[rows].addmm_(union.reciprocal_(), self.references[columns].to(device, dtype))
        return sums.mul_(self.anchors.to(device)), counts


def _worth(worth: Tensor | None, anchors: Tensor) -> Tensor:
    if worth is None:
        return anchors
    if worth.shape != anchors.shape:
        expected = f"expected worth as one value for each label of each anchor, shape {tuple(anchors.shape)}"
        raise ValueError(f"{expected}, got shape {tuple(worth.shape)}")
    if worth.device.type == "cpu" and not (torch.isfinite(worth) & (worth >= 0)).all():
        raise ValueError("expected worth that is finite and ≥ 0, got others: set labels to ignore to 0")
    return worth.detach().where(anchors.to(worth.device), 0)
