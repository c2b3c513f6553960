"""Augmentations: their base class, random numbers and checks, chains, and augmentations of vectors and token rows."""

from abc import ABC, abstractmethod
from numbers import Integral
from typing import Any, Self, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from likewise.data.texts import PADDING
from likewise.instantiate import Described

ROUNDING = 0.001  # tolerance of resized pixels outside [0, 1]


@final
class Draw:
    """Random numbers for the rows of a batch, independent of the process that holds a row.

    Numbers are sampled for all rows of the global batch, and each process uses the numbers of its rows.

    Args:
        seed: Seed of the numbers.
        rows: Number of rows in the global batch.
        local: The rows held here. None: all.
        device: The device of the numbers. None: the CPU.

    Example:
        >>> second_half = Draw(7, rows=4, local=slice(2, 4)).uniform(2)
        >>> torch.equal(Draw(7, rows=4).uniform(2)[2:], second_half)
        True
    """

    def __init__(
        self, seed: int, rows: int, local: slice | None = None, device: torch.device | str | None = None
    ) -> None:
        self.device = torch.device(device or "cpu")
        self.rows = rows
        self._local = slice(None) if local is None else local
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def uniform(self, *shape: int) -> Float[Tensor, "n ..."]:
        """Return numbers from [0, 1), (n, *shape), float32, for the n rows held here."""
        return self._drawn(torch.rand, shape)

    def normal(self, *shape: int) -> Float[Tensor, "n ..."]:
        """Return standard normal numbers, (n, *shape), float32, for the n rows held here."""
        return self._drawn(torch.randn, shape)

    def _drawn(self, sample: Any, shape: tuple[int, ...]) -> Tensor:
        drawn = sample(self.rows, *shape, generator=self._generator, device=self.device, dtype=torch.float32)
        return drawn[self._local]


class Augmentation(Described, nn.Module, ABC):
    """Abstract: a random change of a whole batch at once, on its device, that keeps the labels valid.

    A module without parameters: `augmentation(inputs)` makes views of each input. A class of your own defines `change`.
    Parameters out of range and unsuitable inputs raise a ValueError.

    Args:
        seed: Seed of the random numbers, which differ from call to call. None: `torch.manual_seed` fixes them.

    Example:
        >>> from likewise.data import SimCLRViews
        >>> views = SimCLRViews(size=32, seed=0)
        >>> views, views(torch.rand(8, 3, 40, 40)).shape
        (SimCLRViews(size=32, seed=0), torch.Size([8, 2, 3, 32, 32]))
    """

    _seeds: torch.Generator | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls, *args, **kwargs)
        nn.Module.__init__(made)  # a user's class may leave out `super().__init__()`
        return made

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self._seeds = None if seed is None else torch.Generator().manual_seed(seed)

    def __repr__(self) -> str:
        args, options = self.__dict__["_made_with"]
        settings = [*map(repr, args), *(f"{name}={value!r}" for name, value in options.items())]
        return f"{type(self).__name__}({', '.join(settings)})"

    def forward(
        self, inputs: Shaped[Tensor, "n ..."], draw: Draw | None = None, *, views: int = 2
    ) -> Shaped[Tensor, "n ..."]:
        """Return V views of every input, (N, V, ...); with a draw, as in training, return a single view, (N, ...).

        Inputs are images (N, channels, height, width), uint8 or floating from 0 to 1, vectors (N, F), or token rows. A
        draw has random numbers for N rows, on the inputs' device.
        """
        if self._seeds is not None and (draw is not None or torch.utils.data.get_worker_info() is not None):
            where = "where training, or a Chain, seeds it" if draw is not None else "in workers, which would be alike"
            raise ValueError(f"expected {type(self).__name__} without a seed {where}, got {self}: leave the seed out")
        if draw is not None:
            return self._changed(inputs, draw)
        if not isinstance(views, Integral) or views < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"expected views of at least 1, got {views!r}: contrast needs 2 without labels")
        self.check(inputs)
        seed = int(torch.randint(2**62, (), generator=self._seeds))
        draw = Draw(seed, len(inputs) * views, device=inputs.device)
        return self._changed(inputs.repeat_interleave(views, dim=0), draw).unflatten(0, (len(inputs), views))

    def _changed(self, inputs: Tensor, draw: Draw) -> Tensor:
        return self.change(inputs, draw)

    def check(self, inputs: Any) -> None:
        """Raise an error for unsuitable inputs of a call outside training."""
        if not isinstance(inputs, Tensor):
            got = f"{type(inputs).__name__}: torch.stack tensors; torchvision's pil_to_tensor makes one of a picture"
            raise ValueError(f"{type(self).__name__} expected a batch in one tensor, got {got}")  # noqa: TRY004

    @abstractmethod
    def change(self, inputs: Shaped[Tensor, "n ..."], draw: Draw, /) -> Shaped[Tensor, "n ..."]:
        """Change every input once, independently, by random numbers for N rows on the inputs' device."""

    def split(self) -> "tuple[Augmentation | None, Augmentation | None]":
        """Return the initial random crop, which a loader may apply, and the remaining changes; None for none."""
        return None, self

    def fit(self, inputs: Tensor) -> None:
        """Fit to inputs of the training part, once before training, if the change depends on their statistics."""

    @property
    def needs_fit(self) -> bool:
        """Whether `fit` has an effect, for which inputs are read."""
        return type(self).fit is not Augmentation.fit


