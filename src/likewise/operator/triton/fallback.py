"""The kernels, and tiles where a GPU has no room for a kernel in its shared memory, tensor memory or registers."""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor
from triton import OutOfResources

from likewise.operator import tiled
from likewise.operator.problem import Found, Gradients, Outcome, Problem, Wanted
from likewise.operator.triton import fused


def forward(
    problem: Problem, queries: Tensor, others: tuple[Tensor, ...], temperature: Tensor, wanted: Wanted
) -> Found:
    """Return the outcome of the contrast, and with it the engine that found it."""
    try:
        engine, found = fused, fused.forward(problem, queries, others, temperature, wanted)
    except OutOfResources as why:
        _leave(problem, queries.device, why)
        engine, found = tiled, tiled.forward(problem, queries, others, temperature, wanted)
    return found._replace(state=(engine, found.state))


def backward(state: Any, upstream: Outcome, wanted: Wanted) -> Gradients:
    """Return the gradients that are wanted; tiles visit the forward once more if a kernel's has no room."""
    engine, state = state
    try:
        return engine.backward(state, upstream, wanted)
    except OutOfResources as why:
        queries, *others = (rows.came for rows in state.rows)
        _leave(state.problem, queries.device, why)
        found = tiled.forward(state.problem, queries, tuple(others), state.temperature, wanted)
        return tiled.backward(found.state, upstream, wanted)


def _leave(problem: Problem, device: torch.device, why: OutOfResources) -> None:
    """Warn that tiles take its place; raise where other processes would wait for what kernels alone exchange."""
    if problem.part is not None:
        raise RuntimeError(
            f"expected room for a kernel on {device}, got too little ({why.name}): choose "
            'backend="tiled" on all processes'
        ) from why
    _warn(device, why.name)


@cache  # one warning for each GPU
def _warn(device: torch.device, lacking: str) -> None:
    warnings.warn(
        f'backend="triton" goes by tiles where a kernel has no room on {device} ({lacking}): choose "tiled", or fewer '
        "features or half precision for kernels",
        stacklevel=2,
    )
