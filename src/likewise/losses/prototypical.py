"""The loss of prototypical networks: which class of its episode is a query nearest to?"""

from typing import Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions
from likewise.losses.checks import check_classes, check_embeddings, check_tensor
from likewise.pairs import SameClass


@final
class PrototypicalLoss(ContrastiveLoss):
    r"""Prototypical networks: identify a query's class by its squared distance to the class means of its episode.

    $$
    \ell_i = \log \sum_{k=1}^{K} e^{s_{ik}} - s_{i y_i} \qquad s_{ik} = -\lVert q_i - \bar v_k \rVert^2 / \tau
    $$

    with q a query's features, y its class within the episode, and $\bar v_k$ the mean of class k's support features. It
    is the one equation with inner products for similarities: $-\lVert q - v \rVert^2$ is $2 q \cdot v - \lVert v
    \rVert^2$ but for a term that all classes share, which is the inner product of (q, 1) and (2v, −‖v‖²). All episodes
    are evaluated at once: the anchors are the queries of all episodes, the references their E·K class means.

    Args:
        temperature: τ > 0, a number, or a 0-d tensor or parameter, which then receives a gradient.
        **options: reduction, normalize, gather_distributed, backend; see `LossOptions`. Here normalize is False unless
            given; with it, queries and class means have length 1, and s is 2 cos / τ up to a constant. If gathered, a
            query is still compared only with the classes of its own episode, but the mean is over those of all
            processes.

    Attributes:
        last: Also ``"accuracy"``, the share of queries whose nearest class mean is that of their class.

    Returns:
        A call returns the mean over queries, a scalar; with ``reduction="none"``, one loss for each, (E·Q,), in the
        order of ``query_labels.flatten()``.

    Raises:
        ValueError: If τ is not positive, or a call's input is invalid; see `forward`.

    Memory:
        O((E·Q + E·K)·D + tile).

    Source:
        Snell, Swersky, Zemel, "Prototypical Networks for Few-shot Learning", 2017, equations 1 and 2.

    Example:
        >>> import torch
        >>> class_means = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]])  # one episode of two classes
        >>> query_features = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]])
        >>> PrototypicalLoss()(query_features, class_means, torch.tensor([[0, 1]]))
        tensor(0.3133)
    """

    label_kinds = frozenset({"classes"})

    def __init__(self, *, temperature: float | Tensor = 1.0, **options: Unpack[LossOptions]) -> None:
        super().__init__(temperature, **{"normalize": False, **options})

    def forward(
        self,
        query_features: Float[Tensor, "e q d"],
        class_means: Float[Tensor, "e k d"],
        query_labels: Int[Tensor, "e q"],
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch of episodes.

        Args:
            query_features: Features of each episode's queries, (E, Q, D).
            class_means: For each class of each episode the mean of its support features, (E, K, D).
            query_labels: Each query's class within its episode, 0 … K − 1, (E, Q).

        Raises:
            ValueError: If shapes or devices do not match, values are not finite, or labels are outside 0 … K − 1.
                Values are checked on the CPU only; on a GPU a query with such a label is left out.
        """
        with self.checks(query_features) as inputs:
            _check(query_features, class_means, query_labels)
            for name, features in (("query_features", query_features), ("class_means", class_means)):
                inputs[name] = features[:, :0].flatten(0, 1)  # each rank has its own episodes
        (e, k, _), similar = class_means.shape, self._similarities(query_features, class_means)
        rows = self.rows(*(of.flatten(0, 1) for of in similar), local=True)
        episodes = torch.arange(e, device=rows.queries.device)
        of_queries = episodes.view(-1, 1).expand(query_labels.shape).flatten()
        push = SameClass(of_queries, episodes.repeat_interleave(k))
        own = of_queries * k + query_labels.flatten().to(of_queries)
        pull = SameClass(own, torch.arange(e * k, device=own.device)) & push  # within the episode, whatever the label
        temperature = self.temperature / 2 if self.normalize else self.temperature
        loss = self.evaluate(rows, pull=pull, push=push, positives=pull, temperature=temperature)
        self.last["accuracy"] = _accuracy(*similar, query_labels, normalize=self.normalize)
        return loss

    def _similarities(self, queries: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        """Return vectors whose inner products are the negative squared distances, but for what all classes share."""
        wide = torch.promote_types(torch.promote_types(queries.dtype, means.dtype), torch.float32)
        queries, means = queries.to(wide), means.to(wide)
        if self.normalize:
            return queries, means
        # distances don't change with the origin, and near the classes their squares lose no digits
        origin = means.detach().mean(dim=1, keepdim=True)
        queries, means = queries - origin, means - origin
        squares = means.square().sum(dim=2, keepdim=True)
        return torch.cat([queries, torch.ones_like(queries[..., :1])], dim=2), torch.cat([2 * means, -squares], dim=2)


@torch.no_grad()
def _accuracy(queries: Tensor, means: Tensor, labels: Tensor, *, normalize: bool) -> Float[Tensor, ""]:
    if normalize:  # a query's own length changes no order
        means = torch.nn.functional.normalize(means, dim=2)
    nearest = (queries @ means.mT).argmax(dim=2)
    return (nearest == labels.to(nearest.device)).float().mean()


def _check(queries: Tensor, means: Tensor, labels: Tensor) -> None:
    """Raise unless the inputs of a batch of episodes are consistent."""
    for name, features in (("query_features", queries), ("class_means", means)):
        check_tensor(name, features)
        if features.ndim != 3:
            raise ValueError(
                f"expected {name} to be features of episodes, (E, Q or K, D), got shape {tuple(features.shape)}: "
                "pass one episode as a batch of one, features[None]"
            )
        check_embeddings(name, features.flatten(0, 1))
    (e, q, d), (e_means, k, d_means) = queries.shape, means.shape
    if (e, d, queries.device) != (e_means, d_means, means.device):
        raise ValueError(
            f"expected class_means to have the query_features' {e} episodes, {d} features and device {queries.device}, "
            f"got shape {tuple(means.shape)} on {means.device}: encode both with the same encoder"
        )
    check_tensor("query_labels", labels)
    if labels.shape != (e, q):
        raise ValueError(
            f"expected query_labels to have one class for each query, shape {(e, q)}, got shape "
            f"{tuple(labels.shape)}: number the classes of each episode from 0"
        )
    check_classes("query_labels", labels.flatten(), "queries", e * q, k)