class ImageAugmentation(Augmentation):
    """Abstract: a random change of images, computed in float32 or wider whatever the precision of training.

    Images (N, channels, height, width), uint8 or floating from 0 to 1, become views (N, V, channels, height, width),
    from 0 to 1 and of the images' dtype; uint8 becomes float32.
    """

    def check(self, inputs: Any) -> None:
        super().check(inputs)
        check_images(inputs, type(self).__name__)
        if inputs.device.type != "cpu" or not inputs.is_floating_point() or not inputs.numel():
            return
        low, high = map(float, inputs.aminmax())
        if not (low >= -ROUNDING and high <= 1 + ROUNDING):
            got = f"values from {low:.4g} to {high:.4g}: make views before normalising, or use .to(torch.uint8)"
            raise ValueError(f"{type(self).__name__} expected images from 0 to 1, got {got}")

    def _changed(self, inputs: Tensor, draw: Draw) -> Tensor:
        # without autocast: pixel coordinates need more than half precision
        with torch.autocast(inputs.device.type, enabled=False):
            changed = self.change(floating(inputs, type(self).__name__), draw)
        return changed.to(inputs.dtype) if inputs.is_floating_point() else changed

    @abstractmethod
    def change(self, images: Float[Tensor, "n ch h w"], draw: Draw, /) -> Float[Tensor, "n ch new_h new_w"]:
        """Return changed images; the inputs, in float32 or wider, must not be modified."""


@final
class NoAugmentation(Augmentation):
    """No change: every view equals its sample.

    Args:
        seed: Without effect; see `Augmentation`.

    Example:
        >>> NoAugmentation()(torch.tensor([[1.0, 2.0]]))
        tensor([[[1., 2.],
                 [1., 2.]]])
    """

    def change(self, inputs: Shaped[Tensor, "n ..."], draw: Draw) -> Shaped[Tensor, "n ..."]:  # noqa: ARG002
        return inputs


