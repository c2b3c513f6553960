"""What may come into running state: each check says what was expected, what came, and the remedy."""

import operator
from typing import Any

import torch
from torch import Tensor

from likewise.operator.inputs import check_dense


def check_size(name: str, value: Any, *, remedy: str) -> int:
    """Return a size as an int; raise unless it is an integer, of Python, NumPy or another library, of at least 1."""
    try:
        size = operator.index(value)
    except (TypeError, RuntimeError):  # no integer, or a tensor without values
        size = 0
    if isinstance(value, bool) or size < 1:
        raise ValueError(f"{name} is an integer of at least 1, got {value!r}; {remedy}")
    return size


def check_tensor(name: str, value: Any, device: torch.device, *, holder: str) -> None:
    """Raise unless the value is a dense tensor on the device of what is to hold it, or is asked."""
    if not isinstance(value, Tensor):
        raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every door
            f"what the {holder} takes as {name} is a tensor, got {type(value).__name__}; convert with torch.as_tensor"
        )
    if value.device != device:
        raise ValueError(
            f"what the {holder} takes as {name} lies on its device, {device}, got {value.device}; move either"
        )
    check_dense(name, value)
