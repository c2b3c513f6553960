"""Expressions of pair weights: sums, products, complements, scales, row means."""

import copy
import math
from abc import ABC
from typing import NamedTuple, NoReturn, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.pairs import form
from likewise.pairs.form import EVERYTHING, ClosedForm, Term
from likewise.pairs.weight import Factors, Multiply, Slope, Weight, check_operands, widest, with_gradient


class PairWeight(Weight, ABC):
    """Abstract: a weight that combines with others, sets with ``&``, ``|`` and ``~``, any weights with ``+``, ``*``."""

    @property
    def T(self) -> "PairWeight":  # noqa: N802 - the field's name for a transpose
        """The same weights with anchors and references swapped."""
        return self if self.is_symmetric else Transposed(self)

    def __matmul__(self, references: Tensor | tuple[Tensor, ...]) -> Tensor:
        """Return Σ_r w[i, r] · references[r], (N, D), differentiable in both; sections are passed as a tuple."""
        several = isinstance(references, tuple)
        v = references if not several else references[0] if len(references) == 1 else torch.cat(references)

        def slope(gradient: Tensor) -> Slope:
            return lambda rows, columns: gradient[rows] @ v[columns].detach().T

        return with_gradient(Multiply.apply(v, self), self, slope, v)

    def __and__(self, other: "PairWeight") -> "PairWeight":
        """Return the pairs in both sets."""
        check_operands(self, "&", other)
        if not (self.is_set and other.is_set):
            raise TypeError(f"expected sets of pairs (weights 0 and 1), got {self} & {other}: use * for other weights")
        return self * other

    def __or__(self, other: "PairWeight") -> "PairWeight":
        """Return the pairs in either set, or in both."""
        check_operands(self, "|", other)
        if not (self.is_set and other.is_set):
            raise TypeError(f"expected sets of pairs (weights 0 and 1), got {self} | {other}: use + for other weights")
        return ~(~self & ~other)

    def __bool__(self) -> NoReturn:
        """Refuse ``and``, ``or`` and ``not``, which would choose one of two sets."""
        raise TypeError(f"expected &, | or ~ for sets of pairs, got {self} in and, or, not or if: use & | ~, is None")

    def __invert__(self) -> "PairWeight":
        """Return the pairs outside this set."""
        if not self.is_set:
            raise TypeError(f"expected a set of pairs (weights 0 and 1), got ~{self}: use scale or * for other weights")
        return Complement(self)

    def __add__(self, other: "PairWeight") -> "PairWeight":
        """Return the sum of two weights."""
        check_operands(self, "+", other)
        return Sum(self, other)

    def __mul__(self, other: "PairWeight | float") -> "PairWeight":
        """Return the product of two weights, pair by pair, or of a weight and a number."""
        if isinstance(other, int | float):
            return Scaled(self, factor=float(other))
        check_operands(self, "*", other)
        return Product(self, other)

    __rmul__ = __mul__

    def __rsub__(self, whole: object) -> "PairWeight":
        """Return ``1 - weight``, for a set or a similarity within [0, 1]."""
        if whole != 1 or not self.is_within_one:
            raise TypeError(f"expected 1 - a set or a similarity within [0, 1], got {whole} - {self}: use * and +")
        return ~self if self.is_set else Complement(self)

    def scale(self, anchors: Tensor | None = None, references: Tensor | None = None) -> "PairWeight":
        """Return the weights times a value per anchor, (N,), and per reference, (R,), which may require gradients."""
        return Scaled(self, anchors=anchors, references=references)

    def with_row_sums(self, row_sums: Float[Tensor, " n"] | Int[Tensor, " n"]) -> "PairWeight":
        """Return the same weight with known row sums, to avoid the computation of its row sums and support.

        Args:
            row_sums: Each anchor's sum of weights, ≥ 0, (N,), copied; zero means that all its weights are zero.

        Raises:
            ValueError: If a weight may be negative or is learned, or the sums are not one finite number ≥ 0 for each
                anchor (values are checked on the CPU only).

        Example:
            >>> from likewise import pairs
            >>> weight = pairs.Overlap(torch.tensor([[1, 0, 1], [0, 1, 1]])).with_row_sums(torch.tensor([3, 3]))
            >>> weight.row_sum()
            tensor([3., 3.])
        """
        if not self.is_nonnegative:
            raise ValueError(f"expected row sums of weights ≥ 0, got {self} with negative ones: leave the sums out")
        if self.is_learned:
            raise ValueError(f"expected row sums of a constant weight, got {self}, which learns: leave the sums out")
        if row_sums.shape != self.shape[:1]:
            got = f"got shape {tuple(row_sums.shape)}"
            raise ValueError(f"expected a row sum for each of {self.shape[0]} anchors, {got}")
        if row_sums.device.type == "cpu" and not (torch.isfinite(row_sums) & (row_sums >= 0)).all():
            raise ValueError(f"expected row sums of {self} that are finite and ≥ 0, got others")
        result = copy.copy(self)
        result._row_sums, result._supports = {}, {}  # noqa: SLF001 - the same class
        result.given_row_sum = row_sums.detach().clone()
        return result

    def split(self) -> "Split":
        """Split a pull into a sum of two parts: one is evaluated within tiles, the other multiplied beside them."""
        return Split(self, None) if self.within_tiles else Split(None, self)

    def mean_over_row(self) -> "PairWeight":
        """Return the weights divided by the sum of their row; a row of zeros stays zero."""
        return RowMean(self)


