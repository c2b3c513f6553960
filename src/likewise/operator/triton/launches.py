"""Kernel launches: their grids, tiles and arguments."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.operator.problem import Outcome
from likewise.operator.triton import kernels, row_kernels, tuning
from likewise.operator.triton.operands import Operand, Precision, aligned, as_they_are, chunk, kernel_dtype, width
from likewise.operator.triton.weights import Plan, Plans

BLOCK = 256
"""Rows per program in the kernels that combine sums."""

SAFE = 44.0
"""The largest bound o of |s|, in base 2, that is used as a fixed offset: a total is then at least 2^−88, and the
gradient of a row's log-sum-exp over it stays within float32's range up to 2^39."""

LOG2E = 1.4426950408889634


class Common(NamedTuple):
    """What all launches of a contrast share."""

    plans: Plans
    how: Precision
    tau: Float[Tensor, ""]
    fixed: bool
    """Whether the bound of |s| is the offset of all rows."""
    coefficients: tuple[Tensor | None, ...] | None = None
    """c of each log-sum-exp in the losses, None: the pull's row sums; None for all: kernels compute no losses."""
    reduction: str = "none"


class Sums(NamedTuple):
    """Sums of rows over all references: Σ push e^{s} is total · 2^offset; an offset of ∞ means no pair."""

    offset: Float[Tensor, "k n"]
    total: Float[Tensor, "k n"]
    logsums: tuple[Float[Tensor, " n"], ...]
    attraction: Float[Tensor, " n"] | None
    mass: Float[Tensor, " n"] | None
    losses: Tensor | None
    active: Bool[Tensor, " n"] | None
    rows_active: Int[Tensor, ""] | None


class Rows(NamedTuple):
    """The values that determine the gradient of rows; an offset of ∞ and a share of 0 mean none."""

    offset: Float[Tensor, "k n"]
    share: Float[Tensor, "k n"]
    """The gradient of the row's log-sum-exp over its total."""
    force: Float[Tensor, " n"] | None
    """The gradient of its attraction."""


@dataclass(frozen=True)
class How:
    """The compile-time constants of a visit apart from its weights."""

    N: int
    """Own rows of a tile; R: other rows."""
    R: int
    D: int
    CHUNK: int
    TWO: bool
    ALL4: bool
    HALF: Any
    INTERPRETED: bool
    NORMALIZED: bool
    SCALE: float
    """What rows of length 1 are scaled by."""
    SLACK: float
    FIXED: bool
    PUSHES: int
    SETS: bool
    SECOND: int
    """The first kind of tiles with a second push, and PULLS: with a pull; 3: none."""
    PULLS: int
    PULL_SET: bool
    COUNTED: int
    SELF: bool
    FIRST: int
    """The first kind of tiles with any weight; STRIDE: 1 if there is a kind 1."""
    STRIDE: int


class Visit(NamedTuple):
    """A loop of own rows over other rows, ready to be launched: the arguments of its kernel."""

    grid: tuple[int, int, int]
    rows: tuple[Any, ...]
    values: tuple[Any, ...]
    """What the weights read, and where keys may be equal."""
    counts: tuple[int, ...]
    keywords: dict[str, Any]

    @property
    def splits(self) -> int:
        """The number of parts the other rows are split into."""
        return self.grid[1]


def operand(
    rows: Float[Tensor, "n d"], how: Precision, *, normalize: bool, order: Int[Tensor, " n"] | None = None
) -> Operand:
    """Return rows in the form for kernels, divided by their lengths if ``normalize``, which may then be sorted."""
    if not normalize:
        return as_they_are(rows, how)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    n, padded = len(rows), width(rows.shape[1])
    parts = torch.empty(1 + how.two, n, padded, dtype=how.stored, device=rows.device)
    lengths = torch.empty(n, device=rows.device)
    grid, sizes = _of_rows(n, padded)
    _launch(row_kernels.unit_kernel, grid, rows.device)(
        rows, order, parts, lengths, n, rows.shape[1], rows.stride(0),
        SCALE=how.scale, TWO=how.two, HALF=kernel_dtype(how.half), INTERPRETED=how.interpreted, **sizes,
    )  # fmt: skip
    return Operand(parts, rows, lengths, how.scale)


