"""The equation as kernels: what is launched forward and backward for each section of references.

With P_iu = push_iu e^{s_iu − lse_i} and g the gradient of the rows' lse,

    ∂z_i = 1/τ Σ_u g_i P_iu v_u      ∂v_u = 1/τ Σ_i g_i P_iu z_i      ∂τ = −1/τ Σ_i z_i·∂z_i

A section takes one of three ways. Where it is the queries and its push symmetric, one product gives both of its
gradients, Σ_j push_ij e^{s_ij} (a_i + a_j) z_j. Where it has no gradient (keys, a queue), the forward yields
Σ_u P_iu v_u, and the backward has nothing left to multiply. Any other has one product for each gradient.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator.precision import first_derivative
from likewise.operator.triton import launches
from likewise.operator.triton.launches import Sums
from likewise.operator.triton.operands import Operand, Precision, operand, precision
from likewise.operator.triton.weights import Plan


def log_sum_exp(
    queries: Float[Tensor, "n d"],
    sections: tuple[Tensor, ...],
    plans: tuple[Plan, ...],
    temperature: Float[Tensor, ""],
    half: torch.dtype | None,
) -> Float[Tensor, " n"]:
    """Return log Σ_u push_iu e^{z_i·v_u/τ} of each query, −inf (and no gradient) where its push is empty.

    Args:
        queries: z, (N, D).
        sections: v, each (R, D); the same tensor as queries where they are the references.
        plans: The push of each section.
        temperature: τ.
        half: The half precision in which rows are exact, or None: float32, multiplied as two halves.

    Memory:
        O((N + R)·D).
    """
    return _Fused.apply(plans, precision(half, queries.device), temperature, queries, *sections)


def log_sum_exp_both_ways(
    queries: Float[Tensor, "n d"],
    references: Float[Tensor, "r d"],
    plan: Plan,
    temperature: Float[Tensor, ""],
    half: torch.dtype | None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " r"]]:
    """Return the log-sum-exp of each query over the references and of each reference over the queries.

    Memory:
        O((N + R)·D). In the backward one product serves both directions.
    """
    return _BothWays.apply((plan, precision(half, queries.device)), temperature, queries, references)


class _Fused(torch.autograd.Function):
    """Queries over sections of references."""

    @staticmethod
    def forward(
        ctx: Any, plans: tuple[Plan, ...], how: Precision, temperature: Tensor, queries: Tensor, *sections: Tensor
    ) -> Tensor:
        needs_queries = any(ctx.needs_input_grad[2:4])
        constant = [needs_queries and not need for need in ctx.needs_input_grad[4:]]
        z = operand(queries, how)
        operands = [z if v is queries else operand(v, how) for v in sections]
        parts = [
            launches.forward(z, v, plan, temperature, how, average=average)
            for plan, v, average in zip(plans, operands, constant, strict=True)
        ]
        offset, total, lse = launches.merged(parts)
        average = _averaged(parts, offset, total)
        ctx.plans, ctx.how, ctx.constant = plans, how, constant
        ctx.same = [v is z for v in operands]
        ctx.features = queries.shape[1]
        ctx.save_for_backward(
            temperature,
            queries if ctx.needs_input_grad[2] else None,
            offset,
            total,
            average,
            *z,
            *(part for v in operands if v is not z for part in v),
        )
        return lse

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        temperature, queries, offset, total, average, *saved = ctx.saved_tensors
        others = iter(Operand(*saved[k : k + 3]) for k in range(3, len(saved), 3))
        z = Operand(*saved[:3])
        rows = launches.rows(offset, total, gradients[0])
        needs_queries = any(ctx.needs_input_grad[2:4])
        once = None if average is None else average * (rows.share * total / temperature)[:, None]
        twice: Tensor | None = None  # from sections that are the queries, whose gradient came with it
        of_sections: list[Tensor | None] = []
        for plan, same, needed in zip(ctx.plans, ctx.same, ctx.needs_input_grad[4:], strict=True):
            v = z if same else next(others)
            if same and needed and needs_queries and plan.is_symmetric:
                fixable = plan.is_set and len(ctx.plans) == 1
                both = launches.backward(z, z, plan, temperature, ctx.how, of_own=rows, of_other=rows, fixable=fixable)
                twice = both if twice is None else twice.add_(both)
                of_sections.append(None)
                continue
            if needs_queries and needed:
                part = launches.backward(z, v, plan, temperature, ctx.how, of_own=rows)
                once = part if once is None else once.add_(part)
            of_sections.append(
                launches.backward(v, z, plan.transposed, temperature, ctx.how, of_other=rows) if needed else None
            )
        slope = None
        if queries is not None:
            slope = torch.zeros_like(temperature)
            for part, share in ((once, 1.0), (twice, 0.5)):  # what came twice is both ends of each pair
                slope = slope if part is None else slope - _inner(queries, part) * share / temperature
        of_queries = twice if once is None else once if twice is None else once.add_(twice)
        return (
            None,
            None,
            slope,
            *(None if gradient is None else gradient[:, : ctx.features] for gradient in (of_queries, *of_sections)),
        )


class _BothWays(torch.autograd.Function):
    """Each query over the references, and each reference over the queries."""

    @staticmethod
    def forward(
        ctx: Any, how: tuple[Plan, Precision], temperature: Tensor, queries: Tensor, references: Tensor
    ) -> tuple[Tensor, Tensor]:
        plan, precision = how
        z, v = operand(queries, precision), operand(references, precision)
        *forth, lse = launches.merged([launches.forward(z, v, plan, temperature, precision)])
        *back, other_lse = launches.merged([launches.forward(v, z, plan.transposed, temperature, precision)])
        ctx.plan, ctx.precision, ctx.features = plan, precision, queries.shape[1]
        ctx.save_for_backward(temperature, queries if ctx.needs_input_grad[1] else None, *forth, *back, *z, *v)
        return lse, other_lse

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        temperature, queries, *saved = ctx.saved_tensors
        forth, back, saved = saved[:2], saved[2:4], saved[4:]
        z, v = Operand(*saved[:3]), Operand(*saved[3:])
        rows = launches.rows(forth[0], forth[1], gradients[0])
        columns = launches.rows(back[0], back[1], gradients[1])
        _, needs_temperature, needs_queries, needs_references = ctx.needs_input_grad
        plan, fixable = ctx.plan, ctx.plan.is_set
        of_queries = of_references = slope = None
        if needs_queries or needs_temperature:
            of_queries = launches.backward(
                z, v, plan, temperature, ctx.precision, of_own=rows, of_other=columns, fixable=fixable
            )[:, : ctx.features]
        if needs_references:
            of_references = launches.backward(
                v, z, plan.transposed, temperature, ctx.precision, of_own=columns, of_other=rows, fixable=fixable
            )[:, : ctx.features]
        if queries is not None and of_queries is not None:
            slope = -_inner(queries, of_queries) / temperature
        return None, slope, of_queries, of_references


def _averaged(parts: list[Sums], offset: Tensor, total: Tensor) -> Tensor | None:
    """Return the average over all references, (N, D), of those over parts that have one."""
    result = None
    for part in parts:
        if part.average is not None:
            # An empty row's offset is ∞, so that nothing of it remains.
            shares = part.total * torch.exp2(part.offset - offset) / total.masked_fill(total == 0, 1)
            average = part.average.mul_(shares[:, :, None])
            share = average[0] if len(average) == 1 else average.sum(dim=0)
            result = share if result is None else result.add_(share)
    return result


def _inner(one: Tensor, other: Tensor) -> Tensor:
    return torch.linalg.vecdot(one.to(other.dtype), other[:, : one.shape[1]]).sum()
