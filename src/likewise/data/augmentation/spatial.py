"""Image augmentations: random resized crops, flips and blur, affine maps, and shifts by whole pixels."""

import math
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any, Literal, NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from likewise.data.augmentation.augmentation import (
    Augmentation,
    Draw,
    ImageAugmentation,
    check_range,
    check_size,
    uniform,
)

TRIES = 10  # boxes tried before the centre is taken
DRAWS_PER_CROP = 4 * (TRIES + 1) + 1  # uniform draws from [0, 1) for a random box and its flip
NO_BLUR_SHARPNESS = 1e4  # leaves only the middle of a kernel: exp(−10,000) is 0
Weights = tuple[Float[Tensor, "n new_h h"], Float[Tensor, "n new_w w"]]  # of rows and of columns


class Boxes(NamedTuple):
    """Rectangular sections of images."""

    starts: Float[Tensor, "n 2"]  # top and left, in pixels
    lengths: Float[Tensor, "n 2"]  # height and width
    flip: Bool[Tensor, " n"]  # whether left and right are exchanged


@final
@dataclass(kw_only=True, repr=False, eq=False)
class RandomResizedCrop(ImageAugmentation):
    """Crops of random size, shape and position, resized to one size, some of them flipped.

    Boxes are sampled as in torchvision: an area, and an aspect ratio uniform in its logarithm, until the box fits into
    the image; after ten tries the centre is taken. Resizing is bilinear and antialiased: two matrix products per image.

    Args:
        size: Side of the square output, in pixels. None: height and width of the input.
        scale: Smallest and largest area of a box, as a fraction of the image's.
        ratio: Smallest and largest aspect ratio of a box, width divided by height.
        flip: Probability of a horizontal flip.

    Memory:
        The weights for an image take size × (height + width) numbers, and the intermediate product height × size per
        channel.

    Example:
        >>> images = torch.zeros(4, 3, 32, 48, dtype=torch.uint8)
        >>> RandomResizedCrop(size=24)(images).shape
        torch.Size([4, 2, 3, 24, 24])
    """

    size: int | None = None
    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    seed: int | None = None

    def __post_init__(self) -> None:
        super().__init__(self.seed)
        size: Any = self.size
        if size is not None and (not isinstance(size, Integral) or size < 1):
            raise ValueError(f"expected size of at least 1 pixel, got {size!r}")
        check_range("scale", self.scale, most=1)
        check_range("ratio", self.ratio)
        check_size("flip", self.flip, most=1)

    def change(self, images: Float[Tensor, "n ch h w"], draw: Draw) -> Float[Tensor, "n ch new_h new_w"]:
        return separable(images, *self.weights(images, draw)).clamp_(0, 1)

    def split(self) -> tuple[Augmentation | None, Augmentation | None]:
        return self, None

    def boxes(self, numbers: Float[Tensor, "n k"], height: int, width: int) -> Boxes:
        starts, lengths = random_boxes(numbers[:, :-1], height, width, self.scale, self.ratio)
        return Boxes(starts, lengths, numbers[:, -1] < self.flip)

    def weights(self, images: Float[Tensor, "n ch h w"], draw: Draw) -> Weights:
        """Sample boxes and flips, and return the weights of rows and columns, (N, new, old), that make the crops."""
        height, width = images.shape[-2:]
        boxes = self.boxes(uniform(draw, images, DRAWS_PER_CROP), height, width)
        new = (height, width) if self.size is None else (self.size, self.size)
        return crop_weights(boxes, (height, width), new)


def crop_weights(boxes: Boxes, old: tuple[int, int], new: tuple[int, int]) -> Weights:
    """Return row and column weights, made in one call if both sides are equal."""
    starts, lengths, flip = boxes
    directions = torch.where(flip[:, None], torch.arange(1.0, -2.0, -2.0, device=flip.device), 1.0)
    if old[0] == old[1] and new[0] == new[1]:
        both = bilinear(starts, lengths, directions, old[0], new[0])
        return both[:, 0], both[:, 1]
    sections = zip(starts.T, lengths.T, directions.T, old, new, strict=True)
    rows, columns = (bilinear(*section) for section in sections)
    return rows, columns


def random_boxes(
    numbers: Float[Tensor, "n _"], height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "n 2"]]:
    """Turn numbers from [0, 1) into boxes: starts (top, left) and lengths (height, width)."""
    least, span, limits, powers = _ranges(height, width, scale, ratio, numbers.device)
    tries = torch.addcmul(least, numbers.view(-1, 4, TRIES + 1), span)
    areas, ratios, places = tries[:, 0:1], tries[:, 1:2], tries[:, 2:]
    lengths = (ratios * powers).exp_().mul_(areas).sqrt_().round_()
    fits = ((lengths > 0) & (lengths <= limits)).all(dim=1)
    first = fits.to(torch.uint8).argmax(dim=1)[:, None, None].expand(-1, 2, 1)
    length = lengths.gather(2, first)
    return ((limits + 1 - length) * places.gather(2, first)).floor_()[..., 0], length[..., 0]


