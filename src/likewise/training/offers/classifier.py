"""A classifier on the features, which some losses take in addition to embeddings or instead of them."""

from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from likewise.training.offers.offer import Offer, Plan
from likewise.training.step import Step


@final
class Classifier(Offer):
    """Logits of every class or label, (B, V, C), from a linear layer on f(x).

    Args:
        rate_factor: Factor of the layer's learning rate.

    Raises:
        ValueError: The factor is not positive.
    """

    predicts_logits = True
    linear: nn.Linear

    def __init__(self, rate_factor: float = 1.0) -> None:
        super().__init__()
        if not rate_factor > 0:
            raise ValueError(f"expected rate_factor above 0, got {rate_factor}: 1 is the encoder's rate")
        self.rate_factor = rate_factor

    def build(self, plan: Plan) -> None:
        """Make the layer."""
        self.linear = nn.Linear(plan.encoder.feature_dim, plan.num_labels)

    def rate_factors(self) -> dict[nn.Parameter, float]:
        """Return the factor for the layer."""
        return dict.fromkeys(self.linear.parameters(), self.rate_factor)

    def predicted(self, features: Float[Tensor, "n d"], head: nn.Module | None) -> Float[Tensor, "n c"]:
        """Return the logits."""
        del head
        return self.linear(features)

    def class_logits(self, step: Step) -> Float[Tensor, "b v c"]:
        """Return the logits of the views that the encoder sees."""
        return self.linear(step.features)
