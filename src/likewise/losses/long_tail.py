"""Losses for classes of unequal sizes: BCL balances the push, KCL the positives, and PaCo learns class centres."""

from numbers import Integral
from typing import Annotated, Any, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise import distributed
from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature, check_number
from likewise.losses.contrast_batch import ContrastBatch
from likewise.losses.inputs import Classes, Embeddings, References, check_classes, check_tensor
from likewise.operator import ContrastSpec, Push
from likewise.operator.inputs import check_finite, check_floating
from likewise.pairs import NotSelf, SameClass
from likewise.pairs.explicit import Listed


@final
class BCLLoss(ContrastiveLoss):
    r"""Balanced contrastive: identify the rows of the anchor's class, with every class averaged over its members.

    With B_c the rows of class c in the batch, and in a queue if there is one, together with its prototype, and i
    excluded from its own class,

    $$
    \ell_i = \log \sum_{c} \frac{1}{|B_c \setminus i|} \sum_{u \in B_c \setminus i} e^{z_i \cdot v_u / \tau}
             - \frac{1}{|B_{y_i} \setminus i|} \sum_{p \in B_{y_i} \setminus i} z_i \cdot v_p / \tau
    $$

    Frequent classes thus push no harder than rare ones, and no class is missing from the batch, since each has its
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
            queue: Further rows to compare with, (Q, D), the same on every process (see `likewise.memory.Queue`).
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


@final
class KCLLoss(ContrastiveLoss):
    r"""k-positive contrastive: identify the sample's other views and k random rows of its class among all other rows.

    $$
    \ell_i = \log \sum_{u \ne i} e^{z_i \cdot z_u / \tau} - \frac{1}{|P_k(i)|} \sum_{p \in P_k(i)} z_i \cdot z_p / \tau
    $$

    where P_k(i) holds the other views of anchor i's sample and one view each of k other samples of its class, or of all
    others if there are fewer. Each class is shuffled in every call, and the k samples are the next ones in that order,
    cyclically: every k-subset of the others is equally likely, and the views of one sample share it. The view of each
    of these k is sampled for every anchor separately. An anchor without positives is inactive: it contributes neither
    loss nor gradient and is left out of the mean. If no anchor is active the loss is 0, with gradient 0.

    Args:
        k: Maximum number of other samples of its class among an anchor's positives; an integer ≥ 1.

    Returns:
        The loss, a scalar. Sampling is seeded with one number from torch's global generator (rank 0's, if gathered), so
        ``torch.manual_seed`` makes it reproducible; on a GPU, if not gathered, the GPU's own generator is used, which
        ``torch.manual_seed`` also seeds.

    Memory:
        O((N + R)·(D + k) + tile).

    Source:
        Kang, Li, Xie, Yuan, Feng, "Exploring Balanced Feature Spaces for Representation Learning", 2021, the loss
        L_KCL, with k = 6.

    Example:
        >>> loss = KCLLoss(k=2, temperature=1.0)
        >>> loss(torch.eye(4).repeat(2, 1), torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])).ndim
        0
        >>> loss.last["positives_per_anchor"]
        tensor([2., 2., 2., 2., 2., 2., 2., 0.])
    """

    label_kinds = frozenset({"classes"})

    def __init__(self, *, k: int = 6, temperature: Temperature = 0.1, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
            raise ValueError(f"expected k to be an integer ≥ 1, got {k!r}: NTXentLoss has no positives by class")
        self.k = int(k)

    def forward(
        self,
        embeddings: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, " b"], Classes("embeddings")],
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            embeddings: One view of each sample, (N, D), or V views, (B, V, D). B below is N for one view.
            labels: Classes of the samples, any integers, (B,).
        """
        rows = self.rows(embeddings)
        push = rows.not_self()
        samples, references = rows.samples()
        row_of = torch.argsort(samples if references is None else references, stable=True).view(-1, rows.views)
        view = torch.arange(rows.views, device=samples.device).repeat_interleave(len(samples) // rows.views)
        step = torch.arange(1, rows.views, device=samples.device)[:, None]
        views = row_of[samples, (view + step) % rows.views]
        positives = Listed(torch.cat([views, self._draw(rows, labels, row_of)]), len(rows.references))
        return self.evaluate(rows, pull=positives.mean_over_row(), push=push, positives=positives)

    def _draw(self, rows: ContrastBatch, labels: Tensor, row_of: Int[Tensor, "b v"]) -> Int[Tensor, "k n"]:
        """Return each anchor's sampled references, R where its class has no more; all processes draw the same."""
        device, views, generator = rows.queries.device, rows.views, self._generator(rows)
        labels = distributed.gather(labels.to(device, torch.int64), rows.sample_shards).contiguous()
        source = device if generator is None else "cpu"
        shuffled = torch.randperm(len(labels), generator=generator, device=source).to(device)
        view = torch.randint(views, (self.k, views, len(labels)), generator=generator, device=source).to(device)
        order = shuffled[torch.argsort(labels[shuffled], stable=True)]  # class after class, at random within each
        first, end = (torch.searchsorted(labels[order], labels, right=right) for right in (False, True))
        members, position = end - first, torch.argsort(order) - first
        step = torch.arange(1, self.k + 1, device=device)[:, None]
        sample = order[first + (position + step) % members]
        drawn = row_of[sample[:, None], view].masked_fill((step >= members)[:, None], len(rows.references))
        start = rows.sample_shards.offset
        return drawn[:, :, start : start + len(rows.queries) // views].flatten(1)

    def _generator(self, rows: ContrastBatch) -> torch.Generator | None:
        """Return a generator seeded by rank 0's global one; None on a GPU, where a graph would repeat its sample."""
        if rows.queries.device.type != "cpu" and not rows.gathered:
            return None
        seed = int(torch.randint(2**63 - 1, (), device="cpu"))
        if rows.gathered:
            seed = distributed.exchange((seed,), rows.queries.device)[0][0]
        return torch.Generator().manual_seed(seed)


@final
class PaCoLoss(ContrastiveLoss):
    r"""Parametric contrastive: identify the anchor's class among all other rows and all class centres.

    With g_ic the logit of anchor i for the centre of class c, and P(i) the other rows of i's class,

    $$
    \ell_i = \log \left( \sum_{u \ne i} e^{z_i \cdot z_u / \tau} + \sum_c e^{g_{ic}} \right)
             - \frac{g_{i y_i} + \alpha \sum_{p \in P(i)} z_i \cdot z_p / \tau}{1 + \alpha |P(i)|}
    $$

    The centres' logits come from a different space, usually a linear classifier on the features before the projection,
    so the centres are not references: this combines the log-sum-exp of the other losses with one over the logits. Every
    anchor has a positive, the centre of its class, and is active. Rows of a queue are other rows, never anchors.

    Args:
        alpha: α ≥ 0, the weight of a row of the anchor's class, relative to 1 for the centre of that class.
        temperature: τ > 0; see `ContrastiveLoss`. It divides the similarities only, not the logits.

    Memory:
        O(N·(D + C) + (R + Q)·D + tile).

    Source:
        Cui, Zhong, Liu, Yu, Jia, "Parametric Contrastive Learning", 2021, section 3; defaults as in the authors' code
        for ImageNet-LT, which also adds the classes' prior: here the caller does, ``class_logits + prior.log()``.

    Example:
        >>> embeddings, class_logits = torch.eye(2), torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> PaCoLoss(temperature=1.0)(embeddings, torch.tensor([0, 1]), class_logits)
        tensor(0.2395)
    """

    label_kinds = frozenset({"classes"})

    def __init__(self, *, alpha: float = 0.05, temperature: Temperature = 0.2, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **options)
        self.alpha = check_number("alpha", alpha, 0, 1e6, "0.05 to 1, where the centre has weight 1")

    def forward(
        self,
        embeddings: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Int[Tensor, " b"],
        class_logits: Float[Tensor, "..."],
        *,
        queue: Annotated[Float[Tensor, "q d"] | None, References("embeddings")] = None,
        queue_labels: Annotated[Int[Tensor, " q"] | None, Classes("queue")] = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch.

        Args:
            embeddings: One view of each sample, (N, D), or V views, (B, V, D). B below is N for one view.
            labels: Classes of the samples, 0 … C − 1, (B,).
            class_logits: One logit per class for each embedding, (N, C) or (B, V, C).
            queue: Further rows to compare with, (Q, D), the same on every process (see `likewise.memory.Queue`).
            queue_labels: Their classes, (Q,).
        """
        rows = self.rows(embeddings, replicated=() if queue is None else (queue,))
        dtype = torch.promote_types(rows.dtype, class_logits.dtype)
        logits = (torch.cat(class_logits.unbind(dim=1)) if class_logits.ndim == 3 else class_logits).to(dtype)
        classes, sections = rows.classes(labels, queue_labels=queue_labels)
        push = rows.all_others()
        positives = rows.same_class(classes, sections) & push
        (repulsion,), _, attraction, *_ = self.outcome(rows, ContrastSpec((Push(push),), positives))
        one_hot = classes[:, None] == torch.arange(logits.shape[1], device=logits.device)
        weights = 1 + self.alpha * positives.row_sum(dtype, logits.device)
        everything = torch.logaddexp(repulsion.to(dtype), torch.logsumexp(logits, dim=1))
        losses = everything - (logits.where(one_hot, 0).sum(dim=1) + self.alpha * attraction) / weights
        return self.reduce(losses, positives=positives)

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise unless there is a logit of each class for each embedding."""
        class_logits, labels, embeddings = inputs["class_logits"], inputs["labels"], inputs["embeddings"]
        check_tensor("class_logits", class_logits)
        check_floating("class_logits", class_logits)
        if class_logits.shape[:-1] != embeddings.shape[:-1] or not class_logits.shape[-1]:
            rows, shape = ", ".join(map(str, embeddings.shape[:-1])), tuple(class_logits.shape)
            expected = f"expected class_logits to have a logit per class for each embedding, ({rows}, C)"
            raise ValueError(f"{expected}, got shape {shape}: classify every row that is embedded")
        if class_logits.device != embeddings.device:
            devices = f"{embeddings.device}, got {class_logits.device}"
            raise ValueError(f"expected class_logits on the embeddings' device, {devices}: move them")
        check_finite("class_logits", class_logits)
        check_classes("labels", labels, "embeddings", len(embeddings), class_logits.shape[-1])
