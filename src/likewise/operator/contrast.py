"""The one equation: check the inputs and evaluate both of its terms."""

import ctypes
import functools
import math
from numbers import Real
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator.backends import Backend, check_backend, engine_of, half_of
from likewise.operator.compiler import uncompiled
from likewise.operator.function import evaluate_by
from likewise.operator.inputs import check_floating
from likewise.operator.precision import without_autocast
from likewise.operator.problem import Outcome, Part, Problem, Push, Reduction
from likewise.pairs import PairWeight

References = Tensor | tuple[Tensor, ...] | list[Tensor] | None

RANGE = 1e-15, 1e15
"""The smallest and the largest temperature."""


@uncompiled
def log_sum_exp(
    queries: Float[Tensor, "n d"],
    references: References = None,
    *,
    push: PairWeight,
    temperature: float | Tensor,
    backend: Backend = "auto",
) -> Float[Tensor, " n"]:
    r"""Return the weighted log-sum-exp of each query's similarities, exactly and in linear memory.

    $$
    \text{lse}_i = \log \sum_u \text{push}_{iu} \, e^{z_i \cdot v_u / \tau}
    $$

    Args:
        queries: z, shape (N, D), any floating dtype; they are not normalised.
        references: v, shape (R, D), or a tuple of sections (R₁, D), (R₂, D), …, each with or without gradient; None:
            the queries themselves.
        push: Weights ≥ 0 of shape (N, R).
        temperature: τ > 0, a number, or a 0-d or (1,) tensor, which then receives a gradient.
        backend: "auto", "dense", "tiled" or "triton".

    Returns:
        One value for each query, shape (N,), in float32 or wider; −inf without gradient where its push is empty.

    Raises:
        ValueError: If shapes disagree, τ is not positive, push may be negative, the backend is unknown, or an input
            contains NaN or infinity. Values are checked on the CPU only: on a GPU that would synchronise, and an
            explicit push is assumed to have no negative weight there.
        RuntimeError: In the backward of "tiled" and "triton", if a second derivative is requested.

    Memory:
        O((N + R)·D + tile) with "tiled" and "triton", O(N·R) with "dense"; "auto" selects "tiled".

    Example:
        >>> import torch
        >>> from likewise import pairs
        >>> z = torch.eye(3)
        >>> log_sum_exp(z, push=pairs.NotSelf(3), temperature=1.0)
        tensor([0.6931, 0.6931, 0.6931])
    """
    return evaluate(
        queries, _given(queries, references), pushes=(Push(push),), temperature=temperature, backend=backend
    ).logsums[0]


@uncompiled
def contrast(
    queries: Float[Tensor, "n d"],
    references: References = None,
    *,
    pull: PairWeight,
    push: PairWeight,
    temperature: float | Tensor,
    coefficient: Float[Tensor, " n"] | None = None,
    reduction: Reduction = "none",
    backend: Backend = "auto",
) -> Float[Tensor, "..."]:
    r"""Return each query's contrastive loss: the equation behind every loss of this library.

    $$
    \ell_i = c_i \log \sum_u \text{push}_{iu} \, e^{z_i \cdot v_u / \tau}
             - \sum_r \text{pull}_{ir} \, z_i \cdot v_r / \tau
    $$

    Args:
        queries: z, shape (N, D), any floating dtype; they are not normalised.
        references: v, shape (R, D), or a tuple of sections (R₁, D), (R₂, D), …, each with or without gradient; None:
            the queries themselves.
        pull: Weights of shape (N, R): how strongly each reference attracts each query.
        push: Weights ≥ 0 of shape (N, R): how strongly each reference repels each query.
        temperature: τ > 0, a number, or a 0-d or (1,) tensor, which then receives a gradient.
        coefficient: c, shape (N,), constant under differentiation; None: the pull's row sums.
        reduction: "none" for one loss per query, "sum", or "mean" over the active queries, as in the losses.
        backend: "auto", "dense", "tiled" or "triton".

    Returns:
        One loss for each query, shape (N,), in float32 or wider, or a scalar. A query is active if it has a nonzero
        weight in both push and pull; an inactive one has loss 0 and no gradient.

    Raises:
        ValueError: If shapes disagree, τ is not positive, push may be negative, the backend is unknown, or an input
            contains NaN or infinity. Values are checked on the CPU only: on a GPU that would synchronise, and an
            explicit push is assumed to have no negative weight there.
        RuntimeError: In the backward of "tiled" and "triton", if a second derivative is requested.

    Memory:
        O((N + R)·D + tile) with "tiled" and "triton", O(N·R) with "dense"; "auto" selects "tiled".

    Example:
        >>> import torch
        >>> from likewise import pairs
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> labels = torch.tensor([0, 0, 1])
        >>> pull = (pairs.SameClass(labels) & pairs.NotSelf(3)).mean_over_row()
        >>> contrast(z, pull=pull, push=pairs.NotSelf(3), temperature=1.0)
        tensor([0.3133, 0.3133, 0.0000])
    """
    if reduction not in get_args(Reduction):
        raise ValueError(
            f"expected reduction to be one of {', '.join(get_args(Reduction))}, got {reduction!r}: pass one of these"
        )
    sections = _given(queries, references)
    coefficients = (_coefficient(coefficient, queries),)
    losses = evaluate(
        queries,
        sections,
        pushes=(Push(push),),
        pull=pull,
        temperature=temperature,
        coefficients=coefficients,
        reduction=reduction,
        backend=backend,
    ).losses
    assert losses is not None  # noqa: S101 - they were requested
    return losses


