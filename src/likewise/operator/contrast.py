"""The one equation: check the inputs and evaluate both of its terms."""

import ctypes
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.operator.backends import Backend, check_backend, engine_of, half_of
from likewise.operator.compiler import graph_break
from likewise.operator.function import evaluate_by, with_bias
from likewise.operator.inputs import check_bias, check_finite, check_rows, check_temperature, one_of
from likewise.operator.learned import is_learned, with_weights
from likewise.operator.precision import without_autocast
from likewise.operator.spec import ContrastSpec, Function, LocalAnchors, Outcome, Push, Reduction
from likewise.operator.whole import is_small
from likewise.pairs import PairWeight
from likewise.pairs.weight import check_tensor

References = Tensor | tuple[Tensor, ...] | list[Tensor] | None


@graph_break
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
        references: v, shape (R, D), or a tuple of sections as in `contrast`; None: the queries themselves.
        push: Weights ≥ 0 of shape (N, R).
        temperature: τ > 0, a number, or a 0-d or (1,) tensor, which then receives a gradient.
        backend: "auto", "dense", "tiled" or "triton".

    Returns:
        One value for each query, shape (N,), in float32 or wider; −inf without gradient where its push is empty.

    Raises:
        ValueError, RuntimeError: See `contrast`.

    Memory:
        See `contrast`.

    Example:
        >>> import torch
        >>> from likewise import pairs
        >>> z = torch.eye(3)
        >>> log_sum_exp(z, push=pairs.NotSelf(3), temperature=1.0)
        tensor([0.6931, 0.6931, 0.6931])
    """
    sections = _checked_sections(queries, references)
    return evaluate(ContrastSpec((Push(push),)), queries, sections, temperature=temperature, backend=backend).logsums[0]


@graph_break
def pairwise_sum(
    queries: Float[Tensor, "n d"],
    references: References = None,
    *,
    weight: PairWeight,
    function: Function,
    temperature: float | Tensor,
    sign: Literal[1, -1] = 1,
    bias: float | Tensor = 0.0,
    backend: Backend = "auto",
) -> Float[Tensor, " n"]:
    r"""Return the weighted sum of a function of each query's similarities, exactly and in linear memory.

    $$
    \text{sum}_i = \sum_u w_{iu} \, f(\pm z_i \cdot v_u / \tau + b)
    $$

    Args:
        queries: z, shape (N, D), any floating dtype; they are not normalised.
        references: v, shape (R, D), or a tuple of sections as in `contrast`; None: the queries themselves.
        weight: w, of shape (N, R), of any sign.
        function: f: "softplus", log(1 + eˣ); "hinge", max(0, x); "squared hinge", max(0, x)².
        temperature: τ > 0, a number, or a 0-d or (1,) tensor, which then receives a gradient.
        sign: Sign of the similarities, 1 or -1.
        bias: b, a number, or a 0-d or (1,) tensor, which then receives a gradient.
        backend: "auto", "dense", "tiled" or "triton"; kernels leave it to tiles.

    Returns:
        One value for each query, shape (N,), in float32 or wider; 0 where it has no weight.

    Raises:
        ValueError, RuntimeError: See `contrast`, but weights may be negative; or the function is unknown, b not finite.

    Memory:
        See `contrast`.

    Example:
        >>> import torch
        >>> from likewise import pairs
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> pairwise_sum(z, weight=pairs.NotSelf(3), function="hinge", temperature=1.0, bias=-0.5)
        tensor([0.5000, 0.5000, 0.0000])
    """
    one_of("function", function, Function)
    if sign not in (1, -1):
        raise ValueError(f"expected sign to be 1 or -1, got {sign!r}: scale by the temperature")
    check_bias(bias)
    sections = _checked_sections(queries, references)
    bias = bias.to(queries.device) if isinstance(bias, Tensor) else bias
    problem = ContrastSpec((Push(weight, sign, function, bias),))
    return evaluate(problem, queries, sections, temperature=temperature, backend=backend).logsums[0]


@graph_break
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
        pull: Weights of shape (N, R): how strongly each reference attracts each query. What they are made of receives
            a gradient if it requires one, such as the vectors of `pairs.LowRank`.
        push: Weights ≥ 0 of shape (N, R): how strongly each reference repels each query; the same goes for them.
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
        RuntimeError: In the backward of all but "dense", if a second derivative is requested.

    Memory:
        O((N + R)·D + tile) with "tiled" and "triton", O(N·R) with "dense"; "auto" is "tiled",
        and one matrix of up to 65,536 pairs.

    Example:
        >>> import torch
        >>> from likewise import pairs
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> labels = torch.tensor([0, 0, 1])
        >>> pull = (pairs.SameClass(labels) & pairs.NotSelf(3)).mean_over_row()
        >>> contrast(z, pull=pull, push=pairs.NotSelf(3), temperature=1.0)
        tensor([0.3133, 0.3133, 0.0000])
    """
    one_of("reduction", reduction, Reduction)
    _check_weight("pull", pull)
    sections = _checked_sections(queries, references)
    problem = ContrastSpec((Push(push),), pull, (_coefficient(coefficient, queries),), reduction)
    return evaluate(problem, queries, sections, temperature=temperature, backend=backend).losses


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
        problem: The weights, and what is wanted. Its part is used where the weights are symmetric, and the references
            then have no gradient: the queries have all of it.
        queries: z, (N, D), any floating dtype, already checked.
        sections: v, each (R, D), already checked; the same tensor as queries where they are the references.
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
        half = half_of(backend, queries, *sections)
        problem = ContrastSpec(*problem[:7], are_queries, inverse, half)  # faster than _replace
        references = tuple([v for v in sections if v is not queries])
        plain = problem
        if learns := is_learned(problem):
            plain = problem._replace(coefficients=None, reduction="none")
        engine = engine_of(backend, is_small=is_small(problem, *shape, queries.device))
        outcome = evaluate_by(engine, plain, queries, references, tau)
        outcome = with_bias(problem, outcome) if problem.is_pairwise else outcome
        return with_weights(problem, outcome, (queries, *references), tau) if learns else outcome


