"""Kernel launches: their grids, tiles and arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton.compiler import CompiledKernel
from triton.runtime import JITFunction

from likewise.operator.spec import Outcome
from likewise.operator.triton import kernels, row_kernels, tuning
from likewise.operator.triton.operands import KERNEL_DTYPES, Operand, Precision, aligned, as_they_are, chunk, width
from likewise.operator.triton.weights import NO_TILE, Plan, Plans

BLOCK = 256
"""Rows per program in the kernels that combine sums."""

MAX_FIXED_OFFSET = 44.0
"""The largest bound o of |s|, in base 2, used as a fixed offset: a total is then at least 2^−88, and the gradient of a
row's log-sum-exp over it stays within float32's range up to 2^39."""

LOG2E = 1.4426950408889634

_triton: Any = triton

MAX_CACHED_KERNELS = 1024
"""Largest number of cached compiled kernels."""

MIN_INT64 = 1 << 31
"""The smallest integer that Triton passes in 64 bits."""


class Common(NamedTuple):
    """The arguments shared by all launches of a contrast."""

    plans: Plans
    how: Precision
    tau: Float[Tensor, ""]
    fixed: bool
    """Whether the bound of |s| is the offset of all rows."""
    coefficients: tuple[Tensor | None, ...] | None = None
    """c of each log-sum-exp in the losses, None: the pull's row sums; None for all: kernels compute no losses."""
    reduction: str = "none"


class Sums(NamedTuple):
    """Sums of rows over all references: Σ push e^{s} is total · 2^offset; an offset of ∞ means no pair.

    No output with a gradient is among them: a graph that holds its own outputs would never be freed.
    """

    offset: Float[Tensor, "k n"]
    total: Float[Tensor, "k n"]
    pulls: bool
    mass: Float[Tensor, " n"] | None
    active: Int[Tensor, " n"] | None
    """1 for an active row, 0 for others, if there are losses."""
    rows_active: Int[Tensor, ""] | None


class RowArgs(NamedTuple):
    """The values that determine the gradient of rows, each `aligned`; an offset of ∞ and a share of 0 mean none."""

    offset: Float[Tensor, "k n"]
    share: Float[Tensor, "k n"]
    """The gradient of the row's log-sum-exp over its total."""
    force: Float[Tensor, " n"] | None
    """The gradient of its attraction."""


@dataclass(frozen=True, eq=False)  # cached ones are looked up by identity
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
    """The scale of rows of length 1."""
    SLACK: float
    FIXED: bool
    PUSHES: int
    SETS: bool
    PULL_SET: bool
    COUNTED: int
    SELF: bool
    STRIDE: int
    """The step from one kind of tiles to the next: 1 if there are `EQUAL_KEYS`, else 2; see `weights`."""
    FIRST: int
    """The first kind with any weight, SECOND with a second push, PULLS with a pull; `NO_TILE`: none."""
    SECOND: int
    PULLS: int


@lru_cache(maxsize=256)
def _constants(how: Precision, **constants: Any) -> How:
    return How(
        TWO=how.two, ALL4=how.two and how.products == 4, HALF=KERNEL_DTYPES[how.half], INTERPRETED=how.interpreted,
        SCALE=how.scale, SLACK=how.slack, **constants,
    )  # fmt: skip


class Visit(NamedTuple):
    """A loop of own rows over other rows, ready to be launched: the arguments of its kernel."""

    grid: tuple[int, int, int]
    rows: tuple[Any, ...]
    values: tuple[Any, ...]
    """The values that the weights read, and the positions where keys may be equal."""
    counts: tuple[int, ...]
    keywords: dict[str, Any]

    @property
    def splits(self) -> int:
        """The number of parts the other rows are split into."""
        return self.grid[1]


def operand(
    rows: Float[Tensor, "n d"], how: Precision, *, normalize: bool, order: Int[Tensor, " n"] | None = None
) -> Operand:
    """Return rows in the form for kernels; with ``normalize``, divided by their lengths, and in any given ``order``."""
    if not normalize:
        return as_they_are(rows, how)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    n, padded = len(rows), width(rows.shape[1])
    parts = torch.empty(1 + how.two, n, padded, dtype=how.stored, device=rows.device)
    lengths = torch.empty(n, device=rows.device)
    grid, sizes = _of_rows(n, padded)
    _launch(row_kernels.unit_kernel, grid, rows.device)(
        rows, order, parts, lengths, n, rows.shape[1], rows.stride(0),
        SCALE=how.scale, TWO=how.two, HALF=KERNEL_DTYPES[how.half], INTERPRETED=how.interpreted, **sizes,
    )  # fmt: skip
    return Operand(parts, rows, lengths, how.scale)


