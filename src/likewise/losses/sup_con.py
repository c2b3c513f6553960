"""SupCon, supervised contrastive learning, in three forms."""

from contextlib import nullcontext
from typing import Annotated, Any, Literal, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature, scalar
from likewise.losses.contrast_batch import ContrastBatch
from likewise.losses.inputs import Embeddings, Labels, References, check_tensor, describe_missing
from likewise.operator import ContrastSpec, Push, pairwise_sum
from likewise.operator.inputs import is_plain, one_of
from likewise.pairs import AllPairs, Explicit, PairWeight, SameClass, SharesLabel, concat
from likewise.pairs.label_sets import is_zeros_and_ones

Form = Literal["out", "in", "pairs"]


@final
class SupConLoss(ContrastiveLoss):
    r"""SupCon: identify the rows of the same class among all other rows in the batch.

    With P(i) the positives of anchor i, the other rows of its class (or with a common label, or set in the mask),

    $$
    \begin{aligned}
    \ell^{out}_i &= \log \sum_{u \ne i} e^{z_i \cdot z_u / \tau}
                    - \frac{1}{|P(i)|} \sum_{p \in P(i)} z_i \cdot z_p / \tau \\
    \ell^{in}_i  &= \log \sum_{u \ne i} e^{z_i \cdot z_u / \tau}
                    - \log \frac{1}{|P(i)|} \sum_{p \in P(i)} e^{z_i \cdot z_p / \tau} \\
    \ell^{pairs}_i &= \sum_{p \in P(i)} \Bigl( \log \Bigl( e^{z_i \cdot z_p / \tau}
                    + \sum_{n \notin P(i), \, n \ne i} e^{z_i \cdot z_n / \tau} \Bigr) - z_i \cdot z_p / \tau \Bigr)
    \end{aligned}
    $$

    and $\ell^{in}_i \le \ell^{out}_i$ by Jensen's inequality. Without labels or a mask the positives are the other
    views of the same sample. An anchor without positives is inactive: it contributes neither loss nor gradient and is
    left out of the mean. If no anchor is active the loss is 0, with gradient 0. In the form "pairs" each positive meets
    negatives only, an anchor without these is inactive too, and the mean is over all positive pairs.

    Args:
        form: "out", with the mean over positives outside the logarithm, as the paper recommends, "in", inside it, or
            "pairs", one logarithm for each positive pair, against the negatives only.

    Memory:
        O((N + R)·D + tile) with class labels; a mask adds its own size, label sets add O((N + R)·L).

    Source:
        "pairs" is not in the paper: Khosla et al., "Supervised Contrastive Learning", 2020, equations 2 (out) and 3
        (in). The authors' code multiplies by τ/0.07 and counts inactive anchors in the mean as zeros; the paper does
        neither. "pairs" is pytorch-metric-learning's NTXentLoss of classes; with a mean over each anchor's pairs first
        it is SINCERE, Feeney, Hughes, 2023.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> SupConLoss(temperature=0.1)(embeddings, torch.tensor([0, 0, 1, 1]))
        tensor(0.0003)
    """

    label_kinds = frozenset({"classes", "label sets"})

    def __init__(self, *, temperature: Temperature = 0.1, form: Form = "out", **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)
        self.form: Form = one_of("form", form, Form)

    def forward(
        self,
        embeddings: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, "..."] | None, Labels("embeddings")] = None,
        *,
        mask: Tensor | None = None,
        references: Annotated[Float[Tensor, "..."] | None, References("embeddings")] = None,
        reference_labels: Annotated[Int[Tensor, "..."] | None, Labels("references")] = None,
        queue: Annotated[Float[Tensor, "..."] | None, References("embeddings")] = None,
        queue_labels: Annotated[Int[Tensor, "..."] | None, Labels("queue", rows="rows of the queue")] = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            embeddings: One view of each sample, (N, D), or V views, (B, V, D). B below is N for one view.
            labels: Classes of the samples, integers (B,), or label sets, multi-hot (B, L): positives share a label.
            mask: The positives, instead of labels: zeros and ones, (B, B), or (B, R) with references. If gathered, its
                columns are the samples (or references) of all processes, in the order of ranks. An anchor is never its
                own positive; the diagonal is for its other views.
            references: Rows to contrast with instead of the batch, (R, D), such as keys; no anchor is among them.
                Gathered across processes with ``gather_distributed``.
            reference_labels: Their classes, (R,), or label sets, (R, L).
            queue: Rows to contrast with in addition to the batch or the references, (Q, D), the same on every process
                (see `likewise.memory.Queue`); with labels, not with a mask.
            queue_labels: Their classes, (Q,), or label sets, (Q, L).
        """
        rows = self.rows(embeddings, references, replicated=() if queue is None else (queue,))
        push = rows.not_self()
        with nullcontext() if mask is None else self.checks(embeddings):  # its columns are the samples of all ranks
            positives = _positives(rows, labels, mask, reference_labels) & push
        if labels is not None and queue_labels is not None:
            of_queue = _with_common_label(rows.of_anchors(labels.to(rows.queries.device)), queue_labels)
            push, positives = concat([push, AllPairs(*of_queue.shape)]), concat([positives, of_queue])
        if self.form == "out":
            return self.evaluate(rows, pull=positives.mean_over_row(), push=push, positives=positives)
        if self.form == "pairs":
            return self._of_pairs(rows, positives, push & ~positives)
        ones = torch.ones(len(rows.queries), device=rows.queries.device)
        pushes = push, positives.mean_over_row()  # ℓ^in = log Σ_u e^{s_iu} − log (1/|P|) Σ_p e^{s_ip}
        return self.evaluate(rows, pull=None, push=pushes, positives=positives, coefficients=(ones, -ones))

    def _of_pairs(self, rows: ContrastBatch, positives: PairWeight, negatives: PairWeight) -> Tensor:
        """Return Σ_p log(1 + e^{lse_i − s_ip}), with lse_i over the negatives.

        This is a pairwise sum: one more feature, −τ·lse_i in queries and 1 in references, gives z'·v'/τ = s_ip − lse_i.
        """
        (negatives_lse,), *_ = self.outcome(rows, ContrastSpec((Push(negatives),)))
        active = (negatives_lse != -torch.inf) & positives.support(negatives_lse.device)
        z, *sections = (self.scaled(v, rows.dtype) for v in (rows.queries, *rows.sections))
        extra_feature = -negatives_lse.masked_fill(~active, 0) * scalar(self.temperature, negatives_lse)
        losses = pairwise_sum(
            torch.cat([z, extra_feature[:, None]], dim=1),
            tuple(torch.cat([v, v.new_ones(len(v), 1)], dim=1) for v in sections),
            weight=positives, function="softplus", sign=-1, temperature=self.temperature, backend=self.backend,
        )  # fmt: skip
        count = positives.row_sum(losses.dtype, losses.device)
        return self.reduce(losses.where(active, 0), active, positives, count)

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise unless the inputs are consistent, and labels, a mask or several views define the positives."""
        embeddings, labels, mask = inputs["embeddings"], inputs["labels"], inputs["mask"]
        references, reference_labels = inputs["references"], inputs["reference_labels"]
        queue, queue_labels = inputs["queue"], inputs["queue_labels"]
        if labels is not None and mask is not None:
            raise ValueError("expected either labels or a mask to define the positives, got both: leave one out")
        if (references is None or labels is None) != (reference_labels is None):
            got = describe_missing(("references", "labels", "reference_labels"), inputs)
            raise ValueError(f"expected references, labels and reference_labels together, got {got}")
        if (queue is None) != (queue_labels is None) or (queue is not None and labels is None):
            got = describe_missing(("queue", "queue_labels", "labels"), inputs)
            expected = "expected queue, queue_labels and labels together"
            raise ValueError(f"{expected}, got {got}: a mask does not work with a queue")
        if labels is not None and labels.shape[1:] == (1,):
            expected = "expected labels to be classes, (B,), or label sets over several labels, (B, L)"
            raise ValueError(f"{expected}, got shape {tuple(labels.shape)}: pass a column of classes as labels[:, 0]")
        for name, section_labels in (("reference_labels", reference_labels), ("queue_labels", queue_labels)):
            if section_labels is not None and labels is not None and labels.shape[1:] != section_labels.shape[1:]:
                expected = f"expected labels and {name} to be both classes or both label sets of the same length"
                raise ValueError(f"{expected}, got shapes {tuple(labels.shape)} and {tuple(section_labels.shape)}")
        if mask is not None:
            _check_mask(mask)
        one_view = embeddings.ndim == 2 or embeddings.shape[1] == 1
        if labels is None and mask is None and (references is not None or one_view):
            got = f"got only embeddings of shape {tuple(embeddings.shape)}"
            remedy = "pass labels, a mask, or two views of each sample, (B, V, D)"
            raise ValueError(f"expected something that defines the positives, {got}: {remedy}")


