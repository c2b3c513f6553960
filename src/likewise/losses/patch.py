"""InfoPatch's local loss: classify every spatial cell of a query among the classes of its episode."""

from typing import Annotated, Any, Unpack, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from likewise.losses.base import ContrastiveLoss, LossOptions
from likewise.losses.checks import check_episodes
from likewise.losses.inputs import Episodic
from likewise.operator.inputs import check_temperature
from likewise.pairs import SameClass


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
        **options: See `LossOptions`. Gathered, a cell still meets its own episode alone; the mean is over all cells.

    Memory:
        O((E·Q·H·W + E·K)·D + tile).

    Source:
        Liu et al., "Learning a Few-shot Embedding Model with Contrastive Learning", 2021; the values are those of the
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
        """Return the loss of a batch of episodes; of single cells in the order of ``cell_labels.flatten()``.

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
