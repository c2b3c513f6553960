"""The equation in tiles: exact, on any device, in O((N + R)·D + tile) memory, forward and backward.

With P_iu = push_iu e^{s_iu − lse_i} and g the gradient of the rows' lse, the backward is

    ∂z_i = 1/τ Σ_u g_i P_iu v_u      ∂v_u = 1/τ Σ_i g_i P_iu z_i      ∂τ = −1/τ Σ_i z_i·∂z_i

(the last because lse depends on z_i·v_u/τ alone), so nothing is kept from the forward but lse, and each tile of
similarities is made again. When the queries are the references and push is symmetric, a tile serves (i, j) and (j, i):

    ∂z_i = 1/τ Σ_j push_ij e^{s_ij} (a_i + a_j) z_j,  a_i = g_i e^{−lse_i}

which needs the upper triangle only, twice, and no maximum as long as no e^{s} nor the sum of them leaves the range.
Likewise a tile serves the queries over the references and the references over the queries, with lse' and h of these:

    ∂z_i = 1/τ Σ_u W_iu v_u    ∂v_u = 1/τ Σ_i W_iu z_i    W_iu = push_iu (g_i e^{s_iu − lse_i} + h_u e^{s_iu − lse'_u})

Sections without gradient (keys, a queue) need one pass: the forward sums P_iu v_u over them as it sums e^{s}.

Exponentials are powers of two, e^{s} = 2^{s/ln 2}, which take a third of the time. Beyond the safe range see `Sums`.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator.precision import first_derivative
from likewise.operator.sums import OCTAVE, Sums, shares
from likewise.pairs import PairWeight
from likewise.pairs.weight import blocks

TILE = 512
"""Rows and columns of a tile: 1 MiB in float32, so that a tile stays in a core's cache between its passes."""

LAUNCHES = 8
"""By how much a tile is longer and wider on a GPU: 64 MiB in float32, work enough to outlast the calls for it."""

SAFE = {torch.float32: 40.0, torch.float64: 300.0}
"""The largest |s| for which e^{s}, e^{−s} and the sums of them are far from the ends of the dtype's range."""


def log_sum_exp(
    queries: Float[Tensor, "n d"],
    sections: tuple[Tensor, ...],
    push: PairWeight,
    temperature: Float[Tensor, ""],
) -> Float[Tensor, " n"]:
    """Return log Σ_u push_iu e^{z_i·v_u/τ} of each query, −inf (and no gradient) where its push is empty.

    Memory:
        O((N + R)·D + tile). On a GPU, whether the triangle is safe costs one synchronisation.

    The caller turns autocast off; the backward, which runs where the user calls it, does so itself. There is no second
    derivative: asking for one raises.
    """
    if len(sections) == 1 and sections[0] is queries and push.is_symmetric and push.is_set:
        inverse, highest = _range(queries, queries, temperature)
        if highest <= SAFE[queries.dtype]:
            return _Triangle.apply(push, inverse, temperature, queries)
    return _Rectangle.apply(push, temperature, queries, *sections)


def log_sum_exp_both_ways(
    queries: Float[Tensor, "n d"],
    references: Float[Tensor, "r d"],
    push: PairWeight,
    temperature: Float[Tensor, ""],
) -> tuple[Float[Tensor, " n"], Float[Tensor, " r"]]:
    """Return what `log_sum_exp` returns of the queries over the references, and of the references over the queries.

    Memory:
        O((N + R)·D + tile). On a GPU, whether e^{s} is safe would cost a synchronisation, and is not looked at.
    """
    if push.is_set and queries.device.type == "cpu":
        inverse, highest = _range(queries, references, temperature)
        if highest <= SAFE[queries.dtype]:
            return _BothWays.apply(push, inverse, temperature, queries, references)
    return _BothWaysAtAnyRange.apply(push, temperature, queries, references)


def _range(queries: Tensor, references: Tensor, temperature: Tensor) -> tuple[float, float]:
    """Return 1/τ, and what no |s| exceeds."""
    inverse = 1 / float(temperature.detach())
    if not (len(queries) and len(references)):
        return inverse, 0.0
    longest = torch.linalg.vector_norm(queries.detach(), dim=1).amax()
    other = longest if references is queries else torch.linalg.vector_norm(references.detach(), dim=1).amax()
    return inverse, float(longest * other) * inverse


def _side(rows: Tensor) -> int:
    """Return the rows and columns of a tile."""
    return TILE if rows.device.type == "cpu" else TILE * LAUNCHES


