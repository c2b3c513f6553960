"""Small random rotations, shifts, changes of size and shears, and random shifts by whole pixels."""

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from likewise.data.augmentation.augmentation import Draw, ImageAugmentation, check_size, uniform


@final
@dataclass(kw_only=True, repr=False, eq=False)
class RandomAffine(ImageAugmentation):
    """Small random rotations, shifts, changes of size and shears, with noise.

    Args:
        degrees: Largest rotation in either direction, in degrees.
        translate: Largest shift in either direction, as a fraction of the image's side.
        scale: Largest relative change of size in either direction, below 1.
        shear: Largest shear in either direction, in degrees.
        noise: Standard deviation of Gaussian noise, relative to that of the image's pixels.
        padding: What lies outside the image: "zeros", its "border", or its "reflection".

    Example:
        >>> RandomAffine()(torch.zeros(4, 1, 8, 8)).shape
        torch.Size([4, 2, 1, 8, 8])
    """

    degrees: float = 12.0
    translate: float = 0.08
    scale: float = 0.1
    shear: float = 8.0
    noise: float = 0.1
    padding: Literal["zeros", "border", "reflection"] = "zeros"
    seed: int | None = None

    def __post_init__(self) -> None:
        super().__init__(self.seed)
        most = {"scale": 0.99, "shear": 89}
        for name in ("degrees", "translate", "noise", *most):
            check_size(name, getattr(self, name), most.get(name, math.inf))
        if self.padding not in ("zeros", "border", "reflection"):
            raise ValueError(f'expected padding "zeros", "border" or "reflection", got {self.padding!r}')

    def change(self, images: Float[Tensor, "n ch h w"], draw: Draw) -> Float[Tensor, "n ch h w"]:
        if not len(images):  # affine_grid refuses an empty batch
            return images
        height, width = images.shape[-2:]
        maps = self._maps(uniform(draw, images, 5), height, width).to(images.dtype)
        grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
        moved = functional.grid_sample(images, grid, padding_mode=self.padding, align_corners=False)
        if self.noise:
            spread = images.flatten(1).std(dim=1, correction=0)[:, None, None, None]
            moved = torch.addcmul(moved, spread, draw.normal(*images.shape[1:]).to(images.dtype), value=self.noise)
        return moved.clamp_(0, 1)

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


@final
class RandomShift(ImageAugmentation):
    """Images padded with zeros and cropped to their own size at a random place, some of them flipped.

    Args:
        padding: Pixels on each side, so that an image moves by up to as many.
        flip: Probability of a horizontal flip.

    Memory:
        The padded images.

    Example:
        >>> RandomShift(padding=4)(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
        torch.Size([2, 2, 3, 32, 32])
    """

    def __init__(self, *, padding: int = 4, flip: float = 0.5, seed: int | None = None) -> None:
        super().__init__(seed)
        if padding < 0:
            raise ValueError(f"expected padding of at least 0 pixels, got {padding}")
        check_size("flip", flip, most=1)
        self.padding, self.flip = padding, flip

    def change(self, images: Float[Tensor, "n ch h w"], draw: Draw) -> Float[Tensor, "n ch h w"]:
        numbers = uniform(draw, images, 3)
        height, width = images.shape[-2:]
        top, left = (numbers[:, :2] * (2 * self.padding + 1)).long().clamp(max=2 * self.padding).T.unsqueeze(2)
        padded = functional.pad(images, [self.padding] * 4)
        rows = top + torch.arange(height, device=images.device)
        columns = left + torch.arange(width, device=images.device)
        columns = torch.where(numbers[:, 2:] < self.flip, columns.flip(1), columns)
        index = torch.arange(len(images), device=images.device).view(-1, 1, 1, 1)
        channels = torch.arange(images.shape[1], device=images.device).view(1, -1, 1, 1)
        return padded[index, channels, rows[:, None, :, None], columns[:, None, None, :]]