class Split(NamedTuple):
    """A pull as the sum of a part evaluated within tiles and a part multiplied beside them; None for a missing part."""

    within: PairWeight | None
    beside: PairWeight | None


class Derived(PairWeight, ABC):
    """Abstract: an expression of one weight, whose tiles are as expensive as the weight's own."""

    def __init__(
        self, base: PairWeight, *, shape: tuple[int, int] | None = None, is_set: bool = False,
        is_nonnegative: bool = True, symmetric_at: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(shape or base.shape, is_set=is_set, is_nonnegative=is_nonnegative, symmetric_at=symmetric_at)
        self.base, self.is_learned, self.within_tiles = base, base.is_learned, base.within_tiles


class Filled(PairWeight, ABC):
    """Abstract: a weight whose tiles are written into existing memory."""

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        result = torch.empty(rows.stop - rows.start, columns.stop - columns.start, dtype=dtype, device=device)
        self.fill(result, rows, columns)
        return result


class Combined(PairWeight, ABC):
    """Abstract: an expression of two weights of the same shape."""

    def __init__(self, weight: PairWeight, other: PairWeight, *, is_set: bool = False) -> None:
        nonnegative = weight.is_nonnegative and other.is_nonnegative
        at = weight.symmetric_at if weight.symmetric_at == other.symmetric_at else None
        super().__init__(weight.shape, is_set=is_set, is_nonnegative=nonnegative, symmetric_at=at)
        self.one, self.other, self.is_learned = weight, other, weight.is_learned or other.is_learned


@final
class Transposed(Derived):
    """w[r, i]: anchors and references swapped."""

    def __init__(self, base: PairWeight) -> None:
        super().__init__(
            base, shape=(base.shape[1], base.shape[0]), is_set=base.is_set, is_nonnegative=base.is_nonnegative
        )
        self.is_within_one = base.is_within_one

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
class Complement(Derived):
    """1 − a, for weights within [0, 1] without a closed form; evaluated in tiles, since Σ v − a @ v would cancel."""

    def __init__(self, base: PairWeight) -> None:
        super().__init__(base, is_set=base.is_set, symmetric_at=base.symmetric_at)
        self.is_within_one = True

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        return 1 - self.base.tile(rows, columns, dtype, device)

    def constant(self, rows: slice, columns: slice) -> float | None:
        value = self.base.constant(rows, columns)
        return None if value is None else 1 - value

    def form(self) -> ClosedForm | None:
        base = self.base.form()
        return None if base is None else form.complement(base)


@final
class Sum(Combined):
    """a + b."""

    def __init__(self, weight: PairWeight, other: PairWeight) -> None:
        super().__init__(weight, other)
        self.within_tiles = all(part.within_tiles and not isinstance(part, Sum) for part in (weight, other))

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.one.tile(rows, columns, dtype, device) + self.other.tile(rows, columns, dtype, device)

    def constant(self, rows: slice, columns: slice) -> float | None:
        values = self.one.constant(rows, columns), self.other.constant(rows, columns)
        return None if values[0] is None or values[1] is None else values[0] + values[1]

    def form(self) -> ClosedForm | None:
        closed_form, other = self.one.form(), self.other.form()
        return None if closed_form is None or other is None else closed_form + other

    def product(self, references: Tensor) -> Tensor:
        return self.one.product(references).add_(self.other.product(references))

    def transposed_product(self, anchors: Tensor) -> Tensor:
        return self.one.transposed_product(anchors).add_(self.other.transposed_product(anchors))

    def _support(self, device: torch.device) -> Tensor:
        if not self.is_nonnegative:  # the two may cancel in a row
            return super()._support(device)
        return self.one.known_support(device) | self.other.known_support(device)


@final
class Product(Filled, Combined):
    """a · b, pair by pair; the intersection when both are sets. It has no closed form and is evaluated in tiles."""

    def __init__(self, weight: PairWeight, other: PairWeight) -> None:
        Combined.__init__(self, weight, other, is_set=weight.is_set and other.is_set)
        self.within_tiles = weight.within_tiles and other.within_tiles

    def fill(self, out: Tensor, rows: slice, columns: slice) -> None:
        if self.one.constant(rows, columns) == 1:
            self.other.fill(out, rows, columns)
            return
        self.one.fill(out, rows, columns)
        if self.other.constant(rows, columns) != 1:
            self.other.weigh(out, rows, columns, logits=False)

    def constant(self, rows: slice, columns: slice) -> float | None:
        values = self.one.constant(rows, columns), self.other.constant(rows, columns)
        if 0 in values:
            return 0.0
        return None if values[0] is None or values[1] is None else values[0] * values[1]

    def form(self) -> ClosedForm | None:
        closed_form, other = self.one.form(), self.other.form()
        return None if closed_form is None or other is None else form.times(closed_form, other)


@final
class Scaled(Derived):
    """f · u_i · a[i, r] · v_r, with a number f, a value u per anchor and a value v per reference."""

    def __init__(
        self, base: PairWeight, *, factor: float = 1.0, anchors: Tensor | None = None,
        references: Tensor | None = None,
    ) -> None:  # fmt: skip
        if not math.isfinite(factor):
            raise ValueError(f"expected a finite number to scale weights by, got {factor}")
        nonnegative = base.is_nonnegative and factor >= 0
        for name, values, length in zip(("anchors", "references"), (anchors, references), base.shape, strict=True):
            if values is None:
                continue
            if values.shape != (length,):
                got = f"got shape {tuple(values.shape)}"
                raise ValueError(f"expected a value for each of {length} {name} to scale by, {got}")
            if values.device.type == "cpu":  # elsewhere a check of values would synchronise
                if not torch.isfinite(values).all():
                    raise ValueError(f"expected finite values to scale {name} by, got NaN or infinity")
                nonnegative = nonnegative and bool((values >= 0).all())
        symmetric_at = base.symmetric_at if anchors is None and references is None else None
        super().__init__(base, is_nonnegative=nonnegative, symmetric_at=symmetric_at)
        self.factor = factor
        kept = self.anchors, self.references = tuple(None if x is None else x.clone() for x in (anchors, references))
        self.is_learned = base.is_learned or any(x is not None and x.requires_grad for x in kept)

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        result = self.base.tile(rows, columns, dtype, device) * self.factor
        if self.anchors is not None:
            result *= self.anchors[rows, None].to(device, dtype)
        if self.references is not None:
            result *= self.references[columns].to(device, dtype)
        return result

    def factors(self, dtype: torch.dtype, device: torch.device, *, of_push: bool = False) -> Factors:
        if of_push and self.references is not None:
            return Factors(self)
        factors = self.base.factors(dtype, device, of_push=of_push)
        factors = factors.times(self.anchors, self.references, dtype, device)
        if self.factor == 1:
            return factors
        ones = torch.ones(self.shape[0], dtype=dtype, device=device)
        return factors._replace(anchors=(ones if factors.anchors is None else factors.anchors) * self.factor)

    def constant(self, rows: slice, columns: slice) -> float | None:
        value = self.base.constant(rows, columns)
        if value == 0:
            return 0.0
        unscaled = self.anchors is None and self.references is None
        return value * self.factor if unscaled and value is not None else None

    def form(self) -> ClosedForm | None:
        base, scale = self.base.form(), Term(EVERYTHING, self.factor, self.anchors, self.references)
        return None if base is None else form.times(base, (scale,))

    def product(self, references: Tensor) -> Tensor:
        result = self.base.product(_times(references, self.references)) * self.factor
        return _times(result, self.anchors)

    def transposed_product(self, anchors: Tensor) -> Tensor:
        result = self.base.transposed_product(_times(anchors, self.anchors)) * self.factor
        return _times(result, self.references)

    def _row_sum(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        # A difference of scaled sums may leave a rounding error in rows without pairs: these are set to zero.
        return super()._row_sum(dtype, device).where(self.known_support(device), 0)

    def _support(self, device: torch.device) -> Tensor:
        if not self.base.is_set:
            return super()._support(device)
        nonzero = None if self.references is None else self.references != 0
        support = self.base.product(_times(torch.ones(self.shape[1], 1, device=device), nonzero)).squeeze(1) > 0
        if self.anchors is not None:
            support &= (self.anchors != 0).to(device)
        return support & (self.factor != 0)


@final
class RowMean(Derived):
    """a[i, r] / Σ_u a[i, u]; a row of zeros stays zero."""

    sums_to_one = True

    def __init__(self, base: PairWeight) -> None:
        if not base.is_nonnegative:
            raise ValueError(f"expected no negative weights for mean_over_row, got {base}: apply it before * or scale")
        super().__init__(base)
        self.is_sparse = base.is_sparse
        self._totals: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._learned: Tensor | None = None
        if base.is_learned:  # the divisors depend on all learned tensors, and are one more
            device = base.learned()[0].device
            with torch.enable_grad():
                self._learned = _divisors(base.known_row_sum(widest(device), device))

    def _total(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the divisor of each row, (N, 1)."""
        if self._learned is not None:
            return self._learned.to(device, dtype)
        if (dtype, device) not in self._totals:
            self._totals[dtype, device] = _divisors(self.base.known_row_sum(dtype, device))
        return self._totals[dtype, device]

    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.base.tile(rows, columns, dtype, device) / self._total(dtype, device)[rows]

    def constant(self, rows: slice, columns: slice) -> float | None:
        return 0.0 if self.base.constant(rows, columns) == 0 else None

    def factors(self, dtype: torch.dtype, device: torch.device, *, of_push: bool = False) -> Factors:
        if self.base.is_set:
            share = self.base.known_row_sum(dtype, device).clamp(min=1).reciprocal_()
        else:
            share = self._total(dtype, device).squeeze(1).reciprocal()
        return self.base.factors(dtype, device, of_push=of_push).times(share, None, dtype, device)

    def product(self, references: Tensor) -> Tensor:
        return self.base.product(references).div_(self._total(references.dtype, references.device))

    def transposed_product(self, anchors: Tensor) -> Tensor:
        return self.base.transposed_product(anchors / self._total(anchors.dtype, anchors.device))

    def _row_sum(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return (self.base.known_row_sum(dtype, device) > 0).to(dtype)

    def _support(self, device: torch.device) -> Tensor:
        return self.base.known_support(device)


def _divisors(total: Tensor) -> Tensor:
    """Return row sums as a column, (N, 1), with infinity in place of zero."""
    return total.masked_fill(total == 0, torch.inf).unsqueeze(1)


def _times(values: Tensor, scale: Tensor | None) -> Tensor:
    return values if scale is None else values * scale.to(values)[:, None]
