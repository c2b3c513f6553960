"""Hard negatives: NT-Xent that gives closer negatives more weight and corrects for those of the anchor's class."""

import math
from typing import Annotated, Any, Unpack, final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature, scalar
from likewise.losses.checks import check_number
from likewise.losses.inputs import Views
from likewise.operator import ContrastSpec, Push


@final
class HardNegativeLoss(ContrastiveLoss):
    r"""Hard negatives: identify the sample's other view among the views of other samples, the closest weighing most.

    With s_iu = z_i · z_u / τ, p the other view of anchor i's sample, u over the N views of other samples, and
    τ⁺ the share of those that actually belong to i's class,

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
        **options: See `LossOptions`. The bound e^{−1/τ} is the smallest e^{s} of unit vectors, not of others.

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
        self,
        *,
        temperature: Temperature = 0.5,
        beta: float = 1.0,
        class_prior: float = 0.1,
        **options: Unpack[LossOptions],
    ) -> None:
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
        inside = share < 0  # the mean over the negatives exceeds what the prior explains
        rest = torch.log(-torch.expm1(share.where(inside, -1)))
        return torch.maximum((excess + rest - math.log1p(-self.class_prior)).where(inside, bound), bound)
