"""Losses of embeddings and class prototypes: ArcFace, CosFace, ProxyNCA++ and proxy-anchor."""

import math
from abc import abstractmethod
from typing import Annotated, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise import distributed
from likewise.distributed import RankSizes
from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature, check_number, scalar, wide
from likewise.losses.inputs import Classes, Embeddings, References
from likewise.operator import ContrastSpec, Push
from likewise.operator.inputs import check_temperature, without_autocast
from likewise.operator.whole import MAX_PAIRS
from likewise.pairs import SameClass


class MarginSoftmax(ContrastiveLoss):
    """Abstract base class: identify an anchor's class among all prototypes, with its own cosine reduced by a margin.

    Up to 65,536 pairs of rows and prototypes are evaluated as one matrix, in half the time of the operator.
    """

    label_kinds = frozenset({"classes"})

    @abstractmethod
    def target(self, z: Float[Tensor, "n d"], prototypes: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Return the cosine of each row with its own class's prototype, reduced by the margin."""

    def forward(
        self,
        embeddings: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, " b"], Classes("embeddings", below="prototypes")],
        prototypes: Annotated[Float[Tensor, "c d"], References("embeddings")],
    ) -> Float[Tensor, "..."]:
        """Return the loss of embeddings, (N, D) or (B, V, D), with a class for each sample, (B,), and prototypes."""
        embeddings, prototypes = wide(embeddings, prototypes)
        rows = self.rows(embeddings, prototypes[:0], replicated=(prototypes,))  # no other references: no rows to gather
        classes = rows.of_anchors(labels.to(rows.queries.device, torch.int64))
        numbers = torch.arange(len(prototypes), device=classes.device)
        with without_autocast(classes.device):
            if self.backend == "auto" and classes.device.type == "cpu" and len(classes) * len(numbers) <= MAX_PAIRS:
                check_temperature(self.temperature)
                z, units = self.vectors(rows)
                target, temperature = self.target(z, units[classes]), scalar(self.temperature, z)
                negatives = (z @ units.T / temperature).masked_fill(classes.unsqueeze(1) == numbers, -torch.inf)
                rest = negatives.logsumexp(dim=1)
            else:
                (rest,), *_ = self.outcome(rows, ContrastSpec((Push(~SameClass(classes, numbers)),)))
                z, class_vectors = (self.scaled(v, rows.dtype) for v in (rows.queries, prototypes[classes]))
                target, temperature = self.target(z, class_vectors), scalar(self.temperature, rest)
            excess = rest - target / temperature
            losses = torch.logaddexp(excess, torch.zeros_like(excess))
        return self.reduce(losses)


