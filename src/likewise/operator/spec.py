"""The interface of a backend: the weights of a contrast, the requested outputs, and the results."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from likewise.pairs import PairWeight
from likewise.pairs.expressions import Split
from likewise.pairs.weight import Factors

Reduction = Literal["mean", "sum", "none"]
Function = Literal["softplus", "hinge", "squared hinge"]


class Shape(NamedTuple):
    """A function and its derivative; either may overwrite its argument, or write to ``out``."""

    value: Callable[..., Tensor]
    slope: Callable[..., Tensor]


SHAPES: dict[Function | None, Shape] = {
    "softplus": Shape(lambda a, out=None: torch.logaddexp(a, a.new_zeros(()), out=out), torch.sigmoid),
    "hinge": Shape(lambda a, out=None: torch.clamp(a, min=0, out=out), lambda a, out=None: torch.gt(a, 0, out=out)),
    "squared hinge": Shape(
        lambda a, out=None: torch.clamp(a, min=0, out=out).square_(),
        lambda a, out=None: torch.clamp(a, min=0, out=out).mul_(2),
    ),
}
"""The functions f by name; their derivatives are bounded, or grow only with the similarity."""


class Push(NamedTuple):
    """One log-sum-exp, log Σ_u weight_iu e^{power·s_iu}, or one pairwise sum, Σ_u weight_iu f(power·s_iu + bias)."""

    weight: PairWeight
    power: float = 1.0
    function: Function | None = None
    """f; None: a log-sum-exp."""
    bias: Tensor | float = 0.0

    @property
    def constant_bias(self) -> Tensor | float:
        """The bias without its gradient."""
        return self.bias.detach() if isinstance(self.bias, Tensor) else self.bias

    @property
    def is_counted(self) -> bool:
        """Whether Σ weight·f' is needed: as a learned bias's gradient, or to count a hinge's pairs with a loss."""
        return self.function == "hinge" or (isinstance(self.bias, Tensor) and self.bias.requires_grad)


class LocalAnchors(NamedTuple):
    """Queries at consecutive rows of the references; the other rows are queries of other processes."""

    place: int
    """The index of the first query among the references."""
    gather: Callable[[Tensor], Tensor]
    """Called on all processes with a tensor (N, …); returns the rows of all queries, (R, …)."""


