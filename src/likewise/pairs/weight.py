"""What a pair weight is: a value for every (anchor, reference), known tile by tile, and what follows from tiles."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.pairs.form import Form

STREAM = 1024
"""Rows and columns of the tiles in which a weight without a closed form is summed and multiplied."""


def blocks(length: int, size: int) -> Iterator[slice]:
    """Cut ``range(length)`` into consecutive slices of at most ``size``."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


class Weight(ABC):
    r"""Abstract: a weight $w_{ir}$ for each of N anchors and R references, constant under differentiation.

    A subclass says what a tile is; row sums, products and transposes then stream over tiles in O(N + R + tile) memory.
    It overrides `product` and `transposed_product` where it has a closed form.

    Args:
        shape: (N, R), the numbers of anchors and references.
        is_set: Whether every weight is 0 or 1, so that ``&``, ``|`` and ``~`` mean something.
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
        self._given: Tensor | None = None

    @abstractmethod
    def tile(self, rows: slice, columns: slice, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "n r"]:
        """Return the weights of some rows and columns, given as slices with a start and a stop."""

    @property
    def sums_to_one(self) -> bool:
        """Whether every row with a weight other than zero sums to one."""
        return False

    @property
    def within_tiles(self) -> bool:
        """Whether a tile of weights costs less than a tile of similarities, so that a pull is evaluated in tiles."""
        return True

    def constant(self, rows: slice, columns: slice) -> float | None:
        """Return the one value of a tile where that is known without computing it, else None."""
        del rows, columns

    def form(self) -> Form | None:
        """Return the weight as a kernel receives it, or None if it has to come as tiles."""
        return None

    def fill(self, out: Float[Tensor, "n r"], rows: slice, columns: slice) -> None:
        """Put the weights of some rows and columns in the place of what stands in ``out``."""
        out.copy_(self.tile(rows, columns, out.dtype, out.device))

    def factors(self, dtype: torch.dtype, device: torch.device, *, of_push: bool = False) -> "Factors":
        """Take apart what each anchor, and each reference, is multiplied by.

        Of a push the references' factors stay within, since they are summed over.
        """
        del dtype, device, of_push
        return Factors(self)

    def weigh(
        self,
        similarities: Float[Tensor, "n r"],
        rows: slice,
        columns: slice,
        *,
        logits: bool,
        spare: Float[Tensor, "n r"] | None = None,
    ) -> None:
        """Multiply a tile of e^{s} by the weights in place, or add their logarithms to a tile of logits s.

        ``spare`` is room for a tile of weights; without it room is made.
        """
        weights = torch.empty_like(similarities) if spare is None else spare
        self.fill(weights, rows, columns)
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

    def transposed_products(
        self, anchors: Float[Tensor, "n d"], lengths: Sequence[int], wanted: Sequence[bool]
    ) -> list[Float[Tensor, "_ d"] | None]:
        """Return `transposed_product` cut into sections of references; None for those that are not wanted."""
        if not any(wanted):
            return [None for _ in wanted]
        parts = self.transposed_product(anchors).split(list(lengths))
        return [part if want else None for part, want in zip(parts, wanted, strict=True)]

    def row_sum(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Float[Tensor, " n"]:
        """Return each anchor's sum of weights; computed once for each dtype and device."""
        return self.known_row_sum(dtype, torch.device(device)).clone()

    def known_row_sum(self, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " n"]:
        """Return the row sums themselves, which nobody may change."""
        if (dtype, device) not in self._row_sums:
            given = self._given
            self._row_sums[dtype, device] = self._row_sum(dtype, device) if given is None else given.to(device, dtype)
        return self._row_sums[dtype, device]

    @property
    def knows_row_sum(self) -> bool:
        """Whether its row sums were given."""
        return self._given is not None

    def _row_sum(self, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " n"]:
        return self.product(torch.ones(self.shape[1], 1, dtype=dtype, device=device)).squeeze(1)

    def support(self, device: torch.device | str = "cpu") -> Bool[Tensor, " n"]:
        """Return which anchors have a weight other than zero; computed once for each device."""
        return self.known_support(torch.device(device)).clone()

    def known_support(self, device: torch.device) -> Bool[Tensor, " n"]:
        """Return the support itself, which nobody may change."""
        if device not in self._supports:
            given = self._given
            self._supports[device] = self._support(device) if given is None else given.to(device) > 0
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

    def __repr__(self) -> str:
        """Name the expression and its shape."""
        return f"{type(self).__name__}{self.shape}"


class Factors(NamedTuple):
    """A weight taken apart: base[i, r] · anchors_i · references_r; None stands for ones."""

    base: Weight
    anchors: Float[Tensor, " n"] | None = None
    references: Float[Tensor, " r"] | None = None

    @property
    def is_symmetric(self) -> bool:
        """Whether the weight is symmetric but for the factors of anchors."""
        return self.base.is_symmetric and self.references is None


def same_shape(one: Weight, other: Weight) -> None:
    """Raise unless two weights of one expression have one shape."""
    if one.shape != other.shape:
        raise ValueError(f"pair weights of one expression have one shape, got {one} and {other}; build both alike")