def projected(parts: Float[Tensor, "s n d"], of: Operand, common: Common) -> Float[Tensor, "n _"]:
    """Return the gradient of input rows, in their dtype, from the parts of the prepared rows' gradient, times τ."""
    came, (splits, n, padded) = of.came, parts.shape
    out = torch.empty(came.shape, dtype=came.dtype, device=came.device)
    grid, sizes = _of_rows(n, padded)
    _launch(row_kernels.project_kernel, grid, came.device)(
        parts, came, common.plans.order, of.lengths, common.tau, out, splits, n, came.shape[1], came.stride(0),
        OUT=kernel_dtype(came.dtype), INTERPRETED=common.how.interpreted, **sizes,
    )  # fmt: skip
    return out


def visit(kernel: str, own: Operand, other: Operand, plan: Plan, common: Common, *, swapped: bool = False) -> Visit:
    """Return a loop of own rows over other rows, for "sums" or the "backward"; swapped: own rows are the references.

    The sums of references over the queries include no pull.
    """
    plans, how, tau, fixed, *_ = common
    n, r, padded = own.parts.shape[1], other.parts.shape[1], own.parts.shape[2]
    held, wanted = chunk(padded, two=how.two), kernel == "backward" or not swapped
    size = tuning.tiles(
        kernel, held, two=how.two, whole=held == padded, overlaps=plan.thin, busy=plan.is_busy, device=tau.device
    )
    chunks = 1 if kernel == "sums" else padded // held
    blocks, walked = triton.cdiv(n, size.own), triton.cdiv(r, size.other)
    parts = tuning.splits(blocks * chunks, walked, tau.device, at_once=size.programs, products=kernel != "sums")
    walk = triton.cdiv(walked, parts)
    normalized = own.lengths is not None
    constants = How(
        N=size.own, R=size.other, D=padded, CHUNK=held, TWO=how.two, ALL4=how.two and how.products == 4,
        HALF=kernel_dtype(how.half), INTERPRETED=how.interpreted, NORMALIZED=normalized, SCALE=how.scale,
        SLACK=how.slack, FIXED=fixed, PUSHES=len(plans.powers), SETS=plans.sets, SECOND=plan.second,
        PULLS=plan.pulls if wanted else 3,
        PULL_SET=plans.pull_set, COUNTED=plans.counted if wanted else -1, SELF=plan.has_diagonal, FIRST=plan.first,
        STRIDE=2 if plan.ordered is None else 1,
    )  # fmt: skip
    values = [value if isinstance(value, float | Tensor) else aligned(value().to(tau.device)) for value in plan.values]
    keywords = {"WEIGHTS": plan.function(swapped=swapped), "HOW": constants, "num_warps": size.warps}
    return Visit(
        (blocks, triton.cdiv(walked, walk), chunks),
        (own.parts, other.parts, *(of.scale if isinstance(of.scale, Tensor) else None for of in (own, other)), tau),
        (tuple(values), None if plan.ordered is None else plan.ordered[1:]),
        (n, r, -plan.shift if swapped else plan.shift, walk),
        keywords | {"num_stages": size.stages, "maxnreg": size.registers, "enable_fp_fusion": True},
    )


