"""The evaluation of a contrast by a backend, in the only module that knows all of them; gradients of learned weights.

Every backend except the plain formula is an engine, a module: `whole`, `tiled` or the kernels. Its ``forward`` returns
the outcome of a contrast of the input rows, and a state. From this state and the outcome's gradients, its ``backward``
returns the gradients of τ, of the queries and of the other sections, in their dtypes; None for a missing one.
"""

import ctypes
import importlib.util
import math
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator import dense, tiled, whole
from likewise.operator.inputs import check_temperature, first_derivative, graph_break, without_autocast
from likewise.operator.rows import prepared
from likewise.operator.spec import SHAPES, ContrastSpec, LocalAnchors, NeedsGrad, Outcome, Push
from likewise.pairs import PairWeight
from likewise.pairs.weight import Slope, with_gradient

Backend = Literal["auto", "dense", "tiled", "triton"]
BACKENDS = get_args(Backend)

TRITON = 3, 4
"""The oldest Triton version that supports the kernels."""

AMPERE = 8, 0
"""The oldest compute capability with bfloat16 tensor cores."""


def check_backend(backend: object, device: torch.device, dtype: torch.dtype) -> None:
    """Raise unless a backend is known and, if it is "triton", can run on the device in the dtype."""
    if backend not in BACKENDS:
        raise ValueError(f"expected backend to be one of {', '.join(BACKENDS)}, got {backend!r}: try auto")
    if backend != "triton":
        return
    why = no_triton(device)
    if why is None and dtype == torch.float64:
        why = "kernels need float32 or half precision, got float64"
    if why is not None:
        raise ValueError(f'backend="triton" cannot run here: {why}; use "auto" or "tiled", which run anywhere')


@cache
def triton_is_missing() -> str | None:
    """Return the reason why this environment's Triton cannot be used, or None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    version = import_module("triton").__version__  # builds of torch ship it under other distribution names
    if tuple(int(part) for part in version.split(".")[:2]) < TRITON:
        return f"Triton {TRITON[0]}.{TRITON[1]} or newer is needed, got {version} (pip install -U triton)"
    return None


def no_triton(device: torch.device) -> str | None:
    """Return the reason why kernels cannot run on a device, or None; Triton's interpreter can run them on the CPU."""
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return triton_is_missing()
    if device.type != "cuda" or torch.version.hip is not None:
        return f"kernels need tensors on an NVIDIA GPU, got {device.type} (TRITON_INTERPRET=1 interprets them on a CPU)"
    return _no_kernels_on(device)


@cache
def _no_kernels_on(device: torch.device) -> str | None:
    """Return the reason why kernels cannot run on a GPU, or None; cached, since querying torch is slow."""
    if (capability := torch.cuda.get_device_capability(device)) < AMPERE:
        return (
            f"kernels need compute capability {AMPERE[0]}.{AMPERE[1]} or newer, "
            f"got {capability[0]}.{capability[1]}, {torch.cuda.get_device_name(device)}"
        )
    return triton_is_missing()


@cache
def kernels() -> Any:
    """Return the module of the kernels, imported only when this backend is chosen."""
    return import_module("likewise.operator.triton")


EXCHANGES = "", "tiled", "kernels"


def exchange_of(backend: Backend) -> int:
    """Return the index of a backend's exchange in `EXCHANGES`, for queries within references; see `LocalAnchors`.

    0 means none: ranks then compute no whole gradients. The others belong to the engine that `evaluate` chooses.
    """
    return {"dense": 0, "triton": 2}.get(backend, 1)


