"""MulSupCon, supervised contrast of label sets in which each label of a sample is an anchor of its own."""

from typing import Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Rows
from likewise.losses.checks import check_embeddings, check_label_sets, check_labelled
from likewise.pairs import Overlap


@final
class MulSupConLoss(ContrastiveLoss):
    r"""MulSupCon: for each label of a query, tell the references that carry it from all.

    With R_c the references that carry label c, and n_ic how many of them query i meets,

    $$\ell_{i} = \sum_{c \in y_i, \, n_{ic} > 0} \left( \log \sum_u e^{z_i \cdot v_u / \tau}
                 - \frac{1}{n_{ic}} \sum_{r \in R_c} z_i \cdot v_r / \tau \right)$$

    so that pull is y_ic·y_rc / n_ic summed over labels, and push is every reference. Each (query, label) is an anchor:
    the mean is over these, not over queries. A label that no reference carries is no anchor; a query without any is
    inactive, with loss 0 and no gradient.

    Args:
        temperature: τ > 0, a number, or a 0-d tensor or parameter, which then receives its gradient.
        **options: reduction, normalize, gather_distributed, backend; see `LossOptions`.

    Returns:
        The mean over all (query, label) anchors, a scalar; with ``reduction="none"`` each query's sum over its labels,
        (N,). ``last["active_anchors"]`` counts (query, label) anchors, and ``last["positives_per_anchor"]`` is each
        query's mean over its labels.

    Raises:
        ValueError: See `forward`.

    Memory:
        O((N + R)·(D + L)); see `likewise.contrast`.

    Source:
        Zhang, Wu, "Multi-Label Supervised Contrastive Learning", AAAI 2024, equation 6. The authors' code adds 1e-12 to
        counts and shifts by a maximum taken before masking; here nothing is added.

    Example:
        >>> import torch
        >>> queries, labels = torch.eye(3), torch.tensor([[1, 0], [1, 1], [0, 1]])
        >>> MulSupConLoss(temperature=1.0)(queries, labels)
        tensor(0.6931)
    """

    def __init__(self, *, temperature: float | Tensor = 0.1, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)

    def forward(
        self,
        queries: Float[Tensor, "..."],
        labels: Int[Tensor, "b l"],
        references: Float[Tensor, "r d"] | None = None,
        reference_labels: Int[Tensor, "r l"] | None = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of queries among references, or among themselves.

        Args:
            queries: One view of each sample, (N, D), or V views, (B, V, D).
            labels: Multi-hot labels of the samples, zeros and ones, (B, L).
            references: Keys or a queue, (R, D); None: the batch, without self. Among several processes those of all are
                gathered.
            reference_labels: Their multi-hot labels, (R, L).

        Raises:
            ValueError: If shapes or lengths disagree, references come without labels, values are not finite or not
                zeros and ones (values are looked at on the CPU).
        """
        with self.checks(queries):
            check_embeddings("queries", queries)
            check_label_sets("labels", labels, "samples", len(queries))
            check_labelled("references", references, reference_labels, queries, labels.shape[1])
        rows = self.rows(queries, references, shared=tuple(labels.shape[1:]))
        own, others = label_rows(rows, labels, reference_labels)
        counts = others.to(rows.queries.dtype).sum(dim=0) - (0 if rows.others else own.to(rows.queries.dtype))
        counts = counts.expand(own.shape)
        present = own & (counts > 0)
        push = rows.not_self()
        pull = Overlap(own, others, worth=present / counts.clamp(min=1))
        anchors = present.sum(dim=1)
        return self.evaluate(
            rows,
            pull=pull if rows.others else pull * push,
            push=push,
            positives=(counts * present).sum(dim=1) / anchors.clamp(min=1),
            totals=anchors,
            anchors=anchors,
        )


def label_rows(rows: Rows, labels: Tensor, reference_labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the label sets of anchors, (N, L), and of references, (R, L), gathered where references are."""
    own = rows.of_anchors(labels.to(rows.queries.device, torch.bool))
    others = rows.of_references(own if reference_labels is None else reference_labels.to(own))
    return own, own if others is None else others