class _Triangle(torch.autograd.Function):
    """Queries that are their own references, under a symmetric set of pairs."""

    @staticmethod
    def forward(ctx: Any, push: PairWeight, inverse: float, temperature: Tensor, z: Tensor) -> Tensor:
        del temperature  # comes for its gradient; its value is in the inverse
        sums = z.new_zeros(len(z))
        kept = None
        for rows, columns, e in _exponentials(push, inverse, z):
            sums[rows].add_(e.sum(dim=1))
            if columns.start > rows.start:
                sums[columns].add_(e.sum(dim=0))
            kept = e if len(z) <= TILE else None  # a batch of one tile is not computed twice
        ctx.push, ctx.inverse = push, inverse
        ctx.save_for_backward(z, sums, kept)
        return sums.log()

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        z, sums, kept = ctx.saved_tensors
        a = shares(gradients[0], sums)
        gradient = torch.zeros_like(z)
        everything = slice(0, len(z))
        tiles = _exponentials(ctx.push, ctx.inverse, z) if kept is None else [(everything, everything, kept)]
        for rows, columns, e in tiles:
            weights = (a[rows, None] + a[columns]).mul_(e)
            gradient[rows].addmm_(weights, z[columns], alpha=ctx.inverse)
            if columns.start > rows.start:
                gradient[columns].addmm_(weights.T, z[rows], alpha=ctx.inverse)
        slope = -(z * gradient).sum() * (ctx.inverse / 2) if ctx.needs_input_grad[2] else None
        return None, None, slope, gradient


