"""Kernel launches: grids, tiles, and the few numbers that kernels take as arguments or read from the device."""

from collections.abc import Sequence
from contextlib import nullcontext
from ctypes import c_float
from dataclasses import dataclass
from math import log2
from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.operator.triton import kernels, operands, row_kernels, tile_kernels, tuning
from likewise.operator.triton.operands import LARGEST, Operand, Precision, as_they_are, chunk, kernel_dtype, width
from likewise.operator.triton.weights import Plan

BLOCK = 256
"""Rows per program in the kernels that combine sums."""

LOG2E = log2(2.718281828459045)


class Numbers(NamedTuple):
    """Scale factors for the products of two operands, known on the host or only on the device."""

    scale: float
    """The factor from a raw product to its exponent in base 2."""
    bound: float
    """An upper bound of the exponents."""
    equal: float
    """The exponent of two equal rows of length 1; 0 if rows have any length."""
    off: float
    """The relative amount by which 1/(τ · scale) exceeds ln 2."""
    inverse: float
    """1/τ."""
    scalars: Float[Tensor, " 7"] | None
    """The same on the device, if the host does not know them: see `row_kernels.scalars_kernel`."""


class Rows(NamedTuple):
    """The values that determine the gradient of rows; an offset of ∞ and a share of 0 mean none."""

    offset: Float[Tensor, "k n"]
    share: Float[Tensor, "k n"]
    """The gradient of the row's log-sum-exp over its total."""
    force: Float[Tensor, " n"] | None
    """The gradient of its attraction, times the factors of anchors."""


@dataclass(frozen=True)
class How:
    """The compile-time constants of a kernel apart from its weights."""

    D: int
    CHUNK: int
    TWO: bool
    ALL4: bool
    HALF: Any
    INTERPRETED: bool
    BLOCK_N: int
    BLOCK_R: int
    KNOWN: bool
    SWAPPED: bool
    OFFSET: int
    LARGEST: float


@dataclass(frozen=True)
class Sides:
    """Which log-sum-exps and attractions have a gradient, and whether the temperature's gradient is wanted."""

    own: bool
    other: bool
    own_pull: bool
    other_pull: bool
    slope: bool


class Visit(NamedTuple):
    """A loop of own rows over other rows, ready to be launched."""

    own: Operand
    other: Operand
    plan: Plan
    numbers: Numbers
    how: How
    size: tuning.Tiles
    grid: tuple[int, int, int]
    walk: int
    averages: bool
    """Whether the forward computes the weighted average of the other rows."""

    @property
    def splits(self) -> int:
        """The number of parts the other rows are split into."""
        return self.grid[1]

    @property
    def kernel_numbers(self) -> tuple[Any, ...]:
        """The arguments of a kernel that hold its numbers, or point to them."""
        if self.numbers.scalars is not None:
            return self.numbers.scalars, 0.0, 0.0, 0.0, 0.0
        scale = 1 / self.other.scale if isinstance(self.other.scale, float) else 1.0
        return self.own.parts, self.numbers.scale, self.numbers.bound, scale, self.numbers.equal

    @property
    def keywords(self) -> dict[str, Any]:
        """The compile-time arguments of a kernel."""
        options = {"num_warps": self.size.warps, "num_stages": self.size.stages, "enable_fp_fusion": True}
        return {"PLAN": self.plan.shape, "HOW": self.how, **options}


class Sums(NamedTuple):
    """Sums of rows over splits of the other rows: Σ push e^{s} is total · 2^offset."""

    offsets: Float[Tensor, "k s n"]
    totals: Float[Tensor, "k s n"]
    drawns: Float[Tensor, "s n"] | None
    masses: Float[Tensor, "s n"] | None
    averages: tuple[tuple[int, Float[Tensor, "_ n d"]], ...]
    """For the visits that have one, with the first of their splits."""


class Merged(NamedTuple):
    """Sums of rows over all references."""

    offset: Float[Tensor, "k n"]
    total: Float[Tensor, "k n"]
    logsums: tuple[Float[Tensor, " n"], ...]
    attraction: Float[Tensor, " n"] | None
    mass: Float[Tensor, " n"] | None
    losses: Tensor | None
    active: Bool[Tensor, " n"] | None
    rows_active: Int[Tensor, ""] | None


class Loss(NamedTuple):
    """How losses are computed: c of each log-sum-exp, None: the pull's row sums; and their reduction."""

    coefficients: tuple[Tensor | None, ...]
    reduction: str


