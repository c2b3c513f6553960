"""BYOL's regression of one view's target from the other view's prediction."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from likewise.losses.base import Loss
from likewise.losses.checks import check_embeddings
from likewise.operator import normalized


@final
class BYOLLoss(Loss):
    r"""BYOL: predict the target, up to its length.

    $$
    \ell = 2 - 2 \cos \bigl( q, \text{stopgrad}(z') \bigr) = \bigl\| \bar q - \bar z' \bigr\|^2
    $$

    with q a prediction and $z'$ the other view's target, both normalised. There are no negatives, and so no
    denominator: it is not one of the contrastive losses, and has none of their options. A zero row has cosine 0 and
    gradient 0. Where processes hold as many samples each, the mean of their losses is the loss of all.

    Returns:
        From a call on predictions and targets: of rows, (N, D) each, the mean over rows, a scalar. Of two views,
        (B, 2, D) each, view 0's prediction meets view 1's target and the other way round: the sum of both ways, mean
        over samples. Float32 or wider.

    Raises:
        ValueError: If shapes or devices disagree, there are other than two views, or a value is NaN or infinite (looked
            at on the CPU).

    Memory:
        O(N·D).

    Source:
        Grill et al., "Bootstrap Your Own Latent", 2020, equation 2, and its symmetric form. The stopped gradient is in
        the equation: targets are detached here.

    Example:
        >>> import torch
        >>> BYOLLoss()(torch.eye(2), torch.tensor([[3.0, 0.0], [1.0, 0.0]]))
        tensor(1.)
    """

    recommended_offers = ("Momentum", "Predictor")

    def forward(
        self, predictions: Float[Tensor, "n d"] | Float[Tensor, "b 2 d"], targets: Float[Tensor, "..."]
    ) -> Float[Tensor, ""]:
        """Return the loss of predictions and targets, (N, D) each, or (B, 2, D) each."""
        check_embeddings("predictions", predictions)
        check_embeddings("targets", targets)
        if predictions.ndim == 3 and predictions.shape[1] != 2:
            raise ValueError(
                f"predictions are rows, (N, D), or two views, (B, 2, D), got shape {tuple(predictions.shape)}; "
                "give more views in pairs"
            )
        if predictions.shape != targets.shape or predictions.device != targets.device:
            raise ValueError(
                f"targets have the predictions' shape and device, {tuple(predictions.shape)} on {predictions.device}, "
                f"got {tuple(targets.shape)} on {targets.device}; encode the same views with both networks"
            )
        samples = max(len(predictions), 1)
        if predictions.ndim == 3:
            predictions, targets = predictions.flatten(0, 1), targets.flip(1).flatten(0, 1)
        cosine = (normalized(predictions) * normalized(targets.detach())).sum(dim=1)
        return (2 - 2 * cosine).sum() / samples
