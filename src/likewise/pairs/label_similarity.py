"""Pair weights from label sets and a similarity of labels, S_cd: its mean or maximum over pairs of labels."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.pairs.form import EVERYTHING, ClosedForm, Term, ThinProduct
from likewise.pairs.label_sets import LabelSets
from likewise.pairs.sets import MultiHot, Sets
from likewise.pairs.weight import STREAM, blocks

Lists = tuple[Tensor, Tensor] | Tensor
"""The concatenated labels of all sets and where each set starts; or the multi-hot label sets themselves."""

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

    and 0 where a set is empty.

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
        sizes, reference_sizes = (size.to(device, dtype).clamp_(min=1) for size in self._sizes)
        result = weighted @ self.references[columns].to(device, dtype).T
        return result.div_(sizes[rows, None]).div_(reference_sizes[columns])

    def form(self) -> ClosedForm:
        weighted = self.anchors.to(self.similarity) @ self.similarity
        sizes, reference_sizes = (size.to(weighted).clamp_(min=1) for size in self._sizes)
        return (
            Term(EVERYTHING, overlaps=(ThinProduct(weighted, self.references, "as it is", (sizes, reference_sizes)),)),
        )


@final
class MaxSimilarity(LabelSimilarity):
    r"""The largest similarity over all pairs of labels of two sets.

    $$w_{ir} = \max_{c \in y_i, \, d \in y_r} S_{cd} = \max_{d \in y_r} T_{id},
    \qquad T_{id} = \max_{c \in y_i} S_{cd}$$

    and 0 where a set is empty. T is computed once; a tile gathers it at the labels of its references, which are few.

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
    """Return the labels of all sets and where each starts, with the end; on a GPU, which would wait, just the sets."""
    if sets.rows.device.type != "cpu":
        return sets.rows
    starts = torch.cat([sets.sizes.new_zeros(1), sets.sizes.cumsum(dim=0)])
    return sets.rows.nonzero()[:, 1], starts


def _highest(values: Float[Tensor, "l d"], lists: Lists, rows: slice) -> Float[Tensor, "n d"]:
    """Return for each set of some rows the elementwise maximum of its labels' values; 0 for an empty set."""
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
    """Return the same from all labels, with 0 for labels that a set does not have; some labels at a time."""
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
