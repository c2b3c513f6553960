"""What every batch offers: embeddings, labels, and the indices of its samples."""

from typing import final

from jaxtyping import Float, Int
from torch import Tensor

from likewise.training.offers.asked import Asked
from likewise.training.offers.offer import Offer, Plan
from likewise.training.step import Step


@final
class Batch(Offer):
    """What every batch offers.

    embeddings      z of all views, except a key that goes to a momentum encoder, (B, V, E)
    labels          classes (B,) or label sets (B, L), if the data has labels
    sample_index    rows in the training part, (B,)
    """

    def __init__(self) -> None:
        super().__init__()
        self._labelled = True

    def build(self, plan: Plan) -> None:
        """Record whether there are labels."""
        self._labelled = plan.label_kind is not None

    def given_to(self, asked: Asked) -> frozenset[str]:
        """Return the names that it supplies, without labels if there are none."""
        return super().given_to(asked) - (frozenset() if self._labelled else {"labels"})

    def embeddings(self, step: Step) -> Float[Tensor, "b v e"]:
        """Return z of the views that the encoder sees."""
        return step.embeddings

    def labels(self, step: Step) -> Tensor:
        """Return the labels."""
        return step.labels

    def sample_index(self, step: Step) -> Int[Tensor, " b"]:
        """Return the rows in the training part."""
        return step.batch["sample_index"]
