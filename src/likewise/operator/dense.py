"""The plain formula over all pairs, differentiated by autograd: the reference that other backends must match."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator.inputs import graph_break, without_autocast
from likewise.operator.rows import normalized
from likewise.operator.spec import SHAPES, ContrastSpec, Outcome
from likewise.pairs import PairWeight


def evaluate(problem: ContrastSpec, queries: Tensor, references: tuple[Tensor, ...], temperature: Tensor) -> Outcome:
    """Return the outcome of a contrast, differentiable twice, in O(N·R) memory."""
    if torch.compiler.is_compiling():
        return forward(problem, queries, references, temperature)  # the compiler generates its backward
    return problem.outcome(_Plain.apply(problem, temperature, queries, *references))


def forward(
    problem: ContrastSpec, queries: Float[Tensor, "n d"], references: tuple[Tensor, ...], temperature: Float[Tensor, ""]
) -> Outcome:
    """Return the outcome from all similarities at once."""
    z, *rest = ((normalized(v) if problem.normalize else v).to(temperature.dtype) for v in (queries, *references))
    # Section by section: one product over all sections would sum in another order, even for a query's own key.
    similarity = torch.cat([z @ v.T for v in problem.per_section(z, rest)], dim=1) / temperature
    if problem.is_pairwise:
        return _pairwise(problem, similarity)
    logsums = tuple(_over_rows(similarity * push.power, push.weight) for push in problem.pushes)
    both = problem.pushes if problem.both_ways else ()
    columns = tuple(_over_rows((similarity * push.power).T, push.weight.T) for push in both)
    pull = problem.pull
    attraction = None if pull is None else (similarity * pull.dense(z.dtype, z.device)).sum(dim=1)
    return Outcome(logsums, columns, attraction, *problem.losses(logsums, attraction))


def _pairwise(problem: ContrastSpec, s: Float[Tensor, "n r"]) -> Outcome:
    """Return the pairwise sums, Σ_u weight_iu f(p s_iu + b), and the same sums of the derivative."""
    sums, slopes = list[Tensor](), list[Tensor]()
    for push in problem.pushes:
        weights, argument = push.weight.dense(s.dtype, s.device), s * push.power + push.bias
        shape = SHAPES[push.function]
        sums.append((weights * shape.value(argument)).sum(dim=1))
        slope = shape.slope if push.is_counted else torch.zeros_like
        slopes.append((weights * slope(argument.detach())).sum(dim=1))
    return Outcome(tuple(sums), (), None, None, tuple(slopes))


def _over_rows(s: Float[Tensor, "n r"], push: PairWeight) -> Float[Tensor, " n"]:
    """Return log Σ push·e^{s} of each row; −∞, without gradient, if all its weights are zero.

    Terms are shifted by the largest one, which has no gradient here: the derivative of `torch.logsumexp`, e^{s − lse},
    has the rounding error of lse. The factor of a whole row is added at the end, and does not round single pairs.
    """
    base, anchors, _ = push.factors(s.dtype, s.device, of_push=True)
    weights = base.dense(s.dtype, s.device)
    inside = weights > 0
    empty = ~inside.any(dim=1, keepdim=True)
    terms = (s.detach() if base.is_set else s.detach() + weights.log()).masked_fill(~inside, -torch.inf)
    highest = terms.amax(dim=1, keepdim=True).masked_fill(empty, 0) if s.shape[1] else s.new_zeros(s.shape[0], 1)
    total = (weights * (s - highest).masked_fill(~inside, -torch.inf).exp()).sum(dim=1)
    empty = (empty if anchors is None else empty | (anchors == 0)[:, None]).squeeze(1)
    logarithm = (total.masked_fill(empty, 1).log() + highest.squeeze(1)).masked_fill(empty, -torch.inf)
    return logarithm if anchors is None else logarithm + anchors.log()


class _Plain(torch.autograd.Function):
    """The plain formula, differentiated by autograd once or twice, and never under the caller's autocast."""

    @staticmethod
    def forward(
        ctx: Any, problem: ContrastSpec, temperature: Tensor, queries: Tensor, *references: Tensor
    ) -> tuple[Tensor, ...]:
        outcome = forward(problem, queries, references, temperature)
        ctx.problem = problem
        ctx.save_for_backward(temperature, queries, *references)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*outcome.counts)
        return problem.flat(outcome)

    @staticmethod
    @graph_break
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        twice, needs = torch.is_grad_enabled(), ctx.needs_input_grad[1:]
        with torch.enable_grad(), without_autocast(ctx.saved_tensors[0].device):
            inputs = [  # all separate, even if one depends on another or is the same tensor
                x.view_as(x) if twice else x.detach().requires_grad_(need)
                for x, need in zip(ctx.saved_tensors, needs, strict=True)
            ]
            temperature, queries, *references = inputs
            outcome = forward(ctx.problem, queries, tuple(references), temperature)
            pairs = zip(ctx.problem.flat(outcome), gradients, strict=True)
            reached = [(x, g) for x, g in pairs if g is not None and x.requires_grad]
            wanted = [x for x, need in zip(inputs, needs, strict=True) if need]
            results = torch.autograd.grad(
                [x for x, _ in reached], wanted, [g for _, g in reached], create_graph=twice, materialize_grads=True
            )
        input_grads = iter(results)
        return None, *(next(input_grads) if need else None for need in needs)