@lru_cache(maxsize=1024)  # photos have many sizes
def _ranges(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return minimum and span of area, log ratio, top and left for each try; the image's sides; the ratio's powers.

    The last try is the centre, which is not random and always fits.
    """
    shape = min(max(width / height, ratio[0]), ratio[1])
    middle = (max(1, min(height, round(width / shape))), max(1, min(width, round(height * shape))))
    free = height - middle[0], width - middle[1]
    places = [(room // 2 + 0.5) / (room + 1) for room in free]
    centre = [float(middle[0] * middle[1]), math.log(middle[1] / middle[0]), *places]
    area, logs = height * width, [math.log(value) for value in ratio]
    least = [scale[0] * area, logs[0], 0.0, 0.0]
    span = [(scale[1] - scale[0]) * area, logs[1] - logs[0], 1.0, 1.0]
    return (
        torch.tensor([[value] * TRIES + [last] for value, last in zip(least, centre, strict=True)], device=device),
        torch.tensor([[value] * TRIES + [0.0] for value in span], device=device),
        torch.tensor([[float(height)], [float(width)]], device=device),
        torch.tensor([[-1.0], [1.0]], device=device),
    )


def separable(
    images: Float[Tensor, "n ch h w"], rows: Float[Tensor, "n new_h h"], columns: Float[Tensor, "n new_w w"]
) -> Float[Tensor, "n ch new_h new_w"]:
    """Multiply every image's rows and columns by its own matrices: Y = R X Cᵀ for each channel."""
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

    A new pixel at c weights the old pixel at p in proportion to max(0, s − |p − c|), for p within the section; half the
    width of the triangle filter is s = max(1, length / new). Positions are measured from the section's middle, so a
    flip is the direction −1. c is split into a whole number and a remainder, which keeps p − c accurate in large
    images.
    """
    half = length / 2
    places = torch.arange(0.5, old, device=start.device) - (start + half)[..., None]
    places = places.masked_fill(places.abs() > half[..., None], math.inf)
    # new · c is exact, since starts and lengths are whole numbers
    centres = torch.arange(0.5 - new / 2, new / 2, device=start.device) * (length * direction)[..., None]
    whole = (centres / new).round_()
    rest = centres.sub_(whole, alpha=new).div_(new)
    # the negative weights: division by their sum restores the sign, which saves an operation
    shares = torch.sub(places[..., None, :], whole[..., None]).sub_(rest[..., None]).abs_()
    shares = shares.sub_((length / new).clamp_(min=1)[..., None, None]).clamp_(max=0)
    return shares.div_(shares.sum(-1, keepdim=True))


@final
@dataclass(kw_only=True, repr=False, eq=False)
class GaussianBlur(ImageAugmentation):
    """Gaussian blur of some images, with a random σ each and a mirrored border: two matrix products per image.

    Args:
        sigma: Smallest and largest standard deviation of the Gaussian, in pixels.
        probability: Probability that an image is blurred.
        size: Side of the kernel in pixels, odd. None: as in SimCLR, a tenth of the image's shorter side, made odd and
            at least 3.

    Memory:
        The weights for an image take height² + width² numbers.

    Source:
        T. Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020, appendix A.

    Example:
        >>> GaussianBlur()(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2, 3, 8, 8])
    """

    sigma: tuple[float, float] = (0.1, 2.0)
    probability: float = 0.5
    size: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        super().__init__(self.seed)
        check_range("sigma", self.sigma)
        check_size("probability", self.probability, most=1)
        if self.size is not None and (self.size < 1 or self.size % 2 == 0):
            raise ValueError(f"expected size odd and positive, got {self.size}")

    def change(self, images: Float[Tensor, "n ch h w"], draw: Draw) -> Float[Tensor, "n ch h w"]:
        return separable(images, *self.weights(images, draw, images.shape[-2:])).clamp_(0, 1)

    def weights(self, images: Tensor, draw: Draw, sides: tuple[int, ...]) -> Weights:
        """Sample σ for each image, and return row and column weights that blur images of these sides."""
        size = self.size or max(3, min(sides) // 20 * 2 + 1)
        if min(sides) <= size // 2:
            got = f"{tuple(sides)}: choose a size of at most {2 * min(sides) - 1}"
            raise ValueError(f"GaussianBlur expected images larger than half its kernel of {size} pixels, got {got}")
        numbers = uniform(draw, images, 2)
        sigma = numbers[:, 0] * (self.sigma[1] - self.sigma[0]) + self.sigma[0]
        sharpness = torch.where(numbers[:, 1] < self.probability, 0.5 / sigma.square(), NO_BLUR_SHARPNESS)
        return blur_weights(sharpness, size, sides)


def blur_weights(sharpness: Float[Tensor, " n"], size: int, sides: tuple[int, ...]) -> Weights:
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


@final
@dataclass(kw_only=True, repr=False, eq=False)
class RandomAffine(ImageAugmentation):
    """Small random rotations, shifts, changes of size and shears, with noise.

    Args:
        degrees: Largest rotation in either direction, in degrees.
        translate: Largest shift in either direction, as a fraction of the image's side.
        scale: Largest relative change of size in either direction, below 1.
        shear: Largest shear in either direction, in degrees.
        noise: Standard deviation of Gaussian noise, relative to the standard deviation of the image's pixels.
        padding: Pixels outside the image: "zeros", its "border", or its "reflection".

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
        """Return affine maps from output to input coordinates, in grid_sample's units of half a side.

        With an angle α, a shear by t = tan β, a size s, and a shift by shares (x, y) of the width w and the height h:

            [ cos α          (t cos α − sin α) h / w ] / s    [ 2 x ]
            [ sin α w / h    t sin α + cos α         ]        [ 2 y ]
        """
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
        padding: Pixels added on each side, which is the largest shift.
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
