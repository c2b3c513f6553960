"""Losses of the views of each sample, without labels: NT-Xent, DCL, hard negatives, and BYOL's regression."""

import math
from typing import Annotated, Any, Unpack, final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.losses.base import (
    ContrastiveLoss,
    Flag,
    Loss,
    LossOptions,
    Temperature,
    check_number,
    check_positive,
    scalar,
)
from likewise.losses.contrast_batch import ContrastBatch
from likewise.losses.inputs import Views, check_embeddings
from likewise.operator import ContrastSpec, Push, normalized
from likewise.operator.inputs import one_of


@final
class NTXentLoss(ContrastiveLoss):
    r"""NT-Xent: identify the other views of the same sample among all other views in the batch.

    $$
    \ell_i = \log \sum_{u \ne i} e^{z_i \cdot z_u / \tau} - \frac{1}{V - 1} \sum_{p} z_i \cdot z_p / \tau
    $$

    where p runs over the other views of anchor i's sample; with two views there is only one.

    Memory:
        O(B·V·D); see `likewise.contrast`.

    Source:
        Chen, Kornblith, Norouzi, Hinton, "A Simple Framework for Contrastive Learning of Visual Representations", 2020,
        equation 1, where V = 2; with more views, the loss averages over the positives.

    Example:
        >>> view_0, view_1 = torch.eye(2), torch.eye(2)
        >>> NTXentLoss(temperature=1.0)(view_0, view_1)
        tensor(0.5514)
    """

    def __init__(self, *, temperature: Temperature = 0.5, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)

    def forward(self, *views: Annotated[Float[Tensor, "..."], Views()]) -> Float[Tensor, "..."]:
        """Return the loss of two or more views, each (B, D), or of embeddings (B, V, D)."""
        rows = self.rows(*views)
        push = rows.not_self()
        positives = rows.same_sample() & push
        return self.evaluate(rows, pull=positives.mean_over_row(), push=push, positives=positives)


