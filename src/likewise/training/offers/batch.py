"""What every batch has: the embeddings of its views, labels, and which samples they are of."""

from typing import final

from jaxtyping import Float, Int
from torch import Tensor

from likewise.training.offers.asked import Asked
from likewise.training.offers.offer import Offer, Plan
from likewise.training.step import Step


@final
class Batch(Offer):
    """What every batch has.

    embeddings      z of all views, less a key that is a momentum encoder's, (B, V, E)
    labels          classes (B,) or label sets (B, L), where the data has some
    sample_index    rows in the training part, (B,)
    """

    def __init__(self) -> None:
        super().__init__()
        self._labelled = True

    def build(self, plan: Plan) -> None:
        """See whether there are labels."""
        self._labelled = plan.label_kind is not None

    def given_to(self, asked: Asked) -> frozenset[str]:
        """Return the names that it fills: no labels where there are none."""
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
