"""Prototypes: one learned vector for each class or label."""

from typing import final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from likewise.memory import Prototypes
from likewise.training.offers.offer import Offer, Plan
from likewise.training.step import Step


@final
class LabelPrototypes(Offer):
    """Prototypes, (C, E) or (L, E), learned with the encoder.

    Args:
        rate_factor: Factor of their learning rate. The rates for fine-tuning large models are too low for prototypes,
            which start at random.

    Raises:
        ValueError: The factor is not positive.
    """

    rows: Prototypes

    def __init__(self, rate_factor: float = 1.0) -> None:
        super().__init__()
        if not rate_factor > 0:
            raise ValueError(f"expected rate_factor above 0, got {rate_factor}: 1 is the encoder's rate")
        self.rate_factor = rate_factor

    def build(self, plan: Plan) -> None:
        """Initialise the prototypes at random."""
        self.rows = Prototypes(plan.num_labels, plan.embedding_dim)

    def rate_factors(self) -> dict[nn.Parameter, float]:
        """Return the factor for the prototypes."""
        return dict.fromkeys(self.rows.parameters(), self.rate_factor)

    def predicted(self, features: Float[Tensor, "n d"], head: nn.Module | None) -> Float[Tensor, "n c"]:
        """Return the cosines of embeddings and prototypes."""
        embeddings = features if head is None else head(features)
        return functional.normalize(embeddings) @ functional.normalize(self.rows()).T

    def prototypes(self, step: Step) -> Float[Tensor, "c e"]:
        """Return the prototypes."""
        del step
        return self.rows()