def evaluate(
    queries: Float[Tensor, "n d"],
    sections: tuple[Float[Tensor, "_ d"], ...],
    *,
    pushes: tuple[Push, ...],
    pull: PairWeight | None = None,
    temperature: float | Tensor,
    coefficients: tuple[Tensor | None, ...] | None = None,
    reduction: Reduction = "none",
    normalize: bool = False,
    both_ways: bool = False,
    part: Part | None = None,
    backend: Backend = "auto",
) -> Outcome:
    """Return the terms of a contrast and its losses: the function behind `contrast` and every loss of the library.

    Args:
        queries: z, (N, D), any floating dtype, already checked.
        sections: v, each (R, D), already checked; the same tensor as queries where they are the references.
        pushes: The push of each log-sum-exp, over all sections.
        pull: The pull over all sections; None: there is no attraction.
        temperature: τ.
        coefficients: c of each log-sum-exp, (N,), None: the pull's row sums; None for all: no losses are wanted.
        reduction: How losses are reduced.
        normalize: Whether rows are divided by their lengths.
        both_ways: Whether the log-sum-exps of the references over the queries are wanted as well.
        part: How to reach the other queries if they are the references. It is used where the weights are symmetric, and
            the references then have no gradient: the queries have all of it. In a ring the weights must be symmetric,
            and the references' values are not read.
        backend: "auto", "dense", "tiled" or "triton".
    """
    for push in pushes:
        _check_shape("push", push.weight, queries, sections)
        if not push.weight.is_nonnegative:
            raise ValueError(
                f"expected push to have weights ≥ 0, got {push.weight} with negative ones: only pull may be negative"
            )
    if pull is not None:
        _check_shape("pull", pull, queries, sections)
    dtype = functools.reduce(torch.promote_types, (v.dtype for v in sections), queries.dtype)
    dtype = torch.promote_types(dtype, torch.float32)
    check_backend(backend, queries.device, dtype)
    with without_autocast(queries.device):
        if part is not None:
            part, sections = _exchanged(part, queries, sections, pushes, pull, both_ways=both_ways)
        tau, inverse = _temperature(temperature, queries, dtype)
        problem = Problem(
            pushes=pushes,
            pull=pull,
            own=tuple(v is queries for v in sections),
            normalize=normalize,
            inverse=inverse,
            half=half_of(backend, queries.device, (v.dtype for v in (queries, *sections))),
            both_ways=both_ways,
            coefficients=coefficients,
            reduction=reduction,
            part=part,
        )
        others = tuple(v for v in sections if v is not queries)
        return evaluate_by(engine_of(backend), problem, queries, others, tau)


def _exchanged(
    part: Part,
    queries: Tensor,
    sections: tuple[Tensor, ...],
    pushes: tuple[Push, ...],
    pull: PairWeight | None,
    *,
    both_ways: bool,
) -> tuple[Part | None, tuple[Tensor, ...]]:
    """Return how to reach the other queries, None if that takes references with gradient, and the references."""
    dtype, device = torch.promote_types(queries.dtype, torch.float32), queries.device
    weights = [push.weight.factors(dtype, device, of_push=True) for push in pushes]
    weights += [] if pull is None else [pull.factors(dtype, device)]
    symmetric = all(weight.symmetric_at == part.place for weight in weights) and (pull is None or pull.within_tiles)
    if symmetric and not both_ways and len(sections) == 1:
        (references,) = sections
        return part, (references.detach(),) if part.ring is None else references.split(list(part.sizes))
    if part.ring is not None:
        raise ValueError(
            "expected symmetric weights for references in a ring, got "
            f"{', '.join(map(str, [push.weight for push in pushes] + [pull] * (pull is not None)))}: use "
            "gather_distributed=True"
        )
    return None, sections


def _given(queries: Tensor, references: References) -> tuple[Tensor, ...]:
    """Return the checked sections of references; the queries themselves if none are given."""
    references = tuple(references) if isinstance(references, list) else references
    given = () if references is None else references if isinstance(references, tuple) else (references,)
    if isinstance(references, tuple) and not references:
        raise ValueError("expected at least one section of references, got an empty tuple: omit it to use the queries")
    check_rows("queries", queries, queries)
    for k, rows in enumerate(given):
        if rows is not queries:
            check_rows(f"references[{k}]" if isinstance(references, tuple) else "references", rows, queries)
    return given or (queries,)


