"""What tensors can be computed with: dense and strided, with values, of a dtype that every operation knows."""

import torch
from torch import Tensor

FLOATING = torch.float16, torch.bfloat16, torch.float32, torch.float64


def is_plain(dtype: torch.dtype) -> bool:
    """Say whether a dtype is boolean, of integers, or one of `FLOATING`."""
    return not dtype.is_complex and (not dtype.is_floating_point or dtype in FLOATING)


def check_dense(name: str, value: Tensor) -> None:
    """Raise unless a tensor is dense and strided, and lies on a device that has its values."""
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
    raise ValueError(f"{name} come as a dense, strided tensor on a device with values, got {found}; {remedy}")


def check_floating(name: str, rows: Tensor) -> None:
    """Raise unless a tensor is dense and strided, has values, and is of one of `FLOATING`."""
    check_dense(name, rows)
    if rows.dtype not in FLOATING:
        remedy = (
            "take .real, or the parts with torch.view_as_real" if rows.is_complex() else "convert them with .float()"
        )
        raise ValueError(
            f"{name} have a floating dtype, float16, bfloat16, float32 or float64, got {rows.dtype}; {remedy}"
        )
