"""The precision that `--precision auto` chooses, by a rule, so that a machine always chooses the same."""

import torch
from torch import nn

from likewise import distributed
from likewise.runs import machine

CPU = torch.device("cpu")


def precision_of(module: nn.Module, device: torch.device) -> str:
    """Return "bf16-mixed" if the network gains by it on the devices of all processes, else "32-true"."""
    gains = gains_by_bfloat16(module, device)
    return "bf16-mixed" if all(each for (each,) in distributed.exchange((int(gains),), CPU)) else "32-true"


def gains_by_bfloat16(module: nn.Module, device: torch.device) -> bool:
    """Return whether this device multiplies bfloat16; a processor trains depthwise convolutions faster in float32."""
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    depthwise = any(1 < layer.groups == layer.in_channels for layer in convolutions)
    return machine.multiplies_bfloat16(device) and not (device.type == "cpu" and depthwise)
