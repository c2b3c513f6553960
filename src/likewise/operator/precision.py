"""Rules inside the operator, forward and backward: no autocast, and first derivatives only."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_UNCHANGED = nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which autocast is off on the device; entering is free if it is already off.

    Example:
        >>> with torch.autocast("cpu"), without_autocast(torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float32
    """
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else _UNCHANGED


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the backward of an autograd function without second derivative, and run it without autocast.

    Returns:
        The backward. If a second derivative is requested (``create_graph=True``) it raises instead of omitting a term.
    """

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "expected a function with second derivatives (create_graph=True), got one with first derivatives only: "
                'use backend="dense" in one process'
            )
        device = next((gradient.device for gradient in gradients if gradient is not None), torch.device("cpu"))
        with without_autocast(device):
            return backward(ctx, *gradients)

    return run
