"""DCL, decoupled contrastive learning: the positive is not in the denominator; plain and weighted."""

from typing import Unpack, final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions
from likewise.losses.checks import Flag, check_positive, one_of
from likewise.losses.rows import Rows
from likewise.losses.views import stacked
from likewise.operator import normalized
from likewise.pairs import SameSample


@final
class DCLLoss(ContrastiveLoss):
    r"""DCL: draw the views of a sample together, and drive them from the views of all other samples.

    $$
    \ell_i = \log \sum_{u \in \text{other samples}} e^{z_i \cdot z_u / \tau}
             - \frac{\omega_i}{V - 1} \sum_{p} z_i \cdot z_p / \tau
    $$

    where p runs over the other views of anchor i's sample, and ω = 1. Weighted, for two views $z$ and $z'$ of each of
    B samples,

    $$
    \omega_i = 2 - B \, \frac{e^{\cos(z_i, z'_i) / \sigma}}{\sum_j e^{\cos(z_j, z'_j) / \sigma}}
    $$

    constant under differentiation: a pair that agrees less than others is drawn more, and one that agrees much more may
    be driven apart, ω < 0. The loss can be negative. One sample alone has nothing to be driven from: its anchors are
    inactive, and the loss is 0.

    Args:
        temperature: τ > 0, a number, or a 0-d tensor or parameter, which then receives its gradient.
        weighted: Whether positives are weighted by ω (DCLW), which takes two views.
        sigma: σ > 0; the larger, the nearer is ω to 1. Only weighted.
        **options: reduction, normalize, gather_distributed, backend; see `LossOptions`. Gathered, B and ω's sum are
            over the samples of all processes; ω is of the cosine with ``normalize=False`` too.

    Returns:
        From a call on ``view_0, view_1, …``, each (B, D), or on one tensor of embeddings, (B, V, D): the mean over all
        B·V anchors, a scalar; with ``reduction="none"`` one loss for each row, (B·V,), all first views first.

    Raises:
        ValueError: If there is one view only, or more than two for ω, views differ in shape, embeddings hold NaN or
            infinity, or τ or σ is not positive.

    Memory:
        O(B·V·D); see `likewise.contrast`.

    Source:
        Yeh et al., "Decoupled Contrastive Learning", 2022, L_DC and, weighted, L_DCW with the negative von Mises-Fisher
        weighting, where V = 2; more views average over the positives. The authors' code differentiates ω, takes its
        embeddings as normalised already, and leaves sums of views to the caller: it returns the mean of one view's
        anchors, of which this is the mean over both. It takes own pairs out by adding log 1e-45 to their logits.

    Example:
        >>> import torch
        >>> view_0, view_1 = torch.eye(2), torch.eye(2)
        >>> DCLLoss(temperature=1.0)(view_0, view_1)
        tensor(-0.3069)
        >>> DCLLoss(temperature=1.0, weighted=True)(view_0, -view_1)
        tensor(1.6931)
    """

    def __init__(
        self,
        *,
        temperature: float | Tensor = 0.1,
        weighted: bool = False,
        sigma: float = 0.5,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(temperature, **options)
        self.weighted = one_of("weighted", weighted, Flag)
        self.sigma = check_positive("sigma", sigma)

    def forward(self, *views: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the loss of two views or more, each (B, D), or of embeddings (B, V, D)."""
        with self.checks(*views[:1]) as inputs:
            embeddings = inputs["embeddings"] = stacked(views, "DCLLoss")
            if self.weighted and embeddings.shape[1] != 2:
                raise ValueError(
                    f"DCLLoss(weighted=True) takes two views, got {embeddings.shape[1]}; give two, or take "
                    "weighted=False"
                )
        rows = self.rows(embeddings)
        sample = SameSample(*rows.samples())
        positives, push = sample & rows.not_self(), ~sample
        if not self.weighted:
            return self.evaluate(rows, pull=positives.mean_over_row(), push=push, positives=positives)
        weights = self._weights(rows)
        pull, one = positives.scale(anchors=weights), torch.ones_like(weights)
        return self.evaluate(rows, pull=pull, push=push, positives=positives, coefficients=(one,))

    def _weights(self, rows: Rows) -> Float[Tensor, " n"]:
        """Return ω of each anchor; a sample's views share it, so that a mean over rows is one over samples."""
        view_0, view_1 = normalized(rows.queries.detach()).chunk(2)
        agreement = rows.of_anchors((view_0 * view_1).sum(dim=1) / self.sigma)
        everyone = rows.of_references(agreement)
        everyone = agreement if everyone is None else everyone
        first = rows.reference_shards.offset
        weights = 2 - len(everyone) * everyone.softmax(dim=0)[first : first + len(agreement)]
        # An anchor whose ω comes out as 0 is still driven: below all rounding, its positive stays in pull's support.
        return weights.masked_fill(weights == 0, torch.finfo(weights.dtype).tiny)
