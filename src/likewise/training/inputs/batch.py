"""Inputs of every batch: embeddings, labels, the indices of its samples, and pairs and triplets of its views."""

from typing import final

from jaxtyping import Float, Int
from torch import Tensor

from likewise.training.inputs.loss_input import InputContext, LossInput
from likewise.training.step import Step

PARTNERS = frozenset({"keys", "positives"})
NEGATIVES = 1  # purpose of the random numbers


@final
class BatchInputs(LossInput):
    """The inputs that every batch has.

    embeddings      z of all views, except a key that goes to a momentum encoder, (B, V, E)
    labels          classes (B,) or label sets (B, L), if the data has labels
    sample_index    rows in the training part, (B,)
    """

    of_labels = frozenset({"labels"})
    without_head = frozenset({"labels", "sample_index"})

    def embeddings(self, step: Step) -> Float[Tensor, "b v e"]:
        return step.embeddings

    def labels(self, step: Step) -> Tensor:
        return step.labels

    def sample_index(self, step: Step) -> Int[Tensor, " b"]:
        return step.batch["sample_index"]


@final
class ViewPairs(LossInput):
    """Pairs and triplets from views.

    queries, anchors    z of all views, without the last if the loss needs keys or positives, or if it goes to a
                        momentum encoder: (B, E) for one view, (B, V, E) for more
    keys, positives     if the loss needs them: z of the last view, with gradient
    negatives           z of the last view of another sample, of another class if labels are classes
    key_labels          the labels, if there are keys
    """

    only_if_required = frozenset({"keys", "positives", "negatives", "key_labels"})
    of_labels = frozenset({"key_labels"})

    def build(self, context: InputContext) -> None:
        self._apart = bool(context.signature.required & PARTNERS)
        self._loss = context.signature.loss

    def queries(self, step: Step) -> Tensor:
        embeddings = step.embeddings
        if self._apart:
            has_partner = step.slow is not None or "counterparts" in step.batch
            if step.views != 2 and not (step.views == 1 and has_partner):
                raise ValueError(
                    f"expected two views for {self._loss}, an anchor and its partner, got {step.views}: "
                    "set batches.views to 2"
                )
            embeddings = embeddings[:, :1]
        return embeddings[:, 0] if embeddings.shape[1] == 1 else embeddings

    anchors = queries

    def keys(self, step: Step) -> Float[Tensor, "b e"]:
        return step.embeddings[:, -1]

    positives = keys

    def negatives(self, step: Step) -> Float[Tensor, "b e"]:
        return step.embeddings[:, -1][step.others(NEGATIVES)]

    def key_labels(self, step: Step) -> Tensor:
        return step.labels
