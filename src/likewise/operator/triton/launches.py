"""What launches the kernels: grids, tiles, and the few numbers that they read from the device."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from likewise.operator.triton import kernels, tuning
from likewise.operator.triton.operands import LARGEST, Operand, Precision, chunk, kernel_dtype
from likewise.operator.triton.weights import Plan, Side

BLOCK = 256
"""Rows of a program that puts sums together."""


class Sums(NamedTuple):
    """Sums of rows over parts of the others: Σ w e^{s} is total · 2^offset."""

    offset: Float[Tensor, "s n"]
    total: Float[Tensor, "s n"]
    average: Float[Tensor, "s n d"] | None
    scalars: Float[Tensor, " 6"] | None


class Rows(NamedTuple):
    """What the gradient of rows is made of; an offset of ∞ and a share of 0 where there is none."""

    offset: Float[Tensor, " n"]
    share: Float[Tensor, " n"]
    """The gradient of the row's log-sum-exp over its total."""
    strongest: Float[Tensor, ""]
    """The largest of these gradients' sizes."""


def forward(
    own: Operand, other: Operand, plan: Plan, temperature: Tensor, how: Precision, *, average: bool = False
) -> Sums:
    """Return each own row's sums over each split of the other rows, and, if asked, their weighted average there."""
    n, r, padded = own.parts.shape[1], other.parts.shape[1], own.parts.shape[2]
    device = own.parts.device
    if not n or not r:
        offset, total = torch.full((1, n), -torch.inf, device=device), torch.zeros(1, n, device=device)
        zeros = torch.zeros(1, n, padded, device=device) if average else None
        return Sums(offset, total, zeros, None)
    size = _tiles("average" if average else "sums", padded, plan, how, device)
    chunks = padded // chunk(padded, two=how.two) if average else 1
    grid, walk = _grid(n, r, chunks, size, device, products=average)
    offset, total = (torch.empty(grid[1], n, device=device) for _ in range(2))  # aligned, each, for any n
    product = torch.empty(grid[1], n, padded, device=device) if average else None
    scalars = _scalars(own, other, temperature)
    with _on(device):
        _kernel(kernels.forward_kernel, grid)(
            own.parts, other.parts, scalars, _pointers(plan, scalars), offset, total,
            total if product is None else product, n, r, plan.shift, walk,
            PLAN=plan.terms, THIN=plan.thin, ALL=plan.is_all, SELF=plan.of_self, SET=plan.is_set, AVERAGE=average,
            **_shared(padded, how, size),
        )  # fmt: skip
    return Sums(offset, total, product, scalars)


