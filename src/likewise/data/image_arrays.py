"""Images in an array of any usual layout and range, to channels first, uint8 or floating from 0 to 1."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_CHANNELS = {1, 3}
_ROUNDING = 1e-4  # tolerance around [0, 1] for floating-point images; half precision needs it


def as_images(images: NDArray[Any], size: int | None = None) -> Tensor:
    """Return images as a tensor (N, channels, height, width): uint8 if they are integers or booleans, else float32."""
    tensor = _channels_first(torch.from_numpy(_pixels(images)))
    return tensor.contiguous() if size is None else squares(tensor, size)


def squares(images: Tensor, size: int) -> Tensor:
    """Crop the central square of every image and resize it, (N, channels, size, size)."""
    height, width = images.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    middle = images[..., top : top + side, left : left + side]
    if side == size:
        return middle.contiguous()
    scaled = torch.empty(*images.shape[:2], size, size, dtype=images.dtype)
    for rows, some in zip(scaled.split(1024), middle.split(1024), strict=True):
        rows.copy_(torch.nn.functional.interpolate(some.contiguous(), size, mode="bilinear", antialias=True))
    return scaled


def _pixels(images: NDArray[Any]) -> NDArray[Any]:
    if images.ndim not in {3, 4} or images.dtype.kind not in "uifb":
        raise ValueError(
            "expected images of shape (N, height, width), (N, height, width, channels) or (N, channels, height, width),"
            f" numbers, got {images.shape} of {images.dtype}: reshape them, or save vectors under 'vectors'"
        )
    if images.dtype.kind == "b":
        return images.astype(np.uint8) * np.uint8(255)
    low, high = images.min(), images.max()
    if images.dtype.kind == "f":
        if low < -_ROUNDING or high > 1 + _ROUNDING:  # Samples reports NaN
            raise ValueError(
                f"expected floating-point images from 0 to 1, got values from {low:.4g} to {high:.4g}: "
                "divide them by their largest possible value, or save uint8 from 0 to 255"
            )
        return images.astype(np.float32, copy=False).clip(0, 1)
    if low < 0 or high > 255:
        raise ValueError(
            f"expected integer images from 0 to 255, got values from {low} to {high}: "
            "divide them by their largest possible value and save floating-point numbers"
        )
    if high == 1:
        raise ValueError(
            "expected integer images from 0 to 255, got only 0 and 1: save images.astype(bool) if 1 is white"
        )
    return images.astype(np.uint8, copy=False)


def _channels_first(images: Tensor) -> Tensor:
    if images.ndim == 3:
        return images.unsqueeze(1)
    first, last = images.shape[1] in _CHANNELS, images.shape[-1] in _CHANNELS
    if first == last:
        got = "which could be either" if first else "which has neither 1 nor 3"
        remedy = "save grey images as (N, height, width)" if first else "keep 1 or 3 of them, or save 'vectors'"
        raise ValueError(
            "expected images of 1 or 3 channels, last (N, height, width, channels) or first "
            f"(N, channels, height, width), got {tuple(images.shape)}, {got}: {remedy}"
        )
    return images if first else images.movedim(-1, 1)