@final
class Chain(Augmentation):
    """Several augmentations, one after another.

    Args:
        augmentations: The augmentations, in order; each takes the output of the one before.

    Example:
        >>> from likewise.data.augmentation import ColourJitter, GaussianBlur, RandomResizedCrop
        >>> chain = Chain([RandomResizedCrop(size=24), ColourJitter(), GaussianBlur()])
        >>> chain(torch.rand(4, 3, 32, 32)).shape
        torch.Size([4, 2, 3, 24, 24])
    """

    def __init__(self, augmentations: list[Augmentation], *, seed: int | None = None) -> None:
        super().__init__(seed)
        if not augmentations:
            raise ValueError("expected augmentations to apply, got none: use NoAugmentation()")
        self.augmentations = augmentations

    def change(self, inputs: Shaped[Tensor, "n ..."], draw: Draw) -> Shaped[Tensor, "n ..."]:
        for augmentation in self.augmentations:
            inputs = augmentation(inputs, draw)
        return inputs

    def split(self) -> tuple[Augmentation | None, Augmentation | None]:
        first, rest = self.augmentations[0].split()
        remaining = [*([] if rest is None else [rest]), *self.augmentations[1:]]
        if first is None:
            return None, self
        return first, Chain(remaining) if remaining else None

    def check(self, inputs: Any) -> None:
        self.augmentations[0].check(inputs)

    def fit(self, inputs: Tensor) -> None:
        for augmentation in self.augmentations:
            augmentation.fit(inputs)

    @property
    def needs_fit(self) -> bool:
        overridden = type(self).fit is not Chain.fit
        return overridden or any(augmentation.needs_fit for augmentation in self.augmentations)


def floating(inputs: Shaped[Tensor, "n ch h w"], name: str) -> Float[Tensor, "n ch h w"]:
    """Return images in float32 or wider: uint8 is divided by 255, half precision is converted."""
    check_images(inputs, name)
    if inputs.dtype == torch.uint8:
        return inputs / 255
    return inputs.float() if inputs.dtype.itemsize < 4 else inputs


def check_images(inputs: Tensor, name: str) -> None:
    """Refuse inputs other than a batch of images in uint8 or floating point."""
    if inputs.ndim != 4:
        remedy = "choose FeatureDropout for vectors, TokenDropout for token rows, image[None] for a single image"
        raise ValueError(f"{name} expected images (N, channels, height, width), got {tuple(inputs.shape)}: {remedy}")
    if inputs.dtype != torch.uint8 and not inputs.is_floating_point():
        raise ValueError(f"{name} expected images of uint8, .to(torch.uint8), or floating, got {inputs.dtype}")


def uniform(draw: Draw, inputs: Tensor, *shape: int) -> Float[Tensor, "n ..."]:
    """Sample numbers from [0, 1) for the inputs, and refuse a draw for another number of inputs."""
    numbers = draw.uniform(*shape)
    if len(numbers) != len(inputs):
        remedy = "give Draw the rows of the global batch, and local= if not all are here"
        raise ValueError(f"expected a draw for the {len(inputs)} inputs, got one for {len(numbers)}: {remedy}")
    return numbers


def check_size(name: str, value: float, most: float = float("inf")) -> None:
    """Refuse a strength or probability that is negative or above `most`."""
    if not 0 <= value <= most:
        allowed = "of at least 0" if most == float("inf") else f"from 0 to {most}"
        raise ValueError(f"expected {name} {allowed}, got {value}")


def check_range(name: str, values: tuple[float, float], most: float = float("inf")) -> None:
    """Refuse a pair that is not a range of positive numbers."""
    low, high = values
    if not 0 < low <= high <= most:
        allowed = "a positive range (low, high)" if most == float("inf") else f"a range (low, high) within (0, {most}]"
        raise ValueError(f"expected {name} as {allowed}, got {values}")


