"""Functions excluded from `torch.compile`: one graph break, instead of many and a recompilation for every batch."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])

TRACES_WEIGHTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether this torch's compiler can follow the making of pair weights; torch 2.8 cannot."""

_eager: dict[Callable[..., Any], Callable[..., Any]] = {}


def graph_break(function: Function, unless: Callable[..., bool] | None = None) -> Function:
    """Exclude a function, and all that it calls, from compilation.

    `torch.compiler.disable` would import the compiler, which takes seconds, so it waits until something is compiled.
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


# what the compiler looks for in a disabled function, and the reason that it gives if a graph must not break
vars(_break).update(
    _torchdynamo_disable=True,
    _torchdynamo_disable_msg="losses run outside compiled graphs: leave out fullgraph=True; InfoNCE, N-pairs and "
    'triplet losses with backend="dense" are whole from torch 2.13 on',
)