def backward(
    own: Operand,
    other: Operand,
    plan: Plan,
    temperature: Tensor,
    how: Precision,
    *,
    of_own: Rows | None = None,
    of_other: Rows | None = None,
    fixable: bool = False,
) -> Float[Tensor, "n d"]:
    """Return the gradient of own rows: what their own log-sums draw, and what those of the other rows do.

    ``fixable`` says that the offsets are the bound of |s| where that is within range: every pair has weight 0 or 1, and
    the sums are over these pairs alone.
    """
    n, r, padded = own.parts.shape[1], other.parts.shape[1], own.parts.shape[2]
    device = own.parts.device
    if not n or not r:
        return torch.zeros(n, padded, device=device)
    size = _tiles("backward", padded, plan, how, device)
    grid, walk = _grid(n, r, padded // chunk(padded, two=how.two), size, device, products=True)
    out = torch.empty(grid[1], n, padded, device=device)
    strongest = next(rows.strongest for rows in (of_own, of_other) if rows is not None)
    if of_own is not None and of_other is not None and of_own is not of_other:
        strongest = torch.maximum(of_own.strongest, of_other.strongest)
    scalars = _scalars(own, other, temperature, strongest)
    none = Rows(scalars, scalars, strongest)
    (mine, my_share, _), (theirs, their_share, _) = of_own or none, of_other or none
    with _on(device):
        _kernel(kernels.backward_kernel, grid)(
            own.parts, other.parts, scalars, _pointers(plan, scalars), mine, my_share, theirs, their_share, out,
            n, r, plan.shift, walk,
            PLAN=plan.terms, THIN=plan.thin, ALL=plan.is_all, SELF=plan.of_self, FIXABLE=fixable,
            OWN=of_own is not None, OTHER=of_other is not None,
            **_shared(padded, how, size),
        )  # fmt: skip
    return out[0] if grid[1] == 1 else out.sum(dim=0)


def merged(parts: list[Sums]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return each row's offset (∞ where it has no pair) and total over all parts, and its log-sum-exp."""
    offsets = parts[0].offset if len(parts) == 1 else torch.cat([part.offset for part in parts])
    totals = parts[0].total if len(parts) == 1 else torch.cat([part.total for part in parts])
    count, n = offsets.shape
    offset, total, lse = (torch.empty(n, device=offsets.device) for _ in range(3))
    if n:
        known = [part.scalars for part in parts if part.scalars is not None]
        scalars = known[0] if known else torch.zeros(6, device=offsets.device)
        with _on(offsets.device):
            _kernel(kernels.merge_kernel, (triton.cdiv(n, BLOCK),))(
                offsets, totals, scalars, offset, total, lse, count, n, BLOCK=BLOCK, enable_fp_fusion=True
            )
    return offset, total, lse


def rows(offset: Float[Tensor, " n"], total: Float[Tensor, " n"], upstream: Float[Tensor, " n"]) -> Rows:
    """Return what the backward reads of rows; an empty one has no part in it, and its upstream is not looked at."""
    n, device = len(total), total.device
    share = torch.empty(n, device=device)
    strongest = torch.empty(triton.cdiv(n, BLOCK), device=device) if n else torch.zeros(1, device=device)
    if n:
        with _on(device):
            _kernel(kernels.shares_kernel, (triton.cdiv(n, BLOCK),))(
                total, upstream.contiguous(), share, strongest, n, BLOCK=BLOCK, enable_fp_fusion=True
            )
    return Rows(offset, share, strongest.amax())


def _tiles(kernel: str, padded: int, plan: Plan, how: Precision, device: torch.device) -> tuning.Tiles:
    held = chunk(padded, two=how.two)
    return tuning.tiles(kernel, held, two=how.two, whole=held == padded, overlaps=len(plan.thin), device=device)


def _grid(
    n: int, r: int, chunks: int, size: tuning.Tiles, device: torch.device, *, products: bool
) -> tuple[tuple[int, int, int], int]:
    """Return the programs (blocks of own rows, splits, chunks of features), and how many tiles each walks."""
    blocks, walked = triton.cdiv(n, size.own), triton.cdiv(r, size.other)
    walk = triton.cdiv(walked, tuning.splits(blocks * chunks, walked, device, products=products))
    return (blocks, triton.cdiv(walked, walk), chunks), walk


def _kernel(kernel: Any, grid: tuple[int, ...]) -> Any:
    """Return a kernel on a grid; its own types are those of Triton's language."""
    return kernel[grid]


def _scalars(own: Operand, other: Operand, temperature: Tensor, strongest: Tensor | None = None) -> Tensor:
    """Return the few numbers that kernels read from the device, (6,); see `kernels.scalars_kernel`."""
    scalars = torch.empty(6, device=own.parts.device)
    with _on(own.parts.device):
        _kernel(kernels.scalars_kernel, (1,))(
            temperature, own.scale, other.scale, own.longest, other.longest, strongest, scalars,
            LARGEST=LARGEST, BACKWARD=strongest is not None, TWO=own.scale is not None,
            num_warps=1, enable_fp_fusion=True,
        )  # fmt: skip
    return scalars


def _shared(padded: int, how: Precision, size: tuning.Tiles) -> dict[str, Any]:
    return {
        "D": padded,
        "CHUNK": chunk(padded, two=how.two),
        "TWO": how.two,
        "ALL4": how.two and how.products == 4,
        "HALF": kernel_dtype(how.half),
        "INTERPRETED": how.interpreted,
        "BLOCK_N": size.own,
        "BLOCK_R": size.other,
        "num_warps": size.warps,
        "num_stages": size.stages,
        "enable_fp_fusion": True,
    }


def _pointers(plan: Plan, unused: Tensor) -> tuple[Any, ...]:
    """Return the values that a plan refers to; where there are none, a tensor that is not read."""

    def of(side: Side) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        return (
            side.keys if len(side.keys) else unused,
            side.scales if len(side.scales) else unused,
            side.overlaps or (unused,),
        )

    (keys, scales, overlaps), (other_keys, other_scales, other_overlaps) = of(plan.anchors), of(plan.references)
    return (
        keys,
        other_keys,
        scales,
        other_scales,
        overlaps,
        other_overlaps,
        unused if plan.factors is None else plan.factors,
    )


def _on(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
