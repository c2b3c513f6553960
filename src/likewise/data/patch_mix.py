"""PatchMix: a box of each query is replaced by the same box of another query of its episode."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from likewise.data.augmentation import Draw


class Mix(NamedTuple):
    """For each episode the box of its queries that is replaced, and the query that each one's box comes from.

    Source:
        C. Liu et al., Learning a Few-shot Embedding Model with Contrastive Learning, 2021, section 3.3.
    """

    boxes: Int[Tensor, "e 4"]
    """Top, bottom, left and right of the box of each episode, in pixels, (E, 4); bottom and right are outside."""
    partners: Int[Tensor, "e q"]
    """For each query the one that its box comes from, (E, Q): a permutation; it may be the query itself."""


def draw_mix(draw: Draw, queries: int, height: int, width: int) -> Mix:
    """Draw a box and a permutation for each episode.

    With λ uniform from 0 to 1 the box has the sides ⌊S √(1 − λ)⌋, halved by integer division, around a centre that is
    uniform in the image, and is cut off at its edges: 31 % of the pixels of 84 x 84 on average.
    """
    numbers = draw.uniform(3)
    share = (1 - numbers[:, 0]).sqrt()
    edges: list[Tensor] = []
    for column, side in enumerate((height, width), 1):
        centre, half = (numbers[:, column] * side).long(), (share * side).long() // 2
        edges += [(centre - half).clamp(0, side), (centre + half).clamp(0, side)]
    return Mix(torch.stack(edges, dim=1), draw.uniform(queries).argsort(dim=1))


def patched(queries: Shaped[Tensor, "e q ch h w"], mix: Mix) -> Shaped[Tensor, "e q ch h w"]:
    """Replace the box of every query by its partner's."""
    height, width = queries.shape[-2:]
    top, bottom, left, right = mix.boxes.T.unsqueeze(2)
    rows, columns = (torch.arange(side, device=queries.device) for side in (height, width))
    inside = ((rows >= top) & (rows < bottom)).unsqueeze(2) & ((columns >= left) & (columns < right)).unsqueeze(1)
    episodes = torch.arange(len(queries), device=queries.device).unsqueeze(1)
    return torch.where(inside[:, None, None], queries[episodes, mix.partners], queries)


def owned_by_partner(
    mix: Mix, map_shape: tuple[int, int], stride: int, image: tuple[int, int], *, start: float = 0.0
) -> Bool[Tensor, "e h w"]:
    """Tell which cells of a feature map lie for more than half within the box, and so show the partner.

    Cell i covers the pixels from start + i·stride to start + (i + 1)·stride, as far as the image goes.

    Args:
        mix: The boxes.
        map_shape: Height and width of the maps, in cells.
        stride: Pixels between neighbouring cells.
        image: Height and width of the images, in pixels.
        start: Where the first cell begins, in pixels; a whole number or a half.

    Example:
        >>> owned_by_partner(Mix(torch.tensor([[0, 8, 0, 5]]), torch.tensor([[0]])), (2, 2), 4, (8, 8)).tolist()
        [[[True, False], [True, False]]]
    """
    covered, sizes = list[Tensor](), list[Tensor]()
    for axis, (cells, side) in enumerate(zip(map_shape, image, strict=True)):
        edges = torch.arange(cells + 1, device=mix.boxes.device) * stride + start
        begin, end = edges.clamp(0, side).unfold(0, 2, 1).unbind(1)
        low, high = mix.boxes[:, 2 * axis, None], mix.boxes[:, 2 * axis + 1, None]
        covered.append((torch.minimum(end, high) - torch.maximum(begin, low)).clamp(min=0))
        sizes.append(end - begin)
    area = sizes[0].unsqueeze(1) * sizes[1]
    return 2 * covered[0].unsqueeze(2) * covered[1].unsqueeze(1) > area
