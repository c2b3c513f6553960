"""Rules inside the operator, forward and backward: no autocast, and first derivatives only."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_UNCHANGED = nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which autocast is off on the device; entering is free if it is already off."""
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else _UNCHANGED


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a backward to run without autocast, and to raise if a second derivative is requested, which it has not."""

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
