"""Gaussian blur, with a different width for every image."""

from functools import lru_cache
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.data.augmentation.augmentation import Draw, ImageAugmentation, check_probability, check_range, uniform
from likewise.data.augmentation.crop import separable

SHARP = 1e4
"""Makes a kernel of only its middle: exp(−10,000) is 0."""


@final
class GaussianBlur(ImageAugmentation):
    """Gaussian blur of some images, with a random width each and a mirrored border: two matrix products per image.

    Args:
        sigma: Smallest and largest standard deviation of the Gaussian, in pixels.
        probability: Probability that an image is blurred.
        size: Side of the kernel in pixels, odd. None: SimCLR's, a tenth of the image's shorter side made odd, and at
            least 3.

    Returns:
        Calling it with images (N, channels, height, width) returns images of the same shape; see `ImageAugmentation`.

    Raises:
        ValueError: A range is invalid, a probability is outside [0, 1], the size is even, or the input is not a batch
            of images larger than half the kernel.

    Memory:
        The weights for an image take height² + width² numbers.

    Source:
        T. Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020, appendix A.

    Example:
        >>> GaussianBlur()(torch.rand(4, 3, 8, 8), Draw(0, rows=4)).shape
        torch.Size([4, 3, 8, 8])
    """

    def __init__(
        self, *, sigma: tuple[float, float] = (0.1, 2.0), probability: float = 0.5, size: int | None = None
    ) -> None:
        check_range("sigma", sigma)
        check_probability("probability", probability)
        if size is not None and (size < 1 or size % 2 == 0):
            raise ValueError(f"expected size odd and positive, got {size}: choose {size + 1}")
        self.sigma = sigma
        self.probability = probability
        self.size = size

    def change(self, images: Float[Tensor, "n ch h w"], draw: Draw) -> Float[Tensor, "n ch h w"]:
        """Blur some of the images."""
        return separable(images, *self.weights(images, draw, images.shape[-2:])).clamp_(0, 1)

    def weights(
        self, images: Tensor, draw: Draw, sides: tuple[int, ...]
    ) -> tuple[Float[Tensor, "n h h"], Float[Tensor, "n w w"]]:
        """Sample a width for each image, and return row and column weights that blur images of these sides."""
        size = self.size or max(3, min(sides) // 20 * 2 + 1)
        if min(sides) <= size // 2:
            raise ValueError(
                f"GaussianBlur expected images larger than half its kernel of {size} pixels, got {tuple(sides)}: "
                f"choose a size of at most {2 * min(sides) - 1}"
            )
        numbers = uniform(draw, images, 2)
        sigma = numbers[:, 0] * (self.sigma[1] - self.sigma[0]) + self.sigma[0]
        sharpness = torch.where(numbers[:, 1] < self.probability, 0.5 / sigma.square(), SHARP)
        return blur_weights(sharpness, size, sides)


def blur_weights(
    sharpness: Float[Tensor, " n"], size: int, sides: tuple[int, ...]
) -> tuple[Float[Tensor, "n h h"], Float[Tensor, "n w w"]]:
    """Return the Gaussian kernels' weights, proportional to exp(−sharpness · k²) at k pixels from the middle."""
    away = torch.arange(size, device=sharpness.device) - size // 2
    kernels = torch.softmax(sharpness[:, None] * -away.square(), dim=1)
    tables = {side: kernels @ _places(side, size, sharpness.device) for side in set(sides)}
    rows, columns = (tables[side].view(-1, side, side) for side in sides)
    return rows, columns


@lru_cache(maxsize=16)
def _places(side: int, size: int, device: torch.device) -> Float[Tensor, "size _"]:
    """Return the pixel under each kernel entry, one-hot, (size, side · side), mirrored at the border pixel."""
    looked_at = torch.arange(side) + (torch.arange(size) - size // 2)[:, None]
    mirrored = (side - 1) - (looked_at.abs() - (side - 1)).abs()
    return torch.nn.functional.one_hot(mirrored, side).float().flatten(1).to(device)
