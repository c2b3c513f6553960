"""The contrast as a single autograd function, for any backend."""

from typing import Any, Protocol

import torch
from torch import Tensor

from likewise.operator import dense
from likewise.operator.compiler import graph_break
from likewise.operator.precision import first_derivative, without_autocast
from likewise.operator.spec import ContrastSpec, ForwardResult, Gradients, NeedsGrad, Outcome


class Engine(Protocol):
    """A backend with its own backward."""

    def forward(
        self,
        problem: ContrastSpec,
        queries: Tensor,
        references: tuple[Tensor, ...],
        temperature: Tensor,
        wanted: NeedsGrad,
    ) -> ForwardResult:
        """Return the outcome of a contrast of the input rows; references are the sections that are not the queries."""
        ...

    def backward(self, state: Any, upstream: Outcome, wanted: NeedsGrad) -> Gradients:
        """Return the gradients of the inputs from those of the outcome; None where there is none."""
        ...


def evaluate_by(
    engine: Engine | None, problem: ContrastSpec, queries: Tensor, references: tuple[Tensor, ...], temperature: Tensor
) -> Outcome:
    """Return the outcome of a contrast from an engine, or from the plain formula if it is None."""
    if engine is None and torch.compiler.is_compiling():
        return dense.forward(problem, queries, references, temperature)  # the compiler generates its backward
    if engine is None:
        tensors = _Plain.apply(problem, temperature, queries, *references)
    else:
        on = torch.is_grad_enabled()
        need = on and queries.requires_grad
        sections = problem.per_section(need, (on and v.requires_grad for v in references))
        wanted = NeedsGrad(on and temperature.requires_grad, need, sections)
        tensors = _Contrast.apply((engine, problem, wanted), temperature, queries, *references)
    return problem.outcome(tensors)


def with_bias(problem: ContrastSpec, outcome: Outcome) -> Outcome:
    """Return pairwise sums that give their biases a gradient: that of each row is the sum of f'."""
    sums = [
        _Biased.apply(value, slope, push.bias) if isinstance(push.bias, Tensor) else value
        for value, slope, push in zip(outcome.logsums, outcome.counts, problem.pushes, strict=True)
    ]
    return outcome._replace(logsums=tuple(sums))


class _Biased(torch.autograd.Function):
    """A sum as it is, with the gradient of its bias."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, slope: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(slope, bias)
        return value.view_as(value)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor | None]:
        slope, bias = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2]
        return gradients[0], None, (gradients[0] @ slope).to(bias).view_as(bias) if wanted else None


class _Contrast(torch.autograd.Function):
    """A contrast evaluated by an engine, which differentiates it once."""

    @staticmethod
    def forward(
        ctx: Any, how: tuple[Engine, ContrastSpec, NeedsGrad], temperature: Tensor, queries: Tensor, *references: Tensor
    ) -> tuple[Tensor, ...]:
        engine, problem, wanted = how
        result = engine.forward(problem, queries, references, temperature, wanted)
        ctx.engine, ctx.problem, ctx.state, ctx.wanted = engine, problem, result.state, wanted
        # gathered references are private copies, which need no version check; counts are the caller's
        saved = () if problem.part is not None else references
        ctx.save_for_backward(temperature, queries, *saved, *result.outcome.counts)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*result.outcome.counts)
        return problem.flat(result.outcome)

    @staticmethod
    @graph_break
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # torch raises if they were modified since
        input_grads: Gradients = ctx.engine.backward(ctx.state, ctx.problem.outcome(gradients), ctx.wanted)
        return None, input_grads.temperature, input_grads.queries, *input_grads.others


class _Plain(torch.autograd.Function):
    """The plain formula, differentiated by autograd, also twice, and never under the caller's autocast."""

    @staticmethod
    def forward(
        ctx: Any, problem: ContrastSpec, temperature: Tensor, queries: Tensor, *references: Tensor
    ) -> tuple[Tensor, ...]:
        outcome = dense.forward(problem, queries, references, temperature)
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
            inputs = [  # each separate, even if one depends on another or is the same tensor
                x.view_as(x) if twice else x.detach().requires_grad_(need)
                for x, need in zip(ctx.saved_tensors, needs, strict=True)
            ]
            temperature, queries, *references = inputs
            outcome = dense.forward(ctx.problem, queries, tuple(references), temperature)
            pairs = zip(ctx.problem.flat(outcome), gradients, strict=True)
            reached = [(x, g) for x, g in pairs if g is not None and x.requires_grad]
            wanted = [x for x, need in zip(inputs, needs, strict=True) if need]
            results = torch.autograd.grad(
                [x for x, _ in reached], wanted, [g for _, g in reached], create_graph=twice, materialize_grads=True
            )
        input_grads = iter(results)
        return None, *(next(input_grads) if need else None for need in needs)
