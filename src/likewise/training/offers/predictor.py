"""BYOL's predictor: a second head, which predicts the momentum encoder's embedding."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from likewise.models import PredictionHead
from likewise.training.offers.offer import Offer, Plan
from likewise.training.step import Step


@final
class Predictor(Offer):
    """Predictions q(z) of all views, (B, V, E).

    Args:
        hidden_dim: Units of the hidden layer. None: the length of an embedding.
        batch_norm: Whether the hidden layer is batch-normalised, as in BYOL.
    """

    network: PredictionHead

    def __init__(self, hidden_dim: int | None = None, *, batch_norm: bool = True) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.batch_norm = batch_norm

    def build(self, plan: Plan) -> None:
        """Make the network."""
        self.network = PredictionHead(plan.embedding_dim, hidden_dim=self.hidden_dim, batch_norm=self.batch_norm)

    def predictions(self, step: Step) -> Float[Tensor, "b v e"]:
        """Return the predictions for all views, in order."""
        return self.network(step.embeddings.flatten(0, 1)).unflatten(0, step.embeddings.shape[:2])
