"""Linear changes of images that treat rows and columns apart: one matrix for each, and two products."""

import math

import torch
from jaxtyping import Float
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
    narrow = torch.bmm(images.reshape(count, channels * height, width), across).unflatten(1, (channels, height))
    rows, changed = rows.to(images.dtype), images.new_empty(count, channels, rows.shape[1], across.shape[2])
    for channel in range(channels):  # one product for all would copy the rows' weights for each channel
        torch.bmm(rows, narrow[:, channel], out=changed[:, channel])
    return changed


def bilinear(
    start: Float[Tensor, "*n"], length: Float[Tensor, "*n"], direction: Float[Tensor, "*n"], old: int, new: int
) -> Float[Tensor, "*n new old"]:
    """Return antialiased bilinear weights that resize a section of pixels.

    A new pixel at c takes of the pixel at p a share in proportion to max(0, s − |p − c|), p within the section, where
    s = max(1, length / new) is how far it reaches. Places are measured from the section's middle, where a flip is a
    direction of −1; c is a whole number and a rest, so that p − c is rounded as little in large images as in small.
    """
    half = length / 2
    places = torch.arange(0.5, old, device=start.device) - (start + half)[..., None]
    places = places.masked_fill(places.abs() > half[..., None], math.inf)
    # new · c, exact: starts and lengths are whole
    centres = torch.arange(0.5 - new / 2, new / 2, device=start.device) * (length * direction)[..., None]
    whole = (centres / new).round_()
    rest = centres.sub_(whole, alpha=new).div_(new)
    # the shares' negative, which the division by their sum turns back: one operation fewer
    shares = torch.sub(places[..., None, :], whole[..., None]).sub_(rest[..., None]).abs_()
    shares = shares.sub_((length / new).clamp_(min=1)[..., None, None]).clamp_(max=0)
    return shares.div_(shares.sum(-1, keepdim=True))
