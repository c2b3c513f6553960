"""Random shifts and flips: a crop of the padded image, as ResNets train on small images."""

from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from likewise.data.augmentation.augmentation import Augmentation
from likewise.data.augmentation.draw import Draw
from likewise.data.augmentation.images import floating, returned, uniform
from likewise.data.augmentation.parameters import check_probability


@final
class RandomShift(Augmentation):
    """Images padded with zeros and cropped to their own size at a random place, some of them flipped.

    Args:
        padding: Pixels on each side, so that an image moves by up to as many.
        flip: Probability of a horizontal flip.

    Returns:
        Calling it with images (N, channels, height, width), uint8 or from 0 to 1, returns images of the same size, of
        the inputs' dtype; uint8 becomes float32.

    Raises:
        ValueError: padding is negative, flip is outside [0, 1], or the input is not a batch of images.

    Memory:
        The padded images.

    Example:
        >>> RandomShift(padding=4)(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), Draw(0, rows=2)).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(self, *, padding: int = 4, flip: float = 0.5) -> None:
        if padding < 0:
            raise ValueError(f"expected padding of at least 0 pixels, got {padding}: 4 is usual for 32 pixels")
        check_probability("flip", flip)
        self.padding = padding
        self.flip = flip

    def __call__(self, inputs: Shaped[Tensor, "n ch h w"], draw: Draw) -> Float[Tensor, "n ch h w"]:
        """Shift every image by its own random number of pixels."""
        images = floating(inputs, "RandomShift")
        numbers = uniform(draw, images, 3)
        height, width = images.shape[-2:]
        top, left = (numbers[:, :2] * (2 * self.padding + 1)).long().clamp(max=2 * self.padding).T.unsqueeze(2)
        padded = functional.pad(images, [self.padding] * 4)
        rows = top + torch.arange(height, device=images.device)
        columns = left + torch.arange(width, device=images.device)
        columns = torch.where(numbers[:, 2:] < self.flip, columns.flip(1), columns)
        own = torch.arange(len(images), device=images.device).view(-1, 1, 1, 1)
        channels = torch.arange(images.shape[1], device=images.device).view(1, -1, 1, 1)
        return returned(padded[own, channels, rows[:, None, :, None], columns[:, None, None, :]], inputs)
