"""Linear maps of images that are separable in rows and columns: two matrices and two products."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def separable(
    images: Float[Tensor, "n ch h w"], rows: Float[Tensor, "n new_h h"], columns: Float[Tensor, "n new_w w"]
) -> Float[Tensor, "n ch new_h new_w"]:
    """Multiply every image's rows and columns by its own matrices: Y = R X Cᵀ for each channel.

    Args:
        images: Images (N, channels, height, width).
        rows: Weights of the old rows in each new row, R, (N, new height, height).
        columns: Weights of the old columns in each new column, C, (N, new width, width).

    Returns:
        Images (N, channels, new height, new width).
    """
    count, channels, height, width = images.shape
    # contiguous: on a CPU the product with a transposed view takes twice as long
    across = columns.mT.contiguous().to(images.dtype)
    narrow = torch.bmm(images.reshape(count, channels * height, width), across).unflatten(1, (channels, height))
    rows, changed = rows.to(images.dtype), images.new_empty(count, channels, rows.shape[1], across.shape[2])
    for channel in range(channels):  # a single product would copy the row weights for each channel
        torch.bmm(rows, narrow[:, channel], out=changed[:, channel])
    return changed


def bilinear(
    start: Float[Tensor, "*n"], length: Float[Tensor, "*n"], direction: Float[Tensor, "*n"], old: int, new: int
) -> Float[Tensor, "*n new old"]:
    """Return antialiased bilinear weights that resize a section of pixels.

    A new pixel at c weights the old pixel at p in proportion to max(0, s − |p − c|), for p within the section, where
    s = max(1, length / new) is the reach. Positions are measured from the section's middle, so that a flip is the
    direction −1. c is split into a whole number and a remainder, which keeps p − c as accurate in large images as in
    small ones.
    """
    half = length / 2
    places = torch.arange(0.5, old, device=start.device) - (start + half)[..., None]
    places = places.masked_fill(places.abs() > half[..., None], math.inf)
    # new · c is exact, since starts and lengths are whole
    centres = torch.arange(0.5 - new / 2, new / 2, device=start.device) * (length * direction)[..., None]
    whole = (centres / new).round_()
    rest = centres.sub_(whole, alpha=new).div_(new)
    # the negative weights: division by their sum restores the sign, which saves an operation
    shares = torch.sub(places[..., None, :], whole[..., None]).sub_(rest[..., None]).abs_()
    shares = shares.sub_((length / new).clamp_(min=1)[..., None, None]).clamp_(max=0)
    return shares.div_(shares.sum(-1, keepdim=True))
