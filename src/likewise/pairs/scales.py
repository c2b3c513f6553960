"""Scales, a number for each anchor or reference: checks of them, and products with rows."""

import torch
from torch import Tensor


def times(values: Tensor, scale: Tensor | None) -> Tensor:
    """Return each row of values times its scale; the values themselves if there is no scale."""
    return values if scale is None else values * scale.to(values)[:, None]


def product(scale: Tensor | None, other: Tensor | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Return the product of two vectors of scales in a dtype, where None stands for ones."""
    if scale is None or other is None:
        only = other if scale is None else scale
        return None if only is None else only.to(device, dtype)
    return scale.to(device, dtype) * other.to(device, dtype)


def checked(values: Tensor | None, length: int, name: str) -> Tensor | None:
    """Return a copy of scales; raise unless there is one finite value for each row."""
    if values is None:
        return None
    if values.shape != (length,):
        raise ValueError(f"expected a value for each of {length} {name} to scale by, got shape {tuple(values.shape)}")
    if values.device.type == "cpu" and not torch.isfinite(values).all():
        raise ValueError(f"expected finite values to scale {name} by, got NaN or infinity")
    return values.clone()


def nonnegative(values: Tensor | None) -> bool:
    """Return whether no value is negative: checked on the CPU, assumed where checking would synchronise."""
    return values is None or values.device.type != "cpu" or bool((values >= 0).all())