@final
class FeatureDropout(Augmentation):
    """Vectors with some features replaced by their mean over the training part, and noise scaled to each feature.

    Floating vectors (N, F) become views (N, V, F) of the same dtype.

    Args:
        probability: Probability that a feature is replaced.
        noise: Standard deviation of Gaussian noise, relative to the feature's over the training part.

    Example:
        >>> augmentation = FeatureDropout()
        >>> augmentation.fit(torch.rand(100, 3))
        >>> augmentation(torch.zeros(4, 3)).shape
        torch.Size([4, 2, 3])
    """

    def __init__(self, *, probability: float = 0.2, noise: float = 0.1, seed: int | None = None) -> None:
        super().__init__(seed)
        check_size("probability", probability, most=1)
        check_size("noise", noise)
        self.probability, self.noise = probability, noise
        self._mean_and_spread: Float[Tensor, "2 f"] | None = None

    def fit(self, inputs: Float[Tensor, "n f"]) -> None:
        """Compute every feature's mean and standard deviation."""
        vectors = self._vectors(inputs)
        self._mean_and_spread = torch.stack([vectors.mean(dim=0), vectors.std(dim=0, correction=0)])

    def change(self, inputs: Float[Tensor, "n f"], draw: Draw) -> Float[Tensor, "n f"]:
        vectors = self._vectors(inputs)
        mean, spread = self._fitted(vectors)
        dropped = uniform(draw, vectors, vectors.shape[1]) < self.probability
        noisy = torch.addcmul(vectors, spread, draw.normal(vectors.shape[1]).to(vectors.dtype), value=self.noise)
        return torch.where(dropped, mean, noisy).to(inputs.dtype)

    def _fitted(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        if self._mean_and_spread is None:
            raise ValueError("FeatureDropout expected fit first, got other inputs: call fit(training inputs) once")
        if self._mean_and_spread.shape[1] != vectors.shape[1]:
            fitted = self._mean_and_spread.shape[1]
            raise ValueError(f"FeatureDropout expected {fitted} features as in fit, got {vectors.shape[1]}")
        if self._mean_and_spread.device != vectors.device:  # kept there: a copy in each step would synchronise a GPU
            self._mean_and_spread = self._mean_and_spread.to(vectors.device)
        mean, spread = self._mean_and_spread.to(vectors.dtype)
        return mean, spread

    @staticmethod
    def _vectors(inputs: Tensor) -> Float[Tensor, "n f"]:
        if inputs.ndim != 2 or not inputs.is_floating_point():
            got = f"{tuple(inputs.shape)} of {inputs.dtype}: choose SimCLRViews for images, TokenDropout for token rows"
            raise ValueError(f"FeatureDropout expected vectors (N, F), floating, got {got}")
        return inputs.float() if inputs.dtype.itemsize < 4 else inputs


@final
class TokenDropout(Augmentation):
    """Token rows, integers (N, T), as views (N, V, T) with some tokens replaced by a mask; padding, 0, stays.

    Args:
        probability: Probability that a token is replaced.
        mask_id: The replacement: the vocabulary's mask, or its unknown word, above 0.

    Example:
        >>> TokenDropout(probability=1.0, mask_id=3)(torch.tensor([[5, 7, 0]]), views=1)
        tensor([[[3, 3, 0]]])
    """

    def __init__(self, *, probability: float = 0.1, mask_id: int = 1, seed: int | None = None) -> None:
        super().__init__(seed)
        check_size("probability", probability, most=1)
        if mask_id <= PADDING:
            raise ValueError(f"expected mask_id above 0, which is padding, got {mask_id}: use the vocabulary's mask")
        self.probability, self.mask_id = probability, mask_id

    def change(self, inputs: Int[Tensor, "n t"], draw: Draw) -> Int[Tensor, "n t"]:
        if inputs.ndim != 2 or inputs.is_floating_point() or inputs.dtype == torch.bool:
            got = f"{tuple(inputs.shape)} of {inputs.dtype}: choose FeatureDropout for vectors, SimCLRViews for images"
            raise ValueError(f"TokenDropout expected token rows (N, T) of integers, got {got}")
        masked = (uniform(draw, inputs, inputs.shape[1]) < self.probability) & (inputs != PADDING)
        return inputs.masked_fill(masked, self.mask_id)
