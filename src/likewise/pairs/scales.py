"""Values that scale weights, one for each anchor or one for each reference: checked, and applied to rows."""

import torch
from torch import Tensor


def times(values: Tensor, scale: Tensor | None) -> Tensor:
    """Return each row of values times its scale; the values themselves where there is none."""
    return values if scale is None else values * scale.to(values)[:, None]


def product(one: Tensor | None, other: Tensor | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Return the product of two lists of scales in a dtype, where None stands for ones."""
    if one is None or other is None:
        only = other if one is None else one
        return None if only is None else only.to(device, dtype)
    return one.to(device, dtype) * other.to(device, dtype)


def checked(values: Tensor | None, length: int, name: str) -> Tensor | None:
    """Return the scales outside differentiation; raise unless they are one finite value each."""
    if values is None:
        return None
    if values.shape != (length,):
        raise ValueError(f"scale takes one value for each of {length} {name}, got shape {tuple(values.shape)}")
    if values.device.type == "cpu" and not torch.isfinite(values).all():
        raise ValueError(f"scale takes finite values, got NaN or infinity among those of the {name}")
    return values.detach().clone()


def nonnegative(values: Tensor | None) -> bool:
    """Say whether no value is negative: looked at on the CPU, taken on trust where looking would synchronise."""
    return values is None or values.device.type != "cpu" or bool((values >= 0).all())
