"""A GPU that is not there: tensors that say they are on one, and refuse what a GPU would refuse.

They compute on the CPU, to the bit what it computes: code can be tested for mixing devices where there is no GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

GPU = torch.device("meta")  # of which alone torch makes tensors without its driver
MOVING = ("aten::_to_copy", "aten::copy_")
INDEXING = ("aten::index.", "aten::index_put", "aten::_index_put")


class OnGpu(Tensor):
    """A tensor on the GPU that is not there."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Self:
        found = Tensor._make_wrapper_subclass(  # noqa: SLF001 - as torch's guide to subclasses has it
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=GPU
        )
        found.held = held
        return found

    __torch_function__ = torch._C._disabled_torch_function_impl  # noqa: SLF001 - the same

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, func.name(), args, dict(kwargs or {}))


class Moves(TorchFunctionMode):
    """Makes tensors on the GPU where one asks for them: by `.to`, or by `device=`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.tolist and isinstance(args[0], OnGpu):
            return args[0].held.tolist()
        if func is Tensor.__setitem__ and isinstance(args[2], int | float):
            args = (*args[:2], torch.tensor(args[2], dtype=args[0].dtype))
        if func is torch.where:  # which makes tensors of numbers before anything can be told
            return _computed(func, "where", args, kwargs)
        asked = [of for of in (*args, *kwargs.values()) if isinstance(of, (torch.device, str)) and _is_gpu(of)]
        if not asked or func is torch.device or any(isinstance(of, OnGpu) for of in args):
            return func(*args, **kwargs)
        on = [of for of in args if not (isinstance(of, (torch.device, str)) and _is_gpu(of))]
        named = {name: of for name, of in kwargs.items() if name != "device"}
        found = func(*on, **named) if len(on) + len(named) > 1 or not isinstance(args[0], Tensor) else args[0]
        return OnGpu(found.clone())


def _computed(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU what a GPU would, and refuse what it would refuse."""
    flat = [of for of in tree_flatten((args, kwargs))[0] if isinstance(of, Tensor)]
    if any(of.device.type == GPU.type and not isinstance(of, OnGpu) for of in flat):
        raise NotImplementedError(f"expected tensors with numbers, got one without in {name}: simulate what made it")
    there = any(isinstance(of, OnGpu) for of in flat)
    off = [of for of in flat if not isinstance(of, OnGpu) and of.ndim]
    if off and name.startswith(INDEXING):  # by numbers on the CPU
        off = [] if isinstance(args[0], OnGpu) and (len(args) < 3 or isinstance(args[2], OnGpu)) else off
    if there and off and not name.startswith(MOVING):
        raise RuntimeError(f"expected all tensors on one device, got some on the CPU and some on a GPU: {name}")
    to = kwargs.pop("device", None)
    plain = tree_map(lambda of: of.held if isinstance(of, OnGpu) else of, (args, kwargs))
    found = func(*plain[0], **plain[1])
    if not there or (to is not None and torch.device(to).type == "cpu"):
        return found
    if name.startswith("aten::copy_") and not isinstance(args[0], OnGpu):
        return args[0]
    known = {id(of.held): of for of in flat if isinstance(of, OnGpu)}  # what was changed in place

    def placed(of: Any) -> Any:
        if type(of) is not Tensor:
            return of
        return known[id(of)] if id(of) in known else OnGpu(of)

    return tree_map(placed, found)


def _is_gpu(device: Any) -> bool:
    return (device.type if isinstance(device, torch.device) else device) == GPU.type


@contextmanager
def simulated_gpu() -> Iterator[torch.device]:
    """Let tensors be moved to a GPU that is not there; yield its device."""
    with torch.no_grad(), Moves():
        yield GPU
