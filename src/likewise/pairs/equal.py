"""Sets of pairs with equal keys, [key_i = key'_r], closed under &, | and ~; their sums need no N x R matrix."""

from numbers import Integral
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.pairs.expressions import Filled, PairWeight
from likewise.pairs.form import ClosedForm, Term
from likewise.pairs.keys import Keys, Shifted, Terms, joined, united
from likewise.pairs.weight import blocks, check_operands, check_part, widest

MAX_WIDENED = 2**19
"""The approximate number of values widened to float64 at a time: 4 MiB, which fits into a cache."""

MAX_WIDENED_ON_GPU = 2**24
"""The same number on a GPU: 128 MiB, so that few kernels are launched."""

MAX_LENGTH_RATIO = 8
"""If the lengths of all rows are within this factor, rows are subtracted from sums in their own dtype."""


class KeySet(Filled):
    """A set written as Σ coefficient · [key = key'].

    a & b joins keys, ~a is 1 − a, and a | b is a + b − a & b. Products and row sums are sums over equal keys, in
    O((N + R)·D) time and memory. A kernel can evaluate this form within a tile.

    Args:
        shape: (N, R).
        terms: The coefficient of each pair of keys, never 0.
    """

    def __init__(self, shape: tuple[int, int], terms: Terms) -> None:
        self.terms = terms
        places = {keys.place for keys in self.terms if keys is not None} or {0 if shape[0] == shape[1] else None}
        symmetric_at = places.pop() if len(places) == 1 else None
        super().__init__(shape, is_set=True, is_nonnegative=True, symmetric_at=symmetric_at)

    def fill(self, out: Tensor, rows: slice, columns: slice) -> None:
        filled, constant = False, self.terms.get(None, 0)
        for keys, coefficient in self.terms.items():
            if keys is None or keys.shift is not None:
                continue
            if filled:
                out.add_(keys.to(out.device).equal(rows, columns), alpha=coefficient)
            else:
                keys.to(out.device).fill(out, rows, columns)
                filled = True
                if coefficient != 1:
                    out.mul_(coefficient)
        if not filled:
            out.fill_(constant)
        elif constant:
            out.add_(constant)
        for keys, coefficient in self.terms.items():
            if keys is not None and keys.shift is not None:
                offset = rows.start + keys.shift - columns.start
                if rows.start - rows.stop < offset < columns.stop - columns.start:
                    out.diagonal(offset).add_(coefficient)

    def constant(self, rows: slice, columns: slice) -> float | None:
        total = 0
        for keys, coefficient in self.terms.items():
            inside = True if keys is None else keys.constant(rows, columns)
            if inside is None:
                return None
            total += coefficient * inside
        return float(total)

    def form(self) -> ClosedForm:
        return (Term(self.terms),)

    def weigh(
        self, similarities: Tensor, rows: slice, columns: slice, *, logits: bool, spare: Tensor | None = None
    ) -> None:
        if not self._all_but_diagonal:
            super().weigh(similarities, rows, columns, logits=logits, spare=spare)
        else:
            shift = next(keys.shift or 0 for keys in self.terms if keys)
            similarities.diagonal(rows.start + shift - columns.start).fill_(-torch.inf if logits else 0)

    @property
    def _all_but_diagonal(self) -> bool:
        return len(self.terms) == 2 and all(
            coefficient == (1 if keys is None else -1) and (keys is None or keys.shift is not None)
            for keys, coefficient in self.terms.items()
        )

    def product(self, references: Tensor) -> Tensor:
        return self._product(references, self.shape[0], transpose=False)

    def transposed_product(self, anchors: Tensor) -> Tensor:
        return self._product(anchors, self.shape[1], transpose=True)

    def _product(self, values: Tensor, length: int, *, transpose: bool) -> Tensor:
        wide = widest(values.device)
        if values.dtype == wide or not self._cancels(values):
            return self._summed(values, length, transpose=transpose)
        result = values.new_empty(length, values.shape[1])
        cells, fewest = (MAX_WIDENED, 32) if values.device.type == "cpu" else (MAX_WIDENED_ON_GPU, 8)
        for columns in blocks(values.shape[1], max(fewest, cells // (length + len(values) + 1))):
            result[:, columns] = self._summed(values[:, columns].to(wide), length, transpose=transpose)
        return result

    def _cancels(self, values: Tensor) -> bool:
        """Return whether a difference may leave rounding error: not if row lengths are similar (read on a CPU only)."""
        if all(coefficient > 0 for coefficient in self.terms.values()):
            return False
        if values.device.type != "cpu" or any(c < 0 and not (keys and keys.distinct) for keys, c in self.terms.items()):
            return True
        shortest, longest = torch.linalg.vector_norm(values, dim=1).aminmax() if len(values) else (0, 0)
        return float(shortest) * MAX_LENGTH_RATIO < float(longest)

    def _summed(self, values: Tensor, length: int, *, transpose: bool) -> Tensor:
        result = None
        for keys, coefficient in self.terms.items():
            if keys is None:
                part = values.sum(dim=0).expand(length, -1)
            else:
                part = (keys.transposed if transpose else keys).sum(values)
            if result is not None:
                result.add_(part, alpha=coefficient)
            else:  # class sums are already a new tensor
                result = part if coefficient == 1 and keys and keys.shift is None else part * coefficient
        return values.new_zeros(length, values.shape[1]) if result is None else result

    def _row_sum(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        constant, result = 0, None
        for keys, coefficient in self.terms.items():
            counts = self.shape[1] if keys is None else keys.counts(device)
            if isinstance(counts, int):
                constant += coefficient * counts
            elif result is None:
                result = counts if coefficient == 1 else counts * coefficient
            else:
                result = result.add(counts, alpha=coefficient)
        if result is None:
            return torch.full((self.shape[0],), constant, dtype=dtype, device=device)
        return (result + constant).to(dtype)

    def __mul__(self, other: PairWeight | float) -> PairWeight:
        if not isinstance(other, KeySet):
            return super().__mul__(other)
        check_operands(self, "*", other)
        return KeySet(self.shape, joined(self.terms, other.terms))

    def __or__(self, other: PairWeight) -> PairWeight:
        if not isinstance(other, KeySet):
            return super().__or__(other)
        check_operands(self, "|", other)
        return KeySet(self.shape, united(self.terms, other.terms))

    def __invert__(self) -> PairWeight:
        terms: Terms = {keys: -coefficient for keys, coefficient in self.terms.items()}
        terms[None] = terms.get(None, 0) + 1
        return KeySet(self.shape, {keys: coefficient for keys, coefficient in terms.items() if coefficient})


@final
class Equal(KeySet):
    """The pairs with equal keys, [key_i = key'_r].

    Args:
        key: Integer keys of the anchors, shape (N,).
        reference_key: Integer keys of the references, shape (R,); None: the anchors are the references.
        offset: The index of the first anchor among the references, if the anchors are part of a longer list (one
            process's rows among the rows of all processes); None: they are not.
        name: Name of the keys in error messages.

    Memory:
        O(N + R).

    Example:
        >>> Equal(torch.tensor([3, 7, 3])).dense()
        tensor([[1., 0., 1.],
                [0., 1., 0.],
                [1., 0., 1.]])
    """

    def __init__(
        self, key: Int[Tensor, " n"], reference_key: Int[Tensor, " r"] | None = None, *, offset: int | None = None,
        name: str = "key",
    ) -> None:  # fmt: skip
        keys = _vector(key, name)
        reference_keys = keys if reference_key is None else _vector(reference_key, f"reference_{name}").to(keys.device)
        check_part(keys, reference_keys, offset, f"reference_{name}")
        super().__init__((keys.shape[0], reference_keys.shape[0]), {Keys(keys, reference_keys, offset): 1})


def SameClass(  # noqa: N802 - a set of pairs, named like all others
    labels: Int[Tensor, " n"], reference_labels: Int[Tensor, " r"] | None = None, *, offset: int | None = None
) -> Equal:
    """Return the pairs with the same class, including each anchor with itself: `Equal` keys.

    Args:
        labels: Class of each anchor, any integers, shape (N,).
        reference_labels: Class of each reference, shape (R,); None: the anchors are the references.
        offset: The index of the first anchor among the references; see `Equal`.

    Example:
        >>> labels = torch.tensor([0, 1, 0])
        >>> (SameClass(labels) & NotSelf(3)).row_sum()
        tensor([1., 0., 1.])
    """
    return Equal(labels, reference_labels, offset=offset, name="labels")


def SameSample(  # noqa: N802 - as above
    ids: Int[Tensor, " n"], reference_ids: Int[Tensor, " r"] | None = None, *, offset: int | None = None
) -> Equal:
    """Return the pairs of views of the same sample, including each view with itself: `Equal` keys.

    Args:
        ids: Sample of each anchor, any integers, shape (N,).
        reference_ids: Sample of each reference, shape (R,); None: the anchors are the references.
        offset: The index of the first anchor among the references; see `Equal`.

    Example:
        >>> SameSample(torch.tensor([0, 1, 0, 1])).row_sum()
        tensor([2., 2., 2., 2.])
    """
    return Equal(ids, reference_ids, offset=offset, name="ids")


@final
class NotSelf(KeySet):
    """Every pair except an anchor with itself: anchor i is reference ``offset + i``.

    Args:
        n: Number of anchors.
        references: Number of references; None: the anchors are the references.
        offset: The index of the first anchor among the references, if the anchors are part of a longer list (one
            process's rows among the rows of all processes).

    Memory:
        O(N + R).

    Example:
        >>> NotSelf(2, references=4, offset=1).dense()
        tensor([[1., 0., 1., 1.],
                [1., 1., 0., 1.]])
    """

    def __init__(self, n: int, references: int | None = None, offset: int = 0) -> None:
        r = n if references is None else references
        types = [type(number).__name__ for number in (n, r, offset) if not isinstance(number, Integral | torch.SymInt)]
        if types or min(n, r, offset) < 0:
            got = types[0] if types else f"n={n}, references={r}, offset={offset}"
            raise ValueError(f"expected counts and an offset, integers of at least 0, got {got}")
        super().__init__((n, r), {None: 1, Shifted(n, r, offset): -1})


@final
class AllPairs(KeySet):
    """Every pair.

    Args:
        n: Number of anchors.
        r: Number of references.

    Memory:
        O(1).

    Example:
        >>> AllPairs(2, 3).row_sum()
        tensor([3., 3.])
    """

    def __init__(self, n: int, r: int) -> None:
        super().__init__(_counts(n, r), {None: 1})


@final
class NoPairs(KeySet):
    """No pairs, for an unused section of references.

    Args:
        n: Number of anchors.
        r: Number of references.

    Memory:
        O(1).

    Example:
        >>> NoPairs(2, 3).row_sum()
        tensor([0., 0.])
    """

    def __init__(self, n: int, r: int) -> None:
        super().__init__(_counts(n, r), {})


def _counts(n: int, r: int) -> tuple[int, int]:
    if min(n, r) < 0:
        raise ValueError(f"expected at least 0 anchors and references, got {n} and {r}")
    return n, r


def _vector(values: Tensor, name: str) -> Tensor:
    values = torch.as_tensor(values)
    if values.ndim != 1 or values.is_floating_point() or values.is_complex():
        got = f"got {values.dtype} of shape {tuple(values.shape)}: multi-hot label sets are for SharesLabel"
        raise ValueError(f"expected {name} as one integer for each row, shape (n,), {got}")
    # copied, since a label queue may change before the backward
    return values.detach().clone() if values.dtype == torch.int64 else values.to(torch.int64)
