"""Pair weights from a matrix, and sets of pairs from lists of references."""

from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.pairs.expressions import Filled, PairWeight
from likewise.pairs.form import EVERYTHING, ClosedForm, Term
from likewise.pairs.keys import Keys


@final
class Explicit(PairWeight):
    """Any matrix of weights, w[i, r] = weights[rows[i], columns[r]].

    Args:
        weights: The matrix, boolean or numeric; constant under differentiation.
        rows: Row of the matrix for each anchor, integers, shape (N,); None: each row once. This way a (B, B) matrix of
            samples covers V views of each without a copy.
        columns: Column of the matrix for each reference, integers, shape (R,); None: each column once.

    Memory:
        The matrix itself, and O(N + R).

    Example:
        >>> views = torch.tensor([0, 1, 0, 1])
        >>> Explicit(torch.eye(2, dtype=torch.bool), rows=views, columns=views).row_sum()
        tensor([2., 2., 2., 2.])
    """

    def __init__(
        self,
        weights: Float[Tensor, "b c"] | Int[Tensor, "b c"] | Bool[Tensor, "b c"],
        rows: Int[Tensor, " n"] | None = None,
        columns: Int[Tensor, " r"] | None = None,
    ) -> None:
        try:
            weights = torch.as_tensor(weights)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"expected weights as a matrix of numbers, got {type(weights).__name__}") from error
        if weights.requires_grad:
            raise ValueError("expected weights without gradient, got a tensor that requires a gradient: .detach() it")
        if weights.ndim != 2:
            raise ValueError(f"expected weights as a matrix (anchors, references), got shape {tuple(weights.shape)}")
        self.weights = weights
        self._version = _version(weights)
        self.rows = _index(rows, weights.shape[0], "rows")
        shared = columns is rows and rows is not None
        self.columns = self.rows if shared else _index(columns, weights.shape[1], "columns")
        is_set, is_nonnegative, is_within_one = _look(weights)
        lists = zip((self.rows, self.columns), weights.shape, strict=True)
        n, r = (length if index is None else len(index) for index, length in lists)
        super().__init__(
            (n, r),
            is_set=is_set,
            is_nonnegative=is_nonnegative,
            symmetric_at=0 if self.rows is self.columns and _mirrors(weights) else None,
        )
        self.is_within_one = is_within_one

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        tile = self._unchanged()[rows if self.rows is None else self.rows[rows]]
        tile = tile[:, columns if self.columns is None else self.columns[columns]]
        return tile.to(device, dtype, copy=True)

    def form(self) -> ClosedForm | None:
        indexed = self.rows is not None or self.columns is not None
        return None if indexed else (Term(EVERYTHING, matrices=(self._unchanged,)),)

    def _unchanged(self) -> Tensor:
        if _version(self.weights) != self._version:
            raise RuntimeError("expected unchanged weights, got a matrix that was changed in place: pass a clone of it")
        return self.weights


class Listed(Filled):
    """The pairs of each anchor with the references in its list, O(N·K) in all.

    ``index`` are K different ones for each anchor, shape (K, N), where ``references``, their number R, stands for none.
    """

    is_sparse = True

    def __init__(self, index: Int[Tensor, "k n"], references: int) -> None:
        super().__init__((index.shape[1], references), is_set=True, is_nonnegative=True, symmetric_at=None)
        self.index = index.T.contiguous()

    def fill(self, out: Tensor, rows: slice, columns: slice) -> None:
        self.add(out.zero_(), rows, columns, out.new_ones(()))

    def add(self, out: Tensor, rows: slice, columns: slice, values: Tensor) -> None:
        """Add a value of each anchor to its pairs in a tile."""
        index, inside = self._within(out, rows, columns)
        out.scatter_add_(1, index, inside * values.unsqueeze(-1))

    def sums(self, x: Tensor, rows: slice, columns: slice) -> Tensor:
        """Return for each anchor the sum of a tile's values of its pairs."""
        index, inside = self._within(x, rows, columns)
        return x.gather(1, index).mul_(inside).sum(dim=1)

    def _within(self, tile: Tensor, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """Return the columns that are listed, as columns of a tile, and 1 where they are within it, else 0."""
        index = self.index[rows].to(tile.device) - columns.start
        inside = (index >= 0) & (index < tile.shape[1])
        return index.clamp_(0, tile.shape[1] - 1), inside.to(tile.dtype)

    def product(self, references: Tensor) -> Tensor:
        return self._summed(references, transpose=False)

    def transposed_product(self, anchors: Tensor) -> Tensor:
        return self._summed(anchors, transpose=True)

    def _summed(self, values: Tensor, *, transpose: bool) -> Tensor:
        """Sum over equal keys, one list entry after another: always in the same order."""
        everyone = torch.arange(self.shape[1], device=self.index.device)
        result = values.new_zeros(self.shape[1] if transpose else self.shape[0], values.shape[1])
        for index in self.index.unbind(dim=1):
            keys = Keys(index, everyone)
            result += (keys.transposed if transpose else keys).sum(values)
        return result

    def _row_sum(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return (self.index < self.shape[1]).sum(dim=1).to(device, dtype)


def _version(weights: Tensor) -> int:
    """Return how often a tensor was changed in place; torch does not count this for inference tensors."""
    return 0 if weights.is_inference() else weights._version  # noqa: SLF001 - torch has no public name for it


def _look(weights: Tensor) -> tuple[bool, bool, bool]:
    """Return whether weights are a set, non-negative, within [0, 1]; numbers on a GPU are only assumed to be ≥ 0."""
    if weights.dtype == torch.bool:
        return True, True, True
    if weights.device.type != "cpu":
        return False, True, False
    if not torch.isfinite(weights).all():
        raise ValueError("expected finite weights, got NaN or infinity: mask such pairs with 0")
    nonnegative = bool((weights >= 0).all())
    return bool(((weights == 0) | (weights == 1)).all()), nonnegative, nonnegative and bool((weights <= 1).all())


def _mirrors(weights: Tensor) -> bool:
    """Return whether the matrix is symmetric; on a GPU this is not checked."""
    return weights.device.type == "cpu" and weights.shape[0] == weights.shape[1] and torch.equal(weights, weights.T)


def _index(index: Tensor | None, length: int, name: str) -> Tensor | None:
    if index is None:
        return None
    if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise ValueError(f"expected {name} as a vector of integers, got {index.dtype} of shape {tuple(index.shape)}")
    if index.device.type == "cpu" and len(index) and not (index.min() >= 0 and index.max() < length):
        raise ValueError(f"expected {name} from 0 to {length - 1}, got {int(index.min())} to {int(index.max())}")
    return index.long()