def _positives(
    rows: ContrastBatch, labels: Tensor | None, mask: Tensor | None, reference_labels: Tensor | None
) -> PairWeight:
    if mask is not None:
        return _masked(rows, mask)
    if labels is None:
        return rows.same_sample()
    anchors, references = rows.labels(labels, reference_labels, torch.int64 if labels.ndim == 1 else torch.bool)
    return _with_common_label(anchors, None if references is anchors else references, rows.place)


def _with_common_label(labels: Tensor, references: Tensor | None, offset: int | None = None) -> PairWeight:
    """Return the pairs that have the same class or share a label; ``offset`` as in `Equal`."""
    weight, dtype = (SameClass, torch.int64) if labels.ndim == 1 else (SharesLabel, torch.bool)
    return weight(labels.to(dtype), None if references is None else references.to(labels.device, dtype), offset=offset)


def _masked(rows: ContrastBatch, mask: Tensor) -> PairWeight:
    samples = None if rows.others else rows.samples()[1]  # gathered before any check may fail
    count = len(rows.queries) // rows.views
    columns = rows.reference_shards.total if rows.others else rows.sample_shards.total
    if mask.shape != (count, columns):
        each = f"{columns} {'references' if rows.others else 'samples'}"
        expected = f"expected mask to have one row for each of {count} samples and one column for each of {each}"
        raise ValueError(f"{expected}, got shape {tuple(mask.shape)}: views do not add rows")
    index = rows.of_anchors(torch.arange(count, device=rows.queries.device))
    mask = mask.to(rows.queries.device, torch.bool)
    return Explicit(mask, rows=index, columns=samples if rows.others or samples is not None else index)


def _check_mask(mask: Tensor) -> None:
    check_tensor("mask", mask)
    if not is_plain(mask.dtype):
        raise ValueError(f"expected mask to be zeros and ones, got {mask.dtype}: convert it with .bool()")
    if not is_zeros_and_ones(mask):
        got = f"got {mask.dtype} with other values: compare it with a threshold first"
        raise ValueError(f"expected mask to be zeros and ones, {got}")
