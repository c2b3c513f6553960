"""Small random rotations, shifts, changes of size and shears, different for every image."""

import math
from typing import Literal, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from likewise.data.augmentation.augmentation import Augmentation
from likewise.data.augmentation.draw import Draw
from likewise.data.augmentation.images import floating, full_precision, returned, uniform
from likewise.data.augmentation.parameters import check_size


@final
class RandomAffine(Augmentation):
    """Small random rotations, shifts, changes of size and shears, with noise.

    Args:
        degrees: Largest rotation in either direction, in degrees.
        translate: Largest shift in either direction, as a fraction of the image's side.
        scale: Largest relative change of size in either direction, below 1.
        shear: Largest shear in either direction, in degrees.
        noise: Standard deviation of Gaussian noise, relative to that of the image's pixels.
        padding: What lies outside the image: "zeros", its "border", or its "reflection".

    Returns:
        Calling it with images (N, channels, height, width), uint8 or from 0 to 1, returns images of the same shape from
        0 to 1, of the inputs' dtype; uint8 becomes float32.

    Raises:
        ValueError: A parameter is out of range, or the input is not a batch of images.

    Example:
        >>> RandomAffine()(torch.zeros(4, 1, 8, 8), Draw(0, rows=4)).shape
        torch.Size([4, 1, 8, 8])
    """

    def __init__(
        self,
        *,
        degrees: float = 12.0,
        translate: float = 0.08,
        scale: float = 0.1,
        shear: float = 8.0,
        noise: float = 0.1,
        padding: Literal["zeros", "border", "reflection"] = "zeros",
    ) -> None:
        check_size("degrees", degrees)
        check_size("translate", translate)
        check_size("scale", scale, most=0.99)
        check_size("shear", shear, most=89)
        check_size("noise", noise)
        if padding not in ("zeros", "border", "reflection"):
            raise ValueError(f'expected padding "zeros", "border" or "reflection", got {padding!r}: choose one of them')
        self.degrees = degrees
        self.translate = translate
        self.scale = scale
        self.shear = shear
        self.noise = noise
        self.padding = padding

    @full_precision
    def __call__(self, inputs: Shaped[Tensor, "n ch h w"], draw: Draw) -> Float[Tensor, "n ch h w"]:
        """Transform every image independently; the shape stays the same."""
        images = floating(inputs, "RandomAffine")
        if not len(images):  # affine_grid refuses an empty batch
            return returned(images, inputs)
        height, width = images.shape[-2:]
        maps = self._maps(uniform(draw, images, 5), height, width).to(images.dtype)
        grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
        moved = functional.grid_sample(images, grid, padding_mode=self.padding, align_corners=False)
        if self.noise:
            spread = images.flatten(1).std(dim=1, correction=0)[:, None, None, None]
            moved = torch.addcmul(moved, spread, draw.normal(*images.shape[1:]).to(images.dtype), value=self.noise)
        return returned(moved.clamp_(0, 1), inputs)

    def _maps(self, numbers: Float[Tensor, "n 5"], height: int, width: int) -> Float[Tensor, "n 2 3"]:
        """Return affine maps from output to input coordinates, in grid_sample's units of half a side."""
        angle, slant, size, right, down = (numbers * 2 - 1).unbind(dim=1)
        angle = angle * math.radians(self.degrees)
        slant = torch.tan(slant * math.radians(self.shear))
        size = 1 + size * self.scale
        cos, sin = torch.cos(angle) / size, torch.sin(angle) / size
        # in units of half a side, this is a rotation only if the image is square
        top = torch.stack([cos, (cos * slant - sin) * height / width, right * 2 * self.translate], dim=-1)
        bottom = torch.stack([sin * width / height, sin * slant + cos, down * 2 * self.translate], dim=-1)
        return torch.stack([top, bottom], dim=1)
