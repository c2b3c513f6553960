"""What a pair weight is, a value for every (anchor, reference) known tile by tile, and the algebra of such weights."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.pairs import form, scales
from likewise.pairs.form import EVERYTHING, Form, Term

STREAM = 1024
"""Rows and columns of the tiles in which a weight without a closed form is summed and multiplied."""


def blocks(length: int, size: int) -> Iterator[slice]:
    """Cut ``range(length)`` into consecutive slices of at most ``size``."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


class PairWeight(ABC):
    r"""A weight $w_{ir}$ for each of N anchors and R references, constant under differentiation.

    A subclass says what a tile is; row sums, products and transposes then stream over tiles in O(N + R + tile) memory.
    It overrides `product` and `transposed_product` where it has a closed form.

    Args:
        shape: (N, R), the numbers of anchors and references.
        is_set: Whether every weight is 0 or 1, so that ``&`` and ``~`` mean something.
        is_nonnegative: Whether no weight is negative, as far as the expression tells.
        is_symmetric: Whether anchors are the references and w[i, r] = w[r, i], as far as the expression tells.
    """

    def __init__(self, shape: tuple[int, int], *, is_set: bool, is_nonnegative: bool, is_symmetric: bool) -> None:
        self.shape = shape
        self.is_set = is_set
        self.is_nonnegative = is_nonnegative
        self.is_symmetric = is_symmetric
        self.is_within_one = is_set
        """Whether no weight is above 1 or negative, as far as it is known."""
        self._row_sums: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._supports: dict[torch.device, Tensor] = {}

    @abstractmethod
    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "n r"]:
        """Return the weights of some rows and columns, given as slices with a start and a stop."""

    def constant(self, rows: slice, columns: slice) -> float | None:
        """Return the one value of a tile where that is known without computing it, else None."""
        del rows, columns

    def form(self) -> Form | None:
        """Return the weight as a kernel receives it, or None if it has to come as tiles."""
        return None

    def weigh(self, similarities: Float[Tensor, "n r"], rows: slice, columns: slice, *, logits: bool) -> None:
        """Multiply a tile of e^{s} by the weights in place, or add their logarithms to a tile of logits s."""
        weights = self.tile(rows, columns, similarities.dtype, similarities.device)
        if not logits:
            similarities.mul_(weights)
            return
        outside = weights == 0
        if not self.is_set:
            similarities.add_(weights.log_())
        similarities.masked_fill_(outside, -torch.inf)  # whatever s was there, infinity too

    def product(self, references: Float[Tensor, "r d"]) -> Float[Tensor, "n d"]:
        """Return the weights times ``references``, outside differentiation; by tiles unless overridden."""
        result = references.new_zeros(self.shape[0], references.shape[1])
        for rows in blocks(self.shape[0], STREAM):
            for columns in blocks(self.shape[1], STREAM):
                tile = self.tile(rows, columns, references.dtype, references.device)
                result[rows].addmm_(tile, references[columns])
        return result

    def transposed_product(self, anchors: Float[Tensor, "n d"]) -> Float[Tensor, "r d"]:
        """Return the transposed weights times ``anchors``, outside differentiation; by tiles unless overridden."""
        result = anchors.new_zeros(self.shape[1], anchors.shape[1])
        for rows in blocks(self.shape[0], STREAM):
            for columns in blocks(self.shape[1], STREAM):
                tile = self.tile(rows, columns, anchors.dtype, anchors.device)
                result[columns].addmm_(tile.T, anchors[rows])
        return result

    def row_sum(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Float[Tensor, " n"]:
        """Return each anchor's sum of weights; computed once for each dtype and device."""
        return self.known_row_sum(dtype, torch.device(device)).clone()

    def known_row_sum(self, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " n"]:
        """Return the row sums themselves, which nobody may change."""
        if (dtype, device) not in self._row_sums:
            self._row_sums[dtype, device] = self._row_sum(dtype, device)
        return self._row_sums[dtype, device]

    def _row_sum(self, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " n"]:
        return self.product(torch.ones(self.shape[1], 1, dtype=dtype, device=device)).squeeze(1)

    def support(self, device: torch.device | str = "cpu") -> Bool[Tensor, " n"]:
        """Return which anchors have a weight other than zero; computed once for each device."""
        return self.known_support(torch.device(device)).clone()

    def known_support(self, device: torch.device) -> Bool[Tensor, " n"]:
        """Return the support itself, which nobody may change."""
        if device not in self._supports:
            self._supports[device] = self._support(device)
        return self._supports[device]

    def _support(self, device: torch.device) -> Bool[Tensor, " n"]:
        if self.is_set:
            return self.known_row_sum(torch.float32, device) > 0
        wide = torch.float32 if device.type == "mps" else torch.float64
        found = torch.zeros(self.shape[0], dtype=torch.bool, device=device)
        for rows in blocks(self.shape[0], STREAM):
            for columns in blocks(self.shape[1], STREAM):
                found[rows] |= self.tile(rows, columns, wide, device).ne(0).any(dim=1)
        return found

    def dense(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Float[Tensor, "n r"]:
        """Return all N x R weights: for tests, pictures and small problems."""
        return self.tile(slice(0, self.shape[0]), slice(0, self.shape[1]), dtype, torch.device(device))

    @property
    def T(self) -> "PairWeight":  # noqa: N802 - the field's name for a transpose
        """The same weights with anchors and references exchanged."""
        return self if self.is_symmetric else Transposed(self)

    def __matmul__(self, references: Tensor | tuple[Tensor, ...]) -> Tensor:
        """Return Σ_r w[i, r] · references[r], (N, D), differentiable in the references (one tensor or sections)."""
        if isinstance(references, tuple):
            references = references[0] if len(references) == 1 else torch.cat(references)
        return _Multiply.apply(references, self)

    def __and__(self, other: "PairWeight") -> "PairWeight":
        """Return the pairs that are in both sets."""
        if not (self.is_set and _weight(other, "&").is_set):
            raise TypeError(f"& joins sets of pairs (weights 0 and 1), got {self} & {other}; use * for weights")
        return self * other

    def __invert__(self) -> "PairWeight":
        """Return the pairs that are not in this set."""
        if not self.is_set:
            raise TypeError(f"~ complements a set of pairs (weights 0 and 1), got ~{self}; use scale or * for weights")
        return Complement(self)

    def __add__(self, other: "PairWeight") -> "PairWeight":
        """Return the sum of two weights."""
        same_shape(self, _weight(other, "+"))
        return Sum(self, other)

    def __mul__(self, other: "PairWeight | float") -> "PairWeight":
        """Return the product of two weights, pair by pair, or of a weight and a number."""
        if isinstance(other, int | float):
            return Scaled(self, factor=float(other))
        same_shape(self, _weight(other, "*"))
        return Product(self, other)

    __rmul__ = __mul__

    def __rsub__(self, whole: object) -> "PairWeight":
        """Return ``1 - weight``, of a set or of a similarity within [0, 1]."""
        if whole != 1 or not self.is_within_one:
            raise TypeError(
                f"1 - weight is of sets and of similarities within [0, 1], got {whole} - {self}; use * and + for others"
            )
        return ~self if self.is_set else Complement(self)

    def scale(self, anchors: Tensor | None = None, references: Tensor | None = None) -> "PairWeight":
        """Return the weights times a value per anchor, (N,), and a value per reference, (R,)."""
        return Scaled(self, anchors=anchors, references=references)

    def mean_over_row(self) -> "PairWeight":
        """Return the weights divided by their row's sum; a row without any stays zero."""
        return RowMean(self)

    def __repr__(self) -> str:
        """Name the expression and its shape."""
        return f"{type(self).__name__}{self.shape}"


class _Multiply(torch.autograd.Function):
    """The weights times the references, and in the backward the transposed weights times the gradient."""

    @staticmethod
    def forward(ctx: Any, references: Tensor, weight: PairWeight) -> Tensor:
        if references.shape[0] != weight.shape[1]:
            raise ValueError(
                f"{weight} weighs {weight.shape[1]} references, got {references.shape[0]}; "
                "build the weight for as many references as there are"
            )
        ctx.weight = weight
        return weight.product(references)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        with torch.autocast(gradients[0].device.type, enabled=False):  # the user may call backward within autocast
            return ctx.weight.T @ gradients[0], None


def _weight(value: object, operation: str) -> PairWeight:
    if not isinstance(value, PairWeight):
        raise TypeError(f"{operation} takes another pair weight, got {type(value).__name__}; see likewise.pairs")
    return value


def same_shape(one: PairWeight, other: PairWeight) -> None:
    """Raise unless two weights of one expression have one shape."""
    if one.shape != other.shape:
        raise ValueError(f"pair weights of one expression have one shape, got {one} and {other}; build both alike")


@final
class Transposed(PairWeight):
    """w[r, i]: anchors and references exchanged."""

    def __init__(self, base: PairWeight) -> None:
        n, r = base.shape
        super().__init__((r, n), is_set=base.is_set, is_nonnegative=base.is_nonnegative, is_symmetric=False)
        self.base = base

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.base.tile(columns, rows, dtype, device).T

    def constant(self, rows: slice, columns: slice) -> float | None:
        return self.base.constant(columns, rows)

    def product(self, references: Tensor) -> Tensor:
        return self.base.transposed_product(references)

    def transposed_product(self, anchors: Tensor) -> Tensor:
        return self.base.product(anchors)

    @property
    def T(self) -> PairWeight:  # noqa: N802 - the field's name for a transpose
        return self.base


@final
class Complement(PairWeight):
    """1 − a, of weights within [0, 1] without closed form; it streams, since Σ − a @ v would cancel."""

    def __init__(self, base: PairWeight) -> None:
        super().__init__(base.shape, is_set=base.is_set, is_nonnegative=True, is_symmetric=base.is_symmetric)
        self.base = base

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        return 1 - self.base.tile(rows, columns, dtype, device)

    def constant(self, rows: slice, columns: slice) -> float | None:
        value = self.base.constant(rows, columns)
        return None if value is None else 1 - value

    def form(self) -> Form | None:
        base = self.base.form()
        return None if base is None else form.complement(base)


@final
class Sum(PairWeight):
    """a + b."""

    def __init__(self, one: PairWeight, other: PairWeight) -> None:
        super().__init__(
            one.shape,
            is_set=False,
            is_nonnegative=one.is_nonnegative and other.is_nonnegative,
            is_symmetric=one.is_symmetric and other.is_symmetric,
        )
        self.one, self.other = one, other

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.one.tile(rows, columns, dtype, device) + self.other.tile(rows, columns, dtype, device)

    def constant(self, rows: slice, columns: slice) -> float | None:
        values = self.one.constant(rows, columns), self.other.constant(rows, columns)
        return None if values[0] is None or values[1] is None else values[0] + values[1]

    def form(self) -> Form | None:
        one, other = self.one.form(), self.other.form()
        return None if one is None or other is None else one + other

    def product(self, references: Tensor) -> Tensor:
        return self.one.product(references).add_(self.other.product(references))

    def transposed_product(self, anchors: Tensor) -> Tensor:
        return self.one.transposed_product(anchors).add_(self.other.transposed_product(anchors))

    def _support(self, device: torch.device) -> Tensor:
        if not self.is_nonnegative:  # a row of the two may cancel
            return super()._support(device)
        return self.one.known_support(device) | self.other.known_support(device)


@final
class Product(PairWeight):
    """a · b, pair by pair; the intersection when both are sets. It has no closed form, and streams."""

    def __init__(self, one: PairWeight, other: PairWeight) -> None:
        super().__init__(
            one.shape,
            is_set=one.is_set and other.is_set,
            is_nonnegative=one.is_nonnegative and other.is_nonnegative,
            is_symmetric=one.is_symmetric and other.is_symmetric,
        )
        self.one, self.other = one, other

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        if self.one.constant(rows, columns) == 1:
            return self.other.tile(rows, columns, dtype, device)
        if self.other.constant(rows, columns) == 1:
            return self.one.tile(rows, columns, dtype, device)
        return self.one.tile(rows, columns, dtype, device) * self.other.tile(rows, columns, dtype, device)

    def constant(self, rows: slice, columns: slice) -> float | None:
        values = self.one.constant(rows, columns), self.other.constant(rows, columns)
        if 0 in values:
            return 0.0
        return None if values[0] is None or values[1] is None else values[0] * values[1]

    def form(self) -> Form | None:
        one, other = self.one.form(), self.other.form()
        return None if one is None or other is None else form.times(one, other)


@final
class Scaled(PairWeight):
    """f · u_i · a[i, r] · v_r, with a number f, a value u per anchor and a value v per reference."""

    def __init__(
        self,
        base: PairWeight,
        *,
        factor: float = 1.0,
        anchors: Tensor | None = None,
        references: Tensor | None = None,
    ) -> None:
        if not math.isfinite(factor):
            raise ValueError(f"weights are scaled by a finite number, got {factor}")
        anchors = scales.checked(anchors, base.shape[0], "anchors")
        references = scales.checked(references, base.shape[1], "references")
        super().__init__(
            base.shape,
            is_set=False,
            is_nonnegative=base.is_nonnegative
            and factor >= 0
            and scales.nonnegative(anchors)
            and scales.nonnegative(references),
            is_symmetric=base.is_symmetric and anchors is None and references is None,
        )
        self.base, self.factor, self.anchors, self.references = base, factor, anchors, references

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        result = self.base.tile(rows, columns, dtype, device) * self.factor
        if self.anchors is not None:
            result *= self.anchors[rows, None].to(device, dtype)
        if self.references is not None:
            result *= self.references[columns].to(device, dtype)
        return result

    def constant(self, rows: slice, columns: slice) -> float | None:
        value = self.base.constant(rows, columns)
        if value == 0:
            return 0.0
        unscaled = self.anchors is None and self.references is None
        return value * self.factor if unscaled and value is not None else None

    def form(self) -> Form | None:
        base, scale = self.base.form(), Term(EVERYTHING, self.factor, self.anchors, self.references)
        return None if base is None else form.times(base, (scale,))

    def product(self, references: Tensor) -> Tensor:
        result = self.base.product(scales.times(references, self.references)) * self.factor
        return scales.times(result, self.anchors)

    def transposed_product(self, anchors: Tensor) -> Tensor:
        result = self.base.transposed_product(scales.times(anchors, self.anchors)) * self.factor
        return scales.times(result, self.references)

    def _row_sum(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        # A difference of scaled sums may leave rounding where the row has no pair: such a row is exactly zero.
        return super()._row_sum(dtype, device).where(self.known_support(device), 0)

    def _support(self, device: torch.device) -> Tensor:
        if not self.base.is_set:
            return super()._support(device)
        present = torch.ones(self.shape[1], 1, device=device)
        if self.references is not None:
            present = (self.references != 0).to(device, torch.float32)[:, None]
        found = self.base.product(present).squeeze(1) > 0
        if self.anchors is not None:
            found &= (self.anchors != 0).to(device)
        return found & (self.factor != 0)


@final
class RowMean(PairWeight):
    """a[i, r] / Σ_u a[i, u]; a row without weights stays zero."""

    def __init__(self, base: PairWeight) -> None:
        if not base.is_nonnegative:
            raise ValueError(f"mean_over_row divides by the sum of weights ≥ 0, got {base} with negative ones")
        super().__init__(base.shape, is_set=False, is_nonnegative=True, is_symmetric=False)
        self.base = base
        self._totals: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def _total(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """What a row is divided by, (N, 1): its sum, infinity where that is zero."""
        if (dtype, device) not in self._totals:
            total = self.base.known_row_sum(dtype, device)
            self._totals[dtype, device] = total.masked_fill(total == 0, torch.inf).unsqueeze(1)
        return self._totals[dtype, device]

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.base.tile(rows, columns, dtype, device).div_(self._total(dtype, device)[rows])

    def constant(self, rows: slice, columns: slice) -> float | None:
        return 0.0 if self.base.constant(rows, columns) == 0 else None

    def product(self, references: Tensor) -> Tensor:
        return self.base.product(references).div_(self._total(references.dtype, references.device))

    def transposed_product(self, anchors: Tensor) -> Tensor:
        return self.base.transposed_product(anchors / self._total(anchors.dtype, anchors.device))

    def _row_sum(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return (self.base.known_row_sum(dtype, device) > 0).to(dtype)

    def _support(self, device: torch.device) -> Tensor:
        return self.base.known_support(device)
