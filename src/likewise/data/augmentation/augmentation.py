"""What all augmentations share: their random numbers, the dtype of images, checks, and several one after another."""

from abc import ABC, abstractmethod
from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


@final
class Draw:
    """Random numbers for the rows of a batch, which do not depend on the process that holds a row.

    Numbers are sampled for all rows of the global batch, and each process takes those of its rows. So several processes
    together see the same numbers as a single one.

    Args:
        seed: Seed of the numbers; every step has another.
        rows: Number of rows in the global batch.
        own: The rows held here. None: all.
        device: The device of the numbers. None: the CPU.

    Example:
        >>> all_of_them = Draw(7, rows=4).uniform(2)
        >>> second_half = Draw(7, rows=4, own=slice(2, 4)).uniform(2)
        >>> torch.equal(all_of_them[2:], second_half)
        True
    """

    def __init__(
        self, seed: int, rows: int, own: slice | None = None, device: torch.device | str | None = None
    ) -> None:
        self.device = torch.device(device or "cpu")
        self.rows = rows
        self._own = slice(None) if own is None else own
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def uniform(self, *shape: int) -> Float[Tensor, "n ..."]:
        """Return numbers from [0, 1), (n, *shape), float32, for the n rows held here."""
        return torch.rand(self.rows, *shape, generator=self._generator, device=self.device)[self._own]

    def normal(self, *shape: int) -> Float[Tensor, "n ..."]:
        """Return standard normal numbers, (n, *shape), float32, for the n rows held here."""
        return torch.randn(self.rows, *shape, generator=self._generator, device=self.device)[self._own]


class Augmentation(ABC):
    """Abstract: a random change of a whole batch at once, on its device, that keeps the labels valid."""

    @abstractmethod
    def __call__(self, inputs: Shaped[Tensor, "n ..."], draw: Draw) -> Float[Tensor, "n ..."]:
        """Change every input independently.

        Args:
            inputs: Images (N, channels, height, width), uint8 or floating from 0 to 1, or vectors (N, F).
            draw: The random numbers, for N rows and on the inputs' device.

        Returns:
            Floating inputs; images from 0 to 1.
        """

    def fit(self, inputs: Tensor) -> None:  # noqa: B027 - most have nothing to fit
        """Fit to inputs of the training part, once before training, if the change depends on their statistics."""


class ImageAugmentation(Augmentation):
    """Abstract: a random change of images, computed in float32 or wider whatever precision the training has.

    Returns:
        Calling it with images (N, channels, height, width), uint8 or floating from 0 to 1, returns images from 0 to 1,
        of the inputs' dtype; uint8 becomes float32.

    Raises:
        ValueError: The input is not a batch of images.
    """

    def __call__(self, inputs: Shaped[Tensor, "n ch h w"], draw: Draw) -> Float[Tensor, "n ch new_h new_w"]:
        """Change every image independently."""
        # without autocast: pixel coordinates need more than half precision
        with torch.autocast(inputs.device.type, enabled=False):
            changed = self.change(floating(inputs, type(self).__name__), draw)
        return changed.to(inputs.dtype) if inputs.is_floating_point() else changed

    @abstractmethod
    def change(self, images: Float[Tensor, "n ch h w"], draw: Draw) -> Float[Tensor, "n ch new_h new_w"]:
        """Change images in float32 or wider, which must stay as they are."""


@final
class Chain(Augmentation):
    """Several augmentations, one after another.

    Args:
        augmentations: The augmentations, in order; each takes the output of the one before.

    Returns:
        Calling it with inputs of the first returns outputs of the last.

    Raises:
        ValueError: The list is empty.

    Example:
        >>> from likewise.data.augmentation import ColourJitter, GaussianBlur, RandomResizedCrop
        >>> chain = Chain([RandomResizedCrop(size=24), ColourJitter(), GaussianBlur()])
        >>> chain(torch.rand(4, 3, 32, 32), Draw(0, rows=4)).shape
        torch.Size([4, 3, 24, 24])
    """

    def __init__(self, augmentations: list[Augmentation]) -> None:
        if not augmentations:
            raise ValueError("expected augmentations to apply, got none: name at least one")
        self.augmentations = augmentations

    def __call__(self, inputs: Shaped[Tensor, "n ..."], draw: Draw) -> Shaped[Tensor, "n ..."]:
        """Apply one after another."""
        for augmentation in self.augmentations:
            inputs = augmentation(inputs, draw)
        return inputs

    def fit(self, inputs: Tensor) -> None:
        """Fit each of them to the training part, without augmentation."""
        for augmentation in self.augmentations:
            augmentation.fit(inputs)


def floating(inputs: Shaped[Tensor, "n ch h w"], name: str) -> Float[Tensor, "n ch h w"]:
    """Return images in float32 or wider: uint8 is divided by 255, half precision is converted."""
    if inputs.ndim != 4:
        raise ValueError(
            f"{name} expected images (N, channels, height, width), got {tuple(inputs.shape)}: "
            "choose FeatureDropout for vectors"
        )
    if inputs.dtype == torch.uint8:
        return inputs / 255
    if not inputs.is_floating_point():
        raise ValueError(
            f"{name} expected images of uint8 or floating from 0 to 1, got {inputs.dtype}: "
            "convert them with .to(torch.uint8)"
        )
    return inputs.float() if inputs.dtype.itemsize < 4 else inputs


def uniform(draw: Draw, inputs: Tensor, *shape: int) -> Float[Tensor, "n ..."]:
    """Sample numbers from [0, 1) for the inputs, and refuse a draw for another number of inputs."""
    numbers = draw.uniform(*shape)
    if len(numbers) != len(inputs):
        raise ValueError(
            f"expected a draw for the {len(inputs)} inputs, got one for {len(numbers)}: "
            "give Draw the rows of the global batch, and own= if not all are here"
        )
    return numbers


def check_probability(name: str, value: float) -> None:
    """Refuse a probability outside [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"expected {name} in [0, 1], got {value}: 0 switches it off")


def check_size(name: str, value: float, most: float = float("inf")) -> None:
    """Refuse a size of a change that is negative or above `most`."""
    if not 0 <= value <= most:
        allowed = "of at least 0" if most == float("inf") else f"from 0 to {most}"
        raise ValueError(f"expected {name} {allowed}, got {value}: 0 switches it off")


def check_range(name: str, values: tuple[float, float], most: float = float("inf")) -> None:
    """Refuse a pair that is not a range of positive numbers."""
    low, high = values
    if not 0 < low <= high <= most:
        allowed = "a positive range (low, high)" if most == float("inf") else f"a range (low, high) within (0, {most}]"
        raise ValueError(f"expected {name} as {allowed}, got {values}: put the smaller number first")