@final
class ArcFaceLoss(MarginSoftmax):
    r"""ArcFace: identify the anchor's class among all prototypes, although the angle to its own is increased.

    With θ_ic the angle between anchor i and the prototype of class c, and y the anchor's class,

    $$
    \ell_i = \log \Bigl( e^{\cos(\theta_{iy} + m) / \tau} + \sum_{c \ne y} e^{\cos \theta_{ic} / \tau} \Bigr)
             - \cos(\theta_{iy} + m) / \tau
    $$

    Beyond θ = π − m, where cos(θ + m) would increase again, it is replaced by cos θ − m sin m.

    Args:
        margin: m in radians, from 0 to π/2.
        **options: See `LossOptions`. Embeddings and prototypes must have length 1 unless normalised here.

    Memory:
        O((N + C)·D + tile).

    Source:
        Deng, Guo, Xue, Zafeiriou, "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", 2019, equation 3,
        with s = 1/τ = 64 and m = 0.5; beyond π − m, as in their code. pytorch-metric-learning has m = 28.6°, 0.49916.

    Example:
        >>> embeddings, prototypes = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.eye(2)
        >>> ArcFaceLoss(temperature=1.0)(embeddings, torch.tensor([0, 1]), prototypes)
        tensor(0.3477)
    """

    def __init__(
        self, *, temperature: Temperature = 1 / 64, margin: float = 0.5, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(temperature, **options)
        self.margin = check_number("margin", margin, 0, math.pi / 2, "0.1 to 0.5")

    def target(self, z: Float[Tensor, "n d"], prototypes: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Return cos(θ + m), with the sine from lengths, whose gradient is finite at θ = 0."""
        cosine = (z * prototypes).sum(dim=1)
        sine = torch.linalg.vector_norm(z - prototypes, dim=1) * torch.linalg.vector_norm(z + prototypes, dim=1) / 2
        shifted = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
        return torch.where(cosine >= -math.cos(self.margin), shifted, cosine - self.margin * math.sin(self.margin))


@final
class CosFaceLoss(MarginSoftmax):
    r"""CosFace: identify the anchor's class among all prototypes, although the cosine with its own is reduced.

    With s_ic the cosine of anchor i and the prototype of class c, and y the anchor's class,

    $$
    \ell_i = \log \Bigl( e^{(s_{iy} - m) / \tau} + \sum_{c \ne y} e^{s_{ic} / \tau} \Bigr) - (s_{iy} - m) / \tau
    $$

    which is the equation of all contrastive losses, with push $e^{-m/\tau}$ on the own prototype, plus m/τ.

    Args:
        margin: m, in units of the cosine.

    Memory:
        O((N + C)·D + tile).

    Source:
        Wang, Wang, Zhou, Ji, Gong, Zhou, Li, Liu, "CosFace: Large Margin Cosine Loss for Deep Face Recognition", 2018;
        s = 1/τ = 64 and m = 0.35.

    Example:
        >>> embeddings, prototypes = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.eye(2)
        >>> CosFaceLoss(temperature=1.0)(embeddings, torch.tensor([0, 1]), prototypes)
        tensor(0.4201)
    """

    def __init__(
        self, *, temperature: Temperature = 1 / 64, margin: float = 0.35, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(temperature, **options)
        self.margin = check_number("margin", margin, -1e6, 1e6, "0.1 to 0.4")

    def target(self, z: Float[Tensor, "n d"], prototypes: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Return s − m."""
        return (z * prototypes).sum(dim=1) - self.margin


@final
class ProxyNCALoss(MarginSoftmax):
    r"""ProxyNCA++: identify the prototype of the anchor's class among all prototypes.

    $$
    \ell_i = \log \sum_{c} e^{z_i \cdot w_c / \tau} - z_i \cdot w_{y_i} / \tau
    $$

    where w_c is the prototype of class c. Rows of the batch are not compared with each other.

    Args:
        temperature: τ > 0; see `ContrastiveLoss`. It is half the paper's T, which divides squared distances.

    Memory:
        O((N + C)·D + tile).

    Source:
        Teh, DeVries, Taylor, "ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component Analysis", 2020,
        sections 3.3 and 3.4, with squared distances: −d²/T = (2·cos − 2)/T, so τ = T/2, and the default is T = 1/9.

    Example:
        >>> embeddings, prototypes = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.eye(2)
        >>> ProxyNCALoss(temperature=1.0)(embeddings, torch.tensor([0, 1]), prototypes)
        tensor(0.3133)
    """

    def __init__(self, *, temperature: Temperature = 1 / 18, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)

    def target(self, z: Float[Tensor, "n d"], prototypes: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Return the cosine."""
        return (z * prototypes).sum(dim=1)


@final
class ProxyAnchorLoss(ContrastiveLoss):
    r"""Proxy-anchor: pull the rows of a class to its prototype and push the others away, the hardest of each the most.

    With s the cosine, P the C prototypes, P⁺ the prototypes of classes in the batch, and X_p the rows of p's class,

    $$
    \ell = \frac{1}{|P^+|} \sum_{p \in P^+} \log \Bigl( 1 + \sum_{x \in X_p} e^{-(s_{px} - \delta) / \tau} \Bigr)
         + \frac{1}{|P|} \sum_{p \in P} \log \Bigl( 1 + \sum_{x \notin X_p} e^{(s_{px} + \delta) / \tau} \Bigr)
    $$

    Args:
        margin: δ, in units of the cosine.
        **options: See `LossOptions`. Gathered, processes exchange two numbers for each class instead of rows.

    Returns:
        A call returns a scalar, the mean of the class losses, (C,), which ``reduction="none"`` returns; if gathered,
        these are divided by the number of processes, and add up over processes.

    Memory:
        O((N + Q + C)·D + tile).

    Source:
        Kim, Kim, Cho, Kwak, "Proxy Anchor Loss for Deep Metric Learning", 2020; there α = 1/τ = 32 and δ = 0.1.

    Example:
        >>> embeddings, prototypes = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.eye(2)
        >>> ProxyAnchorLoss(temperature=1.0)(embeddings, torch.tensor([0, 1]), prototypes)
        tensor(1.0856)
    """

    label_kinds = frozenset({"classes"})

    def __init__(
        self, *, temperature: Temperature = 1 / 32, margin: float = 0.1, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(temperature, **options)
        self.margin = check_number("margin", margin, -1e6, 1e6, "0.1")

    def forward(
        self,
        embeddings: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, " b"], Classes("embeddings", below="prototypes")],
        prototypes: Annotated[Float[Tensor, "c d"], References("embeddings")],
        *,
        queue: Annotated[Float[Tensor, "q d"] | None, References("embeddings")] = None,
        queue_labels: Annotated[Int[Tensor, " q"] | None, Classes("queue", below="prototypes")] = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch; the arguments are the same as in `BCLLoss.forward`."""
        batch = self.rows(embeddings, local=True)
        classes = batch.of_anchors(labels.to(batch.queries.device, torch.int64))
        sums, members = self._sums(prototypes, batch.queries, classes)
        world = distributed.world_size() if self.gathers else 1
        if world > 1:
            shards = RankSizes((len(prototypes),) * world, distributed.rank())
            sums = distributed.gather(sums, shards).view(world, -1, 2).logsumexp(dim=0)
            members = distributed.total(members)
        active = (members.sum() > 0).expand(len(prototypes))
        if queue is not None and queue_labels is not None:
            of_queue, more = self._sums(prototypes, queue, queue_labels.to(classes))
            sums, members = torch.logaddexp(sums, of_queue), members + more
        terms = sums + self.margin / scalar(self.temperature, sums)
        positive, negative = torch.logaddexp(terms, torch.zeros_like(terms)).unbind(dim=1)
        met = (members > 0).sum().clamp(min=1).to(sums.dtype)
        losses = ((positive * (len(prototypes) / met) + negative) / world).where(active, 0)
        return self.reduce(losses, active, members, torch.full_like(losses.detach(), 1 / world))

    def _sums(
        self, prototypes: Tensor, rows: Tensor, classes: Tensor
    ) -> tuple[Float[Tensor, "c 2"], Int[Tensor, " c"]]:
        """Return the logarithms of each class's two sums over rows, without the margin, and its number of rows."""
        same = SameClass(torch.arange(len(prototypes), device=classes.device), classes)
        outcome = self.outcome(self.rows(prototypes, rows, local=True), ContrastSpec((Push(same, -1.0), Push(~same))))
        sums = torch.stack(outcome.logsums, dim=1).clamp(min=-1e30)  # where −∞ would have no gradient
        return sums, same.row_sum(device=classes.device)
