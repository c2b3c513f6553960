"""A dry run: the output of a module for zeros, before there is data."""

from itertools import chain

import torch
from torch import Tensor, nn

from likewise.models.encoder import frozen, kept_buffers

REMEDY = "wrap it in a module whose forward returns them"


def dry_run(module: nn.Module, input_shape: tuple[int, ...], name: str) -> Tensor:
    """Return features (2, D) or maps (2, D, H, W) of two inputs of zeros, in evaluation mode; buffers are restored.

    Lazy parameters get their shapes here. A module that fails, or returns something else, is a ValueError.
    """
    weight = weight_like(module)
    try:
        with frozen(module), kept_buffers(module):
            outputs = module(torch.zeros(2, *input_shape, dtype=weight.dtype, device=weight.device))
    except Exception as error:
        raise ValueError(
            f"expected {name} to take inputs of shape {tuple(input_shape)}, got {type(error).__name__}: "
            f"{shortened(str(error))}: if the images are too small for it, choose larger ones or a shallower encoder"
        ) from error
    if not isinstance(outputs, Tensor):
        raise ValueError(  # noqa: TRY004 - bad input is always a ValueError
            f"expected {name} to return a tensor, got {type(outputs).__name__}: {REMEDY}"
        )
    if outputs.ndim not in {2, 4} or len(outputs) != 2 or outputs.numel() == 0 or not outputs.is_floating_point():
        raise ValueError(
            f"expected {name} to return features (2, D) or maps (2, D, H, W) for two inputs of shape "
            f"{tuple(input_shape)}, got {tuple(outputs.shape)} of {outputs.dtype}: {REMEDY}"
        )
    return outputs


def weight_like(module: nn.Module) -> Tensor:
    """Return an empty tensor with the dtype and device of a module's weights; float32 on the CPU if it has none."""
    floating = (some for some in chain(module.parameters(), module.buffers()) if some.is_floating_point())
    first = next(floating, torch.zeros(0))
    return torch.zeros(0, dtype=first.dtype, device=first.device)


def shortened(message: str, length: int = 160) -> str:
    """Return another library's message in one line of at most about `length` characters."""
    words = " ".join(message.split())
    return words if len(words) <= length else words[:length].rsplit(" ", 1)[0] + " …"
