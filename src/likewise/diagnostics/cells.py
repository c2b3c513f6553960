"""Cells of a feature map matched with the classes of an episode: what each part of an image looks like."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

SCALE = 7.0  # InfoPatch's


def cell_matches(
    query_maps: Float[Tensor, "q d h w"], support_maps: Float[Tensor, "n d h2 w2"], scale: float = SCALE
) -> Float[Tensor, "q n h w"]:
    """Tell how much each cell of a query looks like each class of its episode: the softmax of scaled cosines.

    Args:
        query_maps: Feature maps of queries, (Q, D, H, W).
        support_maps: One feature map of each class, (N, D, H', W'), averaged over its cells.
        scale: What cosines are multiplied by.

    Returns:
        Shares, (Q, N, H, W), that sum to 1 over the classes.

    Source:
        C. Liu et al., Learning a Few-shot Embedding Model with Contrastive Learning, 2021, equation 5.

    Example:
        >>> maps = torch.eye(2).view(2, 2, 1, 1)
        >>> cell_matches(maps, maps, scale=1.0).flatten(1)
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])
    """
    classes = functional.normalize(support_maps.mean(dim=(2, 3)), dim=1)
    cells = functional.normalize(query_maps, dim=1)
    return (scale * torch.einsum("qdhw,nd->qnhw", cells, classes)).softmax(dim=1)
