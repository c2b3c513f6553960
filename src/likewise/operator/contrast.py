"""The three primitives: the contrastive equation, its log-sum-exp, and sums of other functions of similarities."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from likewise.operator.backends import Backend, check_weight, evaluate
from likewise.operator.inputs import check_bias, check_finite, check_rows, graph_break, one_of
from likewise.operator.spec import ContrastSpec, Function, Push, Reduction
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
        queries: z, shape (N, D), any floating dtype; not normalised here.
        references: v, shape (R, D), or a tuple of sections as in `contrast`; None: the queries themselves.
        push: Weights ≥ 0 of shape (N, R).
        temperature: τ > 0, a number, or a 0-d or (1,) tensor, which then receives a gradient.
        backend: "auto", "dense", "tiled" or "triton".

    Returns:
        One value for each query, shape (N,), in float32 or wider; −inf, without gradient, if its push is empty.

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
        queries: z, shape (N, D), any floating dtype; not normalised here.
        references: v, shape (R, D), or a tuple of sections as in `contrast`; None: the queries themselves.
        weight: w, of shape (N, R), of any sign.
        function: f: "softplus", log(1 + eˣ); "hinge", max(0, x); "squared hinge", max(0, x)².
        temperature: τ > 0, a number, or a 0-d or (1,) tensor, which then receives a gradient.
        sign: Sign of the similarities, 1 or -1.
        bias: b, a number, or a 0-d or (1,) tensor, which then receives a gradient.
        backend: "auto", "dense", "tiled" or "triton", whose kernels leave these sums to tiles.

    Returns:
        One value for each query, shape (N,), in float32 or wider; 0 for a query without weights.

    Raises:
        ValueError, RuntimeError: See `contrast`, except for negative weights; also if f is unknown or b not finite.

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
        queries: z, shape (N, D), any floating dtype; not normalised here.
        references: v, shape (R, D), or a tuple of sections (R₁, D), (R₂, D), …, each with or without gradient; None:
            the queries themselves.
        pull: Weights of shape (N, R): how strongly each reference attracts each query. Their tensors, such as the
            vectors of `pairs.LowRank`, receive a gradient if they require one.
        push: Weights ≥ 0 of shape (N, R): how strongly each reference repels each query; with gradients as in the pull.
        temperature: τ > 0, a number, or a 0-d or (1,) tensor, which then receives a gradient.
        coefficient: c, shape (N,), constant under differentiation; None: the pull's row sums.
        reduction: "none" for one loss per query, "sum", or "mean" over the active queries, as in the losses.
        backend: "auto", "dense", "tiled" or "triton".

    Returns:
        One loss for each query, shape (N,), in float32 or wider, or a scalar. A query is active if it has a nonzero
        weight in both push and pull; an inactive one has loss 0 and no gradient.

    Raises:
        ValueError: If shapes disagree, τ is not positive, push may be negative, the backend is unknown, or an input
            contains NaN or infinity. Values are checked on the CPU only: on a GPU a check would synchronise, and an
            explicit push is assumed to have no negative weights.
        RuntimeError: In the backward of any backend except "dense", if a second derivative is requested.

    Memory:
        O((N + R)·D + tile) with "tiled" and "triton", O(N·R) with "dense"; "auto" is "tiled", or one matrix for up to
        65,536 pairs.

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
    check_weight("pull", pull)
    sections = _checked_sections(queries, references)
    problem = ContrastSpec((Push(push),), pull, (_coefficient(coefficient, queries),), reduction)
    return evaluate(problem, queries, sections, temperature=temperature, backend=backend).losses


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
