"""Corruptions of images: noise, blur, light, resolution and position, in five severities, reproducible by a seed."""

import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import final
from zlib import crc32

import torch
from jaxtyping import Float, Int, Shaped
from torch import Generator, Tensor
from torch.nn import functional

from likewise.data.rows import Rows

SEVERITIES = (1, 2, 3, 4, 5)
_ROUNDING = 1e-4  # tolerance around [0, 1]
Change = Callable[[Tensor, float, Sequence[int]], Tensor]
"""Changes images (N, channels, height, width) by a strength, with a seed for each."""


def gaussian_noise(images: Tensor, strength: float, seeds: Sequence[int]) -> Tensor:
    """Add normal noise of this standard deviation to every value."""
    return images + strength * _sampled(images, seeds, lambda image, own: torch.randn(image.shape, generator=own))


def shot_noise(images: Tensor, strength: float, seeds: Sequence[int]) -> Tensor:
    """Count photons: a Poisson number with mean `strength` times the value, divided by the strength."""
    return _sampled(images, seeds, lambda image, own: torch.poisson(image * strength, generator=own)) / strength


def impulse_noise(images: Tensor, strength: float, seeds: Sequence[int]) -> Tensor:
    """Set this share of all values to 0 or 1, half each."""
    uniform = _sampled(images, seeds, lambda image, own: torch.rand(image.shape, generator=own))
    return images.masked_fill(uniform < strength / 2, 0).masked_fill(uniform >= 1 - strength / 2, 1)


def gaussian_blur(images: Tensor, strength: float, _seeds: Sequence[int]) -> Tensor:
    """Blur by a Gaussian whose standard deviation is this fraction of the shorter side."""
    height, width = images.shape[-2:]
    rows, columns = (_gaussian(side, strength * min(height, width)) for side in (height, width))
    return rows @ images @ columns.T


def contrast(images: Tensor, strength: float, _seeds: Sequence[int]) -> Tensor:
    """Multiply each channel's distance from its mean by this factor."""
    return torch.lerp(images.mean(dim=(2, 3), keepdim=True), images, strength)


def brightness(images: Tensor, strength: float, _seeds: Sequence[int]) -> Tensor:
    """Add this number to every value."""
    return images + strength


def pixelate(images: Tensor, strength: float, _seeds: Sequence[int]) -> Tensor:
    """Average over cells of equal size, of which there are this fraction of the pixels along each side."""
    rows, columns = (_cells(side, max(1, round(side * strength))) for side in images.shape[-2:])
    return rows @ images @ columns.T


def translation(images: Tensor, strength: float, seeds: Sequence[int]) -> Tensor:
    """Move by this fraction of the sides, each image in a direction of its own; border pixels are repeated."""
    angle = 2 * math.pi * _uniform(seeds)
    maps = torch.eye(2, 3).repeat(len(images), 1, 1)
    maps[:, :, 2] = 2 * strength * torch.stack([angle.cos(), angle.sin()], dim=1)
    return _moved(images, maps)


def rotation(images: Tensor, strength: float, seeds: Sequence[int]) -> Tensor:
    """Rotate by this angle in degrees, each image to a random side; border pixels are repeated."""
    height, width = images.shape[-2:]
    angle = torch.where(_uniform(seeds) < 0.5, -1.0, 1.0) * math.radians(strength)
    cos, sin, none = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # in units of half a side, this is a rotation only if the image is square
    top = torch.stack([cos, -sin * height / width, none], dim=1)
    return _moved(images, torch.stack([top, torch.stack([sin * width / height, cos, none], dim=1)], dim=1))


CORRUPTIONS: Mapping[str, tuple[Change, tuple[float, ...]]] = {
    "gaussian noise": (gaussian_noise, (0.04, 0.08, 0.12, 0.18, 0.26)),
    "shot noise": (shot_noise, (160, 80, 40, 20, 10)),
    "impulse noise": (impulse_noise, (0.01, 0.03, 0.06, 0.1, 0.17)),
    "gaussian blur": (gaussian_blur, (0.0125, 0.02, 0.03, 0.04, 0.055)),
    "contrast": (contrast, (0.7, 0.5, 0.35, 0.22, 0.12)),
    "brightness": (brightness, (0.1, 0.18, 0.26, 0.36, 0.48)),
    "pixelate": (pixelate, (0.8, 0.65, 0.5, 0.4, 0.3)),
    "translation": (translation, (0.04, 0.08, 0.12, 0.16, 0.22)),
    "rotation": (rotation, (6, 12, 18, 26, 36)),
}
"""Each corruption by its name, with its strengths from severity 1 to 5."""


