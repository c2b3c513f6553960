"""Proxy-anchor: each class's prototype is an anchor, and the batch its references."""

from typing import Annotated, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise import distributed
from likewise.distributed import RankSizes
from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature, scalar
from likewise.losses.checks import check_number
from likewise.losses.inputs import Classes, Embeddings, References
from likewise.operator import ContrastSpec, Push
from likewise.pairs import SameClass


@final
class ProxyAnchorLoss(ContrastiveLoss):
    r"""Proxy-anchor: pull the rows of a class to its prototype and push the others away, the hardest of each the most.

    With s the cosine, P the C prototypes, P⁺ those of classes in the batch, and X_p the rows of p's class,

    $$
    \ell = \frac{1}{|P^+|} \sum_{p \in P^+} \log \Bigl( 1 + \sum_{x \in X_p} e^{-(s_{px} - \delta) / \tau} \Bigr)
         + \frac{1}{|P|} \sum_{p \in P} \log \Bigl( 1 + \sum_{x \notin X_p} e^{(s_{px} + \delta) / \tau} \Bigr)
    $$

    Args:
        margin: δ, in units of the cosine.
        **options: See `LossOptions`. Gathered, processes exchange two numbers for each class instead of rows.

    Returns:
        A call returns the loss, a scalar: the mean of one for each class, (C,), which ``reduction="none"`` returns; if
        gathered, divided by the number of processes, so that these add up.

    Memory:
        O((N + Q + C)·D + tile).

    Source:
        Kim, Kim, Cho, Kwak, "Proxy Anchor Loss for Deep Metric Learning", 2020; there α = 1/τ = 32 and δ = 0.1.

    Example:
        >>> embeddings, prototypes = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.eye(2)
        >>> ProxyAnchorLoss(temperature=1.0)(embeddings, torch.tensor([0, 1]), prototypes)
        tensor(1.0856)
    """

    label_kinds = frozenset({"classes"})

    def __init__(
        self, *, temperature: Temperature = 1 / 32, margin: float = 0.1, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(temperature, **options)
        self.margin = check_number("margin", margin, -1e6, 1e6, "0.1")

    def forward(
        self,
        embeddings: Annotated[Float[Tensor, "..."], Embeddings()],
        labels: Annotated[Int[Tensor, " b"], Classes("embeddings", below="prototypes")],
        prototypes: Annotated[Float[Tensor, "c d"], References("embeddings")],
        *,
        queue: Annotated[Float[Tensor, "q d"] | None, References("embeddings")] = None,
        queue_labels: Annotated[Int[Tensor, " q"] | None, Classes("queue", below="prototypes")] = None,
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch, whose arguments are those of `BCLLoss.forward`."""
        batch = self.rows(embeddings, local=True)
        classes = batch.of_anchors(labels.to(batch.queries.device, torch.int64))
        sums, members = self._sums(prototypes, batch.queries, classes)
        world = distributed.world_size() if self.gathers else 1
        if world > 1:
            shards = RankSizes((len(prototypes),) * world, distributed.rank())
            sums = distributed.gather(sums, shards).view(world, -1, 2).logsumexp(dim=0)
            members = distributed.total(members)
        active = (members.sum() > 0).expand(len(prototypes))
        if queue is not None and queue_labels is not None:
            of_queue, more = self._sums(prototypes, queue, queue_labels.to(classes))
            sums, members = torch.logaddexp(sums, of_queue), members + more
        terms = sums + self.margin / scalar(self.temperature, sums)
        positive, negative = torch.logaddexp(terms, torch.zeros_like(terms)).unbind(dim=1)
        met = (members > 0).sum().clamp(min=1).to(sums.dtype)
        losses = ((positive * (len(prototypes) / met) + negative) / world).where(active, 0)
        return self.reduce(losses, active, members, torch.full_like(losses.detach(), 1 / world))

    def _sums(
        self, prototypes: Tensor, rows: Tensor, classes: Tensor
    ) -> tuple[Float[Tensor, "c 2"], Int[Tensor, " c"]]:
        """Return the logarithms of each class's two sums over rows, without the margin, and how many rows it has."""
        same = SameClass(torch.arange(len(prototypes), device=classes.device), classes)
        outcome = self.outcome(self.rows(prototypes, rows, local=True), ContrastSpec((Push(same, -1.0), Push(~same))))
        sums = torch.stack(outcome.logsums, dim=1).clamp(min=-1e30)  # where −∞ would have no gradient
        return sums, same.row_sum(device=classes.device)
