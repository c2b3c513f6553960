"""Linear changes of images that treat rows and columns apart: one matrix for each, and two products."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def separable(
    images: Float[Tensor, "n ch h w"], rows: Float[Tensor, "n new_h h"], columns: Float[Tensor, "n new_w w"]
) -> Float[Tensor, "n ch new_h new_w"]:
    """Weigh every image's rows and columns by matrices of its own: Y = R X Cᵀ for each channel.

    Args:
        images: Images (N, channels, height, width).
        rows: What each new row takes of the rows, (N, new height, height).
        columns: What each new column takes of the columns, (N, new width, width).

    Returns:
        Images (N, channels, new height, new width).
    """
    count, channels, height, width = images.shape
    # laid out as it is read: on a CPU the product with a transposed view takes twice as long
    across = columns.mT.contiguous().to(images.dtype)
    narrow = torch.bmm(images.reshape(count, channels * height, width), across)
    return torch.matmul(rows.to(images.dtype)[:, None], narrow.view(count, channels, height, -1))


def bilinear(
    start: Float[Tensor, "*n"],
    length: Float[Tensor, "*n"],
    backwards: Bool[Tensor, "*n"] | None,
    old: int,
    new: int,
) -> Float[Tensor, "*n new old"]:
    """Return antialiased bilinear weights that resize a section of pixels, backwards where it is flipped.

    A new pixel at c takes of the pixel at p the share max(0, 1 − |p − c| / s), p within the section, where
    s = max(1, length / new), divided by the sum of the shares. Places are measured from the section's middle, where
    rounding is least, and where a flip is a sign.
    """
    step = length / new
    reach = step.clamp(min=1)
    places = torch.arange(0.5, old, device=start.device) - torch.add(start, length, alpha=0.5)[..., None]
    outside = places.abs() > length[..., None] / 2
    places = (places / reach[..., None]).masked_fill_(outside, math.inf)
    step = step / reach
    if backwards is not None:
        step = torch.where(backwards, -step, step)
    centres = torch.arange(0.5 - new / 2, new / 2, device=start.device) * step[..., None]
    # the shares' negative, which the division by their sum turns back: one operation fewer
    shares = torch.sub(places[..., None, :], centres[..., None]).abs_().sub_(1).clamp_(max=0)
    return shares.div_(shares.sum(-1, keepdim=True))
