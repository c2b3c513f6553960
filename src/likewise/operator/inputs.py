"""Checks of input tensors: dense and strided, with values, in a dtype that every operation supports."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_functorch: Any = torch._C._functorch  # noqa: SLF001 # pyright: ignore - torch has no public name for it

FLOATING = torch.float16, torch.bfloat16, torch.float32, torch.float64


def is_plain(dtype: torch.dtype) -> bool:
    """Return whether a dtype is boolean, an integer, or one of `FLOATING`."""
    return not dtype.is_complex and (not dtype.is_floating_point or dtype in FLOATING)


def check_dense(name: str, value: Tensor) -> None:
    """Raise unless a tensor is dense and strided, and is on a device with values."""
    if value.is_nested:
        found, remedy = "a nested tensor", "pad it with torch.nested.to_padded_tensor, or join its rows"
    elif value.layout != torch.strided:
        found, remedy = str(value.layout), "convert it with .to_dense()"
    elif value.is_quantized:
        found, remedy = str(value.dtype), "convert it with .dequantize()"
    elif value.device.type == "meta":
        found, remedy = "a tensor on the device meta", "make it on the CPU or a GPU"
    else:
        return
    raise ValueError(f"expected {name} to be a dense, strided tensor on a device with values, got {found}: {remedy}")


def check_transforms(name: str, rows: Tensor) -> None:
    """Raise if rows are under a torch transform that the operator does not support."""
    if torch.compiler.is_dynamo_compiling():  # first: torch 2.8 then says that it exports, too
        return
    if torch.compiler.is_exporting():
        found, remedy = "torch.export", "export only the encoder, since a loss is for training"
    elif torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        found, remedy = "torch.jit.trace", "trace only the encoder, or use torch.compile"
    elif _functorch.is_functorch_wrapped_tensor(rows):
        found, remedy = "a transform of torch.func", "use torch.autograd.grad or loss.backward()"
    elif forward_ad.unpack_dual(rows).tangent is not None:
        found, remedy = "forward-mode AD", "use torch.autograd.grad or loss.backward()"
    else:
        return
    raise RuntimeError(f"expected {name} to be tensors that autograd differentiates backward, got {found}: {remedy}")


def check_floating(name: str, rows: Tensor) -> None:
    """Raise unless a tensor is dense and strided, has values, and has a dtype in `FLOATING`."""
    check_transforms(name, rows)
    check_dense(name, rows)
    if rows.dtype not in FLOATING:
        remedy = (
            "use .real, or both parts with torch.view_as_real" if rows.is_complex() else "convert them with .float()"
        )
        raise ValueError(
            f"expected {name} to have a floating dtype, float16, bfloat16, float32 or float64, "
            f"got {rows.dtype}: {remedy}"
        )