def forward(visits: Sequence[Visit], n: int, common: Common, *, columns: bool = False) -> Sums:
    """Return each row's sums over all sections: over each split of each of them, then combined in a fixed order."""
    plans, device = common.plans, common.tau.device
    coefficients, counts, pulls = common.coefficients, plans.counted >= 0, plans.pulls
    if columns:
        coefficients, counts, pulls = None, False, False
    pushes, parts = len(plans.powers), sum(each.splits for each in visits)
    sums = torch.empty(2 * pushes + counts + pulls, parts, n, device=device)
    at = 0
    for each in visits:
        _launch(kernels.forward_kernel, each.grid, device)(
            *each.rows, *each.values, sums[0, at:], *each.counts, parts * n, **each.keywords
        )
        at += each.splits
    offset, total = (torch.empty(pushes, n, device=device) for _ in range(2))
    logsums = tuple([torch.empty(n, device=device) for _ in range(pushes)])
    attraction, mass = (torch.empty(n, device=device) if wanted else None for wanted in (pulls, counts))
    blocks, losses, active, of_blocks = triton.cdiv(n, BLOCK), None, None, None
    if coefficients is not None:
        losses, active = torch.empty(n, device=device), torch.empty(n, dtype=torch.int8, device=device)
        of_blocks = torch.empty(2, blocks, dtype=torch.float64, device=device)
    _launch(row_kernels.merge_kernel, (blocks,), device)(
        sums, plans.order, common.tau, coefficients or (None,) * pushes, offset, total, logsums, attraction, mass,
        losses, active, of_blocks, parts, n, PUSHES=pushes, MEAN=plans.mean, BLOCK=BLOCK, enable_fp_fusion=True,
    )  # fmt: skip
    if active is None:
        return Sums(offset, total, logsums, attraction, mass, None, None, None)
    count, is_reduced = torch.empty((), dtype=torch.int64, device=device), common.reduction != "none"
    reduced = torch.empty((), device=device) if is_reduced else None
    _launch(row_kernels.finish_kernel, (1,), device)(
        of_blocks, reduced, count, blocks, MEAN=common.reduction == "mean", BLOCK=1024
    )
    losses = reduced if is_reduced else losses
    return Sums(offset, total, logsums, attraction, mass, losses, active.view(torch.bool), count)


def shares(sums: Sums, upstream: Outcome, common: Common, strongest: Tensor, weights: Tensor) -> Rows:
    """Return the values of rows that the backward reads, and store the largest of them and Σ W for each block.

    Empty rows are excluded, and their upstream gradients ignored.
    """
    plans, n, device = common.plans, sums.total.shape[1], sums.total.device
    share = torch.empty_like(sums.total)
    force = None if sums.attraction is None else torch.empty(n, device=device)
    active, losses = (None, None) if sums.active is None else (sums.active.view(torch.int8), upstream.losses)
    *of_pushes, of_attraction, of_losses = [
        None if g is None else aligned(g) for g in (*upstream.logsums, upstream.attraction, losses)
    ]
    _launch(row_kernels.shares_kernel, (triton.cdiv(n, BLOCK),), device)(
        sums.total, plans.order, sums.mass, tuple(of_pushes), of_attraction, of_losses, active, sums.rows_active,
        common.coefficients or (None,) * len(plans.powers), plans.powers, share, force, strongest, weights, n,
        PUSHES=len(plans.powers), REDUCTION=common.reduction, MEAN=plans.mean, PULL_SET=plans.pull_set, BLOCK=BLOCK,
        enable_fp_fusion=True,
    )  # fmt: skip
    return Rows(sums.offset, share, force)


def backward(
    each: Visit, sides: tuple[Rows | None, Rows | None], strongest: Tensor, out: Tensor, slopes: Tensor | None
) -> None:
    """Store the gradient of own rows for each split, times τ, from their own sums and from those of the other rows."""
    read = [None if of is None else tuple([None if x is None else aligned(x) for x in of]) for of in sides]
    _launch(kernels.backward_kernel, each.grid, strongest.device)(
        *each.rows, strongest, *each.values, *read, out, slopes, *each.counts, **each.keywords
    )


def _kernel(kernel: Any, grid: tuple[int, ...]) -> Any:
    """Return a kernel on a grid; its type is one of Triton's own."""
    return kernel[grid]


def _launch(kernel: Any, grid: tuple[int, ...], device: torch.device) -> Any:
    """Return a function that launches a kernel with a grid on a device, unless the grid is empty."""

    def launch(*values: Any, **keywords: Any) -> None:
        if grid[0]:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                _kernel(kernel, grid)(*values, **keywords)

    return launch


def _of_rows(n: int, padded: int) -> tuple[tuple[int], dict[str, int]]:
    """Return the grid and the sizes of a kernel whose programs hold whole rows."""
    wide = triton.next_power_of_2(padded)
    block = max(1, 4096 // wide)
    return (triton.cdiv(n, block),), {"D": padded, "WIDE": wide, "BLOCK": block}
