"""MulSupCon, supervised contrastive learning with label sets: each label of a sample is an anchor of its own."""

from typing import Annotated, Unpack, final

from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.inputs import Embeddings, MultiHot, References
from likewise.pairs import AllPairs, Overlap, concat


@final
class MulSupConLoss(ContrastiveLoss):
    r"""MulSupCon: for each label of a query, identify the references that have it among all references.

    With R_c the references that have label c, and n_ic how many of them query i is compared with,

    $$\ell_{i} = \sum_{c \in y_i, \, n_{ic} > 0} \left( \log \sum_u e^{z_i \cdot v_u / \tau}
                 - \frac{1}{n_{ic}} \sum_{r \in R_c} z_i \cdot v_r / \tau \right)$$

    so that pull is y_ic·y_rc / n_ic summed over labels, and push is 1 on every reference. Each (query, label) pair is
    an anchor: the mean is over these, not over queries. A label that no reference has is not an anchor; a query without
    any anchor is inactive, with loss 0 and no gradient.

    Returns:
        A call returns the mean over all (query, label) anchors, a scalar; with ``reduction="none"``, each query's sum
        over its labels, (N,). ``last["active_anchors"]`` counts (query, label) anchors, and
        ``last["positives_per_anchor"]`` is each query's mean over its labels.

    Memory:
        O((N + R)·(D + L)); see `likewise.contrast`.

    Source:
        Zhang, Wu, "Multi-Label Supervised Contrastive Learning", AAAI 2024, equation 6.

    Example:
        >>> import torch
        >>> queries, labels = torch.eye(3), torch.tensor([[1, 0], [1, 1], [0, 1]])
        >>> MulSupConLoss(temperature=1.0)(queries, labels)
        tensor(0.6931)
    """

    label_kinds = frozenset({"label sets"})
    weight_by_pull = True

    def __init__(self, *, temperature: Temperature = 0.1, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)

    def forward(
        self,
        queries: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, "b l"], MultiHot("queries", rows="samples")],
        *,
        references: Annotated[Float[Tensor, "r d"] | None, References("queries")] = None,
        reference_labels: Annotated[Int[Tensor, "r l"] | None, MultiHot("references", like="labels")] = None,
        queue: Annotated[Float[Tensor, "q d"] | None, References("queries")] = None,
        queue_labels: Annotated[Int[Tensor, "q l"] | None, MultiHot("queue", like="labels")] = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of queries contrasted with references, or with each other, and with a queue.

        Args:
            queries: One view of each sample, (N, D), or V views, (B, V, D).
            labels: Multi-hot labels of the samples, zeros and ones, (B, L).
            references: Keys, (R, D), gathered across processes with ``gather_distributed``; None: the batch, without
                self.
            reference_labels: Their multi-hot labels, (R, L).
            queue: Further references, (Q, D), the same on every process (see `likewise.memory.Queue`).
            queue_labels: Their multi-hot labels, (Q, L).
        """
        replicated = () if queue is None else (queue,)
        rows = self.rows(queries, references, replicated=replicated)
        label_sets, reference_sets = rows.sets(labels, reference_labels)
        sections = [reference_sets, *rows.sets_of(queue_labels)]
        counts = sum(section.counts for section in sections) - label_sets.rows.long() * (not rows.others)
        present = label_sets.rows & (counts > 0)
        worth = present / counts.clamp(min=1).to(rows.dtype)
        batch, *rest = (Overlap(label_sets, section, worth=worth) for section in sections)
        not_self = rows.not_self()
        anchors = present.sum(dim=1)
        return self.evaluate(
            rows,
            pull=concat([batch if rows.others else batch * not_self, *rest]).with_row_sums(anchors),
            push=concat([not_self, *(AllPairs(*weight.shape) for weight in rest)]),
            positives=(counts * present).sum(dim=1) / anchors.clamp(min=1),
        )
