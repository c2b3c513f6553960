"""Pair weights from label sets (multi-hot labels), with and without a similarity of labels.

A tile is a thin product of the sets of its rows and columns. For the sets y_i of an anchor and y_r of a reference,

    |y_i ∩ y_r| = y_i·y_r        |y_i ∪ y_r| = |y_i| + |y_r| − y_i·y_r
"""

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.pairs.expressions import PairWeight
from likewise.pairs.form import EVERYTHING, ClosedForm, Term, ThinProduct
from likewise.pairs.weight import STREAM, all_tiles, blocks, check_part

MultiHot = Float[Tensor, "_ l"] | Int[Tensor, "_ l"] | Bool[Tensor, "_ l"]


@final
class Sets:
    """Multi-hot labels (N, L), checked, and copied, since a queue may change its labels before the backward.

    From a tensor, each weight makes its own `Sets`. Weights made from the same `Sets` share the copy and the sizes.
    Values are checked on the CPU only.
    """

    def __init__(self, labels: MultiHot, name: str) -> None:
        labels = torch.as_tensor(labels).detach()
        if labels.ndim != 2:
            raise ValueError(f"expected {name} as multi-hot labels (n, labels), got shape {tuple(labels.shape)}")
        if not is_zeros_and_ones(labels):
            expected = f"expected {name} as multi-hot labels, only zeros and ones, got other values"
            raise ValueError(f"{expected}: pass class labels to SameClass as a vector (n,)")
        self.rows: Bool[Tensor, "n l"] = labels.to(torch.bool, copy=True)

    @classmethod
    def of(cls, labels: "MultiHot | Sets", name: str) -> "Sets":
        """Return `Sets` unchanged, or make them from a tensor."""
        return labels if isinstance(labels, Sets) else cls(labels, name)

    @cached_property
    def counts(self) -> Int[Tensor, " l"]:
        """The number of sets with each label."""
        return torch.stack([part.sum(dim=0) for part in self._parts()]).sum(dim=0)

    @cached_property
    def sizes(self) -> Int[Tensor, " n"]:
        """|y| of every set."""
        return torch.cat([part.sum(dim=1) for part in self._parts()])

    def _parts(self) -> Sequence[Tensor]:
        """Return the sets, in parts on a CPU, where a sum first widens each boolean to eight bytes."""
        return self.rows.split(STREAM) if self.rows.device.type == "cpu" else [self.rows]


def is_zeros_and_ones(labels: Tensor) -> bool:
    """Return whether all values are 0 or 1; values are checked only on the CPU.

    Booleans are not compared: a comparison would first widen each to eight bytes.
    """
    if labels.dtype == torch.bool or labels.device.type != "cpu":
        return True
    return all(bool(((part == 0) | (part == 1)).all()) for part in labels.split(STREAM))


class LabelSets(PairWeight):
    """Abstract: a weight computed from the label sets of anchors and references.

    Args:
        label_sets: Multi-hot labels of the anchors, zeros and ones of any dtype, shape (N, L).
        reference_label_sets: Multi-hot labels of the references, shape (R, L); None: the anchors are the references.
        is_set: Whether every weight is 0 or 1.
        is_symmetric: Whether the weight is symmetric if the anchors are the references.
        offset: The index of the first anchor among the references; see `Equal`.
    """

    def __init__(
        self, label_sets: MultiHot | Sets, reference_label_sets: MultiHot | Sets | None, *, is_set: bool,
        is_symmetric: bool = True, offset: int | None = None,
    ) -> None:  # fmt: skip
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
        """Return |y_i ∪ y_r| for a tile with known overlap, or 1 if both sets are empty."""
        sizes, reference_sizes = (sets.sizes.to(overlap) for sets in self._sets)
        return (sizes[rows, None] - overlap).add_(reference_sizes[columns]).clamp_(min=1)


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
        self, label_sets: MultiHot | Sets, reference_label_sets: MultiHot | Sets | None = None, *,
        offset: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(label_sets, reference_label_sets, is_set=True, offset=offset)

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.overlap(rows, columns, torch.float32, device).gt_(0).to(dtype)

    def form(self) -> ClosedForm:
        return (Term(EVERYTHING, overlaps=(ThinProduct(self.anchors, self.references, "present"),)),)

    def _support(self, device: torch.device) -> Tensor:
        occurs = self.references.to(device).any(dim=0)
        return (self.anchors.to(device) & occurs).any(dim=1)