def evaluate(
    problem: ContrastSpec,
    queries: Float[Tensor, "n d"],
    sections: tuple[Float[Tensor, "_ d"], ...],
    *,
    temperature: float | Tensor,
    backend: Backend = "auto",
) -> Outcome:
    """Return the terms of a contrast and its losses: the function behind `contrast` and every loss of the library.

    Args:
        problem: The weights, and the requested outputs. Its ``part`` is used if the weights are symmetric; references
            then have no gradient, since the queries receive all of it.
        queries: z, (N, D), any floating dtype, already checked.
        sections: v, each (R, D), already checked; the tensor ``queries`` itself if these are the references.
        temperature: τ.
        backend: "auto", "dense", "tiled" or "triton".
    """
    shape = queries.shape[0], sum([v.shape[0] for v in sections])
    for push in problem.pushes:
        _check_shape("push" if push.function is None else "weight", push.weight, shape)
        if not push.weight.is_nonnegative and push.function is None:
            raise ValueError(f"expected push to have weights ≥ 0, got {push.weight}: only pull may be negative")
    if problem.pull is not None:
        _check_shape("pull", problem.pull, shape)
    dtype = queries.dtype
    for other in (*[v.dtype for v in sections], torch.float32):
        dtype = torch.promote_types(dtype, other)
    check_backend(backend, queries.device, dtype)
    with without_autocast(queries.device):
        if problem.part is not None:
            problem, sections = _exchanged(problem, problem.part, queries, sections)
        tau, inverse = _temperature(temperature, queries, dtype)
        are_queries = tuple([v is queries for v in sections])
        half = kernels().half_of({v.dtype for v in (queries, *sections)}) if backend == "triton" else None
        problem = ContrastSpec(*problem[:7], are_queries, inverse, half)  # faster than _replace
        references = tuple([v for v in sections if v is not queries])
        learns, on = problem.is_learned, torch.is_grad_enabled()
        plain = problem._replace(coefficients=None, reduction="none") if learns else problem
        if backend == "dense":
            outcome = dense.evaluate(plain, queries, references, tau)
        else:
            small = backend == "auto" and whole.is_small(problem, *shape, queries.device)
            engine = whole if small else kernels() if backend == "triton" else tiled
            need = on and queries.requires_grad
            needs = problem.per_section(need, (on and v.requires_grad for v in references))
            wanted = NeedsGrad(on and tau.requires_grad, need, needs)
            outcome = plain.outcome(_Contrast.apply((engine, plain, wanted), tau, queries, *references))
        if problem.is_pairwise:
            outcome = _with_bias(problem, outcome)
        return _with_weights(problem, outcome, (queries, *references), tau) if learns else outcome


def _exchanged(
    problem: ContrastSpec, part: LocalAnchors, queries: Tensor, sections: tuple[Tensor, ...]
) -> tuple[ContrastSpec, tuple[Tensor, ...]]:
    """Return the problem and the references, detached if its ``part`` yields their gradient; else drop the ``part``."""
    dtype, device, pull = torch.promote_types(queries.dtype, torch.float32), queries.device, problem.pull
    weights = [push.weight.factors(dtype, device, of_push=True) for push in problem.pushes]
    weights += [] if pull is None else [pull.factors(dtype, device)]
    symmetric = all(weight.symmetric_at == part.place for weight in weights) and problem.pulls.beside is None
    if symmetric and not problem.both_ways and len(sections) == 1:
        return problem, (sections[0].detach(),)
    return problem._replace(part=None), sections


def check_weight(name: str, weight: object) -> None:
    """Raise unless a weight is a pair weight."""
    if not isinstance(weight, PairWeight):
        raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every public entry
            f"expected {name} to be a pair weight, got {type(weight).__name__}: put a matrix into pairs.Explicit"
        )


def _check_shape(name: str, weight: PairWeight, shape: tuple[int, int]) -> None:
    check_weight(name, weight)
    if weight.shape != shape:
        raise ValueError(
            f"expected {name} for {shape[0]} queries by {shape[1]} references, got {weight}: build it for these rows"
        )


def _temperature(
    temperature: float | Tensor, queries: Tensor, dtype: torch.dtype
) -> tuple[Float[Tensor, ""], float | None]:
    """Return τ in the dtype and on the device of the rows, and 1/τ if known without waiting for a GPU."""
    check_temperature(temperature)
    if isinstance(temperature, Tensor):
        known = temperature.device.type == "cpu" and type(temperature.detach()) is Tensor
        tau = temperature.to(queries.device, dtype).reshape(())
        return tau, 1 / float(temperature.detach().to(dtype)) if known and not torch.compiler.is_compiling() else None
    tau = torch.full((), temperature, dtype=dtype, device=queries.device)
    if dtype == torch.float64 or torch.compiler.is_compiling():  # ctypes cannot be compiled
        return tau, 1 / temperature
    return tau, 1 / ctypes.c_float(temperature).value


def _with_bias(problem: ContrastSpec, outcome: Outcome) -> Outcome:
    """Return pairwise sums with a gradient of their biases: for each row, the sum of f'."""
    sums = [
        _Biased.apply(value, slope, push.bias) if isinstance(push.bias, Tensor) else value
        for value, slope, push in zip(outcome.logsums, outcome.counts, problem.pushes, strict=True)
    ]
    return outcome._replace(logsums=tuple(sums))


