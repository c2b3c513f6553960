"""The loss of prototypical networks: identify the class mean of its episode that a query is nearest to."""

from typing import Annotated, Any, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions, Temperature, scalar
from likewise.losses.checks import check_episodes
from likewise.losses.inputs import Episodic
from likewise.pairs.weight import widest


@final
class PrototypicalLoss(ContrastiveLoss):
    r"""Prototypical networks: identify a query's class by its squared distance to the class means of its episode.

    $$
    \ell_i = \log \sum_{k=1}^{K} e^{s_{ik}} - s_{i y_i} \qquad s_{ik} = -\lVert q_i - \bar v_k \rVert^2 / \tau
    $$

    with q a query's features, y its class within the episode, and $\bar v_k$ the mean of class k's support features. It
    is the equation of all contrastive losses, with push 1 on every class of the episode, and squared distances in place
    of inner products. No query is compared with another episode, so it is evaluated episode by episode, from
    differences, which stay exact where classes lie close together and far from the origin; ``backend`` has no effect.

    Args:
        **options: See `LossOptions`. Here normalize is False unless given; with it, queries and class means have length
            1, and s is (2 cos − 2) / τ. Gathered, a query still meets its own episode alone; the mean is over all.

    Attributes:
        last: Also ``"accuracy"``, the share of queries whose nearest class mean is that of their class.

    Memory:
        O((E·Q + E·K)·D + E·Q·K).

    Source:
        Snell, Swersky, Zemel, "Prototypical Networks for Few-shot Learning", 2017, equations 1 and 2.

    Example:
        >>> class_means = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]])  # one episode of two classes
        >>> query_features = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]])
        >>> PrototypicalLoss()(query_features, class_means, torch.tensor([[0, 1]]))
        tensor(0.3133)
    """

    label_kinds = frozenset({"classes"})

    def __init__(self, *, temperature: Temperature = 1.0, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **{"normalize": False, **options})

    def forward(
        self,
        query_features: Annotated[Float[Tensor, "e q d"], Episodic()],
        class_means: Annotated[Float[Tensor, "e k d"], Episodic()],
        query_labels: Annotated[Int[Tensor, "e q"], Episodic()],
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch of episodes; of single queries in the order of ``query_labels.flatten()``.

        Args:
            query_features: Features of each episode's queries, (E, Q, D).
            class_means: For each class of each episode the mean of its support features, (E, K, D).
            query_labels: Each query's class within its episode, 0 … K − 1, (E, Q).
        """
        rows = self.rows(query_features.flatten(0, 1), class_means.flatten(0, 1), local=True)
        both = query_features, class_means
        queries, means = (self.scaled(features.flatten(0, 1), rows.dtype).view_as(features) for features in both)
        logits = -_SquaredDistances.apply(queries, means).flatten(0, 1)
        logits = logits / scalar(self.temperature, logits)
        labels = query_labels.flatten().to(logits.device, torch.int64).unsqueeze(1)
        active = ((labels >= 0) & (labels < logits.shape[1])).squeeze(1)
        labels = labels.clamp(0, logits.shape[1] - 1)
        # relative to the query's own class, which becomes 0: logits far below it keep their digits
        negatives = (logits - logits.gather(1, labels)).scatter(1, labels, -torch.inf).logsumexp(dim=1)
        losses = torch.logaddexp(negatives, torch.zeros_like(negatives)).where(active, 0).to(rows.dtype)
        loss = self.reduce(losses, active)
        nearest = logits.detach().argmax(dim=1) == labels.squeeze(1)
        self.last["accuracy"] = (nearest & active).sum() / active.sum().clamp(min=1)
        return loss

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise unless the inputs of a batch of episodes are consistent."""
        names = "query_features", "class_means", "query_labels"
        check_episodes(inputs, names, "number the classes of each episode from 0")


class _SquaredDistances(torch.autograd.Function):
    """Squared distances of queries, (E, Q, D), to class means, (E, K, D), from differences, class by class.

    They are summed in float64, and returned in it, so that differences between them keep their digits. The backward
    takes the differences anew, in O(E·(Q + K)·D + E·Q·K), and can be differentiated again.
    """

    @staticmethod
    def forward(queries: Tensor, means: Tensor) -> Tensor:
        away = (queries - mean.unsqueeze(1) for mean in means.unbind(1))
        wide = widest(queries.device)
        return torch.stack([difference.square().sum(dim=2, dtype=wide) for difference in away], dim=2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        del output
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        queries, means = ctx.saved_tensors
        of_queries, of_means = torch.zeros_like(queries), list[Tensor]()
        for mean, slope in zip(means.unbind(1), slopes[0].to(queries.dtype).unbind(2), strict=True):
            pulled = 2 * slope.unsqueeze(2) * (queries - mean.unsqueeze(1))
            of_queries = of_queries + pulled
            of_means.append(-pulled.sum(dim=1))
        return of_queries, torch.stack(of_means, dim=1)
