"""How a view differs from its sample: augmentations of a whole batch at once, wherever the batch is."""

import math
from abc import ABC, abstractmethod
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


class Augmentation(ABC):
    """A random change that leaves a sample's class alone; it draws from PyTorch's generator, which a run seeds."""

    @abstractmethod
    def __call__(self, inputs: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        """Change every input on its own; the shape stays."""


@final
class RandomAffine(Augmentation):
    """Images turned, moved, resized and sheared a little, with noise.

    Args:
        degrees: Largest rotation either way, in degrees.
        translate: Largest shift either way, as a part of the image's side.
        scale: Largest change of size either way, as a part of it.
        shear: Largest shear either way, in degrees.
        noise: Standard deviation of Gaussian noise, in standard deviations of the batch's pixels.
        padding: What stands outside the image: "zeros", its "border", or its "reflection".

    Returns:
        Calling it with images (B, channels, height, width) returns images of the same shape.

    Raises:
        ValueError: A size is negative, or an input is no batch of images.

    Example:
        >>> RandomAffine()(torch.zeros(4, 1, 8, 8)).shape
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
        sizes = {"degrees": degrees, "translate": translate, "scale": scale, "shear": shear, "noise": noise}
        for name, size in sizes.items():
            if size < 0:
                raise ValueError(f"expected {name} of at least 0, got {size}: 0 switches it off")
        self.degrees = degrees
        self.translate = translate
        self.scale = scale
        self.shear = shear
        self.noise = noise
        self.padding = padding

    def __call__(self, inputs: Float[Tensor, "b ch h w"]) -> Float[Tensor, "b ch h w"]:
        """Change every input on its own; the shape stays."""
        if inputs.ndim != 4:
            raise ValueError(
                f"RandomAffine expected images (B, channels, height, width), got {tuple(inputs.shape)}: "
                "choose FeatureDropout for vectors"
            )
        grid = functional.affine_grid(self._matrices(inputs), list(inputs.shape), align_corners=False)
        moved = functional.grid_sample(inputs, grid, padding_mode=self.padding, align_corners=False)
        return moved + self.noise * inputs.std() * torch.randn_like(inputs)

    def _matrices(self, inputs: Tensor) -> Float[Tensor, "b 2 3"]:
        """Draw maps from where a view looks to where it finds the pixel, in grid_sample's units of half a side."""
        height, width = inputs.shape[-2:]
        draw = torch.rand(5, len(inputs), dtype=inputs.dtype, device=inputs.device) * 2 - 1
        angle = draw[0] * math.radians(self.degrees)
        slant = torch.tan(draw[1] * math.radians(self.shear))
        size = 1 + draw[2] * self.scale
        cos, sin = torch.cos(angle) / size, torch.sin(angle) / size
        # a rotation of pixels is no rotation of half sides unless the image is square
        top = torch.stack([cos, (cos * slant - sin) * height / width, draw[3] * 2 * self.translate], dim=-1)
        bottom = torch.stack([sin * width / height, sin * slant + cos, draw[4] * 2 * self.translate], dim=-1)
        return torch.stack([top, bottom], dim=1)


@final
class FeatureDropout(Augmentation):
    """Vectors with some features replaced by their batch mean, and noise in every feature's own unit.

    Args:
        probability: Chance that a feature is replaced.
        noise: Standard deviation of Gaussian noise, in standard deviations of the feature over the batch.

    Returns:
        Calling it with vectors (B, F) returns vectors of the same shape.

    Raises:
        ValueError: A probability outside [0, 1), or negative noise.

    Example:
        >>> FeatureDropout()(torch.zeros(4, 3)).shape
        torch.Size([4, 3])
    """

    def __init__(self, *, probability: float = 0.2, noise: float = 0.1) -> None:
        if not 0 <= probability < 1:
            raise ValueError(f"expected probability in [0, 1), got {probability}: 0 switches the dropout off")
        if noise < 0:
            raise ValueError(f"expected noise of at least 0, got {noise}: 0 switches it off")
        self.probability = probability
        self.noise = noise

    def __call__(self, inputs: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        """Change every input on its own; the shape stays."""
        dropped = torch.rand_like(inputs) < self.probability
        noisy = inputs + self.noise * inputs.std(dim=0, correction=0) * torch.randn_like(inputs)
        return torch.where(dropped, inputs.mean(dim=0), noisy)
