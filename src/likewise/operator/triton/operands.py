"""Rows in the form that tensor cores multiply: in half precision, or as two halves with 23 bits of float32."""

import math
from typing import NamedTuple

import torch
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

HALVES = torch.bfloat16, torch.float16
MAX_SCALED = 2.0**14
"""The largest value of two halves is scaled to this, so that the smaller half keeps its bits within float16's range."""

KERNEL_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}

CHUNK = 128
"""Number of features that a tile reads at a time; rows of one part are held whole up to twice as many."""


class Operand(NamedTuple):
    """Rows in parts (P, N, D), D padded with zeros: their values are the sum of the parts over the scale."""

    parts: Tensor
    came: Float[Tensor, "n _"]
    """The input rows."""
    lengths: Float[Tensor, " n"] | None
    """The lengths they were divided by, ∞ for zero rows; None if they were not divided."""
    scale: float | Tensor
    """A power of two; a tensor on the device if it depends on the rows."""

    @property
    def given_scale(self) -> Tensor | None:
        """The scale, if it has to be read on the device."""
        return self.scale if isinstance(self.scale, Tensor) else None

    def values(self, dtype: torch.dtype) -> Float[Tensor, "n d"]:
        """Return a copy of the rows with their values in products."""
        whole = self.parts[:, :, : self.came.shape[1]].to(dtype).sum(dim=0)
        return whole if isinstance(self.scale, float) and self.scale == 1.0 else whole.div_(self.scale)


class Precision(NamedTuple):
    """The precision of products: one part in a half precision, or two in float16; on a GPU, or interpreted."""

    half: torch.dtype
    two: bool
    products: int
    """Whether two parts by two take all four products, or only the three above the rounding of one similarity."""
    interpreted: bool

    @property
    def stored(self) -> torch.dtype:
        """The dtype of a stored part: the interpreter has no bfloat16 products, so it stores the values in float32."""
        return torch.float32 if self.interpreted and self.half == torch.bfloat16 else self.half

    @property
    def scale(self) -> float:
        """The scale of rows of length 1."""
        return MAX_SCALED if self.two else 1.0

    @property
    def slack(self) -> float:
        """The largest amount by which a product of rows of length 1 may exceed 1."""
        return 1.0001 if self.two else 1.01


def half_of(came: set[torch.dtype]) -> torch.dtype | None:
    """Return the half precision in which rows of these dtypes are multiplied, or None for two halves."""
    if len(came) == 1 and came <= set(HALVES):
        return came.pop()
    return torch.bfloat16 if _matmul_precision() == "medium" else None


def precision(half: torch.dtype | None, device: torch.device) -> Precision:
    """Return the precision of products for rows that are exact in a half precision, or for float32 rows if it is None.

    Two halves hold 23 bits of float32. With all four products, the error is the same as in float32; "high" selects
    three, with the error of 22 bits where rows are equal.
    """
    products = 3 if _matmul_precision() == "high" else 4
    return Precision(half or torch.float16, half is None, products, interpreted=device.type == "cpu")


def _matmul_precision() -> str:
    """Return the setting of ``torch.set_float32_matmul_precision``: "highest", "high" or "medium"."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set for each backend, with values unknown to this function
        return "highest"


def as_they_are(rows: Float[Tensor, "n d"], how: Precision) -> Operand:
    """Return rows in the form for kernels: in a half precision, or as two parts as large as float32."""
    padded = width(rows.shape[1])
    if not how.two:
        return Operand(aligned(_padded(rows.to(how.half).to(how.stored), padded))[None], rows, None, 1.0)
    parts, scale = halves(_padded(rows, padded))
    return Operand(parts, rows, None, scale)


def halves(values: Tensor) -> tuple[Float[Tensor, "2 n d"], Float[Tensor, ""]]:
    """Return values as two float16 halves, (2, N, D), and the power of two they are scaled by."""
    values = values.to(torch.float32)
    largest = values.abs().amax() if values.numel() else values.sum()
    scale = torch.exp2(torch.floor(math.log2(MAX_SCALED) - torch.log2(largest))).clamp(2.0**-60, 2.0**60)
    parts = values.new_empty(2, *values.shape, dtype=torch.float16)
    scaled = values * scale
    parts[0] = scaled
    parts[1] = scaled - parts[0]
    return parts, scale


def aligned(values: Tensor) -> Tensor:
    """Return values contiguous and aligned to 16 bytes; for others, kernels would be recompiled."""
    values = values.contiguous()
    return values.clone() if values.storage_offset() * values.element_size() % 16 else values


def width(features: int) -> int:
    """Return the padded number of features: a power of two, or beyond two chunks a multiple of the chunk."""
    if features > 2 * CHUNK:
        return -(-features // CHUNK) * CHUNK
    return max(16, 1 << max(features - 1, 0).bit_length())


def _padded(rows: Tensor, features: int) -> Tensor:
    if rows.shape[1] == features:
        return rows.contiguous()
    return torch.nn.functional.pad(rows, (0, features - rows.shape[1]))


def chunk(padded: int, *, two: bool) -> int:
    """Return the number of padded features that a tile holds at once."""
    return padded if padded <= CHUNK or (padded <= 2 * CHUNK and not two) else CHUNK
