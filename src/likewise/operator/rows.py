"""Rows and their products: L2 normalisation, exact for rows of any length, its gradient, and similarities."""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator import threads
from likewise.operator.spec import ContrastSpec
from likewise.operator.threads import Task
from likewise.pairs.weight import blocks, widest

OCTAVE = math.log(2)
"""The increase of s that doubles e^{s}; powers of two take a third of the time of powers of e."""

MAX_EXPONENT = {torch.float32: 40.0, torch.float64: 300.0}
"""The largest |s| for which e^{s}, e^{−s} and their sums are well within the dtype's range."""

BLOCK = 1024
"""Number of rows widened to float64 at a time on a CPU."""


class Unit(NamedTuple):
    """Rows ready to be multiplied, and the lengths by which they were divided; None if not divided."""

    rows: Float[Tensor, "n d"]
    lengths: Float[Tensor, "n 1"] | None


def prepared(x: Float[Tensor, "n d"], dtype: torch.dtype, *, normalize: bool) -> Unit:
    """Return rows in a dtype, divided by their lengths if ``normalize``; a zero row stays zero.

    Squares are summed in float64, block by block: in a float32 or narrower row none of them overflows or vanishes.
    """
    if not normalize:
        return Unit(x.to(dtype), None)
    if _at_once(x):
        lengths = _lengths(x, dtype)
        return Unit(torch.div(x, lengths), lengths)
    unit, lengths = torch.empty_like(x, dtype=dtype), x.new_empty(len(x), 1, dtype=dtype)

    def divide(rows: slice) -> None:
        lengths[rows] = _lengths(x[rows], dtype)
        torch.div(x[rows], lengths[rows], out=unit[rows])

    _by_blocks(divide, x)
    return Unit(unit, lengths)


def projected(gradient: Float[Tensor, "n d"], unit: Unit, divisor: Float[Tensor, ""]) -> Float[Tensor, "n d"]:
    """Turn the gradient g of unit rows into the one of rows, (g − u (u·g)) / length, divided by a divisor, in place."""
    lengths = unit.lengths
    if lengths is None:
        return gradient.div_(divisor)

    def project(g: Tensor, u: Tensor, length: Tensor) -> Tensor:
        return g.addcmul_(u, torch.linalg.vecdot(g, u).unsqueeze(1), value=-1).div_(length * divisor)

    if _at_once(gradient):
        return project(gradient, unit.rows, lengths)
    _by_blocks(lambda rows: project(gradient[rows], unit.rows[rows], lengths[rows]), gradient)
    return gradient


def _by_blocks(work: Any, rows: Tensor) -> None:
    tasks = (Task((k,), (part,)) for k, part in enumerate(blocks(len(rows), BLOCK)))
    threads.run(tasks, lambda: work, count=threads.workers() if type(rows) is Tensor else 1)


def _at_once(rows: Tensor) -> bool:
    return rows.device.type != "cpu" or rows.shape[0] <= BLOCK or torch.compiler.is_compiling()


def _lengths(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return each row's length, with infinity in place of zero, so that dividing by it gives zero."""
    lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=widest(x.device)).to(dtype)
    return lengths.masked_fill_(lengths == 0, torch.inf)


def normalized(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return each row divided by its length, in float32 or wider; a zero row stays zero, with zero gradient.

    Lengths must be within the dtype's range, for float64 rows also their squares. With u = z/‖z‖, the gradient is
    (g − u (u·g)) / ‖z‖. It can be differentiated twice.

    Args:
        rows: Embeddings, shape (N, D), any floating dtype.

    Returns:
        Shape (N, D), float32 or wider.

    Example:
        >>> normalized(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return _Normalize.apply(rows.to(torch.promote_types(rows.dtype, torch.float32)))


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        unit, lengths = prepared(rows, rows.dtype, normalize=True)
        ctx.save_for_backward(rows, unit, lengths)
        return unit

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        rows, unit, length = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is requested, also through rows
            length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            length = length.masked_fill(length == 0, torch.inf)
            unit = rows / length
        along = (unit * gradients[0]).sum(dim=1, keepdim=True)
        return torch.addcmul(gradients[0], unit, along, value=-1) / length


def rounded(z: Tensor, v: Tensor, inverse: float, out: Tensor) -> Tensor:
    """Return s / ln 2 in ``out`` from scaled rows; scaled products would all have the factor's rounding error."""
    mantissa, exponent = math.frexp(inverse / OCTAVE)
    return out.addmm_(torch.add(z, z, alpha=mantissa - 1), v.T, beta=0, alpha=math.ldexp(1, exponent))


def steepest(problem: ContrastSpec, z: Tensor, sections: tuple[Tensor, ...]) -> float:
    """Return an upper bound of |s|, infinity if none is known without waiting for a GPU."""
    if problem.inv_temperature is None:
        return math.inf
    if problem.normalize:
        return problem.inv_temperature
    if z.device.type != "cpu":
        return math.inf
    longest = _longest(z)
    of_sections = max(longest if v is z else _longest(v) for v in sections)
    if problem.part is not None:
        longest = of_sections  # over all queries, for the same bound on all processes
    return longest * of_sections * problem.inv_temperature


def _longest(rows: Tensor) -> float:
    return float(torch.linalg.vector_norm(rows, dim=1).amax()) if len(rows) else 0.0
