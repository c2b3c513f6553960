"""The abstract encoder: it standardises inputs by its own mean and standard deviation, and maps them to features."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from likewise.instantiate import Described

if TYPE_CHECKING:
    from likewise.data.lazy_inputs import LazyInputs

MAX_INPUTS = 1024  # encoded at a time
RANGE_MARGIN = 0.5  # beyond 0 and 1: a bicubic resize goes there; images of 0 to 255, or normalised ones, go further
MAX_DEVIATIONS = 100  # from the mean, in standard deviations, of an encoder that has observed another range, or nothing
MAX_NUMBERS = 2**22  # of inputs encoded at a time; activations take many times as much
Progress = Callable[[Iterable[int]], Iterable[int]]
"""Wraps an iteration over batches, as tqdm does."""


class CellGrid(NamedTuple):
    """Cell i covers the pixels from start + i · stride to start + (i + 1) · stride, in height and in width."""

    stride: int
    """Pixels between neighbouring cells."""
    start: float
    """The pixel where the first cell begins: 0 where pooling or patches divide the image; −(stride − 1) / 2 where
    convolutions with a stride centre cell i on pixel i · stride, as in a ResNet."""


class Encoder(Described, nn.Module, ABC):
    """Abstract: an encoder f, from an input to a feature vector, without a head.

        f(x) = pool(maps((x − mean) / std)),   x uint8, read as x / 255, or from 0 to 1

    `mean` and `std` are buffers, so they are saved with the encoder. For images they have one value per channel, set by
    `observe` from the training part. For vectors they are 0 and 1; MLP standardises vectors in a layer.

    Args:
        input_shape: The shape of one input, (channels, height, width) for an image or (F,) for a vector.

    Attributes:
        observes: Whether `observe` sets mean and std. False if they came with pretrained weights.
        origin: The origin of published weights, with their size; "" for others.
        rebuilt_with: Arguments that select initial weights, with their replacements when an encoder is rebuilt for
            saved weights.

    Raises:
        ValueError: An entry of input_shape is below 1; in subclasses: inputs are not of the encoder's kind, or an
            argument is out of range.
    """

    mean: Tensor
    std: Tensor
    observes: bool = True
    origin: str = ""
    rebuilt_with: ClassVar[dict[str, Any]] = {}

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        if not self.input_shape or min(self.input_shape) < 1:
            raise ValueError(
                f"expected an input_shape such as (channels, height, width) or (F,), got {self.input_shape}: "
                "give the shape of one input; texts, which have none, need Transformer or BagOfTokens"
            )
        statistics = (self.input_shape[0], 1, 1) if self._takes_images else ()
        self.register_buffer("mean", torch.zeros(statistics))
        self.register_buffer("std", torch.ones(statistics))

    @property
    def recorded(self) -> dict[str, Any]:
        """Further arguments that a run needs to rebuild the encoder, known once it has observed the training part."""
        return {}

    @property
    @abstractmethod
    def feature_dim(self) -> int:
        """Length of a feature vector, D."""

    @abstractmethod
    def forward(self, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """Encode a batch of inputs. An implementation calls `standardized` on them first."""

    def maps(self, inputs: Float[Tensor, "n ch h w"]) -> Float[Tensor, "n d hm wm"]:
        """Encode images to feature maps (N, D, H, W), if the encoder has them; `pool` turns them into features."""
        raise ValueError(
            f"expected an encoder with feature maps, got {type(self).__name__}: choose Conv4, ResNet12, ConvNet, "
            "ResNet, or Wrapped around a module that returns (N, D, H, W)"
        )

    @property
    def map_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the feature maps, (D, H, W), if the encoder has them."""
        with frozen(self):
            blank = torch.zeros(1, *self.input_shape, device=self.mean.device, dtype=self.mean.dtype)
            channels, height, width = self.maps(blank).shape[1:]
        return channels, height, width

    @property
    def cell_grid(self) -> CellGrid:
        """The grid of the feature maps' cells in the image, as the encoder declares it.

        Raises:
            ValueError: The encoder declares no grid.
        """
        raise ValueError(
            f"expected an encoder that declares which pixels the cells of its maps show, got {type(self).__name__}: "
            "give Wrapped its stride and cell_start, define cell_grid in an encoder of your own, or mix no queries, by "
            "--batches.mix false"
        )

    @property
    def stride(self) -> int:
        """Pixels between neighbouring cells of the feature maps."""
        return self.cell_grid.stride

    def pool(self, maps: Float[Tensor, "n d hm wm"]) -> Float[Tensor, "n d"]:
        """Average feature maps over height and width."""
        return maps.mean(dim=(2, 3))

    def standardized(self, inputs: Tensor, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
        """Return (inputs − mean) / std, computed in at least float32, in the dtype of the encoder's weights.

        Args:
            inputs: (N, ...), uint8, which is divided by 255, or floating-point. Vectors may also be other integers.
            memory_format: The layout of the result, such as `torch.channels_last`; unchanged by default.

        Raises:
            ValueError: Images are integers other than uint8, or inputs don't have the encoder's input shape; the height
                and width of images may differ.
        """
        sized = 2 if self._takes_images else len(self.input_shape) + 1
        if inputs.ndim != len(self.input_shape) + 1 or inputs.shape[1:sized] != self.input_shape[: sized - 1]:
            raise ValueError(
                f"expected inputs of shape {('N', *self.input_shape)}, got {tuple(inputs.shape)}: permute or resize "
                "them, or build the encoder for their shape".replace("'", "")
            )
        dtype = self.mean.dtype
        wide = torch.promote_types(dtype, torch.float32)
        if self._takes_images and inputs.dtype != torch.uint8 and not inputs.is_floating_point():
            raise ValueError(f"expected images of uint8 or from 0 to 1, got {inputs.dtype}: convert them to uint8")
        values = inputs.to(wide, copy=True, memory_format=memory_format)
        values = values.div_(255) if inputs.dtype == torch.uint8 else values
        return values.sub_(self.mean.to(wide)).div_(self.std.to(wide)).to(dtype)  # in place: new tensors cost more

    @torch.no_grad()
    def observe(self, inputs: "Tensor | LazyInputs") -> None:
        """Set mean and std per channel to those of these images. For vectors, leave them unchanged.

        Args:
            inputs: Images of the training part (N, channels, height, width), uint8 or from 0 to 1. A constant channel
                gets std 1.

        Raises:
            ValueError: There are no images, or they have another number of channels.

        Memory:
            Images of 2²² numbers together, or one image, in float64.
        """
        if not (self.observes and self._takes_images):
            return
        if len(inputs) == 0 or len(inputs.shape) != 4 or inputs.shape[1] != len(self.mean):
            raise ValueError(
                f"expected images (N, {len(self.mean)}, height, width) to observe, got {tuple(inputs.shape)}: "
                "pass training inputs"
            )
        mean, std = _mean_and_std(inputs)
        self.mean.copy_(mean.view_as(self.mean))
        self.std.copy_(std.view_as(self.std))

    @torch.no_grad()
    def encode(
        self, inputs: "Tensor | LazyInputs", batch_size: int | None = None, *, progress: Progress | None = None
    ) -> Float[Tensor, "n d"]:
        """Encode inputs in evaluation mode, without gradient, in batches, on the encoder's device and in its dtype.

        A warning is given for images of another height and width than the encoder's.

        Args:
            inputs: (N, ...), on any device, uint8 or of any floating-point dtype; or `LazyInputs`. Floating-point
                images range from 0 to 1, unless the encoder has observed others, or nothing; they are not normalised.
            batch_size: Number of inputs encoded at a time. None: 1,024, or fewer if they are large: 2²² numbers.
            progress: Wraps the iteration over batches, for example tqdm.

        Returns:
            Features (N, D), float32 on the CPU.

        Raises:
            ValueError: The inputs are no tensor, or not of the encoder's shape; images go far beyond the observed
                range, or have a height and width that the network cannot take.

        Memory:
            One batch of inputs and activations, in addition to inputs and features.

        Example:
            >>> from likewise.models import MLP
            >>> MLP((3,), width=8).encode(torch.zeros(5, 3)).shape
            torch.Size([5, 8])
        """
        if not isinstance(inputs, Tensor) and not isinstance(getattr(inputs, "dtype", None), torch.dtype):
            raise ValueError(  # noqa: TRY004 - bad input is always a ValueError
                f"expected inputs as a tensor, got {type(inputs).__name__}: convert arrays with torch.from_numpy; "
                "texts need an encoder of texts"
            )
        features = torch.zeros(len(inputs), self.feature_dim, dtype=torch.float32)
        if batch_size is None:
            numbers = math.prod(inputs.shape[1:])
            batch_size = max(1, min(MAX_INPUTS, MAX_NUMBERS // max(1, numbers)))
        starts = range(0, len(inputs), batch_size)
        encoded, expected, shape = self, self.input_shape, tuple(inputs.shape[1:])
        if self._takes_images and len(shape) == 3 and shape[0] == expected[0] and shape != expected:
            warnings.warn(f"expected {self._sizes(inputs)}: resize them, or features may be worse", stacklevel=3)
            encoded = self._of_another_size
        with frozen(self):
            for start in progress(starts) if progress else starts:
                end = min(start + batch_size, len(inputs))  # a view of a tensor: copying takes threads from workers
                batch = inputs[start:end] if isinstance(inputs, Tensor) else inputs[torch.arange(start, end)]
                if self._takes_images and batch.is_floating_point():
                    self._check_range(batch)
                features[start : start + batch_size] = encoded(batch.to(self.mean.device)).float().cpu()
        return features

    def _check_range(self, images: Tensor) -> None:
        if not images.numel():
            return
        low, high = (float(end) for end in images.aminmax())
        mean, std = self.mean.detach().float(), self.std.detach().float()
        unit = bool(((mean >= 0) & (mean <= 1) & (std <= 0.5 + 1e-3)).all())  # no deviation within 0 and 1 is larger
        away = torch.tensor([low, high], device=mean.device) - mean.reshape(-1, 1)
        farthest = float((away / std.reshape(-1, 1)).abs().amax())
        fits = low >= -RANGE_MARGIN and high <= 1 + RANGE_MARGIN if unit else farthest <= MAX_DEVIATIONS
        if not fits:
            raise ValueError(
                f"expected images of uint8, or floating point from 0 to 1, got {low:.4g} to {high:.4g}: divide by "
                "their largest possible value, leave mean and std to the encoder, and check them for NaN"
            )

    def _of_another_size(self, batch: Tensor) -> Tensor:
        try:
            return self(batch)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"expected {self._sizes(batch)}, which it cannot take: resize them") from error

    def _sizes(self, images: "Tensor | LazyInputs") -> str:
        (height, width), (high, wide) = self.input_shape[1:], images.shape[2:]
        return f"images of {height} x {width} pixels, which the encoder was made for, got {high} x {wide}"

    @property
    def _takes_images(self) -> bool:
        return len(self.input_shape) == 3


class SizedEncoder(Encoder):
    """Abstract: an encoder that sets the length of its features when it is made."""

    _feature_dim: int

    @property
    def feature_dim(self) -> int:
        return self._feature_dim


class MapEncoder(SizedEncoder):
    """Abstract: an encoder that defines `maps`."""

    def forward(self, inputs: Float[Tensor, "n ch h w"]) -> Float[Tensor, "n d"]:
        return self.pool(self.maps(inputs))


@contextmanager
def frozen(module: nn.Module) -> Generator[None]:
    """Put a module into evaluation mode, without gradient, and restore the mode of every submodule at the end."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def kept_buffers(module: nn.Module) -> Generator[None]:
    """Restore every buffer and its values at the end."""
    # the buffers themselves go back: a clone made in inference mode could not be changed in place outside it
    kept = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
        if not is_lazy(buffer)
    ]
    try:
        yield
    finally:
        for part, name, buffer, values in kept:
            setattr(part, name, buffer.copy_(values))


def check_sizes(**sizes: int) -> None:
    """Raise a ValueError unless every named size is at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"expected {name} of at least 1, got {size}: give a positive integer")


def check_images(encoder: str, input_shape: tuple[int, ...]) -> None:
    """Raise a ValueError unless the shape is an image's."""
    if len(input_shape) != 3:
        raise ValueError(
            f"{encoder} expected images, input_shape (channels, height, width), got {tuple(input_shape)}: "
            f"choose the encoder {'MLP for vectors' if input_shape else 'Transformer for texts'}"
        )


def _mean_and_std(images: "Tensor | LazyInputs") -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation per channel, float64, merged over chunks (Chan et al., 1979)."""
    count = 0
    mean = squares = low = high = torch.zeros(images.shape[1], dtype=torch.float64)
    size = max(1, MAX_NUMBERS // max(1, math.prod(images.shape[1:])))
    for start in range(0, len(images), size):
        pixels = images[torch.arange(start, min(start + size, len(images)))].cpu().transpose(0, 1).flatten(1)
        chunk = pixels.double() / 255 if pixels.dtype == torch.uint8 else pixels.double()
        new = chunk.shape[1]
        its_variance, its_mean = torch.var_mean(chunk, dim=1, correction=0)
        its_low, its_high = pixels.amin(dim=1), pixels.amax(dim=1)
        low, high = (torch.minimum(low, its_low), torch.maximum(high, its_high)) if count else (its_low, its_high)
        away = its_mean - mean
        squares = squares + its_variance * new + away.square() * (count * new / (count + new))
        mean = mean + away * (new / (count + new))
        count += new
    return mean, torch.where(low == high, 1.0, (squares / count).sqrt())
