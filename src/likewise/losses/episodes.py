"""Losses of few-shot episodes: prototypical networks, and InfoPatch with its local part."""

from typing import Annotated, Any, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from likewise.losses.base import ContrastiveLoss, Loss, LossOptions, Temperature, check_number, scalar
from likewise.losses.inputs import Episodic, check_classes, check_embeddings, check_tensor
from likewise.operator import Backend
from likewise.operator.inputs import check_finite, check_floating, check_temperature
from likewise.pairs import SameClass
from likewise.pairs.weight import widest


@final
class PrototypicalLoss(ContrastiveLoss):
    r"""Prototypical networks: identify a query's class by its squared distance to the class means of its episode.

    $$
    \ell_i = \log \sum_{k=1}^{K} e^{s_{ik}} - s_{i y_i} \qquad s_{ik} = -\lVert q_i - \bar v_k \rVert^2 / \tau
    $$

    with q a query's features, y its class within the episode, and $\bar v_k$ the mean of class k's support features.
    This is the equation of all contrastive losses, with push 1 on every class of the episode, and squared distances
    instead of inner products. No query is compared with another episode, so the loss is evaluated episode by episode,
    from differences, which stay exact if classes lie close together and far from the origin; ``backend`` has no effect.

    Args:
        **options: See `LossOptions`. Here normalize is False by default; if True, queries and class means have length
            1, and s is (2 cos − 2) / τ. Gathered, a query still meets only its own episode; the mean is over all.

    Attributes:
        last: Also ``"accuracy"``, the share of queries whose own class mean is the nearest.

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
        """Return the loss of a batch of episodes; losses of single queries are ordered as ``query_labels.flatten()``.

        Args:
            query_features: Features of each episode's queries, (E, Q, D).
            class_means: The mean support features of each class of each episode, (E, K, D).
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

    They are summed and returned in float64, to keep the digits of differences between them. The backward recomputes the
    differences, in O(E·(Q + K)·D + E·Q·K), and can be differentiated again.
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


@final
class PatchLoss(ContrastiveLoss):
    r"""InfoPatch, local: identify the class of each spatial cell of a query among the K classes of its episode.

    $$
    \ell = \log \sum_{k=1}^{K} e^{s_k} - s_y \qquad s_k = \cos(x, \bar v_k) / \tau
    $$

    with x one cell of a query's map, y its label, $\bar v_k$ class k's support map averaged over all its cells, and
    1/τ the scale. All episodes are evaluated at once: the anchors are the cells of all episodes, the references their
    E·K class means; a cell is pulled toward its class and pushed away from the classes of its episode.

    Args:
        scale: 1/τ > 0, a number, or a 0-d or (1,) tensor or parameter, which then receives a gradient.
        **options: See `LossOptions`. Gathered, a cell still meets only its own episode; the mean is over all cells.

    Memory:
        O((E·Q·H·W + E·K)·D + tile).

    Source:
        Liu et al., "Learning a Few-shot Embedding Model with Contrastive Learning", 2021; the values agree with the
        authors' code. `InfoPatchLoss` adds the global loss.

    Example:
        >>> query_maps = torch.eye(2).view(1, 2, 2, 1, 1).expand(1, 2, 2, 3, 3)  # two queries, 3 x 3 cells
        >>> support_maps = torch.eye(2).view(1, 2, 2, 1, 1)
        >>> cell_labels = torch.arange(2).view(1, 2, 1, 1).expand(1, 2, 3, 3)
        >>> PatchLoss(scale=1.0)(query_maps, support_maps, cell_labels)
        tensor(0.3133)
    """

    label_kinds = frozenset({"classes"})

    def __init__(self, *, scale: float | Tensor = 7.0, **options: Unpack[LossOptions]) -> None:
        super().__init__(1.0, **options)
        check_temperature(scale, "scale", "1 to 20; it is 1/τ, the paper's is 7")
        self.scale = scale

    def forward(
        self,
        query_maps: Annotated[Float[Tensor, "e q d h w"], Episodic()],
        support_maps: Annotated[Float[Tensor, "e k d h2 w2"], Episodic()],
        cell_labels: Annotated[Int[Tensor, "e q h w"], Episodic()],
    ) -> Float[Tensor, "..."]:
        """Return the loss of a batch of episodes; losses of single cells are ordered as ``cell_labels.flatten()``.

        Args:
            query_maps: Feature maps of each episode's queries, (E, Q, D, H, W).
            support_maps: One feature map for each class of each episode, (E, K, D, H', W'): with several shots, the
                mean of their maps.
            cell_labels: Each cell's class within its episode, 0 … K − 1, (E, Q, H, W). Cells of one query may have
                different labels, for example if queries were mixed.
        """
        wide = torch.promote_types(support_maps.dtype, torch.float32)
        means = support_maps.mean(dim=(-2, -1), dtype=wide).flatten(0, 1)
        rows = self.rows(query_maps.movedim(2, -1).flatten(0, 3), means, local=True)
        e, k = support_maps.shape[:2]
        episodes = torch.arange(e, device=rows.queries.device)
        of_cells = episodes.view(-1, 1, 1, 1).expand(cell_labels.shape).flatten()
        push = SameClass(of_cells, episodes.repeat_interleave(k))
        cell_classes = of_cells * k + cell_labels.flatten().to(of_cells)
        classes = torch.arange(e * k, device=cell_classes.device)
        pull = SameClass(cell_classes, classes) & push  # within the episode, whatever the label
        return self.evaluate(rows, pull=pull, push=push, positives=pull, temperature=1 / self.scale)

    def check(self, inputs: dict[str, Any]) -> None:
        """Raise unless the inputs of a batch of episodes are consistent."""
        check_temperature(self.scale, "scale", "1 to 20; it is 1/τ, the paper's is 7")
        check_episodes(inputs, ("query_maps", "support_maps", "cell_labels"), "repeat a query's label over its cells")


