"""Losses of pairs within and across classes: contrastive with margins, multi-similarity, lifted structure."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Annotated, Any, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise import distributed
from likewise.losses.base import ContrastiveLoss, Flag, LossOptions, Temperature, check_number, check_positive, scalar
from likewise.losses.contrast_batch import ContrastBatch
from likewise.losses.inputs import Classes, Embeddings, References
from likewise.operator import ContrastSpec, Push
from likewise.operator.inputs import one_of, without_autocast
from likewise.operator.tiles import TILE
from likewise.operator.whole import MAX_PAIRS
from likewise.pairs import Below, Equal, Hardest, SameClass
from likewise.pairs.weight import blocks


class ClassLoss(ContrastiveLoss):
    """Abstract base class of losses that compare each row with the rows of its own class and of other classes."""

    label_kinds = frozenset({"classes"})

    def forward(
        self,
        embeddings: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, " b"], Classes("embeddings")],
        *,
        references: Annotated[Float[Tensor, "r d"] | None, References("embeddings")] = None,
        reference_labels: Annotated[Int[Tensor, " r"] | None, Classes("references")] = None,
        queue: Annotated[Float[Tensor, "q d"] | None, References("embeddings")] = None,
        queue_labels: Annotated[Int[Tensor, " q"] | None, Classes("queue")] = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            embeddings: One view of each sample, (N, D), or V views, (B, V, D). B below is N for one view.
            labels: Classes of the samples, any integers, (B,).
            references: Rows to compare with instead of the batch, (R, D), with no anchor among them. Gathered across
                processes with ``gather_distributed``.
            reference_labels: Their classes, (R,).
            queue: Further rows to compare with, (Q, D), the same on every process (see `likewise.memory.Queue`).
            queue_labels: Their classes, (Q,).
        """
        rows = self.rows(embeddings, references, replicated=() if queue is None else (queue,))
        return self.of_classes(rows, *rows.classes(labels, reference_labels, queue_labels))

    @abstractmethod
    def of_classes(
        self, rows: ContrastBatch, classes: Int[Tensor, " n"], sections: Sequence[Int[Tensor, " r"]]
    ) -> Float[Tensor, "..."]:
        """Return the loss of rows, given the classes of the anchors, and of each section of references."""


