"""Softmax over class vectors: ArcFace and CosFace, with a margin for the anchor's class, and ProxyNCA++, without."""

import math
from abc import abstractmethod
from typing import Annotated, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature, scalar, wide
from likewise.losses.checks import check_number
from likewise.losses.inputs import Classes, Embeddings, References
from likewise.operator import ContrastSpec, Push
from likewise.operator.inputs import check_temperature, without_autocast
from likewise.operator.whole import MAX_PAIRS
from likewise.pairs import SameClass


class MarginSoftmax(ContrastiveLoss):
    """Abstract: identify an anchor's class among all prototypes, its own cosine reduced by a margin.

    Up to 65,536 pairs of rows and prototypes are evaluated as one matrix, which takes half of the time of the operator.
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
        rows = self.rows(embeddings, prototypes[:0], replicated=(prototypes,))  # the only references: no rows to gather
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
    r"""ArcFace: identify the anchor's class among all prototypes, though the angle to its own is made larger.

    With θ_ic the angle between anchor i and the prototype of class c, and y the anchor's class,

    $$
    \ell_i = \log \Bigl( e^{\cos(\theta_{iy} + m) / \tau} + \sum_{c \ne y} e^{\cos \theta_{ic} / \tau} \Bigr)
             - \cos(\theta_{iy} + m) / \tau
    $$

    Beyond θ = π − m, where cos(θ + m) would increase again, it is replaced by cos θ − m sin m.

    Args:
        margin: m in radians, from 0 to π/2.
        **options: See `LossOptions`. Embeddings and prototypes that are not normalised here must have length 1.

    Memory:
        O((N + C)·D + tile).

    Source:
        Deng, Guo, Xue, Zafeiriou, "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", 2019, equation 3,
        with s = 1/τ = 64 and m = 0.5; beyond π − m, their code. pytorch-metric-learning has m = 28.6°, 0.49916.

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
    r"""CosFace: identify the anchor's class among all prototypes, though the cosine with its own is made smaller.

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
    r"""ProxyNCA++: identify the prototype of the anchor's class among those of all classes.

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