class _Biased(torch.autograd.Function):
    """An unchanged sum, with the gradient of its bias."""

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
    """A contrast evaluated by an engine, with first derivatives."""

    @staticmethod
    def forward(
        ctx: Any,
        how: tuple[ModuleType, ContrastSpec, NeedsGrad],
        temperature: Tensor,
        queries: Tensor,
        *references: Tensor,
    ) -> tuple[Tensor, ...]:
        engine, problem, wanted = how
        outcome, state = engine.forward(problem, queries, references, temperature, wanted)
        ctx.engine, ctx.problem, ctx.state, ctx.wanted = engine, problem, state, wanted
        # gathered references are private copies, which need no version check; counts are the caller's
        saved = () if problem.part is not None else references
        ctx.save_for_backward(temperature, queries, *saved, *outcome.counts)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*outcome.counts)
        return problem.flat(outcome)

    @staticmethod
    @graph_break
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # torch raises if they have been modified
        return None, *ctx.engine.backward(ctx.state, ctx.problem.outcome(gradients), ctx.wanted)


Derivative = Callable[[Tensor, Tensor, slice, slice], Tensor]
"""A function of the upstream gradient and a tile of similarities; it returns the gradient of the tile's weights."""


def _with_weights(problem: ContrastSpec, outcome: Outcome, rows: tuple[Tensor, ...], temperature: Tensor) -> Outcome:
    """Add the gradients of learned weights to an outcome without losses, and the losses if requested.

    The values come from any engine, the derivatives of pairs from tiles. With the logarithms and losses of all rows,
    and their upstream gradients g,

        ∂w_iu = g_i e^{p s_iu − lse_i} of a push        ∂w_ir = g_i s_ir of an attraction
        ∂w_iu = g_i f(p s_iu + b) of a pairwise sum     ∂w_ir = g_i (Σ_k lse_ki − s_ir) of a loss

    The last equation is for losses with the row sums of the pull as coefficients, which are then also learned.
    ``rows`` are the queries, and the sections other than the queries.
    """

    def learning(value: Tensor, weight: PairWeight | None, derivative: Derivative, *dependencies: Tensor) -> Tensor:
        def slope(g: Tensor) -> Slope:
            z, *rest = (prepared(v.detach(), temperature.dtype, normalize=problem.normalize).rows for v in rows)
            v = torch.cat(problem.per_section(z, rest))
            tau = temperature.detach()
            return lambda i, r: derivative(g, (z[i] @ v[r].T).div_(tau), i, r)

        return value if weight is None else with_gradient(value, weight, slope, temperature, *rows, *dependencies)

    def of_push(push: Push, value: Tensor, *, columns: bool = False) -> Tensor:
        return learning(value, push.weight, _of_push(push, value.detach(), columns=columns), value)

    logsums, columns = outcome.logsums, outcome.columns
    outcome = outcome._replace(
        logsums=tuple(map(of_push, problem.pushes, logsums)),
        columns=tuple(of_push(push, x, columns=True) for push, x in zip(problem.pushes, columns, strict=False)),
    )
    pull, attraction = problem.pull, outcome.attraction
    outcome = outcome._replace(attraction=learning(attraction, pull, lambda g, s, i, _: s.mul_(g[i, None])))
    if problem.coefficients is None:
        return outcome
    sums = None if pull is None else pull.known_row_sum(temperature.dtype, temperature.device).detach()
    known = tuple(sums if c is None else c for c in problem.coefficients)
    unreduced = problem._replace(coefficients=known, reduction="none")
    losses, counts = unreduced.losses(outcome.logsums, attraction)
    assert losses is not None  # noqa: S101 - there are coefficients
    active = counts[0]
    chosen = [x.detach() for x, c in zip(logsums, problem.coefficients, strict=True) if c is None]
    height = torch.stack([torch.zeros_like(losses), *chosen]).sum(dim=0).where(active, 0)

    def of_losses(g: Tensor, s: Tensor, i: slice, _: slice) -> Tensor:
        return torch.sub(height[i, None], s, out=s).mul_(g.where(active, 0)[i, None])

    losses = problem.reduced(learning(losses, pull, of_losses), counts[1])
    return outcome._replace(losses=losses, counts=counts)


def _of_push(push: Push, value: Tensor, *, columns: bool) -> Derivative:
    """Return the derivative of a log-sum-exp, of rows or of columns, or of a pairwise sum."""
    most = 0.9 * math.log(torch.finfo(value.dtype).max)  # pairs of weight 0 may be far above the others

    def of_logsum(g: Tensor, s: Tensor, i: slice, r: slice) -> Tensor:
        at, dim = (r, 0) if columns else (i, 1)
        share = g.masked_fill(value == -torch.inf, 0)[at].unsqueeze(dim)
        return s.mul_(push.power).sub_(value[at].unsqueeze(dim)).clamp_(max=most).exp_().mul_(share)

    def of_sum(g: Tensor, s: Tensor, i: slice, _: slice) -> Tensor:
        return SHAPES[push.function].value(s.mul_(push.power).add_(push.constant_bias)).mul_(g[i, None])

    return of_logsum if push.function is None else of_sum