@final
class DCLLoss(ContrastiveLoss):
    r"""DCL: pull the views of a sample together, and push them away from the views of all other samples.

    $$
    \ell_i = \log \sum_{u \in \text{other samples}} e^{z_i \cdot z_u / \tau}
             - \frac{\omega_i}{V - 1} \sum_{p} z_i \cdot z_p / \tau
    $$

    where p runs over the other views of anchor i's sample, and ω = 1. In the weighted form, with two views $z$ and $z'$
    of each of B samples,

    $$
    \omega_i = 2 - B \, \frac{e^{\cos(z_i, z'_i) / \sigma}}{\sum_j e^{\cos(z_j, z'_j) / \sigma}}
    $$

    treated as a constant in the gradient: a pair that agrees less than others is pulled more strongly, and one that
    agrees much more may be pushed apart, ω < 0. The loss can be negative. A batch of one sample has no negatives: its
    anchors are inactive, and the loss is 0.

    Args:
        weighted: Whether positives are weighted by ω (DCLW), which needs exactly two views.
        sigma: σ > 0; the larger σ, the closer ω is to 1. Used only if weighted.
        **options: See `LossOptions`. Gathered, B and ω's sum cover all processes; ω always uses the cosine.

    Memory:
        O(B·V·D); see `likewise.contrast`.

    Source:
        Yeh et al., "Decoupled Contrastive Learning", 2022, L_DC and, weighted, L_DCW with the negative von Mises-Fisher
        weighting, where V = 2. The authors' code differentiates ω, and returns the mean over one view's anchors.

    Example:
        >>> view_0, view_1 = torch.eye(2), torch.eye(2)
        >>> DCLLoss(temperature=1.0)(view_0, view_1)
        tensor(-0.3069)
        >>> DCLLoss(temperature=1.0, weighted=True)(view_0, -view_1)
        tensor(1.6931)
    """

    def __init__(
        self, *, temperature: Temperature = 0.1, weighted: bool = False, sigma: float = 0.5,
        **options: Unpack[LossOptions],
    ) -> None:  # fmt: skip
        super().__init__(temperature, **options)
        self.weighted = one_of("weighted", weighted, Flag)
        self.sigma = check_positive("sigma", sigma)

    def forward(self, *views: Annotated[Float[Tensor, "..."], Views()]) -> Float[Tensor, "..."]:
        """Return the loss of two or more views, each (B, D), or of embeddings (B, V, D)."""
        rows = self.rows(*views)
        sample = rows.same_sample()
        positives, push = sample & rows.not_self(), ~sample
        if not self.weighted:
            return self.evaluate(rows, pull=positives.mean_over_row(), push=push, positives=positives)
        weights = self._weights(rows)
        pull, ones = positives.scale(anchors=weights), torch.ones_like(weights)
        return self.evaluate(rows, pull=pull, push=push, positives=positives, coefficients=(ones,))

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise unless there are two views, if weighted."""
        if self.weighted and (views := inputs["embeddings"].shape[1]) != 2:
            raise ValueError(
                f"expected two views for DCLLoss(weighted=True), got {views}: pass two, or set weighted=False"
            )

    def _weights(self, rows: ContrastBatch) -> Float[Tensor, " n"]:
        """Return ω of each anchor; the views of a sample share it, so a mean over rows is a mean over samples."""
        view_0, view_1 = normalized(rows.queries.detach()).chunk(2)
        agreement = rows.of_anchors((view_0 * view_1).sum(dim=1) / self.sigma)
        everyone, first = rows.of_references(agreement), rows.reference_shards.offset
        everyone = agreement if everyone is None else everyone
        weights = 2 - len(everyone) * everyone.softmax(dim=0)[first : first + len(agreement)]
        # An anchor with ω = 0 is still active: a weight too small to change any sum keeps its positive in the support.
        return weights.masked_fill(weights == 0, torch.finfo(weights.dtype).tiny)


@final
class HardNegativeLoss(ContrastiveLoss):
    r"""Hard negatives: identify the sample's other view among views of other samples, with more weight on close ones.

    With s_iu = z_i · z_u / τ, p the other view of anchor i's sample, u over the N views of other samples, and τ⁺ the
    share of these views that actually belong to i's class,

    $$
    \begin{aligned}
    \ell_i &= -\log \frac{e^{s_{ip}}}{e^{s_{ip}} + G_i} \\
    G_i &= N \max\left( \frac{1}{1 - \tau^+} \left( \frac{\sum_u e^{(\beta + 1) s_{iu}}}{\sum_u e^{\beta s_{iu}}}
           - \tau^+ e^{s_{ip}} \right), \; e^{-1 / \tau} \right)
    \end{aligned}
    $$

    β = 0 is the debiased loss, and β = τ⁺ = 0 is NT-Xent. The weights e^{βs} are differentiated like the rest of the
    formula, so this is not the equation of the other losses but combines two of its log-sum-exps, in log space. A batch
    of one sample has no negatives: its anchors are inactive, and the loss is 0, with gradient 0.

    Args:
        beta: β ≥ 0, how much extra weight close negatives get.
        class_prior: τ⁺, 0 ≤ τ⁺ < 1, the probability that a view of another sample belongs to the anchor's class.
        **options: See `LossOptions`. The bound e^{−1/τ} is the smallest e^{s} only for unit vectors.

    Memory:
        O(B·D + tile). Both sums share one product of similarities, with an exponential for each.

    Source:
        Robinson, Chuang, Sra, Jegelka, "Contrastive Learning with Hard Negative Samples", 2021, section 3, with Q = N
        and one positive; similarities are cos/τ as in the authors' code. The lower bound is from Chuang et al.,
        "Debiased Contrastive Learning", 2020.

    Example:
        >>> view_0, view_1 = torch.eye(3), torch.eye(3)
        >>> HardNegativeLoss(temperature=1.0, class_prior=0.0)(view_0, view_1)
        tensor(0.9048)
    """

    def __init__(
        self, *, temperature: Temperature = 0.5, beta: float = 1.0, class_prior: float = 0.1,
        **options: Unpack[LossOptions],
    ) -> None:  # fmt: skip
        super().__init__(temperature, **options)
        self.beta = check_number("beta", beta, 0, 1e6, "0.5 to 2; 0 weights all negatives equally")
        self.class_prior = check_number("class_prior", class_prior, 0, 0.999999, "0.1; for C equal classes it is 1/C")

    def forward(self, *views: Annotated[Float[Tensor, "..."], Views()]) -> Float[Tensor, "..."]:
        """Return the loss of two views, each (B, D), or of embeddings (B, 2, D)."""
        rows = self.rows(*views)
        sample = rows.same_sample()
        negatives = ~sample
        powers = (self.beta + 1, self.beta) if self.beta else (1.0,)
        (near, *weights), _, positive, *_ = self.outcome(
            rows, ContrastSpec(tuple(Push(negatives, power) for power in powers), sample & rows.not_self())
        )
        count = negatives.row_sum(near.dtype, near.device)
        active = count > 0
        weights = weights[0] if weights else count.log()
        excess = (near - weights).masked_fill(~active, 0) - positive
        margin = count.clamp(min=1).log() + self._debiased(excess, -1 / scalar(self.temperature, near) - positive)
        losses = torch.logaddexp(margin, torch.zeros_like(margin))  # −log(e^s / (e^s + G)), from log G − s
        return self.reduce(losses.where(active, 0), active)

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise unless there are two views."""
        if (views := inputs["embeddings"].shape[1]) != 2:
            raise ValueError(
                f"expected two views of each sample for HardNegativeLoss, got {views}: pass pairs of views"
            )

    def _debiased(self, excess: Tensor, bound: Tensor) -> Tensor:
        """Return log(G/N) − s_ip, which is log((e^x − τ⁺)/(1 − τ⁺)), or the bound if that is larger.

        The excess x is the logarithm of the weighted mean of e^{s} over the negatives, minus s_ip.
        """
        if self.class_prior == 0:
            return torch.maximum(excess, bound)
        share = math.log(self.class_prior) - excess
        inside = share < 0  # the mean over the negatives exceeds the prior's part
        rest = torch.log(-torch.expm1(share.where(inside, -1)))
        return torch.maximum((excess + rest - math.log1p(-self.class_prior)).where(inside, bound), bound)


