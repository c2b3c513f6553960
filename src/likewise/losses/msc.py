"""MSC, a multi-label supervised contrastive loss with prototypes, in which labels have equal shares of the pull."""

from typing import Annotated, Unpack, final

from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature
from likewise.losses.checks import check_positive
from likewise.losses.inputs import Embeddings, MultiHot, Prototypes, References
from likewise.losses.label_weights import label_weights
from likewise.pairs import AllPairs, concat


@final
class MSCLoss(ContrastiveLoss):
    r"""MSC: each label pulls the query toward its prototype and the instances that have it; labels share equally.

    With M_irc = α y_ic y_rc / |y_i ∪ y_r| over the instances (the batch without self, and the queue if there is one),

    $$D_{ic} = \sum_r M_{irc} + y_{ic}, \qquad
      w_{ir} = \sum_{c \in y_i} \frac{M_{irc}}{D_{ic}}, \qquad w_{i p_c} = \frac{y_{ic}}{D_{ic}}$$

    $$\ell_i = \log \sum_u \beta_u \, e^{z_i \cdot v_u / \tau} - \frac{1}{|y_i|} \sum_r w_{ir} \, z_i \cdot v_r / \tau$$

    where β_u is β for instances and 1 for prototypes, and Σ_r w_ir = |y_i|. A query without labels is inactive, but
    as an instance it pushes the others.

    Args:
        alpha: α > 0, the pull of instances relative to that of prototypes.
        beta: β > 0, the push of instances relative to that of prototypes.

    Returns:
        The loss, a scalar. ``last["positives_per_anchor"]`` counts instances and prototypes.

    Memory:
        O((N + R)·(D + L)); see `likewise.contrast`.

    Source:
        Audibert, Gauffre, Amini, "Exploring Contrastive Learning for Long-Tailed Multi-Label Text Classification",
        2024.

    Example:
        >>> import torch
        >>> queries, labels = torch.eye(3), torch.tensor([[1, 0], [1, 1], [0, 0]])
        >>> MSCLoss(temperature=1.0)(queries, labels, prototypes=torch.eye(2, 3))
        tensor(0.7823)
    """

    label_kinds = frozenset({"label sets"})
    recommended_inputs = ("Momentum", "KeyQueue")

    def __init__(
        self, *, alpha: float = 1.0, beta: float = 0.1, temperature: Temperature = 0.1, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(temperature, **options)
        self.alpha = check_positive("alpha", alpha)
        self.beta = check_positive("beta", beta)

    def forward(
        self,
        queries: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, "b l"], MultiHot("queries", rows="samples")],
        prototypes: Annotated[Float[Tensor, "l d"], Prototypes("queries", of="labels")],
        *,
        queue: Annotated[Float[Tensor, "q d"] | None, References("queries")] = None,
        queue_labels: Annotated[Int[Tensor, "q l"] | None, MultiHot("queue", like="labels")] = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of queries contrasted with each other, the prototypes and a queue.

        Args:
            queries: One view of each sample, (N, D), or V views, (B, V, D).
            labels: Multi-hot labels of the samples, zeros and ones, (B, L).
            prototypes: One for each label, (L, D), with gradient; the same on every process.
            queue: Further instances, (Q, D), the same on every process (see `likewise.memory.Queue`).
            queue_labels: Their multi-hot labels, (Q, L).
        """
        replicated = (prototypes,) if queue is None else (queue, prototypes)
        rows = self.rows(queries, replicated=replicated)
        label_sets, reference_sets = rows.sets(labels, None)
        not_self = rows.not_self()
        weights = label_weights(
            label_sets,
            [reference_sets, *rows.sets_of(queue_labels)],
            alpha=self.alpha,
            dtype=rows.dtype,
            self_term="left out",
        )
        batch, *rest = weights.instances
        return self.evaluate(
            rows,
            pull=concat([batch * not_self, *rest, weights.prototypes]).with_row_sums(weights.totals),
            push=concat(
                [
                    not_self * self.beta,
                    *(AllPairs(*weight.shape) * self.beta for weight in rest),
                    AllPairs(*weights.prototypes.shape),
                ]
            ),
            positives=weights.positives,
        )