class Scales(NamedTuple):
    """The factors of anchors outside the tiles, and which weights are divided by their row sums."""

    pushes: tuple[Tensor | None, ...]
    means: tuple[bool, ...]
    pull: Tensor | None = None
    pull_mean: bool = False
    pull_set: bool = False
    """Whether the pull is a set of pairs apart from these factors."""


def operand(rows: Float[Tensor, "n d"], how: Precision, *, normalize: bool) -> Operand:
    """Return rows in the form for kernels, divided by their lengths if ``normalize``."""
    if not normalize:
        return as_they_are(rows, how)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    n, padded = len(rows), width(rows.shape[1])
    parts = torch.empty(1 + how.two, n, padded, dtype=how.stored, device=rows.device)
    lengths = torch.empty(n, device=rows.device)
    if not n:
        return Operand(parts, rows, lengths, LARGEST if how.two else 1.0, None)
    scale = LARGEST if how.two else 1.0
    held = min(padded, 256)
    block = max(1, 4096 // held)
    _launch(row_kernels.unit_kernel, (triton.cdiv(n, block),), rows.device)(
        rows, parts, lengths, n, rows.shape[1], rows.stride(0),
        D=padded, CHUNK=held if padded % held == 0 else 128, SCALE=scale, TWO=how.two, HALF=kernel_dtype(how.half),
        INTERPRETED=how.interpreted, BLOCK=block,
    )  # fmt: skip
    return Operand(parts, rows, lengths, scale, None)


def projected(
    parts: Float[Tensor, "s n d"], of: Operand, temperature: Tensor, inverse: float | None, how: Precision
) -> Float[Tensor, "n _"]:
    """Return the gradient of input rows, in their dtype, from the parts of the prepared rows' gradient, times τ."""
    came, (splits, n, padded) = of.came, parts.shape
    out = torch.empty(came.shape, dtype=came.dtype, device=came.device)
    if not n:
        return out
    held = min(padded, 256)
    block = max(1, 4096 // held)
    _launch(row_kernels.project_kernel, (triton.cdiv(n, block),), came.device)(
        parts, came, of.lengths, temperature, inverse or 0.0, out, splits, n, came.shape[1], came.stride(0),
        NORMALIZE=of.lengths is not None, KNOWN=inverse is not None, D=padded,
        CHUNK=held if padded % held == 0 else 128, OUT=kernel_dtype(came.dtype), INTERPRETED=how.interpreted,
        BLOCK=block,
    )  # fmt: skip
    return out


def numbers(own: Operand, other: Operand, temperature: Tensor, inverse: float | None, how: Precision) -> Numbers:
    """Return the scale factors for the products of two operands."""
    normalized = own.lengths is not None
    if inverse is not None and isinstance(own.scale, float) and isinstance(other.scale, float) and normalized:
        exact = LOG2E * inverse
        scale = c_float(exact).value / own.scale / other.scale
        off = exact / (scale * own.scale * other.scale) - 1
        return Numbers(scale, c_float(exact * how.slack).value, c_float(exact).value, off, inverse, None)
    scalars = torch.empty(7, device=own.parts.device)
    on_device = isinstance(own.scale, Tensor)
    _launch(row_kernels.scalars_kernel, (1,), scalars.device)(
        temperature, own.scale if on_device else None, other.scale if on_device else None, own.longest, other.longest,
        scalars, own.scale if isinstance(own.scale, float) else 1.0, how.slack, NORMALIZED=normalized,
        num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    return Numbers(0.0, 0.0, 0.0, 0.0, 0.0, scalars)


def visit(  # noqa: PLR0917 - the arguments of a kernel
    kernel: str,
    own: Operand,
    other: Operand,
    plan: Plan,
    given: Numbers,
    how: Precision,
    *,
    fixable: bool,
    swapped: bool = False,
) -> Visit:
    """Return a loop of own rows over other rows.

    Args:
        kernel: "sums", "average" or "backward".
        own: The rows that a program keeps.
        other: The rows that it loops over.
        plan: The weights.
        given: The scale factors for products.
        how: The precision.
        fixable: Whether the bound of |s| can be the offset: every pair has weight 0 or 1, and all sums are over these.
        swapped: Whether own and other are swapped with respect to the numbers.
    """
    n, r, padded = own.parts.shape[1], other.parts.shape[1], own.parts.shape[2]
    held = chunk(padded, two=how.two)
    busy = plan.pulls or plan.shape.keys > 0 or plan.shape.pushes > 1
    size = tuning.tiles(
        kernel, held, two=how.two, whole=held == padded, overlaps=len(plan.shape.thin), busy=busy,
        device=own.parts.device,
    )  # fmt: skip
    chunks = 1 if kernel == "sums" else padded // held
    blocks, walked = triton.cdiv(n, size.own), triton.cdiv(r, size.other)
    parts = tuning.splits(blocks * chunks, walked, own.parts.device, warps=size.warps, products=kernel != "sums")
    walk = triton.cdiv(walked, parts)
    offset = 2 if given.scalars is not None else int(given.bound * max(plan.powers) <= tile_kernels.SAFE.value)
    shape = How(
        D=padded, CHUNK=held, TWO=how.two, ALL4=how.two and how.products == 4, HALF=kernel_dtype(how.half),
        INTERPRETED=how.interpreted, BLOCK_N=size.own, BLOCK_R=size.other, KNOWN=given.scalars is None, SWAPPED=swapped,
        OFFSET=offset if fixable else 0, LARGEST=LARGEST,
    )  # fmt: skip
    return Visit(
        own, other, plan, given, shape, size, (blocks, triton.cdiv(walked, walk), chunks), walk, kernel == "average"
    )


def forward(visits: Sequence[Visit], plan: Plan, n: int, device: torch.device) -> Sums:
    """Return each row's sums over each split of each section; ``plan`` is the plan of any section."""
    pushes, parts = plan.shape.pushes, max(1, sum(each.splits for each in visits))
    make = torch.empty if visits else torch.zeros
    offsets, totals = (make(pushes, parts, n, device=device) for _ in range(2))
    if not visits:
        offsets.fill_(-torch.inf)
    drawns = make(parts, n, device=device) if plan.shape.pulls else None
    masses = make(parts, n, device=device) if plan.shape.counted >= 0 else None
    averages: list[tuple[int, Tensor]] = []
    at = 0
    for each in visits:
        if each.averages:
            averages.append((at, torch.empty(each.splits, n, each.how.D, device=device)))
        _launch(kernels.forward_kernel, each.grid, device)(
            each.own.parts, each.other.parts, each.kernel_numbers, _pointers(each.plan, totals),
            offsets[0, at:], totals[0, at:], totals if drawns is None else drawns[at:],
            totals if masses is None else masses[at:], averages[-1][1] if each.averages else totals,
            n, each.other.parts.shape[1], each.plan.shift, each.walk, parts * n,
            AVERAGE=each.averages, **each.keywords,
        )  # fmt: skip
        at += each.splits
    return Sums(offsets, totals, drawns, masses, tuple(averages))


def merged(sums: Sums, given: Numbers | None, scales: Scales, loss: Loss | None) -> Merged:
    """Return each row's offset (∞ if it has no pair) and total over all parts, its log-sum-exps, and its loss."""
    pushes, parts, n = sums.totals.shape
    device = sums.totals.device
    offset, total = (torch.empty(pushes, n, device=device) for _ in range(2))
    logsums = tuple(torch.empty(n, device=device) for _ in range(pushes))
    attraction = None if sums.drawns is None else torch.empty(n, device=device)
    mass = None if sums.masses is None else torch.empty(n, device=device)
    losses = active = count = block_losses = block_counts = None
    blocks = triton.cdiv(n, BLOCK)
    if loss is not None:
        losses, active = torch.empty(n, device=device), torch.empty(n, dtype=torch.int8, device=device)
        block_losses = torch.empty(blocks, dtype=torch.float64, device=device)
        block_counts = torch.empty(blocks, dtype=torch.int32, device=device)
    scalars = None if given is None else given.scalars
    if n:
        _launch(row_kernels.merge_kernel, (blocks,), device)(
            sums.offsets, sums.totals, sums.drawns, sums.masses, scalars, 0.0 if given is None else given.off,
            scales.pushes, scales.pull, loss.coefficients if loss else (None,) * pushes,
            offset, total, logsums, attraction, mass, losses, active, block_losses, block_counts, parts, n,
            PUSHES=pushes, MEANS=scales.means, PULL_MEAN=scales.pull_mean, KNOWN=scalars is None, BLOCK=BLOCK,
            enable_fp_fusion=True,
        )  # fmt: skip
    if loss is not None:
        count = torch.empty((), dtype=torch.int64, device=device)
        whole = losses if loss.reduction == "none" else torch.empty((), device=device)
        _launch(row_kernels.finish_kernel, (1,), device)(
            block_losses, block_counts, None if loss.reduction == "none" else whole, count, blocks,
            MEAN=loss.reduction == "mean", BLOCK=1024,
        )  # fmt: skip
        losses = whole
    return Merged(
        offset, total, logsums, attraction, mass, losses, None if active is None else active.view(torch.bool), count
    )


def shares(  # noqa: PLR0917 - the arguments of a kernel
    sums: Merged,
    powers: tuple[float, ...],
    scales: Scales,
    upstreams: tuple[Tensor | None, ...],
    of_attraction: Tensor | None,
    of_losses: Tensor | None,
    loss: Loss | None,
    strongest: Float[Tensor, " b"],
    weights: Float[Tensor, " b"],
) -> Rows:
    """Return the values of rows that the backward reads, and store the largest of them and Σ W for each block.

    Empty rows are excluded, and their upstream gradients ignored.
    """
    n, device = sums.total.shape[1], sums.total.device
    share, pulls = torch.empty_like(sums.total), sums.attraction is not None
    force = torch.empty(n, device=device) if pulls else None
    if loss is None or of_losses is None:
        loss, of_losses = Loss((None,) * len(powers), "none"), None
    upstreams = tuple(None if g is None else operands.aligned(g) for g in upstreams)
    if n:
        _launch(row_kernels.shares_kernel, (triton.cdiv(n, BLOCK),), device)(
            sums.total, sums.mass, upstreams, None if of_attraction is None else operands.aligned(of_attraction),
            None if of_losses is None else operands.aligned(of_losses),
            None if sums.active is None else sums.active.view(torch.int8), sums.rows_active, loss.coefficients,
            scales.pull,
            share, force, strongest, weights, powers, n,
            PUSHES=len(powers), REDUCED=loss.reduction != "none", DIVIDED=loss.reduction == "mean", PULLS=pulls,
            PULL_MEAN=scales.pull_mean, PULL_SET=scales.pull_set, BLOCK=BLOCK, enable_fp_fusion=True,
        )  # fmt: skip
    return Rows(sums.offset, share, force)


def backward(  # noqa: PLR0917 - the arguments of a kernel
    each: Visit, own: Rows | None, other: Rows | None, strongest: Tensor, out: Tensor, slopes: Tensor | None
) -> None:
    """Store the gradient of own rows for each split, times τ, from their own sums and from those of the other rows."""
    none = Rows(strongest, strongest, None)
    mine, theirs = own or none, other or none
    pulls = each.plan.pulls
    sides = Sides(
        own=own is not None,
        other=other is not None,
        own_pull=pulls and mine.force is not None,
        other_pull=pulls and theirs.force is not None,
        slope=slopes is not None,
    )
    read = [(of.offset, of.share, of.share if of.force is None else of.force) for of in (mine, theirs)]
    _launch(kernels.backward_kernel, each.grid, strongest.device)(
        each.own.parts, each.other.parts, each.kernel_numbers, strongest, _pointers(each.plan, strongest),
        *(tuple(map(operands.aligned, of)) for of in read),
        out, out if slopes is None else slopes,
        each.own.parts.shape[1], each.other.parts.shape[1], each.plan.shift, each.walk,
        SIDES=sides, **each.keywords,
    )  # fmt: skip


def _pointers(plan: Plan, unused: Tensor) -> tuple[Any, ...]:
    """Return the values that a plan refers to, and a tensor that is never read where there are none."""
    own, other = plan.anchors, plan.references
    sides = own.keys, other.keys, own.scales, other.scales, own.overlaps, other.overlaps
    return *(values or (unused,) for values in sides), unused if plan.factors is None else plan.factors, plan.powers


def _kernel(kernel: Any, grid: tuple[int, ...]) -> Any:
    """Return a kernel on a grid; its type is one of Triton's own."""
    return kernel[grid]


def _launch(kernel: Any, grid: tuple[int, ...], device: torch.device) -> Any:
    """Return a function that launches a kernel with a grid on a device."""

    def launch(*values: Any, **keywords: Any) -> None:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            _kernel(kernel, grid)(*values, **keywords)

    return launch
