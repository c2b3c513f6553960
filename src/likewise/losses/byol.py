"""BYOL's regression loss: one view's prediction against the other view's target."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from likewise.losses.base import Loss
from likewise.losses.checks import check_embeddings
from likewise.operator import normalized


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
        rows. For two views, (B, 2, D) each, view 0's prediction is compared with view 1's target and vice versa, and it
        is the sum of both directions, averaged over samples.

    Memory:
        O(N·D).

    Source:
        Grill et al., "Bootstrap Your Own Latent", 2020, equation 2, and its symmetric form. The loss detaches the
        targets, as the equation says.

    Example:
        >>> import torch
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
