"""The one equation: check what comes, and put its two terms together."""

import math
from numbers import Real

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.operator import backends
from likewise.operator.backends import Backend, check_backend, half_of
from likewise.operator.precision import rounded, without_autocast
from likewise.pairs import PairWeight

References = Tensor | tuple[Tensor, ...] | list[Tensor] | None

RANGE = 1e-15, 1e15
"""Between these a temperature may lie."""


def log_sum_exp(
    queries: Float[Tensor, "n d"],
    references: References = None,
    *,
    push: PairWeight,
    temperature: float | Tensor,
    backend: Backend = "auto",
) -> Float[Tensor, " n"]:
    r"""Return each query's weighted log-sum-exp of its similarities, exact and in linear memory.

    $$
    \text{lse}_i = \log \sum_u \text{push}_{iu} \, e^{z_i \cdot v_u / \tau}
    $$

    Args:
        queries: z, shape (N, D), any floating dtype; used as they are, not normalised.
        references: v, shape (R, D), or a tuple of sections (R₁, D), (R₂, D), …, each with or without gradient; None:
            the queries themselves.
        push: Weights ≥ 0 of shape (N, R).
        temperature: τ > 0, a number or a 0-d tensor, which then receives its gradient.
        backend: "auto", "dense", "tiled" or "triton".

    Returns:
        One value for each query, shape (N,), in float32 or wider; −inf without gradient where its push is empty.

    Raises:
        ValueError: If shapes disagree, τ is not positive, push may be negative, the backend is unknown, or an input
            holds NaN or infinity. Values are looked at on the CPU; on a GPU that would synchronise, and an explicit
            push is taken there to hold no negative weight.
        RuntimeError: In the backward of "tiled" and "triton", if it is asked for a gradient of the gradient.

    Memory:
        O((N + R)·D + tile) with "tiled" and "triton", O(N·R) with "dense"; "auto" takes "dense" up to 64 x 64 pairs.

    Example:
        >>> import torch
        >>> from likewise import pairs
        >>> z = torch.eye(3)
        >>> log_sum_exp(z, push=pairs.NotSelf(3), temperature=1.0)
        tensor([0.6931, 0.6931, 0.6931])
    """
    queries, sections, half = _rows(queries, references, backend)
    return log_sum_exp_of_rows(queries, sections, push=push, temperature=temperature, backend=backend, half=half)


def log_sum_exp_of_rows(
    queries: Float[Tensor, "n d"],
    sections: tuple[Float[Tensor, "_ d"], ...],
    *,
    push: PairWeight,
    temperature: float | Tensor,
    backend: Backend = "auto",
    half: torch.dtype | None = None,
) -> Float[Tensor, " n"]:
    """Return what `log_sum_exp` returns of rows that were checked, of one dtype.

    ``half`` is the half precision in which their values are exact, where kernels are to multiply in it.
    """
    _check_push(push, queries, sections)
    with without_autocast(queries.device):
        tau = _temperature(temperature, queries)
        return backends.log_sum_exp(queries, sections, push, tau, backend=backend, half=half)


def log_sum_exp_both_ways(
    queries: Float[Tensor, "n d"],
    references: Float[Tensor, "r d"],
    *,
    push: PairWeight,
    temperature: float | Tensor,
    backend: Backend = "auto",
    half: torch.dtype | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " r"]]:
    r"""Return the weighted log-sum-exp of each query over the references, and of each reference over the queries.

    $$
    \text{lse}_i = \log \sum_u \text{push}_{iu} \, e^{z_i \cdot v_u / \tau} \qquad
    \text{lse}'_u = \log \sum_i \text{push}_{iu} \, e^{z_i \cdot v_u / \tau}
    $$

    Dense and tiles make one product of queries and references for both, forward and backward; kernels make one for
    each direction forward, and one for each gradient, of both directions, backward. Rows were checked, and are of one
    dtype, float32 or wider; see `log_sum_exp` for the arguments, for what is raised, and for the memory.
    """
    _check_push(push, queries, (references,))
    with without_autocast(queries.device):
        tau = _temperature(temperature, queries)
        return backends.log_sum_exp_both_ways(queries, references, push, tau, backend=backend, half=half)


