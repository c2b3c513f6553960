"""What image augmentations share: a check of their inputs, and the dtype of their outputs."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, cast

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from likewise.data.augmentation.augmentation import Augmentation
from likewise.data.augmentation.draw import Draw

Call = TypeVar("Call", bound=Callable[..., Tensor])


def full_precision(call: Call) -> Call:
    """Switch autocast off in an augmentation's call: pixel coordinates need more than half precision."""

    @wraps(call)
    def called(self: Augmentation, inputs: Tensor, draw: Draw) -> Tensor:
        with torch.autocast(inputs.device.type, enabled=False):
            return call(self, inputs, draw)

    return cast("Call", called)


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


def returned(images: Float[Tensor, "n ch h w"], inputs: Shaped[Tensor, "n ch h w"]) -> Float[Tensor, "n ch h w"]:
    """Return images in the inputs' dtype, or in float32 if the inputs were uint8."""
    return images.to(inputs.dtype) if inputs.is_floating_point() else images


def uniform(draw: Draw, inputs: Tensor, *shape: int) -> Float[Tensor, "n ..."]:
    """Sample numbers from [0, 1) for the inputs, and refuse a draw for another number of inputs."""
    numbers = draw.uniform(*shape)
    if len(numbers) != len(inputs):
        raise ValueError(
            f"expected a draw for the {len(inputs)} inputs, got one for {len(numbers)}: "
            "give Draw the rows of the global batch, and own= if not all are here"
        )
    return numbers