def _coefficient(coefficient: Tensor | None, queries: Tensor) -> Tensor | None:
    """Return c without gradient; raise unless it is one value for each query."""
    if coefficient is None:
        return None
    if not isinstance(coefficient, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every door
            f"expected coefficient to be a tensor, got {type(coefficient).__name__}: convert with torch.as_tensor"
        )
    if coefficient.shape != queries.shape[:1]:
        raise ValueError(
            f"expected coefficient to be one value for each query, shape {tuple(queries.shape[:1])}, "
            f"got shape {tuple(coefficient.shape)}: omit it to use the pull's row sums"
        )
    check_finite("coefficient", coefficient[:, None])
    return coefficient.detach().clone()  # the caller may change it before the backward


def check_rows(name: str, rows: Tensor, queries: Tensor) -> None:
    """Raise unless rows are finite and floating, (n, d), with the queries' features and on their device."""
    if not isinstance(rows, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every door
            f"expected {name} to be a tensor, got {type(rows).__name__}: convert with torch.as_tensor"
        )
    check_floating(name, rows)
    if rows.ndim != 2:
        raise ValueError(
            f"expected {name} to be floating rows of features, (n, d), got {rows.dtype} of shape {tuple(rows.shape)}: "
            "pass one row for each"
        )
    if rows.shape[1] != queries.shape[1]:
        raise ValueError(
            f"expected {name} to have the queries' {queries.shape[1]} features, got shape {tuple(rows.shape)}: "
            "use the same encoder for both"
        )
    if rows.device != queries.device:
        raise ValueError(
            f"expected {name} to be on the queries' device, {queries.device}, got {rows.device}: move them with .to"
        )
    check_finite(name, rows)


def check_finite(name: str, rows: Tensor) -> None:
    """Raise if rows contain NaN or infinity.

    Not checked on a GPU, where it would synchronise, nor in a compiled graph, which it would break.
    """
    if rows.device.type != "cpu" or not rows.numel() or torch.compiler.is_compiling():
        return
    low, high = rows.detach().aminmax()
    if not (math.isfinite(low) and math.isfinite(high)):
        bad = (~torch.isfinite(rows.detach())).flatten(1).any(dim=1).nonzero().flatten().tolist()
        raise ValueError(
            f"expected {name} to be finite, got NaN or infinity in {len(bad)} of {len(rows)} rows, "
            f"the first at {bad[0]}: check for divergence, a division by zero or bad input"
        )


def _check_shape(name: str, weight: PairWeight, queries: Tensor, sections: tuple[Tensor, ...]) -> None:
    if not isinstance(weight, PairWeight):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every door
            f"expected {name} to be a pair weight, got {type(weight).__name__}: put a matrix into pairs.Explicit"
        )
    expected = len(queries), sum(len(v) for v in sections)
    if weight.shape != expected:
        raise ValueError(
            f"expected {name} for {expected[0]} queries by {expected[1]} references, got {weight}: "
            "build the weight for the given rows"
        )


def check_temperature(temperature: object, name: str = "temperature", usual: str = "0.05 to 1") -> None:
    """Raise unless a temperature is a positive number or a positive tensor of it; on a GPU its value is not checked.

    Within `RANGE`, neither the temperature nor the square of its inverse overflows or vanishes in float32.
    """
    remedy = f"typical values are {usual}"
    if isinstance(temperature, Tensor):
        if temperature.shape not in ((), (1,)):
            raise ValueError(
                f"expected {name} to be a number or a tensor of shape () or (1,), got shape "
                f"{tuple(temperature.shape)}: pass a single element"
            )
        if temperature.device.type != "cpu":
            return
        remedy += "; if it is learned, learn its logarithm, so that it stays positive, or clamp it after each step"
        temperature = temperature.detach().item()
    if not RANGE[0] <= number(temperature) <= RANGE[1]:
        raise ValueError(
            f"expected {name} to be a positive number or tensor within {RANGE[0]:g} … {RANGE[1]:g}, "
            f"got {temperature!r}: {remedy}"
        )


def number(value: object) -> float:
    """Return a real number as a float, and NaN for anything else."""
    return math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)


def _temperature(
    temperature: float | Tensor, queries: Tensor, dtype: torch.dtype
) -> tuple[Float[Tensor, ""], float | None]:
    """Return τ in the dtype and on the device of the rows, and 1/τ if known without waiting for a GPU."""
    check_temperature(temperature)
    if isinstance(temperature, Tensor):
        known = temperature.device.type == "cpu" and type(temperature.detach()) is Tensor
        tau = temperature.to(queries.device, dtype).reshape(())
        return tau, 1 / float(temperature.detach().to(dtype)) if known else None
    tau = torch.full((), temperature, dtype=dtype, device=queries.device)
    if dtype == torch.float64 or torch.compiler.is_compiling():  # ctypes cannot be compiled
        return tau, 1 / temperature
    return tau, 1 / ctypes.c_float(temperature).value