def contrast(
    queries: Float[Tensor, "n d"],
    references: References = None,
    *,
    pull: PairWeight,
    push: PairWeight,
    temperature: float | Tensor,
    coefficient: Float[Tensor, " n"] | None = None,
    backend: Backend = "auto",
) -> Float[Tensor, " n"]:
    r"""Return each query's contrastive loss: the equation that every loss of this library is.

    $$
    \ell_i = c_i \log \sum_u \text{push}_{iu} \, e^{z_i \cdot v_u / \tau}
             - \sum_r \text{pull}_{ir} \, z_i \cdot v_r / \tau
    $$

    Args:
        queries: z, shape (N, D), any floating dtype; used as they are, not normalised.
        references: v, shape (R, D), or a tuple of sections (R₁, D), (R₂, D), …, each with or without gradient; None:
            the queries themselves.
        pull: Weights of shape (N, R), toward which a query is drawn.
        push: Weights ≥ 0 of shape (N, R), from which it is driven.
        temperature: τ > 0, a number or a 0-d tensor, which then receives its gradient.
        coefficient: c, shape (N,), constant under differentiation; None: the pull's row sums.
        backend: "auto", "dense", "tiled" or "triton".

    Returns:
        One loss for each query, shape (N,), in float32 or wider. A query is active when its push has mass and its
        pull has support; an inactive one has loss 0 and no gradient.

    Raises:
        ValueError: If shapes disagree, τ is not positive, push may be negative, the backend is unknown, or an input
            holds NaN or infinity. Values are looked at on the CPU; on a GPU that would synchronise, and an explicit
            push is taken there to hold no negative weight.
        RuntimeError: In the backward of "tiled" and "triton", if it is asked for a gradient of the gradient.

    Memory:
        O((N + R)·D + tile) with "tiled" and "triton", O(N·R) with "dense"; "auto" takes "dense" up to 64 x 64 pairs.

    Example:
        >>> import torch
        >>> from likewise import pairs
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> labels = torch.tensor([0, 0, 1])
        >>> pull = (pairs.SameClass(labels) & pairs.NotSelf(3)).mean_over_row()
        >>> contrast(z, pull=pull, push=pairs.NotSelf(3), temperature=1.0)
        tensor([0.3133, 0.3133, 0.0000])
    """
    rows, sections, half = _rows(queries, references, backend)
    return contrast_and_activity(
        rows,
        sections,
        pull=pull,
        push=push,
        temperature=temperature,
        coefficient=coefficient,
        backend=backend,
        half=half,
    )[0]


def contrast_and_activity(
    queries: Float[Tensor, "n d"],
    sections: tuple[Float[Tensor, "_ d"], ...],
    *,
    pull: PairWeight,
    push: PairWeight,
    temperature: float | Tensor,
    coefficient: Float[Tensor, " n"] | None = None,
    support: Bool[Tensor, " n"] | None = None,
    backend: Backend = "auto",
    half: torch.dtype | None = None,
) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
    """Return what `contrast` returns of rows that were checked, of one dtype, and which of the queries are active.

    ``support`` says which queries pull draws, where that is known; it is asked of pull otherwise. ``half`` is the half
    precision in which the rows' values are exact, where kernels are to multiply in it.
    """
    _check_shape("pull", pull, queries, sections)
    _check_push(push, queries, sections)
    with without_autocast(queries.device):
        tau = _temperature(temperature, queries)
        repulsion = backends.log_sum_exp(queries, sections, push, tau, backend=backend, half=half)
        attraction = torch.linalg.vecdot(queries, pull @ sections) / tau
        if coefficient is None:
            coefficient = pull.row_sum(queries.dtype, queries.device)
        elif coefficient.shape != repulsion.shape:
            raise ValueError(
                f"coefficient is one value for each query, shape {tuple(repulsion.shape)}, "
                f"got shape {tuple(coefficient.shape)}; leave it out for the pull's row sums"
            )
        drawn = pull.support(queries.device) if support is None else support
        active = drawn & (repulsion.detach() != -torch.inf)  # what is NaN shows
        losses = coefficient.detach().to(repulsion) * repulsion - attraction
        return torch.where(active, losses, 0), active