def _exchanged(
    problem: ContrastSpec, part: LocalAnchors, queries: Tensor, sections: tuple[Tensor, ...]
) -> tuple[ContrastSpec, tuple[Tensor, ...]]:
    """Return the problem, without its part if that takes references with gradient, and the references."""
    dtype, device, pull = torch.promote_types(queries.dtype, torch.float32), queries.device, problem.pull
    weights = [push.weight.factors(dtype, device, of_push=True) for push in problem.pushes]
    weights += [] if pull is None else [pull.factors(dtype, device)]
    symmetric = all(weight.symmetric_at == part.place for weight in weights) and problem.pulls.beside is None
    if symmetric and not problem.both_ways and len(sections) == 1:
        return problem, (sections[0].detach(),)
    return problem._replace(part=None), sections


def _checked_sections(queries: Tensor, references: References) -> tuple[Tensor, ...]:
    """Return the checked sections of references; the queries themselves if none are given."""
    references = tuple(references) if isinstance(references, list) else references
    sections = () if references is None else references if isinstance(references, tuple) else (references,)
    if isinstance(references, tuple) and not references:
        raise ValueError("expected at least one section of references, got an empty tuple: omit it to use the queries")
    check_rows("queries", queries, queries)
    for k, rows in enumerate(sections):
        if rows is not queries:
            check_rows(f"references[{k}]" if isinstance(references, tuple) else "references", rows, queries)
    return sections or (queries,)


def _coefficient(coefficient: Tensor | None, queries: Tensor) -> Tensor | None:
    """Return c without gradient; raise unless it is one value for each query."""
    if coefficient is None:
        return None
    check_tensor("coefficient", coefficient)
    if coefficient.shape != queries.shape[:1]:
        got = f"got shape {tuple(coefficient.shape)}: omit it to use the pull's row sums"
        raise ValueError(f"expected coefficient to be one value for each query, shape {(len(queries),)}, {got}")
    check_finite("coefficient", coefficient[:, None])
    return coefficient.detach().clone()  # the caller may change it before the backward


def _check_weight(name: str, weight: object) -> None:
    if not isinstance(weight, PairWeight):
        raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every public entry
            f"expected {name} to be a pair weight, got {type(weight).__name__}: put a matrix into pairs.Explicit"
        )


def _check_shape(name: str, weight: PairWeight, shape: tuple[int, int]) -> None:
    _check_weight(name, weight)
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
