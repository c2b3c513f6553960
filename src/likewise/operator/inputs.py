"""Checks of the operator's inputs, and wrappers: no compilation, no autocast, first derivatives only."""

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any, TypeVar, cast, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad

from likewise.pairs.weight import check_tensor

Function = TypeVar("Function", bound=Callable[..., Any])

_functorch: Any = torch._C._functorch  # noqa: SLF001 # pyright: ignore - torch has no public name for it

TEMPERATURE_RANGE = 1e-15, 1e15
"""The smallest and the largest temperature."""

FLOAT_DTYPES = torch.float16, torch.bfloat16, torch.float32, torch.float64

TRACES_WEIGHTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether this torch's compiler can trace the construction of pair weights; torch 2.8 cannot."""

_UNCHANGED = nullcontext()
_eager: dict[Callable[..., Any], Callable[..., Any]] = {}


def is_plain(dtype: torch.dtype) -> bool:
    """Return whether a dtype is boolean, an integer, or one of `FLOAT_DTYPES`."""
    return not dtype.is_complex and (not dtype.is_floating_point or dtype in FLOAT_DTYPES)


def check_dense(name: str, value: Tensor) -> None:
    """Raise unless a tensor is dense and strided, and is on a device with values."""
    if value.is_nested:
        got, remedy = "a nested tensor", "pad it with torch.nested.to_padded_tensor, or join its rows"
    elif value.layout != torch.strided:
        got, remedy = str(value.layout), "convert it with .to_dense()"
    elif value.is_quantized:
        got, remedy = str(value.dtype), "convert it with .dequantize()"
    elif value.device.type == "meta":
        got, remedy = "a tensor on the device meta", "make it on the CPU or a GPU"
    else:
        return
    raise ValueError(f"expected {name} to be a dense, strided tensor on a device with values, got {got}: {remedy}")


def check_transforms(name: str, rows: Tensor) -> None:
    """Raise if rows are under a torch transform that the operator does not support."""
    if torch.compiler.is_dynamo_compiling():  # first, since torch 2.8 then also reports an export
        return
    if torch.compiler.is_exporting():
        got, remedy = "torch.export", "export only the encoder, since a loss is for training"
    elif torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        got, remedy = "torch.jit.trace", "trace only the encoder, or use torch.compile"
    elif _functorch.is_functorch_wrapped_tensor(rows):
        got, remedy = "a transform of torch.func", "use torch.autograd.grad or loss.backward()"
    elif forward_ad.unpack_dual(rows).tangent is not None:
        got, remedy = "forward-mode AD", "use torch.autograd.grad or loss.backward()"
    else:
        return
    raise RuntimeError(f"expected {name} to be tensors that autograd differentiates backward, got {got}: {remedy}")


def check_floating(name: str, rows: Tensor) -> None:
    """Raise unless a tensor is dense and strided, has values, and has a dtype in `FLOAT_DTYPES`."""
    check_transforms(name, rows)
    check_dense(name, rows)
    if rows.dtype not in FLOAT_DTYPES:
        remedy = "use torch.view_as_real" if rows.is_complex() else "convert them with .float()"
        expected = f"expected {name} to have a floating dtype, float16, bfloat16, float32 or float64"
        raise ValueError(f"{expected}, got {rows.dtype}: {remedy}")


def check_rows(name: str, rows: Tensor, queries: Tensor) -> None:
    """Raise unless rows are finite and floating, (n, d), as wide as the queries, and on their device."""
    check_tensor(name, rows)
    check_floating(name, rows)
    if rows.ndim != 2:
        raise ValueError(
            f"expected {name} to be floating rows of features, (n, d), got shape {tuple(rows.shape)}: flatten them"
        )
    if rows.shape[1] != queries.shape[1]:
        expected = f"expected {name} to have the queries' {queries.shape[1]} features"
        raise ValueError(f"{expected}, got shape {tuple(rows.shape)}: use the same encoder for both")
    if rows.device != queries.device:
        expected = f"expected {name} to be on the queries' device, {queries.device}"
        raise ValueError(f"{expected}, got {rows.device}: move them with .to")
    check_finite(name, rows)


