"""Precision inside the operator: that of its inputs, whatever autocast is on around it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which autocast is off on the device; entering costs nothing where it is off already.

    Example:
        >>> with torch.autocast("cpu"), without_autocast(torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float32
    """
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()