@final
class BYOLLoss(Loss):
    r"""BYOL: predict the direction of the other view's target.

    $$
    \ell = 2 - 2 \cos \bigl( q, \text{stopgrad}(z') \bigr) = \bigl\| \bar q - \bar z' \bigr\|^2
    $$

    with q a prediction and $z'$ the other view's target, both normalised. There are no negatives: it is not one of the
    contrastive losses and has none of their options. A zero row has cosine 0 and gradient 0. If every process holds the
    same number of samples, the mean of the processes' losses is the loss of the whole batch.

    Returns:
        A call on predictions and targets returns a scalar, float32 or wider. For rows, (N, D) each, it is the mean over
        rows. For two views, (B, 2, D) each, view 0's prediction is compared with view 1's target and vice versa, and
        the loss is the sum of both directions, averaged over samples.

    Memory:
        O(N·D).

    Source:
        Grill et al., "Bootstrap Your Own Latent", 2020, equation 2, and its symmetric form. The loss detaches the
        targets, as the equation says.

    Example:
        >>> BYOLLoss()(torch.eye(2), torch.tensor([[3.0, 0.0], [1.0, 0.0]]))
        tensor(1.)
    """

    recommended_inputs = ("Momentum", "Predictor")
    supports_fullgraph = True

    def forward(
        self, predictions: Float[Tensor, "n d"] | Float[Tensor, "b 2 d"], targets: Float[Tensor, "..."]
    ) -> Float[Tensor, ""]:
        """Return the loss of predictions and targets, both (N, D) or both (B, 2, D)."""
        check_embeddings("predictions", predictions)
        check_embeddings("targets", targets)
        if predictions.ndim == 3 and predictions.shape[1] != 2:
            expected = "expected predictions to be rows, (N, D), or two views, (B, 2, D)"
            raise ValueError(f"{expected}, got shape {tuple(predictions.shape)}: pass more views as several pairs")
        if predictions.shape != targets.shape or predictions.device != targets.device:
            like, got = (f"{tuple(rows.shape)} on {rows.device}" for rows in (predictions, targets))
            expected = f"expected targets to have the predictions' shape and device, {like}, got {got}"
            raise ValueError(f"{expected}: encode the same views with both networks")
        samples = max(len(predictions), 1)
        if predictions.ndim == 3:
            predictions, targets = predictions.flatten(0, 1), targets.flip(1).flatten(0, 1)
        cosine = (normalized(predictions) * normalized(targets.detach())).sum(dim=1)
        return (2 - 2 * cosine).sum() / samples
