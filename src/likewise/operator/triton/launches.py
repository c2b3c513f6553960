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


class Rows(NamedTuple):
    """What the gradient of rows is made of: their log-sums and the gradient of these; ∞ and 0 where there is none."""

    lse: Float[Tensor, " n"]
    upstream: Float[Tensor, " n"]


def forward(
    own: Operand, other: Operand, plan: Plan, temperature: Tensor, how: Precision, *, average: bool = False
) -> tuple[Float[Tensor, "s n"], Float[Tensor, "s n d"] | None]:
    """Return each own row's log-sum over each split of the other rows, and, if asked, their weighted average there."""
    n, r, padded = own.parts.shape[1], other.parts.shape[1], own.parts.shape[2]
    device, dtype = own.parts.device, torch.float32
    if not n or not r:
        empty = torch.full((1, n), -torch.inf, dtype=dtype, device=device)
        return empty, torch.zeros(1, n, padded, dtype=dtype, device=device) if average else None
    size = tuning.tiles("average" if average else "sums", chunk(padded), two=how.two)
    chunks = padded // chunk(padded) if average else 1
    grid, walk = _grid(n, r, chunks, size, device)
    lse = torch.empty(grid[1], n, dtype=dtype, device=device)
    product = torch.empty(grid[1], n, padded, dtype=dtype, device=device) if average else None
    lift = torch.full((), LARGEST, dtype=dtype, device=device)
    scalars = _scalars(own, other, temperature, lift)
    with _on(device):
        kernels.forward_kernel[grid](
            own.parts, other.parts, scalars, _pointers(plan, scalars), lse, lse if product is None else product,
            n, r, plan.shift, walk,
            PLAN=plan.terms, THIN=plan.thin, ALL=plan.is_all, SELF=plan.has_self, SET=plan.is_set, AVERAGE=average,
            **_shared(padded, how, size),
        )  # fmt: skip
    return lse, product


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

    ``fixable`` says that every pair has weight 0 or 1 and that the log-sums are over these pairs alone.
    """
    n, r, padded = own.parts.shape[1], other.parts.shape[1], own.parts.shape[2]
    device = own.parts.device
    if not n or not r:
        return torch.zeros(n, padded, device=device)
    size = tuning.tiles("backward", chunk(padded), two=how.two)
    grid, walk = _grid(n, r, padded // chunk(padded), size, device)
    out = torch.empty(grid[1], n, padded, device=device)
    strongest = torch.stack([rows.upstream.abs().amax() for rows in (of_own, of_other) if rows is not None]).amax()
    scalars = _scalars(own, other, temperature, LARGEST / strongest)
    none = Rows(scalars, scalars)
    mine, theirs = of_own or none, of_other or none
    with _on(device):
        kernels.backward_kernel[grid](
            own.parts, other.parts, scalars, _pointers(plan, scalars), *mine, *theirs, out, n, r, plan.shift, walk,
            PLAN=plan.terms, THIN=plan.thin, ALL=plan.is_all, SELF=plan.has_self, FIXABLE=fixable,
            OWN=of_own is not None, OTHER=of_other is not None,
            **_shared(padded, how, size),
        )  # fmt: skip
    return out[0] if grid[1] == 1 else out.sum(dim=0)


def _grid(n: int, r: int, chunks: int, size: tuning.Tiles, device: torch.device) -> tuple[tuple[int, int, int], int]:
    """Return the programs (blocks of own rows, splits, chunks of features), and how many tiles each walks."""
    blocks, walked = triton.cdiv(n, size.own), triton.cdiv(r, size.other)
    walk = triton.cdiv(walked, tuning.splits(blocks * chunks, walked, device))
    return (blocks, triton.cdiv(walked, walk), chunks), walk


def _scalars(own: Operand, other: Operand, temperature: Tensor, lift: Tensor) -> Float[Tensor, " 4"]:
    """Return what similarities are scaled by, a bound of them, and what weights are lifted by and results lowered."""
    scalars = torch.empty(4, device=own.parts.device)
    with _on(own.parts.device):
        kernels.scalars_kernel[1,](
            temperature, own.scale, other.scale, own.longest, other.longest, lift, scalars, num_warps=1
        )
    return scalars


def _shared(padded: int, how: Precision, size: tuning.Tiles) -> dict[str, Any]:
    return {
        "D": padded,
        "CHUNK": chunk(padded),
        "TWO": how.two,
        "HALF": kernel_dtype(how.half),
        "EMULATED": how.emulated,
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
    return keys, other_keys, scales, other_scales, overlaps, other_overlaps, plan.factors


def _on(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