def _exponentials(
    push: PairWeight, inverse: float, z: Tensor, references: Tensor | None = None
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the rows, the columns and push·e^{s} of each tile, in a buffer that is used again.

    Without references these are the rows themselves, and the tiles those of the upper triangle.
    """
    size, v = _side(z), z if references is None else references
    buffer = z.new_empty(min(size, len(z)) * min(size, len(v)))
    mantissa, exponent = math.frexp(inverse / OCTAVE)
    for rows in blocks(len(z), size):
        # Multiplied in the product, the mantissa would be rounded alike for all pairs: here one rounding is each row's.
        scaled = torch.add(z[rows], z[rows], alpha=mantissa - 1)
        for columns in blocks(len(v), size):
            below = references is None and columns.start < rows.start
            if below or (weight := push.constant(rows, columns)) == 0:
                continue
            n, r = rows.stop - rows.start, columns.stop - columns.start
            e = buffer[: n * r].view(n, r)
            e.addmm_(scaled, v[columns].T, beta=0, alpha=math.ldexp(1, exponent)).exp2_()
            if weight is None:
                push.weigh(e, rows, columns, logits=False)
            yield rows, columns, e


class _Rectangle(torch.autograd.Function):
    """Any queries, any sections of references, any push ≥ 0, any range of similarities."""

    @staticmethod
    def forward(ctx: Any, push: PairWeight, temperature: Tensor, queries: Tensor, *sections: Tensor) -> Tensor:
        needs_queries = any(ctx.needs_input_grad[1:3])
        constant = tuple(needs_queries and not need for need in ctx.needs_input_grad[3:])
        sums = Sums(len(queries), _unit(push, temperature))
        average = torch.zeros_like(queries) if any(constant) else None
        for rows, k, columns, x in _products(push, temperature, queries, sections):
            e, fading = sums.add(x, rows, dim=1, out=x)
            if average is not None:
                average[rows] *= fading[:, None]
                if constant[k]:
                    average[rows].addmm_(e, sections[k][columns])
        if average is not None:
            average /= sums.total.masked_fill(sums.total == 0, 1)[:, None]
        ctx.push, ctx.constant, ctx.sums = push, constant, sums
        ctx.save_for_backward(temperature, average, queries, *sections)
        return sums.logarithms()

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        temperature, average, queries, *sections = ctx.saved_tensors
        needs_queries = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        of_queries = torch.zeros_like(queries) if needs_queries else None
        if of_queries is not None and average is not None:
            torch.mul(average, gradients[0].masked_fill(ctx.sums.total == 0, 0)[:, None], out=of_queries)
        of_sections = [
            torch.zeros_like(v) if need else None for v, need in zip(sections, ctx.needs_input_grad[3:], strict=True)
        ]
        a = shares(gradients[0], ctx.sums.total)
        for rows, k, columns, x in _products(ctx.push, temperature, queries, tuple(sections), skip=ctx.constant):
            weights = ctx.sums.exponentials(x, rows, dim=1, out=x).mul_(a[rows, None])
            if of_queries is not None:
                of_queries[rows].addmm_(weights, sections[k][columns])
            if (of_section := of_sections[k]) is not None:
                of_section[columns].addmm_(weights.T, queries[rows])
        slope = _over(temperature, queries, (of_queries, *of_sections))
        return None, slope, of_queries, *of_sections


class _BothWays(torch.autograd.Function):
    """Queries over references and references over queries, under a set of pairs whose e^{s} are safe."""

    @staticmethod
    def forward(
        ctx: Any, push: PairWeight, inverse: float, temperature: Tensor, *rows_of_both: Tensor
    ) -> tuple[Tensor, Tensor]:
        z, v = rows_of_both
        sums, sums_back = z.new_zeros(len(z)), v.new_zeros(len(v))
        kept = None
        for rows, columns, e in _exponentials(push, inverse, z, v):
            sums[rows].add_(e.sum(dim=1))
            sums_back[columns].add_(e.sum(dim=0))
            kept = e if max(len(z), len(v)) <= TILE else None  # a batch of one tile is not computed twice
        ctx.push, ctx.inverse = push, inverse
        ctx.save_for_backward(temperature, z, v, sums, sums_back, kept)
        return sums.log(), sums_back.log()

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        temperature, z, v, sums, sums_back, kept = ctx.saved_tensors
        a, b = shares(gradients[0], sums), shares(gradients[1], sums_back)
        everything = slice(0, len(z)), slice(0, len(v))
        tiles = _exponentials(ctx.push, ctx.inverse, z, v) if kept is None else [(*everything, kept)]
        weighted = ((rows, columns, (a[rows, None] + b[columns]).mul_(e)) for rows, columns, e in tiles)
        return None, None, *_drawn(weighted, temperature, z, v, ctx.needs_input_grad[2:])


class _BothWaysAtAnyRange(torch.autograd.Function):
    """Queries over references and references over queries, under any push ≥ 0, at any range of similarities."""

    @staticmethod
    def forward(ctx: Any, push: PairWeight, temperature: Tensor, z: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        unit = _unit(push, temperature)
        ctx.push, ctx.forth, ctx.back = push, Sums(len(z), unit), Sums(len(v), unit)
        for rows, _, columns, x in _products(push, temperature, z, (v,)):
            ctx.forth.add(x, rows, dim=1)
            ctx.back.add(x, columns, dim=0, out=x)
        ctx.save_for_backward(temperature, z, v)
        return ctx.forth.logarithms(), ctx.back.logarithms()

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        temperature, z, v = ctx.saved_tensors
        a, b = shares(gradients[0], ctx.forth.total), shares(gradients[1], ctx.back.total)

        def weighted() -> Iterator[tuple[slice, slice, Tensor]]:
            for rows, _, columns, x in _products(ctx.push, temperature, z, (v,)):
                weights = ctx.forth.exponentials(x, rows, dim=1).mul_(a[rows, None])
                yield rows, columns, weights.addcmul_(ctx.back.exponentials(x, columns, dim=0, out=x), b[columns])

        return None, *_drawn(weighted(), temperature, z, v, ctx.needs_input_grad[1:])


def _drawn(
    weighted: Iterator[tuple[slice, slice, Tensor]], temperature: Tensor, z: Tensor, v: Tensor, needs: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of τ, queries and references, whichever are needed, from tiles of W."""
    of_z = torch.zeros_like(z) if needs[0] or needs[1] else None
    of_v = torch.zeros_like(v) if needs[2] else None
    for rows, columns, weights in weighted:
        if of_z is not None:
            of_z[rows].addmm_(weights, v[columns])
        if of_v is not None:
            of_v[columns].addmm_(weights.T, z[rows])
    return _over(temperature, z, (of_z, of_v)), of_z, of_v


def _products(
    push: PairWeight,
    temperature: Tensor,
    queries: Tensor,
    sections: tuple[Tensor, ...],
    skip: tuple[bool, ...] = (),
) -> Iterator[tuple[slice, int, slice, Tensor]]:
    """Yield the rows, the section, its columns and x of each tile, in a buffer that is used again.

    Of a set of pairs x = z·v, −inf outside it; of other weights x = s + log push. See `_unit`.
    """
    size = _side(queries)
    buffer = queries.new_empty(min(size, len(queries)) * min(size, max(len(v) for v in sections)))
    for rows in blocks(len(queries), size):
        start = 0
        for k, references in enumerate(sections):
            for columns in blocks(0 if skip and skip[k] else len(references), size):
                among_all = slice(start + columns.start, start + columns.stop)
                weight = push.constant(rows, among_all)
                if weight == 0:
                    continue
                n, r = rows.stop - rows.start, columns.stop - columns.start
                x = torch.mm(queries[rows], references[columns].T, out=buffer[: n * r].view(n, r))
                if not push.is_set:
                    x.div_(temperature)
                if weight is None:
                    push.weigh(x, rows, among_all, logits=True)
                elif weight != 1:
                    x.add_(math.log(weight))
                yield rows, k, columns, x
            start += len(references)


def _unit(push: PairWeight, temperature: Tensor) -> Tensor:
    """Return what x is to be divided by for s, or for s + log push."""
    return temperature if push.is_set else torch.ones_like(temperature)


def _over(temperature: Tensor, queries: Tensor, gradients: tuple[Tensor | None, ...]) -> Tensor | None:
    """Divide the gradients of queries and references by τ, in place, and return that of τ."""
    for gradient in gradients:
        if gradient is not None:
            gradient.div_(temperature)
    return None if gradients[0] is None else -(queries * gradients[0]).sum() / temperature