def check_finite(name: str, rows: Tensor) -> None:
    """Raise if rows contain NaN or infinity.

    The check is skipped on a GPU, where it would synchronise, and in a compiled graph, which it would break.
    """
    if rows.device.type != "cpu" or not rows.numel() or torch.compiler.is_compiling():
        return
    low, high = rows.detach().aminmax()
    if not (math.isfinite(low) and math.isfinite(high)):
        bad = (~torch.isfinite(rows.detach())).flatten(1).any(dim=1).nonzero().flatten().tolist()
        got = f"got NaN or infinity in {len(bad)} of {len(rows)} rows, the first at {bad[0]}"
        raise ValueError(f"expected {name} to be finite, {got}: check for divergence, a division by zero or bad input")


def check_temperature(temperature: object, name: str = "temperature", usual: str = "0.05 to 1") -> None:
    """Raise unless a temperature is a positive number or one-element tensor; on a GPU, or in a graph, it is trusted.

    Within `TEMPERATURE_RANGE`, neither the temperature nor the square of its inverse overflows or vanishes in float32.
    """
    remedy = f"typical values are {usual}"
    if isinstance(temperature, Tensor):
        if temperature.shape not in ((), (1,)):
            got = f"got shape {tuple(temperature.shape)}"
            raise ValueError(f"expected {name} to be a number or a tensor of shape () or (1,), {got}: pass one value")
        if temperature.device.type != "cpu" or torch.compiler.is_compiling():
            return
        remedy += '; a loss learns it and keeps it positive with temperature="learned"; else learn its logarithm'
        temperature = temperature.detach().item()
    low, high = TEMPERATURE_RANGE
    if not low <= number(temperature) <= high:
        expected = f"expected {name} to be a positive number or tensor within {low:g} … {high:g}"
        raise ValueError(f"{expected}, got {temperature!r}: {remedy}")


def check_bias(bias: object) -> None:
    """Raise unless a bias is a finite number or a one-element tensor; its value is not checked on a GPU."""
    if isinstance(bias, Tensor) and bias.shape in ((), (1,)):
        if bias.device.type != "cpu":
            return
        bias = bias.detach().item()
    if not math.isfinite(number(bias)):
        expected = "expected bias to be a finite number, or a tensor of it of shape () or (1,)"
        raise ValueError(f"{expected}, got {bias!r}: typical values are -10 to 0")


def one_of(name: str, value: Any, choices: Any, remedy: str = "choose one of them") -> Any:
    """Return a hyper-parameter; raise unless it is one of the choices of a Literal."""
    if not any(value == choice and type(value) is type(choice) for choice in get_args(choices)):
        names = ", ".join(map(str, get_args(choices)))
        raise ValueError(f"expected {name} to be one of {names}, got {value!r}: {remedy}")
    return value


def number(value: object) -> float:
    """Return a real number as a float, and NaN for anything else."""
    return math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)


def graph_break(function: Function, unless: Callable[..., bool] | None = None) -> Function:
    """Exclude a function, and everything it calls, from compilation.

    `torch.compiler.disable` imports the compiler, which takes seconds, so it is called only during a compilation.
    ``unless``, called with the function's arguments, returns whether it may be compiled after all.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling() or (unless and unless(*args, **kwargs)):
            return function(*args, **kwargs)
        return _break(function, *args, **kwargs)

    return cast("Function", call)


def _break(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if function not in _eager:
        _eager[function] = torch.compiler.disable(function)
    return _eager[function](*args, **kwargs)


# the compiler's mark of a disabled function, and its message if a graph must not break
vars(_break).update(
    _torchdynamo_disable=True,
    _torchdynamo_disable_msg="losses run outside compiled graphs: leave out fullgraph=True; InfoNCE, N-pairs and "
    'triplet losses with backend="dense" are whole from torch 2.13 on',
)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context with autocast off on the device; it costs nothing if autocast is already off."""
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else _UNCHANGED


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a backward to run without autocast, and to raise if a second derivative, which it lacks, is requested."""

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
