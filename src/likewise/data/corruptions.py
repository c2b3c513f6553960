"""Corruptions of images: noise, blur, light, resolution and position, in five severities, reproducible by a seed."""

import math
from collections.abc import Callable, Mapping
from typing import final
from zlib import crc32

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from likewise.data.lazy_inputs import LazyInputs
from likewise.files.detection import suggest

SEVERITIES = (1, 2, 3, 4, 5)
_ROUNDING = 1e-4  # tolerance around [0, 1]
Change = Callable[[Tensor, float], Tensor]
"""A change of an image (channels, height, width) by a strength; random numbers come from torch's own generator."""


def _impulses(image: Tensor, share: float) -> Tensor:
    uniform = torch.rand(image.shape)
    return image.masked_fill(uniform < share / 2, 0).masked_fill(uniform >= 1 - share / 2, 1)


def _blurred(image: Tensor, width: float) -> Tensor:
    """Blur by a Gaussian whose standard deviation is a fraction of the shorter side."""
    from torchvision.transforms.v2.functional import gaussian_blur  # noqa: PLC0415 - torchvision is optional

    side = min(image.shape[1:])
    size = min(2 * math.ceil(4 * width * side) + 1, 2 * side - 1)
    return gaussian_blur(image, [size, size], [width * side] * 2)


def _pixelated(image: Tensor, share: float) -> Tensor:
    from torchvision.transforms import v2  # noqa: PLC0415 - torchvision is optional

    sides = list(image.shape[1:])
    small = v2.functional.resize(image, [max(1, round(side * share)) for side in sides], antialias=True)
    return v2.functional.resize(small, sides, interpolation=v2.InterpolationMode.NEAREST_EXACT)


def _moved(image: Tensor, angle: float, x: float, y: float) -> Tensor:
    from torchvision.transforms import v2  # noqa: PLC0415 - torchvision is optional

    sides, bilinear = list(image.shape[1:]), v2.InterpolationMode.BILINEAR
    wide = v2.functional.pad(image, [max(sides) // 2 + 1], padding_mode="edge")
    moved = v2.functional.affine(wide, angle, [x, y], scale=1.0, shear=[0.0, 0.0], interpolation=bilinear)
    return v2.functional.center_crop(moved, sides)


def _translated(image: Tensor, share: float) -> Tensor:
    angle = 2 * math.pi * float(torch.rand(1))
    height, width = image.shape[1:]
    return _moved(image, 0.0, -share * width * math.cos(angle), -share * height * math.sin(angle))


def _rotated(image: Tensor, degrees: float) -> Tensor:
    return _moved(image, degrees if float(torch.rand(1)) < 0.5 else -degrees, 0.0, 0.0)


CORRUPTIONS: Mapping[str, tuple[Change, tuple[float, ...]]] = {
    "gaussian noise": (lambda image, std: image + std * torch.randn(image.shape), (0.04, 0.08, 0.12, 0.18, 0.26)),
    "shot noise": (lambda image, photons: torch.poisson(image * photons) / photons, (160, 80, 40, 20, 10)),
    "impulse noise": (_impulses, (0.01, 0.03, 0.06, 0.1, 0.17)),
    "gaussian blur": (_blurred, (0.0125, 0.02, 0.03, 0.04, 0.055)),
    "contrast": (
        lambda image, factor: torch.lerp(image.mean(dim=(1, 2), keepdim=True), image, factor),
        (0.7, 0.5, 0.35, 0.22, 0.12),
    ),
    "brightness": (torch.add, (0.1, 0.18, 0.26, 0.36, 0.48)),
    "pixelate": (_pixelated, (0.8, 0.65, 0.5, 0.4, 0.3)),
    "translation": (_translated, (0.04, 0.08, 0.12, 0.16, 0.22)),
    "rotation": (_rotated, (6, 12, 18, 26, 36)),
}
"""Each corruption by its name, with its strengths from severity 1 to 5."""


def corruption_named(name: str) -> str:
    """Return the name of a corruption, which may be written with underscores."""
    spaced = name.replace("_", " ")
    if spaced in CORRUPTIONS:
        return spaced
    got = f"{name}{suggest(spaced, CORRUPTIONS, most=2)}"
    raise ValueError(f"expected a corruption among {', '.join(CORRUPTIONS)}, got {got}")


def corrupted(
    images: Shaped[Tensor, "n ch h w"], rows: Int[Tensor, " n"], corruption: str, severity: int, seed: int = 0
) -> Float[Tensor, "n ch h w"]:
    """Corrupt images. Random numbers depend on the seed and the image's row only, not on its batch.

    Args:
        images: Images (N, channels, height, width), uint8 or from 0 to 1.
        rows: Each image's row in its source, (N,).
        corruption: A key of `CORRUPTIONS`.
        severity: 1 to 5.
        seed: Seed of the random numbers.

    Returns:
        Images of the same shape, float32 from 0 to 1, on the CPU.

    Raises:
        ValueError: The input is not a batch of images from 0 to 1, or the corruption or severity is unknown.
        ImportError: Blur, pixelate, translation and rotation need torchvision, which is not installed.

    Source:
        After D. Hendrycks and T. Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and
        Perturbations, 2019, with our own strengths: results can't be compared with theirs.

    Example:
        >>> corrupted(torch.full((2, 3, 4, 4), 0.5), torch.tensor([0, 1]), "brightness", 1)[0, 0, 0, 0]
        tensor(0.6000)
    """
    name = corruption_named(corruption)
    change, strengths = CORRUPTIONS[name]
    if severity not in SEVERITIES:
        raise ValueError(f"expected a severity from 1 to {len(SEVERITIES)}, got {severity}")
    if images.ndim != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
        got = f"{tuple(images.shape)} of {images.dtype}"
        raise ValueError(f"expected images (N, channels, height, width) of uint8 or from 0 to 1, got {got}")
    values = images.cpu() / 255 if images.dtype == torch.uint8 else images.cpu().float()
    if len(values) == 0:
        return values
    low, high = float(values.min()), float(values.max())
    if not -_ROUNDING <= low <= high <= 1 + _ROUNDING:
        raise ValueError(f"expected images from 0 to 1, got values from {low:.4g} to {high:.4g}")
    made = list[Tensor]()
    with torch.random.fork_rng([]):
        for image, row in zip(values.clamp(0, 1), rows.tolist(), strict=True):
            torch.default_generator.manual_seed(crc32(f"{seed} {name} {row}".encode()))
            made.append(change(image, strengths[severity - 1]))
    return torch.stack(made).clamp(0, 1)


@final
class CorruptedRows(LazyInputs):
    """Images corrupted by `corrupted` as they are read; at most a batch of them is in memory."""

    def __init__(
        self, images: Tensor | LazyInputs, rows: Tensor, corruption: str, severity: int, seed: int = 0
    ) -> None:
        self.images, self.rows, self.change = images, rows, (corruption, severity, seed)
        self.shape, self.dtype = tuple(images.shape), torch.float32

    def __getitem__(self, rows: Tensor) -> Tensor:
        return corrupted(self.images[rows], self.rows[rows], *self.change)
