"""SupCon, supervised contrastive learning, in both of its forms."""

from contextlib import nullcontext
from typing import Literal, Unpack, final, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions
from likewise.losses.checks import check_embeddings, check_labels, check_references, check_tensor
from likewise.losses.rows import Rows
from likewise.operator.inputs import is_plain
from likewise.pairs import AllPairs, Explicit, PairWeight, SameClass, SameSample, SharesLabel, concat

Form = Literal["out", "in"]


@final
class SupConLoss(ContrastiveLoss):
    r"""SupCon: of all other rows in the batch, tell those of the same class.

    With P(i) the positives of anchor i, the other rows that share its class (or a label, or are in the mask),

    $$
    \begin{aligned}
    \ell^{out}_i &= \log \sum_{u \ne i} e^{z_i \cdot z_u / \tau}
                    - \frac{1}{|P(i)|} \sum_{p \in P(i)} z_i \cdot z_p / \tau \\
    \ell^{in}_i  &= \log \sum_{u \ne i} e^{z_i \cdot z_u / \tau}
                    - \log \frac{1}{|P(i)|} \sum_{p \in P(i)} e^{z_i \cdot z_p / \tau}
    \end{aligned}
    $$

    and $\ell^{in}_i \le \ell^{out}_i$ by Jensen's inequality. Without labels and mask the positives are the other
    views of the same sample. An anchor without positives is inactive: it contributes neither loss nor gradient, and the
    mean leaves it out. Without any active anchor the loss is 0, with gradient 0.

    Args:
        temperature: τ > 0, a number, or a 0-d tensor or parameter, which then receives its gradient.
        form: "out", the mean over positives outside the logarithm, which the paper recommends, or "in", inside it.
        **options: reduction, normalize, gather_distributed, backend; see `LossOptions`.

    Returns:
        From a call, see `forward`: the mean over active anchors, a scalar; with ``reduction="none"`` one loss for each
        row, (N,), 0 on inactive ones; of (B, V, D) the row of sample b's view v is v·B + b.

    Raises:
        ValueError: If τ ≤ 0, form is unknown, or a call's input does not agree; see `forward`.

    Memory:
        O((N + R)·D + tile) with class labels; a mask adds itself, label sets O((N + R)·L).

    Source:
        Khosla et al., "Supervised Contrastive Learning", 2020, equations 2 (out) and 3 (in). The authors' code
        multiplies by τ/0.07 and keeps inactive anchors in the mean as zeros; the paper does neither.

    Example:
        >>> import torch
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> SupConLoss(temperature=0.1)(embeddings, torch.tensor([0, 0, 1, 1]))
        tensor(0.0003)
    """

    label_kinds = frozenset({"classes", "label sets"})

    def __init__(
        self, *, temperature: float | Tensor = 0.1, form: Form = "out", **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(temperature, **options)
        if form not in get_args(Form):
            raise ValueError(f'form is "out" or "in", got {form!r}; "out" is what the paper recommends')
        self.form = form

    def forward(
        self,
        embeddings: Float[Tensor, "..."],
        labels: Int[Tensor, "..."] | None = None,
        *,
        mask: Tensor | None = None,
        references: Float[Tensor, "..."] | None = None,
        reference_labels: Int[Tensor, "..."] | None = None,
        queue: Float[Tensor, "..."] | None = None,
        queue_labels: Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            embeddings: One view of each sample, (N, D), or V views, (B, V, D). B below is N for one view.
            labels: Classes of the samples, integers (B,), or label sets, multi-hot (B, L): positives share a label.
            mask: Instead of labels, which samples are alike: zeros and ones, (B, B), or (B, R) with references. Among
                several processes its columns are the samples, or references, of all, in the order of ranks. An anchor
                is never its own positive; the diagonal is for the other views.
            references: Rows to contrast with instead of the batch, (R, D), such as keys; no anchor is among them. Among
                several processes those of all are gathered.
            reference_labels: Their classes, (R,), or label sets, (R, L).
            queue: Rows to contrast with beside the batch or the references, (Q, D), the same on every process (see
                `likewise.memory.Queue`); with labels, not with a mask.
            queue_labels: Their classes, (Q,), or label sets, (Q, L).

        Raises:
            ValueError: If shapes or lengths disagree, labels and a mask both come, nothing says what is alike, values
                are not finite or not zeros and ones (values are looked at on the CPU).
        """
        with self.checks(
            embeddings=embeddings,
            labels=labels,
            mask=mask,
            references=references,
            reference_labels=reference_labels,
            queue=queue,
            queue_labels=queue_labels,
        ):
            _check(embeddings, labels, mask, references, reference_labels)
            _check_queue(embeddings, labels, queue, queue_labels)
        rows = self.rows(embeddings, references, whole=() if queue is None else (queue,))
        push = rows.not_self()
        with nullcontext() if mask is None else self.checks(embeddings):  # its columns are the samples of all
            positives = _alike(rows, labels, mask, reference_labels) & push
        if labels is not None and queue_labels is not None:
            of_queue = _alike_by(rows.of_anchors(labels.to(rows.queries.device)), queue_labels)
            push, positives = concat([push, AllPairs(*of_queue.shape)]), concat([positives, of_queue])
        if self.form == "out":
            return self.evaluate(rows, pull=positives.mean_over_row(), push=push, positives=positives)
        one = torch.ones(len(rows.queries), device=rows.queries.device)
        both = push, positives.mean_over_row()
        return self.evaluate(rows, pull=None, push=both, positives=positives, coefficients=(one, -one))


def _alike(rows: Rows, labels: Tensor | None, mask: Tensor | None, reference_labels: Tensor | None) -> PairWeight:
    """Return which pairs are alike: a mask says so, labels are equal or shared, or the sample is the same."""
    if mask is not None:
        return _masked(rows, mask)
    if labels is None:
        return SameSample(*rows.samples())
    anchors, others = rows.labels(labels, reference_labels, torch.int64 if labels.ndim == 1 else torch.bool)
    return _alike_by(anchors, None if others is anchors else others)


def _alike_by(labels: Tensor, others: Tensor | None) -> PairWeight:
    """Return which pairs have one class, or share a label."""
    weight, dtype = (SameClass, torch.int64) if labels.ndim == 1 else (SharesLabel, torch.bool)
    return weight(labels.to(dtype), None if others is None else others.to(labels.device, dtype))


def _masked(rows: Rows, mask: Tensor) -> PairWeight:
    samples = None if rows.others else rows.samples()[1]  # gathered before anything may be refused
    count = len(rows.queries) // rows.views
    columns = rows.reference_shards.total if rows.others else rows.sample_shards.total
    if mask.shape != (count, columns):
        raise ValueError(
            f"mask says for each of {count} samples which of {columns} {'references' if rows.others else 'samples'} "
            f"are alike, got shape {tuple(mask.shape)}; give it one row a sample, whatever the views"
        )
    index = rows.of_anchors(torch.arange(count, device=rows.queries.device))
    mask = mask.to(rows.queries.device, torch.bool)
    return Explicit(mask, rows=index, columns=samples if rows.others or samples is not None else index)


def _check(
    embeddings: Tensor,
    labels: Tensor | None,
    mask: Tensor | None,
    references: Tensor | None,
    reference_labels: Tensor | None,
) -> None:
    """Raise unless the parts of a batch agree with each other."""
    check_embeddings("embeddings", embeddings)
    for name, part in (("labels", labels), ("mask", mask), ("reference_labels", reference_labels)):
        if part is not None:
            check_tensor(name, part)
    if labels is not None and mask is not None:
        raise ValueError("labels or a mask say what is alike, got both; leave one out")
    if (references is None or labels is None) != (reference_labels is None):
        raise ValueError(
            "references, labels and reference_labels go together, got some of them; a mask needs no labels"
        )
    if references is not None:
        check_references("references", references, embeddings)
    if labels is not None:
        check_labels("labels", labels, "embeddings", len(embeddings))
        if labels.shape[1:] == (1,):
            raise ValueError(
                f"labels are classes, (B,), or label sets of several labels, (B, L), got shape {tuple(labels.shape)}; "
                "give a column of classes as labels[:, 0]"
            )
    if labels is not None and references is not None and reference_labels is not None:
        check_labels("reference_labels", reference_labels, "references", len(references))
        if labels.shape[1:] != reference_labels.shape[1:]:
            raise ValueError(
                "labels and reference_labels are both classes, or both label sets of one length, got shapes "
                f"{tuple(labels.shape)} and {tuple(reference_labels.shape)}"
            )
    _check_alike(embeddings, labels, mask, references)


def _check_alike(embeddings: Tensor, labels: Tensor | None, mask: Tensor | None, references: Tensor | None) -> None:
    if mask is not None and not is_plain(mask.dtype):
        raise ValueError(f"mask is zeros and ones, got {mask.dtype}; convert it with .bool()")
    if mask is not None and mask.device.type == "cpu" and not ((mask == 0) | (mask == 1)).all():
        raise ValueError("mask is zeros and ones, got other values; compare it with a threshold first")
    one_view = embeddings.ndim == 2 or embeddings.shape[1] == 1
    if labels is None and mask is None and (references is not None or one_view):
        raise ValueError(
            f"nothing says what is alike in embeddings of shape {tuple(embeddings.shape)}; "
            "give labels, a mask, or two views of each sample, (B, V, D)"
        )


def _check_queue(embeddings: Tensor, labels: Tensor | None, queue: Tensor | None, queue_labels: Tensor | None) -> None:
    """Raise unless a queue and its labels come together, beside labels of their kind, and fit the embeddings."""
    if (queue is None) != (queue_labels is None) or (queue is not None and labels is None):
        raise ValueError("queue, queue_labels and labels go together, got some of them; a mask knows no queue")
    if queue is None or queue_labels is None or labels is None:
        return
    check_references("queue", queue, embeddings)
    check_labels("queue_labels", queue_labels, "rows of the queue", len(queue))
    if labels.shape[1:] != queue_labels.shape[1:]:
        raise ValueError(
            "labels and queue_labels are both classes, or both label sets of one length, got shapes "
            f"{tuple(labels.shape)} and {tuple(queue_labels.shape)}"
        )