@final
class ContrastiveMarginLoss(ClassLoss):
    r"""Contrastive loss with margins: pull pairs of the same class together, and push pairs of different classes apart.

    With s the cosine, P the pairs within a class and N the pairs across classes,

    $$
    L = \frac{1}{n_P} \sum_{(i, p) \in P} f(m_P - s_{ip}) + \frac{1}{n_N} \sum_{(i, u) \in N} f(s_{iu} - m_N)
    $$

    where $f(x) = \max(0, x)$, or its square, and $n_P$ and $n_N$ are the numbers of pairs with a loss: pairs beyond
    their margin do not dilute the mean. For rows of length 1, ‖a − b‖² = 2 − 2s: margins of squared distances D are
    similarities of 1 − D/2.

    Args:
        positive_margin: $m_P$: more similar positives have no loss.
        negative_margin: $m_N$: less similar negatives have no loss.
        squared: Whether f is squared, so that pairs close to their margin pull or push less.
        **options: See `LossOptions`. The backend "triton" evaluates it in tiles.

    Returns:
        A call returns L, a scalar; with ``reduction="none"`` each row's share of L times the number of rows, (N,),
        whose mean is L.

    Memory:
        O((N + R)·D + tile).

    Source:
        Hadsell, Chopra, LeCun, "Dimensionality Reduction by Learning an Invariant Mapping", 2006, which squares
        distances; with similarities as pytorch-metric-learning's ContrastiveLoss(distance=CosineSimilarity()).

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> ContrastiveMarginLoss(positive_margin=1.0, negative_margin=0.5)(z, torch.tensor([0, 0, 1]))
        tensor(0.7000)
    """

    def __init__(
        self, *, positive_margin: float = 1.0, negative_margin: float = 0.5, squared: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:  # fmt: skip
        super().__init__(1.0, **options)
        self.positive_margin = check_number("positive_margin", positive_margin, -1e6, 1e6, "0.8 to 1")
        self.negative_margin = check_number("negative_margin", negative_margin, -1e6, 1e6, "0 to 0.5")
        self.squared = one_of("squared", squared, Flag)

    def of_classes(
        self, rows: ContrastBatch, classes: Int[Tensor, " n"], sections: Sequence[Int[Tensor, " r"]]
    ) -> Float[Tensor, "..."]:
        """Return the loss of rows by their classes."""
        same = rows.same_class(classes, sections)
        positives = same & rows.all_others()
        pushes = [
            Push(positives, -1.0, "hinge", self.positive_margin),
            Push(~same, 1.0, "hinge", -self.negative_margin),
        ]
        if self.squared:
            pushes += [push._replace(function="squared hinge") for push in pushes]
        outcome = self.outcome(rows, ContrastSpec(tuple(pushes)))
        count = torch.full((), float(len(rows.queries)), dtype=rows.dtype, device=rows.queries.device)
        counts = [count, *(slopes.sum() for slopes in outcome.counts[:2])]  # a hinge with a loss has slope 1
        count, *of_pairs = [distributed.total(number) for number in counts] if self.gathers else counts
        sums = zip(outcome.logsums[-2:], of_pairs, strict=True)
        zeros = torch.zeros_like(outcome.logsums[0])
        losses = sum((loss * (count / pairs.clamp(min=1)) for loss, pairs in sums), zeros)
        return self.reduce(losses, positives=positives)


@final
class MultiSimilarityLoss(ClassLoss):
    r"""Multi-similarity: pull positives above a threshold and push negatives below it, the hardest of each the most.

    With s the cosine, P(i) the other rows of anchor i's class and N(i) the rows of other classes,

    $$
    \ell_i = \frac{1}{\alpha} \log \Bigl( 1 + \sum_{p \in P(i)} e^{-\alpha (s_{ip} - \lambda)} \Bigr)
           + \frac{1}{\beta} \log \Bigl( 1 + \sum_{n \in N(i)} e^{\beta (s_{in} - \lambda)} \Bigr)
    $$

    Every anchor with any other row is active. Rows of a queue or of references are other rows, but never anchors.

    Args:
        alpha: α > 0, the scale of positives.
        beta: β > 0, the scale of negatives.
        threshold: λ, in units of the cosine.
        epsilon: ε, to keep only positives with s ≤ max_n s_in + ε and negatives with s > min_p s_ip − ε; None: all.

    Memory:
        O((N + R)·D + tile). With ε, similarities are computed twice more, and again wherever the weights are evaluated.

    Source:
        Wang, Han, Huang, Dong, Scott, "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning",
        2019, where λ = 1 and ε = 0.1. The defaults are those of pytorch-metric-learning.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> MultiSimilarityLoss()(embeddings, torch.tensor([0, 0, 1, 1]))
        tensor(0.1580)
    """

    def __init__(
        self, *, alpha: float = 2.0, beta: float = 50.0, threshold: float = 0.5, epsilon: float | None = None,
        **options: Unpack[LossOptions],
    ) -> None:  # fmt: skip
        super().__init__(1.0, **options)
        self.alpha = check_positive("alpha", alpha, "2")
        self.beta = check_positive("beta", beta, "40 to 50")
        self.threshold = check_number("threshold", threshold, -1e6, 1e6, "0.5 to 1")
        self.epsilon = None if epsilon is None else check_number("epsilon", epsilon, -1e6, 1e6, "0.1")

    def of_classes(
        self, rows: ContrastBatch, classes: Int[Tensor, " n"], sections: Sequence[Int[Tensor, " r"]]
    ) -> Float[Tensor, "..."]:
        """Return the loss of rows by their classes."""
        same, not_self = rows.same_class(classes, sections), rows.all_others()
        positives = same & not_self
        near, far = positives, ~same
        if self.epsilon is not None:
            z, v = (vectors.detach() for vectors in self.vectors(rows))
            nearest = Hardest(z, far, references=v).similarities[:, 0] + self.epsilon
            farthest = Hardest(z, near, references=v, farthest=True).similarities[:, 0] - self.epsilon
            near, far = near & Below(z, v, limits=nearest), far & ~Below(z, v, limits=farthest)
        (p, n), *_ = self.outcome(rows, ContrastSpec((Push(near, -self.alpha), Push(far, self.beta))))
        zero, active = torch.zeros_like(p), not_self.support(p.device)
        p, n = p + self.alpha * self.threshold, n - self.beta * self.threshold
        losses = torch.logaddexp(p, zero) / self.alpha + torch.logaddexp(n, zero) / self.beta
        return self.reduce(losses, active, positives)


@final
class LiftedStructureLoss(ClassLoss):
    r"""Lifted structure: bring each positive pair closer than the negatives of both of its rows.

    With s the cosine, N(i) the rows of classes other than i's, and p another row of i's class, where the rows of a
    queue or of references count as rows, but never as anchors i,

    $$
    J_{ip} = \log \Bigl( \sum_{n \in N(i)} e^{s_{in} / \tau} + \sum_{n \in N(p)} e^{s_{pn} / \tau} \Bigr)
             + (m - s_{ip}) / \tau, \qquad \ell_i = \tfrac{1}{2} \sum_p \max(0, J_{ip})^2
    $$

    τ = ½ and m = ½ are squared distances d² = 2 − 2s with a margin of 1: $e^{1 - d^2}$ for each negative, $+ d^2$ for
    the pair. The paper uses the distance itself.

    Args:
        margin: m, in units of the cosine.

    Returns:
        A call returns the mean over all positive pairs (i, p) with negatives, a scalar; with ``reduction="none"`` each
        row's sum over its pairs, (N,).

    Memory:
        O((N + R)·D + tile), and one matrix of up to 65,536 pairs. The rows of a queue or of references are compared
        with all references, too.

    Source:
        Oh Song, Xiang, Jegelka, Savarese, "Deep Metric Learning via Lifted Structured Feature Embedding", 2016, whose
        sum over unordered pairs, divided by 2 |P|, is this mean.

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
        far = far.clamp(min=-1e30)  # −∞ would have no gradient
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
        """Return the same for all references: known for the rows of the batch, computed for the others."""
        of_batch = [] if rows.others else [distributed.gather(far, rows.reference_shards) if rows.gathered else far]
        vectors, classes = rows.sections[len(of_batch) :], sections[len(of_batch) :]
        apart = [
            self._negatives(rows._replace(queries=queries, others=True), labels, sections).clamp(min=-1e30)
            for queries, labels in zip(vectors, classes, strict=True)
        ]
        return torch.cat([*of_batch, *apart])


@final
class _Hinges(torch.autograd.Function):
    """Σ_p max(0, J_ip)² / 2 over positive pairs, in tiles, which the backward recomputes."""

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
