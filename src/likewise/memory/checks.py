"""Input checks of running state: every error says what was expected, what was given and how to fix it."""

import operator
from typing import Any

import torch

from likewise.operator.inputs import check_dense
from likewise.pairs import weight


def check_size(name: str, value: Any, *, remedy: str) -> int:
    """Return a size as an int; raise unless it is an integer of at least 1, from Python, NumPy or another library."""
    try:
        size = operator.index(value)
    except (TypeError, RuntimeError):  # not an integer, or a tensor without values
        size = 0
    if isinstance(value, bool) or size < 1:
        raise ValueError(f"expected {name} to be an integer of at least 1, got {value!r}: {remedy}")
    return size


def check_tensor(name: str, value: Any, device: torch.device, *, holder: str) -> None:
    """Raise unless the value is a dense tensor on the device of its holder."""
    weight.check_tensor(f"{name} for the {holder}", value)
    if value.device != device:
        raise ValueError(f"expected {name} to be on the device of the {holder}, {device}, got {value.device}: move it")
    check_dense(name, value)