class ContrastSpec(NamedTuple):
    r"""The weights of a contrast over sections of references, and the requested outputs.

    $$
    \text{lse}_{ki} = \log \sum_u \text{push}_{k,iu} \, e^{p_k s_{iu}} \qquad
    \text{attraction}_i = \sum_r \text{pull}_{ir} \, s_{ir}
    $$
    """

    pushes: tuple[Push, ...]
    """The push of each log-sum-exp, over all sections; or of each pairwise sum, then the only output."""
    pull: PairWeight | None = None
    """The pull over all sections, or None if there is no attraction."""
    coefficients: tuple[Tensor | None, ...] | None = None
    """Each c_k in the rows' losses, or None for the pull's row sums; None instead of a tuple: no losses."""
    reduction: Reduction = "none"
    """Reduction of the rows' losses; a reduced loss is the only output with a gradient."""
    normalize: bool = False
    """Whether rows are divided by their lengths."""
    both_ways: bool = False
    """Whether to also compute the log-sum-exps of each reference over the queries (for a single section)."""
    part: LocalAnchors | None = None
    """Access to the other queries, if the references are all queries and the weights symmetric. Each process then
    computes the whole gradient of its own rows, also as references, from a few numbers for each other row."""
    own: tuple[bool, ...] = ()
    """Whether each section is the queries; only the other sections are passed as tensors. Set by `evaluate`."""
    inv_temperature: float | None = None
    """1/τ, or None if unknown without waiting for a GPU. Set by `evaluate`."""
    half: torch.dtype | None = None
    """The half precision of products in kernels, or None for float32. Set by `evaluate`."""

    def per_section(self, of_queries: Any, of_others: Iterable[Any]) -> tuple[Any, ...]:
        """Return one item per section: the item of the queries, or the next item of the other sections."""
        rest = iter(of_others)
        return tuple([of_queries if is_queries else next(rest) for is_queries in self.own])

    @property
    def pulls(self) -> Split:
        """The parts of the pull evaluated within tiles and beside them."""
        return Split(None, None) if self.pull is None else self.pull.split()

    @property
    def is_pairwise(self) -> bool:
        """Whether pairwise sums are requested instead of log-sum-exps."""
        return self.pushes[0].function is not None

    @property
    def is_reduced(self) -> bool:
        """Whether the requested output is a single number."""
        return self.coefficients is not None and self.reduction != "none"

    @property
    def is_learned(self) -> bool:
        """Whether a weight has a gradient; the compiler differentiates the plain formula by itself."""
        weights = [push.weight for push in self.pushes] + ([] if self.pull is None else [self.pull])
        learned = any(weight.is_learned for weight in weights)
        return learned and torch.is_grad_enabled() and not torch.compiler.is_compiling()

    def push_factors(self, dtype: torch.dtype, device: torch.device) -> list[Factors]:
        """Separate the factors of anchors from each push, unless columns, too, have sums: these are over anchors."""
        if self.both_ways or self.is_pairwise:
            return [Factors(push.weight) for push in self.pushes]
        return [push.weight.factors(dtype, device, of_push=True) for push in self.pushes]

    def losses(
        self, logsums: tuple[Tensor, ...], attraction: Tensor | None
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Return Σ_k c_k lse_k − attraction, reduced as requested, with a mask of the active rows and their number.

        A row is active if it has a nonzero weight in the pull and in every push; an inactive one has loss 0 and no
        gradient.
        """
        if self.coefficients is None:
            return None, ()
        losses = active = None
        for logsum, coefficient in zip(logsums, self.coefficients, strict=True):
            inside, term = logsum.detach() != -torch.inf, self._times(logsum, coefficient)  # NaN stays visible
            active, losses = (inside, term) if active is None or losses is None else (active & inside, losses + term)
        assert active is not None and losses is not None  # noqa: S101, PT018 - there is a push
        if self.pull is not None:
            active = active & self.pull.known_support(active.device)
        losses = (losses if attraction is None else losses - attraction).where(active, 0)
        count = active.sum()
        return self.reduced(losses, count), (active, count)

    def reduced(self, losses: Tensor, count: Tensor) -> Tensor:
        """Return the rows' losses, reduced as requested."""
        if self.reduction != "none":
            losses = losses.sum()
        return losses / count.clamp(min=1) if self.reduction == "mean" else losses  # in the dtype of losses

    def split_upstream(self, upstream: "Outcome", counts: tuple[Tensor, ...]) -> "Outcome":
        """Return the gradients of log-sum-exps and attraction, including their gradients from the losses."""
        if self.coefficients is None or upstream.losses is None:
            return upstream
        of_losses = upstream.losses
        if self.reduction == "mean":
            of_losses = of_losses / counts[1].clamp(min=1)
        of_rows = torch.where(counts[0], of_losses, 0)
        terms = zip(self.coefficients, upstream.logsums, strict=True)
        logsums = tuple([_plus(self._times(of_rows, c), g) for c, g in terms])
        attraction = None if self.pull is None else _plus(-of_rows, upstream.attraction)
        return upstream._replace(logsums=logsums, attraction=attraction)

    def mass(
        self,
        upstream: "Outcome",
        totals: list[Tensor],
        back: list[Tensor],
        anchors: list[Tensor | None],
        *,
        pull: PairWeight | None,
    ) -> Tensor:
        """Return Σ W of all pairs, which follows from the upstream gradients of rows and columns.

        ``pull`` is the part of the pull in W.
        """
        of_rows = torch.zeros_like(totals[0])
        for push, g, total, scale in zip(self.pushes, upstream.logsums, totals, anchors, strict=True):
            if g is not None:
                empty = total == 0 if scale is None else (total == 0) | (scale == 0)
                of_rows += g.masked_fill(empty, 0) * push.power
        if upstream.attraction is not None and pull is not None:
            of_rows += upstream.attraction * pull.known_row_sum(of_rows.dtype, of_rows.device)
        result = of_rows.sum()
        for push, g, total in zip(self.pushes, upstream.columns if back else (), back, strict=False):
            if g is not None:
                result += g.masked_fill(total == 0, 0).sum() * push.power
        return result

    def _times(self, values: Tensor, coefficient: Tensor | None) -> Tensor:
        if coefficient is not None:
            return values * coefficient.to(values)
        assert self.pull is not None  # noqa: S101 - coefficients are given if there is no pull
        return values if self.pull.sums_to_one else values * self.pull.known_row_sum(values.dtype, values.device)

    def flat(self, outcome: "Outcome") -> tuple[Tensor, ...]:
        """Return the tensors of an outcome as a flat tuple; if reduced, only the loss and the counts."""
        if self.is_reduced:
            return outcome.losses, *outcome.counts
        tensors = (*outcome.logsums, *outcome.columns, outcome.attraction, outcome.losses, *outcome.counts)
        return tuple([x for x in tensors if x is not None])

    def outcome(self, tensors: "tuple[Tensor | None, ...]") -> "Outcome":
        """Rebuild an outcome from a flat tuple of tensors."""
        none = (None,) * len(self.pushes)
        if self.is_reduced:
            return Outcome(none, none if self.both_ways else (), None, tensors[0], tensors[1:])
        rest = iter(tensors)
        logsums = tuple([next(rest) for _ in none])
        columns = tuple([next(rest) for _ in none]) if self.both_ways else ()
        attraction = None if self.pull is None else next(rest)
        losses = None if self.coefficients is None else next(rest)
        return Outcome(logsums, columns, attraction, losses, tuple(rest))


class Outcome(NamedTuple):
    """The terms of a contrast and, if requested, its losses; or the gradients of these, None for a missing one."""

    logsums: tuple[Any, ...]
    """lse of each push, (N,), −∞ for a row without pairs; or its pairwise sum."""
    columns: tuple[Any, ...]
    """lse of each push for each reference over the queries, (R,), if requested."""
    attraction: Any
    """(N,), if there is a pull."""
    losses: Any
    """One loss per row, (N,), or their sum or mean, as specified by the problem; if requested."""
    counts: tuple[Any, ...]
    """With losses: the mask of active rows, (N,), their number, and each row's positives if counted by the backend.
    With pairwise sums: Σ_u weight_iu f'(power·s_iu + bias) of each push, (N,), if it is counted, else zeros."""


class NeedsGrad(NamedTuple):
    """The inputs that need a gradient."""

    temperature: bool
    queries: bool
    sections: tuple[bool, ...]
    """One for each section; a section of the queries themselves follows ``queries``."""


def _plus(gradient: Tensor, other: Tensor | None) -> Tensor:
    return gradient if other is None else gradient + other