def _rows(
    queries: Tensor, references: References, backend: Backend
) -> tuple[Tensor, tuple[Tensor, ...], torch.dtype | None]:
    """Check the embeddings and promote them to one dtype, float32 or wider; say in which half they are multiplied."""
    references = tuple(references) if isinstance(references, list) else references
    given = () if references is None else references if isinstance(references, tuple) else (references,)
    if isinstance(references, tuple) and not references:
        raise ValueError("references are one section or more, got an empty tuple; leave them out for the queries")
    names = [
        "queries",
        *(f"references[{k}]" if isinstance(references, tuple) else "references" for k in range(len(given))),
    ]
    dtype = torch.float32
    for name, rows in zip(names, (queries, *given), strict=True):
        _check_embeddings(name, rows, queries)
        dtype = torch.promote_types(dtype, rows.dtype)
    check_backend(backend, queries.device, dtype)
    half = half_of(backend, queries.device, (v.dtype for v in (queries, *given)))
    promoted = _promoted(queries, dtype, half)
    sections = tuple(promoted if v is queries else _promoted(v, dtype, half) for v in given)
    return promoted, sections or (promoted,), half


def _promoted(rows: Tensor, dtype: torch.dtype, half: torch.dtype | None) -> Tensor:
    return rows.to(dtype) if rows.dtype == half else rounded(rows.to(dtype), half)


def _check_embeddings(name: str, rows: Tensor, queries: Tensor) -> None:
    if rows.ndim != 2 or not rows.is_floating_point():
        raise ValueError(f"{name} are floating rows of features, (n, d), got {rows.dtype} of shape {tuple(rows.shape)}")
    if rows.shape[1] != queries.shape[1]:
        raise ValueError(f"{name} have the queries' {queries.shape[1]} features, got shape {tuple(rows.shape)}")
    if rows.device != queries.device:
        raise ValueError(f"{name} lie on the queries' device, {queries.device}, got {rows.device}; move them with .to")
    check_finite(name, rows)


def check_finite(name: str, rows: Tensor) -> None:
    """Raise if rows hold NaN or infinity; on a GPU this would synchronise, and they are not looked at."""
    if rows.device.type != "cpu" or not rows.numel():
        return
    low, high = rows.detach().aminmax()
    if not (math.isfinite(low) and math.isfinite(high)):
        bad = (~torch.isfinite(rows.detach())).flatten(1).any(dim=1).nonzero().flatten().tolist()
        raise ValueError(
            f"{name} are finite, got NaN or infinity in {len(bad)} of {len(rows)} rows, the first at {bad[0]}; "
            "look for a diverged learning rate, a division by zero or a bad input upstream"
        )


def _check_push(push: PairWeight, queries: Tensor, sections: tuple[Tensor, ...]) -> None:
    _check_shape("push", push, queries, sections)
    if not push.is_nonnegative:
        raise ValueError(f"push holds weights ≥ 0, got {push} with negative ones; only pull may be negative")


def _check_shape(name: str, weight: PairWeight, queries: Tensor, sections: tuple[Tensor, ...]) -> None:
    if not isinstance(weight, PairWeight):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every door
            f"{name} is a pair weight, got {type(weight).__name__}; a matrix of weights goes into pairs.Explicit"
        )
    expected = len(queries), sum(len(v) for v in sections)
    if weight.shape != expected:
        raise ValueError(
            f"{name} weighs {expected[0]} queries by {expected[1]} references, got {weight}; "
            "build the weight for the rows that are given"
        )


def check_temperature(temperature: object, name: str = "temperature", usual: str = "0.05 to 1") -> None:
    """Raise unless a temperature is a positive number or a positive 0-d tensor, whose value a GPU keeps to itself.

    It lies within the `RANGE` in which neither it nor its inverse's square leaves float32.
    """
    if isinstance(temperature, Tensor):
        if temperature.ndim:
            raise ValueError(f"a {name} tensor is 0-d, got shape {tuple(temperature.shape)}; take one element of it")
        if temperature.device.type != "cpu":
            return
        temperature = temperature.detach().item()
    if not RANGE[0] <= number(temperature) <= RANGE[1]:
        raise ValueError(
            f"{name} is a positive number, got {temperature!r}, or a 0-d tensor, within {RANGE[0]:g} … {RANGE[1]:g}; "
            f"usual values are {usual}"
        )


def number(value: object) -> float:
    """Return what is a real number as a float, and NaN for everything else."""
    return math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)


def _temperature(temperature: float | Tensor, queries: Tensor) -> Tensor:
    check_temperature(temperature)
    if isinstance(temperature, Tensor):
        return temperature.to(queries.device, queries.dtype)
    return torch.full((), temperature, dtype=queries.dtype, device=queries.device)
