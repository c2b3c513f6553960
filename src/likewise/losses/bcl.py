"""Balanced contrastive learning: SupCon in which all classes have the same weight in the denominator."""

from typing import Annotated, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.inputs import Classes, Embeddings, References
from likewise.pairs import NotSelf, SameClass


@final
class BCLLoss(ContrastiveLoss):
    r"""Balanced contrastive: identify the rows of the anchor's class, with every class averaged over its members.

    With B_c the rows of class c in the batch, and in a queue if there is one, together with its prototype, and i
    excluded from its own class,

    $$
    \ell_i = \log \sum_{c} \frac{1}{|B_c \setminus i|} \sum_{u \in B_c \setminus i} e^{z_i \cdot v_u / \tau}
             - \frac{1}{|B_{y_i} \setminus i|} \sum_{p \in B_{y_i} \setminus i} z_i \cdot v_p / \tau
    $$

    so that frequent classes push no harder than rare ones, and no class is missing from the batch, since each has its
    prototype. Every anchor has a positive, the prototype of its class, and is active.

    Memory:
        O((N + R + C + Q)·D + tile).

    Source:
        Zhu, Wang, Chen, Chen, Jiang, "Balanced Contrastive Learning for Long-Tailed Visual Recognition", 2022, the loss
        L_BCL; as in the authors' code, i is left out of its own class in the denominator.

    Example:
        >>> embeddings, prototypes = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.eye(2)
        >>> BCLLoss(temperature=1.0)(embeddings, torch.tensor([0, 0, 1]), prototypes)
        tensor(0.3133)
    """

    label_kinds = frozenset({"classes"})

    def __init__(self, *, temperature: Temperature = 0.1, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)

    def forward(
        self,
        embeddings: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, " b"], Classes("embeddings", below="prototypes")],
        prototypes: Annotated[Float[Tensor, "c d"], References("embeddings")],
        *,
        queue: Annotated[Float[Tensor, "q d"] | None, References("embeddings")] = None,
        queue_labels: Annotated[Int[Tensor, " q"] | None, Classes("queue", below="prototypes")] = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            embeddings: One view of each sample, (N, D), or V views, (B, V, D). B below is N for one view.
            labels: Classes of the samples, 0 … C − 1, (B,).
            prototypes: One row for each class, (C, D), with or without gradient; the same on every process.
            queue: Rows to compare with in addition, (Q, D), the same on every process (see `likewise.memory.Queue`).
            queue_labels: Their classes, (Q,).
        """
        rows = self.rows(embeddings, replicated=(prototypes,) if queue is None else (prototypes, queue))
        anchors, (batch, *of_queue) = rows.classes(labels, queue_labels=queue_labels)
        everything = torch.cat([batch, torch.arange(len(prototypes), device=anchors.device), *of_queue])
        same = SameClass(anchors, everything)
        positives = same & NotSelf(*same.shape, rows.reference_shards.offset)
        members = SameClass(everything).row_sum(rows.dtype, anchors.device)
        counts = positives.row_sum(rows.dtype, anchors.device).clamp(min=1)
        push = (~same).scale(references=1 / members) + positives.scale(anchors=1 / counts)
        return self.evaluate(rows, pull=positives.mean_over_row(), push=push, positives=positives)
