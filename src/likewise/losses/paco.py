"""Parametric contrastive learning: SupCon with a learned centre for each class as a further reference."""

from typing import Annotated, Any, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.checks import check_classes, check_number, check_tensor
from likewise.losses.inputs import Classes, Embeddings, References
from likewise.operator import ContrastSpec, Push
from likewise.operator.inputs import check_finite, check_floating


@final
class PaCoLoss(ContrastiveLoss):
    r"""Parametric contrastive: identify the anchor's class among all other rows and all class centres.

    With g_ic the logit of anchor i for the centre of class c, and P(i) the other rows of i's class,

    $$
    \ell_i = \log \left( \sum_{u \ne i} e^{z_i \cdot z_u / \tau} + \sum_c e^{g_{ic}} \right)
             - \frac{g_{i y_i} + \alpha \sum_{p \in P(i)} z_i \cdot z_p / \tau}{1 + \alpha |P(i)|}
    $$

    The centres' logits come from a different space, usually a linear classifier on the features before the projection,
    so the centres are not references: this is the log-sum-exp of the other losses combined with one of the logits.
    Every anchor has a positive, the centre of its class, and is active. A queue's rows are other rows, and no anchors.

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
            queue: Rows to compare with in addition, (Q, D), the same on every process (see `likewise.memory.Queue`).
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