def corruption_named(name: str) -> str:
    """Return the name of a corruption, which may be written with underscores."""
    spaced = name.replace("_", " ")
    if spaced in CORRUPTIONS:
        return spaced
    near = get_close_matches(spaced, CORRUPTIONS, n=2)
    remedy = f"did you mean {' or '.join(near)}?" if near else "choose one of them"
    raise ValueError(f"expected a corruption among {', '.join(CORRUPTIONS)}, got {name!r}: {remedy}")


def corrupted(
    images: Shaped[Tensor, "n ch h w"], rows: Int[Tensor, " n"], corruption: str, severity: int, seed: int = 0
) -> Float[Tensor, "n ch h w"]:
    """Corrupt images. What is random depends on the seed and the image's row only, not on the batch it comes in.

    Args:
        images: Images (N, channels, height, width), uint8 or from 0 to 1, of any number of channels and any size.
        rows: Each image's row in its source, (N,).
        corruption: A key of `CORRUPTIONS`.
        severity: 1 to 5.
        seed: Seed of what is random.

    Returns:
        Images of the same shape, float32 from 0 to 1, on the CPU.

    Raises:
        ValueError: The input is not a batch of images from 0 to 1, or the corruption or severity is unknown.

    Source:
        After D. Hendrycks and T. Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and
        Perturbations, 2019. Implementations and strengths are ours, so numbers can't be compared with theirs.

    Example:
        >>> corrupted(torch.full((2, 3, 4, 4), 0.5), torch.tensor([0, 1]), "brightness", 1)[0, 0, 0, 0]
        tensor(0.6000)
    """
    change, strengths = CORRUPTIONS[corruption_named(corruption)]
    if severity not in SEVERITIES:
        raise ValueError(f"expected a severity from 1 to {len(SEVERITIES)}, got {severity}: 1 is the mildest")
    if images.ndim != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise ValueError(
            f"expected images (N, channels, height, width) of uint8 or from 0 to 1, got {tuple(images.shape)} of "
            f"{images.dtype}"
        )
    values = images.cpu() / 255 if images.dtype == torch.uint8 else images.cpu().float()
    if len(values) == 0:
        return values
    low, high = float(values.min()), float(values.max())
    if not -_ROUNDING <= low <= high <= 1 + _ROUNDING:
        raise ValueError(f"expected images from 0 to 1, got values from {low:.4g} to {high:.4g}: rescale them")
    seeds = [crc32(f"{seed} {corruption_named(corruption)} {row}".encode()) for row in rows.tolist()]
    return change(values.clamp(0, 1), strengths[severity - 1], seeds).clamp(0, 1)


@final
class CorruptedRows(Rows):
    """Corrupted images, made when they are read: no more than a batch of them is in memory.

    Args:
        images: The images, a tensor or `Rows`.
        rows: Each image's row in its source, (N,).
        corruption: See `corrupted`.
        severity: See `corrupted`.
        seed: See `corrupted`.
    """

    def __init__(
        self, images: Tensor | Rows, rows: Int[Tensor, " n"], corruption: str, severity: int, seed: int = 0
    ) -> None:
        self.images = images
        self.rows = rows
        self.corruption = corruption
        self.severity = severity
        self.seed = seed
        self.shape, self.dtype = tuple(images.shape), torch.float32

    def __getitem__(self, rows: Tensor) -> Tensor:
        return corrupted(self.images[rows], self.rows[rows], self.corruption, self.severity, self.seed)


def _sampled(images: Tensor, seeds: Sequence[int], sample: Callable[[Tensor, Generator], Tensor]) -> Tensor:
    own = Generator()
    return torch.stack([sample(image, own.manual_seed(seed)) for image, seed in zip(images, seeds, strict=True)])


def _uniform(seeds: Sequence[int]) -> Float[Tensor, " n"]:
    own = Generator()
    return torch.cat([torch.rand(1, generator=own.manual_seed(seed)) for seed in seeds])


def _gaussian(side: int, width: float) -> Float[Tensor, "side side"]:
    """Return the weights of the old pixels in each new one; at the border those that are left sum to 1."""
    places = torch.arange(side, dtype=torch.float32)
    return torch.softmax(-0.5 * ((places[:, None] - places) / width).square(), dim=1)


def _cells(side: int, count: int) -> Float[Tensor, "side side"]:
    """Return the weights of the old pixels in each new one: their overlap with the cell around its middle."""
    places = torch.arange(side, dtype=torch.float32)
    length = side / count
    start = ((places + 0.5) / length).floor()[:, None] * length
    return (torch.minimum(places + 1, start + length) - torch.maximum(places, start)).clamp(min=0) / length


def _moved(images: Tensor, maps: Float[Tensor, "n 2 3"]) -> Tensor:
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