class SharedLabels(LabelSets):
    """Abstract: a weight computed from the shared labels of two sets, each label with a worth for its anchor.

    Args:
        worth: a ≥ 0, the weight of each label of each anchor, shape (N, L); None: 1.
    """

    divided: ClassVar[bool] = False
    """Whether the weight is divided by the size of the union."""

    def __init__(
        self, label_sets: MultiHot | Sets, reference_label_sets: MultiHot | Sets | None = None, *,
        worth: Float[Tensor, "n l"] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(label_sets, reference_label_sets, is_set=False, is_symmetric=worth is None)
        self.is_within_one = self.divided and worth is None
        self.worth = _worth(worth, self.anchors)

    def _support(self, device: torch.device) -> Tensor:
        return ((self.worth != 0).to(device) & self.references.to(device).any(dim=0)).any(dim=1)


@final
class Overlap(SharedLabels):
    r"""The number of shared labels of two sets, |y_i ∩ y_r|, or the sum of their weights for the anchor.

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

    and 0 if both sets are empty.

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
        union = self.union(overlap, rows, columns)
        if self.is_within_one:
            return overlap.div_(union)
        shared = torch.mm(self.worth[rows].to(device, dtype), self.references[columns].to(device, dtype).T, out=overlap)
        return shared.div_(union)

    def by_label(self, dtype: torch.dtype, device: torch.device) -> tuple[Float[Tensor, "n l"], Int[Tensor, " n"]]:
        """Return y_ic Σ_r y_rc / |y_i ∪ y_r|, (N, L), and each anchor's number of references sharing a label, (N,)."""
        sums = torch.zeros(self.anchors.shape, dtype=dtype, device=device)
        counts = torch.zeros(self.shape[0], dtype=torch.int64, device=device)
        for rows, columns in all_tiles(self.shape):
            overlap = self.overlap(rows, columns, dtype, device)
            union = self.union(overlap, rows, columns)
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


Lists = tuple[Tensor, Tensor] | Tensor
"""The concatenated labels of all sets and the start of each set; or the multi-hot label sets themselves."""

MAX_COMPARED = 2**24
"""The number of values compared at once on a GPU: 64 MiB in float32."""


class LabelSimilarity(LabelSets):
    """Abstract: a similarity of label sets within [0, 1], so that ``1 - similarity`` is also a weight.

    Args:
        similarity: S, the similarity of an anchor's label to a reference's, within [0, 1], shape (L, L).
    """

    within_tiles = False

    def __init__(
        self,
        label_sets: MultiHot | Sets,
        similarity: Float[Tensor, "l l"],
        reference_label_sets: MultiHot | Sets | None = None,
    ) -> None:
        super().__init__(label_sets, reference_label_sets, is_set=False, is_symmetric=False)
        self.similarity = _within_one(similarity, self.anchors.shape[1])
        self.is_within_one = True


@final
class MeanSimilarity(LabelSimilarity):
    r"""The mean similarity over all pairs of labels of two sets: a bilinear form.

    $$w_{ir} = \frac{y_i \, S \, y_r}{|y_i| \, |y_r|}$$

    and 0 if a set is empty.

    Memory:
        O((N + R)·L + L²).

    Example:
        >>> similarity = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
        >>> MeanSimilarity(torch.tensor([[1, 0], [1, 1]]), similarity).dense()
        tensor([[1.0000, 0.7500],
                [0.7500, 0.7500]])
    """

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        weighted = self.anchors[rows].to(device, dtype) @ self.similarity.to(device, dtype)
        sizes, reference_sizes = (sets.sizes.to(device, dtype).clamp_(min=1) for sets in self._sets)
        result = weighted @ self.references[columns].to(device, dtype).T
        return result.div_(sizes[rows, None]).div_(reference_sizes[columns])

    def form(self) -> ClosedForm:
        weighted = self.anchors.to(self.similarity) @ self.similarity
        sizes, reference_sizes = (sets.sizes.to(weighted).clamp_(min=1) for sets in self._sets)
        return (
            Term(EVERYTHING, overlaps=(ThinProduct(weighted, self.references, "as it is", (sizes, reference_sizes)),)),
        )


@final
class MaxSimilarity(LabelSimilarity):
    r"""The largest similarity over all pairs of labels of two sets.

    $$w_{ir} = \max_{c \in y_i, \, d \in y_r} S_{cd} = \max_{d \in y_r} T_{id},
    \qquad T_{id} = \max_{c \in y_i} S_{cd}$$

    and 0 if a set is empty. T is computed once; a tile gathers it at the few labels of its references.

    Memory:
        O((N + R)·L + L²); time O(Σ_i |y_i|·L) once, and O(N·Σ_r |y_r|) for all tiles.

    Example:
        >>> similarity = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
        >>> MaxSimilarity(torch.tensor([[1, 0], [1, 1]]), similarity, torch.tensor([[0, 1], [1, 1], [0, 0]])).dense()
        tensor([[0.5000, 1.0000, 0.0000],
                [1.0000, 1.0000, 0.0000]])
    """

    def __init__(
        self,
        label_sets: MultiHot | Sets,
        similarity: Float[Tensor, "l l"],
        reference_label_sets: MultiHot | Sets | None = None,
    ) -> None:
        super().__init__(label_sets, similarity, reference_label_sets)
        lists, self._lists = map(_lists, self._sets)
        parts = [_highest(self.similarity, lists, rows) for rows in blocks(len(self.anchors), STREAM)]
        self._best = torch.cat(parts) if parts else self.similarity[:0]

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        best = self._best[rows].T.contiguous().to(device, dtype)
        return _highest(best, self._lists, columns).T


def _lists(sets: Sets) -> Lists:
    """Return the labels of all sets and their starts, with the end; on a GPU, to avoid waiting, only the sets."""
    if sets.rows.device.type != "cpu":
        return sets.rows
    starts = torch.cat([sets.sizes.new_zeros(1), sets.sizes.cumsum(dim=0)])
    return sets.rows.nonzero()[:, 1], starts


def _highest(values: Float[Tensor, "l d"], lists: Lists, rows: slice) -> Float[Tensor, "n d"]:
    """Return, for each set of some rows, the elementwise maximum of its labels' values; 0 for an empty set."""
    if isinstance(lists, Tensor):
        return _highest_of_all(values, lists[rows].to(values))
    labels, starts = lists
    first, last = int(starts[rows.start]), int(starts[rows.stop])
    return torch.segment_reduce(
        values.index_select(0, labels[first:last].to(values.device)),
        "max",
        offsets=(starts[rows.start : rows.stop + 1] - first).to(values.device),
        initial=0,
    )


def _highest_of_all(values: Float[Tensor, "l d"], sets: Float[Tensor, "n l"]) -> Float[Tensor, "n d"]:
    """Return the same from all labels, with 0 for labels outside a set; some labels at a time."""
    result = values.new_zeros(len(sets), values.shape[1])
    for labels in blocks(len(values), max(1, MAX_COMPARED // max(1, result.numel()))):
        result = torch.maximum(result, (sets[:, labels, None] * values[labels]).amax(dim=1))
    return result


def _within_one(similarity: Tensor, labels: int) -> Tensor:
    similarity = torch.as_tensor(similarity).detach()
    if similarity.shape != (labels, labels) or not similarity.is_floating_point():
        expected = f"expected similarity as a floating matrix over the {labels} labels of the sets"
        got = f"got {similarity.dtype} of shape {tuple(similarity.shape)}: see likewise.label_pair_similarity"
        raise ValueError(f"{expected}, shape {(labels, labels)}, {got}")
    if similarity.device.type == "cpu" and not ((similarity >= 0) & (similarity <= 1)).all():
        raise ValueError("expected similarity within [0, 1], got others: see likewise.label_pair_similarity")
    return similarity
