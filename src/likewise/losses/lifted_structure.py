"""Lifted structure: each positive pair against all negatives of both of its rows."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise import distributed
from likewise.losses.base import LossOptions, Temperature, scalar
from likewise.losses.checks import check_number
from likewise.losses.class_loss import ClassLoss
from likewise.losses.contrast_batch import ContrastBatch
from likewise.operator import ContrastSpec, Push
from likewise.operator.inputs import without_autocast
from likewise.operator.tiles import TILE
from likewise.operator.whole import MAX_PAIRS
from likewise.pairs import Equal, SameClass
from likewise.pairs.weight import blocks


@final
class LiftedStructureLoss(ClassLoss):
    r"""Lifted structure: bring each positive pair closer than the negatives of both of its rows.

    With s the cosine, N(i) the rows of other classes than i's, and p another row of i's class, where a queue's rows, or
    those of references, are rows, but no anchors i,

    $$
    J_{ip} = \log \Bigl( \sum_{n \in N(i)} e^{s_{in} / \tau} + \sum_{n \in N(p)} e^{s_{pn} / \tau} \Bigr)
             + (m - s_{ip}) / \tau, \qquad \ell_i = \tfrac{1}{2} \sum_p \max(0, J_{ip})^2
    $$

    τ = ½ and m = ½ are squared distances d² = 2 − 2s with a margin of 1: $e^{1 - d^2}$ for each negative, $+ d^2$ for
    the pair. The paper has the distance itself.

    Args:
        margin: m, in units of the cosine.

    Returns:
        A call returns the mean over all positive pairs (i, p) with negatives, a scalar; with ``reduction="none"`` each
        row's sum over its pairs, (N,).

    Memory:
        O((N + R)·D + tile), and one matrix of up to 65,536 pairs. A queue's rows, or those of references, are compared
        with all references, too.

    Source:
        Oh Song, Xiang, Jegelka, Savarese, "Deep Metric Learning via Lifted Structured Feature Embedding", 2016,
        whose sum over unordered pairs over 2 |P| is this mean.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> LiftedStructureLoss()(embeddings, torch.tensor([0, 0, 1, 1]))
        tensor(0.1827)
    """

    def __init__(self, *, temperature: Temperature = 0.5, margin: float = 0.5, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)
        self.margin = check_number("margin", margin, -1e6, 1e6, "0 to 0.5")

    def of_classes(
        self, rows: ContrastBatch, classes: Int[Tensor, " n"], sections: Sequence[Int[Tensor, " r"]]
    ) -> Float[Tensor, "..."]:
        """Return the loss of rows by their classes."""
        rows = rows.wide()
        far, sets = self._negatives(rows, classes, sections), rows.same_class(classes, sections) & rows.all_others()
        count = sets.row_sum(far.dtype, far.device).where(far != -torch.inf, 0)
        far = far.clamp(min=-1e30)  # where −∞ would have no gradient
        (z, v), labels, of_others = self.vectors(rows), torch.cat([*sections]), self._of_others(rows, far, sections)
        temperature = scalar(self.temperature, z)
        if self.backend == "auto" and z.device.type == "cpu" and len(z) * len(v) <= MAX_PAIRS:
            with without_autocast(z.device):
                weights = sets.tile(slice(0, len(z)), slice(0, len(v)), z.dtype, z.device)
                j = _exponents(z, v, far, of_others, temperature=temperature, margin=self.margin)[1]
                hinges = j.clamp(min=0) * weights
            return self.reduce(hinges.square().sum(dim=1) / 2, count > 0, count, count)
        order, other = classes.argsort(), labels.argsort()  # the pairs of a class side by side
        pairs = SameClass(classes[order], labels[other])
        if rows.place is not None:
            pairs &= ~Equal(order + rows.place, other)
        hinges = _Hinges.apply(z[order], v[other], far[order], of_others[other], temperature, self.margin, pairs)
        losses = torch.zeros_like(far).index_copy(0, order, hinges).where(count > 0, 0)
        return self.reduce(losses, count > 0, count, count)

    def _negatives(self, rows: ContrastBatch, classes: Tensor, sections: Sequence[Tensor]) -> Float[Tensor, " n"]:
        """Return log Σ_n e^{s_in/τ} over the rows of other classes, for each query of ``rows``; −∞ without any."""
        return self.outcome(rows, ContrastSpec((Push(~rows.same_class(classes, sections)),))).logsums[0]

    def _of_others(self, rows: ContrastBatch, far: Tensor, sections: Sequence[Tensor]) -> Float[Tensor, " r"]:
        """Return the same for all references: known for those of the batch, computed for the others."""
        of_batch = [] if rows.others else [distributed.gather(far, rows.reference_shards) if rows.gathered else far]
        vectors, classes = rows.sections[len(of_batch) :], sections[len(of_batch) :]
        apart = [
            self._negatives(rows._replace(queries=queries, others=True), labels, sections).clamp(min=-1e30)
            for queries, labels in zip(vectors, classes, strict=True)
        ]
        return torch.cat([*of_batch, *apart])


@final
class _Hinges(torch.autograd.Function):
    """Σ_p max(0, J_ip)² / 2 over positive pairs, in tiles, which the backward computes again."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, ctx.margin, ctx.pairs = inputs
        ctx.save_for_backward(*tensors)
        losses = torch.zeros_like(tensors[2])
        for rows, _, _, hinges in _tiles(ctx, tensors):
            losses[rows] += hinges.square().sum(dim=1) / 2
        return losses

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        z, v, far, of_others, temperature = tensors = ctx.saved_tensors
        gradients = of_z, of_v, of_far, back, of_temperature = [torch.zeros_like(tensor) for tensor in tensors]
        for rows, columns, s, hinges in _tiles(ctx, tensors):
            pulled = hinges.mul_(slopes[0][rows, None])
            pushed = torch.sigmoid(far[rows, None] - of_others[columns]) * pulled
            of_far[rows] += pushed.sum(dim=1)
            back[columns] += (pulled - pushed).sum(dim=0)
            of_temperature += ((s - ctx.margin) * pulled).sum() / temperature**2
            pulled /= -temperature
            of_z[rows].addmm_(pulled, v[columns])
            of_v[columns].addmm_(pulled.T, z[rows])
        return *gradients, None, None


def _exponents(
    z: Tensor, v: Tensor, far: Tensor, of_others: Tensor, *, temperature: Tensor, margin: float
) -> tuple[Float[Tensor, "n r"], Float[Tensor, "n r"]]:
    s = z @ v.T
    return s, torch.logaddexp(far.unsqueeze(1), of_others) + (margin - s) / temperature


def _tiles(ctx: Any, tensors: Any) -> Iterator[tuple[slice, slice, Float[Tensor, "n r"], Float[Tensor, "n r"]]]:
    """Yield the tiles that hold positive pairs: rows, columns, similarities, and max(0, J) of the pairs, else 0."""
    z, v, far, of_others, temperature = tensors
    with without_autocast(z.device):
        for rows, columns in product(blocks(len(z), TILE), blocks(len(v), TILE)):
            if ctx.pairs.constant(rows, columns) != 0:
                there = z[rows], v[columns], far[rows], of_others[columns]
                s, j = _exponents(*there, temperature=temperature, margin=ctx.margin)
                yield rows, columns, s, j.clamp_(min=0).mul_(ctx.pairs.tile(rows, columns, s.dtype, s.device))