@final
class InfoPatchLoss(Loss):
    r"""InfoPatch: the local loss of a query's cells within their episode, and the global loss of all cells.

    $$
    \ell = w_g \, \ell_\text{global} + w_l \, \ell_\text{local}
    $$

    The local loss is `PatchLoss`: identify the class of a query's cell among the classes of its episode. The global
    loss is a classifier's cross-entropy: identify the class of every cell, of supports and queries, among all training
    classes. The batches and inputs of the training decide how supports are masked and queries mixed.

    Args:
        scale: 1/τ > 0 of the local loss.
        local_weight: w_l ≥ 0.
        global_weight: w_g ≥ 0. With 0 no classifier is needed.
        backend: See `LossOptions`.

    Attributes:
        last: ``"local_loss"``, and with a classifier ``"global_loss"`` and ``"global_accuracy"``, the share of cells
            with the largest logit at their own class.

    Returns:
        A call returns a scalar. If every process holds the same number of episodes, the mean of the processes' losses
        is the loss of all of them.

    Memory:
        The same as `PatchLoss`, and O(cells·C).

    Source:
        Liu et al., "Learning a Few-shot Embedding Model with Contrastive Learning", 2021; the default weights are
        the same as in the authors' code.

    Example:
        >>> query_maps = torch.eye(2).view(1, 2, 2, 1, 1).expand(1, 2, 2, 3, 3)
        >>> support_maps = torch.eye(2).view(1, 2, 2, 1, 1)
        >>> cell_labels = torch.arange(2).view(1, 2, 1, 1).expand(1, 2, 3, 3)
        >>> map_logits, map_labels = torch.zeros(4, 3, 3, 10), torch.zeros(4, 3, 3, dtype=torch.int64)
        >>> InfoPatchLoss(scale=1.0)(
        ...     query_maps, support_maps, cell_labels, map_logits=map_logits, map_labels=map_labels
        ... )
        tensor(2.4592)
    """

    label_kinds = frozenset({"classes"})

    def __init__(
        self, *, scale: float | Tensor = 7.0, local_weight: float = 0.5, global_weight: float = 1.0,
        backend: Backend = "auto",
    ) -> None:  # fmt: skip
        super().__init__()
        self.local_weight = check_number("local_weight", local_weight, 0, 1e6, "0.5")
        self.global_weight = check_number("global_weight", global_weight, 0, 1e6, "1")
        if local_weight == 0 and global_weight == 0:
            raise ValueError("expected a local_weight or global_weight above 0, got 0 for both: raise one of them")
        self.patch = PatchLoss(scale=scale, backend=backend)
        self.scale = scale
        self.backend: Backend = backend

    @property
    def unused(self) -> frozenset[str]:
        """Names of the forward arguments unused with these weights."""
        return frozenset() if self.global_weight else frozenset({"map_logits", "map_labels"})

    def forward(
        self,
        query_maps: Float[Tensor, "e q d h w"],
        support_maps: Float[Tensor, "e k d h2 w2"],
        cell_labels: Int[Tensor, "e q h w"],
        *,
        map_logits: Float[Tensor, "m h w c"] | None = None,
        map_labels: Int[Tensor, "m h w"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the loss of a batch of episodes.

        Args:
            query_maps: Feature maps of each episode's queries, (E, Q, D, H, W).
            support_maps: One feature map for each class of each episode, (E, K, D, H', W').
            cell_labels: Each cell's class within its episode, 0 … K − 1, (E, Q, H, W).
            map_logits: Logits of the C training classes for each cell of M images, (M, H, W, C). Needed unless
                global_weight is 0.
            map_labels: The training class of each of these cells, 0 … C − 1, (M, H, W).
        """
        local = self.patch(query_maps, support_maps, cell_labels)
        self.last = {"local_loss": local.detach()}
        if not self.global_weight:
            return self.local_weight * local
        logits, classes = _cells(map_logits, map_labels)
        everywhere = functional.cross_entropy(logits, classes)
        self.last["global_loss"] = everywhere.detach()
        self.last["global_accuracy"] = (logits.detach().argmax(dim=1) == classes).float().mean()
        return self.global_weight * everywhere + self.local_weight * local


def _cells(map_logits: Tensor | None, map_labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return checked logits of cells as rows, float32 or wider, and their classes."""
    if map_logits is None or map_labels is None:
        lacking = "map_logits" if map_logits is None else "map_labels"
        raise ValueError(f"expected {lacking} for the global loss, got none: pass them, or set global_weight to 0")
    check_tensor("map_logits", map_logits)
    check_floating("map_logits", map_logits)
    check_tensor("map_labels", map_labels)
    if map_logits.ndim != 4 or map_labels.shape != map_logits.shape[:3] or map_logits.shape[3] < 2:
        raise ValueError(
            "expected map_logits (M, H, W, C) of two or more classes and map_labels (M, H, W), got shapes "
            f"{tuple(map_logits.shape)} and {tuple(map_labels.shape)}: move the classes to the last dimension"
        )
    check_finite("map_logits", map_logits)
    check_classes("map_labels", map_labels.flatten(), "cells", map_labels.numel(), map_logits.shape[3])
    rows = map_logits.flatten(0, 2)
    return rows.float() if rows.dtype.itemsize < 4 else rows, map_labels.flatten().to(rows.device)


def check_episodes(inputs: dict[str, Any], names: tuple[str, str, str], remedy: str) -> None:
    """Raise unless the features or maps of queries and classes, and the queries' labels, are from the same episodes.

    Each rank has its own episodes: ranks compare only the dtype and the number of features. On a GPU, where values are
    not checked, a query or cell with a label outside the classes is left out.
    """
    queries, means, labels = (inputs[name] for name in names)
    maps = names[0].endswith("maps")
    layout = "feature maps of episodes, (E, Q or K, D, H, W)" if maps else "features of episodes, (E, Q or K, D)"
    for name, features in zip(names, (queries, means), strict=False):
        if features.ndim != (5 if maps else 3):
            got = f"got shape {tuple(features.shape)}: pass one episode as a batch of one, {name}[None]"
            raise ValueError(f"expected {name} to be {layout}, {got}")
        check_embeddings(name, features.flatten(2).flatten(0, 1))
    episodes, features = queries.shape[0], queries.shape[2]
    if (episodes, features, queries.device) != (means.shape[0], means.shape[2], means.device):
        raise ValueError(
            f"expected {names[1]} to have the {names[0]}' {episodes} episodes, {features} features and device "
            f"{queries.device}, got shape {tuple(means.shape)} on {means.device}: encode both with the same encoder"
        )
    each, shape = "cell of each query" if maps else "query", (*queries.shape[:2], *queries.shape[3:])
    if labels.shape != shape:
        expected = f"expected {names[2]} to have one class for each {each}, shape {tuple(shape)}"
        raise ValueError(f"{expected}, got shape {tuple(labels.shape)}: {remedy}")
    check_classes(names[2], labels.flatten(), "cells" if maps else "queries", labels.numel(), means.shape[1])
    inputs.update({name: inputs[name][:, :0].movedim(2, -1).flatten(0, -2) for name in names[:2]})
    del inputs[names[2]]
