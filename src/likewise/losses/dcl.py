"""DCL, decoupled contrastive learning, plain and weighted: the positive is not in the denominator."""

from typing import Annotated, Any, Unpack, final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.checks import Flag, check_positive
from likewise.losses.contrast_batch import ContrastBatch
from likewise.losses.inputs import Views
from likewise.operator import normalized
from likewise.operator.inputs import one_of


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
        self,
        *,
        temperature: Temperature = 0.1,
        weighted: bool = False,
        sigma: float = 0.5,
        **options: Unpack[LossOptions],
    ) -> None:
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
