"""The base of losses of pairs of classes: rows of a batch, references in its place, and a queue."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated

from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss
from likewise.losses.contrast_batch import ContrastBatch
from likewise.losses.inputs import Classes, Embeddings, References


class ClassLoss(ContrastiveLoss):
    """Abstract: compares each row of a batch with rows of its class and of others."""

    label_kinds = frozenset({"classes"})

    def forward(
        self,
        embeddings: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, " b"], Classes("embeddings")],
        *,
        references: Annotated[Float[Tensor, "r d"] | None, References("embeddings")] = None,
        reference_labels: Annotated[Int[Tensor, " r"] | None, Classes("references")] = None,
        queue: Annotated[Float[Tensor, "q d"] | None, References("embeddings")] = None,
        queue_labels: Annotated[Int[Tensor, " q"] | None, Classes("queue")] = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            embeddings: One view of each sample, (N, D), or V views, (B, V, D). B below is N for one view.
            labels: Classes of the samples, any integers, (B,).
            references: Rows to compare with instead of the batch, (R, D), among which no anchor is. Gathered across
                processes with ``gather_distributed``.
            reference_labels: Their classes, (R,).
            queue: Rows to compare with in addition, (Q, D), the same on every process (see `likewise.memory.Queue`).
            queue_labels: Their classes, (Q,).
        """
        rows = self.rows(embeddings, references, replicated=() if queue is None else (queue,))
        return self.of_classes(rows, *rows.classes(labels, reference_labels, queue_labels))

    @abstractmethod
    def of_classes(
        self, rows: ContrastBatch, classes: Int[Tensor, " n"], sections: Sequence[Int[Tensor, " r"]]
    ) -> Float[Tensor, "..."]:
        """Return the loss of rows, given the classes of the anchors, and of each section of references."""