def projected(parts: Float[Tensor, "s n d"], rows: Operand, common: Common) -> Float[Tensor, "n _"]:
    """Return the gradient of input rows, in their dtype, from the parts of the prepared rows' gradient, times τ."""
    came, (splits, n, padded) = rows.came, parts.shape
    out = torch.empty(came.shape, dtype=came.dtype, device=came.device)
    grid, sizes = _of_rows(n, padded)
    _launch(row_kernels.project_kernel, grid, came.device)(
        parts, came, common.plans.order, rows.lengths, common.tau, out, splits, n, came.shape[1], came.stride(0),
        OUT=KERNEL_DTYPES[came.dtype], INTERPRETED=common.how.interpreted, **sizes,
    )  # fmt: skip
    return out


def visit(kernel: str, rows: Operand, other: Operand, plan: Plan, common: Common, *, swapped: bool = False) -> Visit:
    """Return a loop of own rows over other rows, for "sums" or the "backward"; swapped: own rows are the references.

    The sums of references over the queries include no pull.
    """
    plans, how, tau, fixed, *_ = common
    n, r, padded = rows.parts.shape[1], other.parts.shape[1], rows.parts.shape[2]
    held, wanted = chunk(padded, two=how.two), kernel == "backward" or not swapped
    size = tuning.tiles(
        kernel, held, two=how.two, whole=held == padded, overlaps=plan.thin, busy=plan.is_busy, device=tau.device
    )
    chunks = 1 if kernel == "sums" else padded // held
    blocks, walked = -(-n // size.own), -(-r // size.other)
    parts = tuning.splits(blocks * chunks, walked, tau.device, at_once=size.programs, products=kernel != "sums")
    walk = -(-walked // parts)
    constants = _constants(
        how, N=size.own, R=size.other, D=padded, CHUNK=held, NORMALIZED=rows.lengths is not None, FIXED=fixed,
        PUSHES=len(plans.powers), SETS=plans.sets, PULL_SET=plans.pull_set, COUNTED=plans.counted if wanted else -1,
        SELF=plan.has_diagonal, STRIDE=2 if plan.ordered is None else 1,
        FIRST=plan.first_kinds[0], SECOND=plan.first_kinds[1], PULLS=plan.first_kinds[2] if wanted else NO_TILE,
    )  # fmt: skip
    keywords = {
        "WEIGHTS": plan.function(swapped), "HOW": constants, "num_warps": size.warps, "num_stages": size.stages,
        "maxnreg": size.registers, "enable_fp_fusion": True,
    }  # fmt: skip
    values = [value if isinstance(value, float | Tensor) else aligned(value().to(tau.device)) for value in plan.values]
    return Visit(
        (blocks, -(-walked // walk), chunks),
        (rows.parts, other.parts, rows.given_scale, other.given_scale, tau),
        (tuple(values), None if plan.ordered is None else plan.ordered[1:]),
        (n, r, -plan.shift if swapped else plan.shift, walk),
        keywords,
    )


def forward(visits: Sequence[Visit], n: int, common: Common, *, columns: bool = False) -> tuple[Sums, Outcome]:
    """Return each row's sums and terms over all sections: first over each split, then combined in a fixed order."""
    plans, device = common.plans, common.tau.device
    coefficients, counts, pulls = common.coefficients, plans.counted >= 0, plans.pulls
    if columns:
        coefficients, counts, pulls = None, False, False
    pushes, parts = len(plans.powers), sum(each.splits for each in visits)
    sums = torch.empty(2 * pushes + counts + pulls, parts, n, device=device)
    at = 0
    for each in visits:
        _launch(kernels.forward_kernel, each.grid, device)(
            *each.rows, *each.values, sums[0, at:] if at else sums, *each.counts, parts * n, **each.keywords
        )
        at += each.splits
    offset, total = torch.empty(pushes, n, device=device), torch.empty(pushes, n, device=device)
    logsums = tuple([torch.empty(n, device=device) for _ in range(pushes)])
    attraction, mass = [torch.empty(n, device=device) if wanted else None for wanted in (pulls, counts)]
    blocks, losses, active, of_blocks, count = -(-n // BLOCK), None, None, None, None
    if coefficients is not None:
        losses, active = torch.empty(n, device=device), torch.empty(n, dtype=torch.int8, device=device)
        of_blocks = torch.empty(2, blocks, dtype=torch.float64, device=device)
        count = torch.empty((), dtype=torch.int64, device=device)
    _launch(row_kernels.merge_kernel, (blocks,), device)(
        sums, plans.order, common.tau, coefficients or (None,) * pushes, offset, total, logsums, attraction, mass,
        losses, active, of_blocks, parts, n, PUSHES=pushes, MEAN=plans.mean, BLOCK=BLOCK, enable_fp_fusion=True,
    )  # fmt: skip
    if coefficients is not None:
        reduced = torch.empty((), device=device) if common.reduction != "none" else None
        _launch(row_kernels.finish_kernel, (1,), device)(
            of_blocks, reduced, count, blocks, MEAN=common.reduction == "mean", BLOCK=1024
        )
        losses = losses if reduced is None else reduced
    return Sums(offset, total, pulls, mass, active, count), Outcome(logsums, (), attraction, losses, ())


def shares(sums: Sums, upstream: Outcome, common: Common, strongest: Tensor, weights: Tensor) -> RowArgs:
    """Return the values of rows that the backward reads, and store the largest of them and Σ W for each block.

    Empty rows are excluded, and their upstream gradients ignored.
    """
    plans, n, device = common.plans, sums.total.shape[1], sums.total.device
    share = torch.empty_like(sums.total)
    force = torch.empty(n, device=device) if sums.pulls else None
    active, losses = sums.active, None if sums.active is None else upstream.losses
    *of_pushes, of_attraction, of_losses = [
        None if g is None else aligned(g) for g in (*upstream.logsums, upstream.attraction, losses)
    ]
    _launch(row_kernels.shares_kernel, (-(-n // BLOCK),), device)(
        sums.total, plans.order, sums.mass, tuple(of_pushes), of_attraction, of_losses, active, sums.rows_active,
        common.coefficients or (None,) * len(plans.powers), plans.powers, share, force, strongest, weights, n,
        PUSHES=len(plans.powers), REDUCTION=common.reduction, MEAN=plans.mean, PULL_SET=plans.pull_set, BLOCK=BLOCK,
        enable_fp_fusion=True,
    )  # fmt: skip
    return RowArgs(sums.offset, share, force)


def backward(
    each: Visit, sides: tuple[RowArgs | None, RowArgs | None], strongest: Tensor, out: Tensor, slopes: Tensor | None
) -> None:
    """Store the gradient of own rows for each split, times τ, from their own sums and the sums of the other rows."""
    read = [None if side is None else tuple(side) for side in sides]
    _launch(kernels.backward_kernel, each.grid, strongest.device)(
        *each.rows, strongest, *each.values, *read, out, slopes, *each.counts, **each.keywords
    )


def _kernel(kernel: Any, grid: tuple[int, ...]) -> Any:
    return kernel[grid]


def _launch(kernel: Any, grid: tuple[int, ...], device: torch.device) -> Any:
    """Return a function that launches a kernel with a grid on the current device, unless the grid is empty.

    Compiled kernels are cached by at least the properties that Triton compiles them for, and launched on the current
    stream as Triton launches its cached ones. If launches have hooks, as in a profiler, Triton launches and calls them.
    """

    def launch(*values: Any, **keywords: Any) -> None:
        if not grid[0]:
            return
        key = None
        if isinstance(kernel, JITFunction):  # not the interpreter's
            key = kernel.__name__, device, _kinds(values), *keywords.values()
            if (known := _compiled.get(key)) is not None:  # in one look-up, as another GPU's thread may clear the cache
                compiled, constants = known
                enter, leave = _triton.knobs.runtime.launch_enter_hook, _triton.knobs.runtime.launch_exit_hook
                if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):  # hook chains, from Triton 3.5 on
                    compiled[(*grid, 1, 1)](*values, *constants)
                    return
                x, y, z = (*grid, 1, 1)[:3]
                stream = _triton.runtime.driver.active.get_current_stream(device.index)
                compiled.run(
                    x, y, z, stream, compiled.function, compiled.packed_metadata, None, None, None, *values, *constants
                )
                return
        compiled = _kernel(kernel, grid)(*values, **keywords)
        if isinstance(compiled, CompiledKernel):
            if len(_compiled) >= MAX_CACHED_KERNELS:
                _compiled.clear()
            _compiled[key] = compiled, [keywords[name] for name in kernel.arg_names[len(values) :]]

    return launch


_compiled: dict[Any, Any] = {}


def _kinds(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the properties for which Triton may recompile: being None, and dtypes; others are exempt, or `aligned`."""
    return tuple(
        [
            value.dtype if type(value) is Tensor
            else value < MIN_INT64 if type(value) is int
            else None if value is None
            else _kinds(value) if type(value) is tuple
            else value.dtype if isinstance(value, Tensor)
            else type(value)
            for value in values
        ]
    )  # fmt: skip


@lru_cache(maxsize=256)
def _of_rows(n: int, padded: int) -> tuple[tuple[int], dict[str, int]]:
    """Return the grid and the sizes of a kernel whose programs hold whole rows; not to be modified."""
    wide = 1 << (padded - 1).bit_length()
    block = max(1, 4096 // wide)
    return (-(-n // block),), {"D": padded, "WIDE": wide, "BLOCK": block}
