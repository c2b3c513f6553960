"""Rows of all processes as one: a gather whose gradient is exact, and reductions that count every anchor once.

Each anchor is evaluated once, on its home rank, against the references of all. With W processes and A active anchors
among all of them, rank k's loss has the gradient of

    L_k = W/A · Σ_{i on k} ℓ_i

and the gradients of the references are summed back to the ranks they came from. The mean over ranks that
DistributedDataParallel takes is then the gradient of the single-process loss 1/A · Σ_i ℓ_i, whatever the shards' sizes.
"""

import hashlib
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from likewise.operator.precision import first_derivative


class Shards(NamedTuple):
    """How many rows each process holds, in the order of ranks."""

    sizes: tuple[int, ...]
    rank: int

    @property
    def offset(self) -> int:
        """The place of this process's first row among all."""
        return sum(self.sizes[: self.rank])

    @property
    def total(self) -> int:
        """The rows of all processes."""
        return sum(self.sizes)


def world_size() -> int:
    """Return the number of processes; 1 where none were set up."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@contextmanager
def agreement(device: torch.device, facts: Callable[[], dict[str, str]] = dict) -> Generator[None]:
    """Let an error on one rank be an error on all, so that nobody is left waiting in a collective.

    Ranks that differ in what they do are such an error. One message of one length tells both; only if ranks differ
    they say in what.

    Args:
        device: Where the collective runs.
        facts: Says after the block what has to be the same on all ranks, in words, by what it is a fact of.

    Raises:
        Exception: Whatever the block raised on this rank.
        ValueError: On every other rank, if the block raised on any; on all ranks, if their facts differ.

    Example:
        >>> with agreement(torch.device("cpu")):
        ...     pass
    """
    problem, told = None, ""
    try:
        yield
        told = json.dumps(facts())
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it
        problem = error
    digest = hashlib.blake2b(told.encode(), digest_size=7).digest()  # one that an int64 holds
    everyone = exchange((int(problem is not None), int.from_bytes(digest)), device)
    if problem is not None:
        raise problem
    refused = [refusal for refusal, _ in everyone]
    if 1 in refused:
        raise ValueError(f"the input of rank {refused.index(1)} was refused; the error raised there says why")
    if len(set(everyone)) > 1:
        raise ValueError(_difference([json.loads(theirs) for theirs in _exchange_texts(told, device)]))


def exchange(numbers: tuple[int, ...], device: torch.device) -> list[tuple[int, ...]]:
    """Return every rank's few integers, in the order of ranks.

    Example:
        >>> exchange((4, 2), torch.device("cpu"))
        [(4, 2)]
    """
    if world_size() == 1:
        return [numbers]
    mine = torch.tensor(numbers, device=device)
    everyone = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(everyone, mine)
    return [tuple(int(number) for number in theirs.tolist()) for theirs in everyone]


def _exchange_texts(text: str, device: torch.device) -> list[str]:
    """Return every rank's text, in the order of ranks."""
    mine = text.encode()
    longest = max(length for (length,) in exchange((len(mine),), device))
    return [bytes(theirs).decode() for theirs in exchange(tuple(mine.ljust(longest)), device)]


def _difference(everyone: list[dict[str, str]]) -> str:
    """Say in which facts ranks differ, of those that all of them know, and who has what."""
    differences: list[str] = []
    for name in everyone[0]:
        values = [facts.get(name) for facts in everyone]
        if None not in values and len(set(values)) > 1:
            first = {value: values.index(value) for value in values}
            differences.append(f"{name} {' and '.join(f'{value} on rank {rank}' for value, rank in first.items())}")
    return (
        "one loss is called with the same options, on batches that are alike, on all ranks, "
        f"got {'; '.join(differences)}; build loss and batches alike on all ranks"
    )


def rank() -> int:
    """Return this process's place among them; 0 where none were set up."""
    return dist.get_rank() if world_size() > 1 else 0


def gather(rows: Tensor, shards: Shards) -> Tensor:
    """Return the rows of all processes in the order of ranks, with the exact gradient.

    Args:
        rows: This process's rows, shape (N_k, …), the same trailing shape and dtype on every rank.
        shards: The rows of each process.

    Returns:
        Shape (Σ N_k, …). Its backward sums every rank's gradient and hands back this process's rows of the sum.

    Memory:
        The gathered rows, forward and backward.

    Example:
        >>> gather(torch.eye(2), Shards((2,), 0)).shape
        torch.Size([2, 2])
    """
    return rows if len(shards.sizes) == 1 else _Gather.apply(rows, shards)


class _Gather(torch.autograd.Function):
    """All rows forward; the sum over ranks of the gradients of this rank's rows backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, shards: Shards) -> Tensor:
        ctx.shards = shards
        padded = rows.new_zeros(max(shards.sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in shards.sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, shards.sizes, strict=True)])

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        shards: Shards = ctx.shards
        mine = gradients[0].new_zeros(max(shards.sizes), *gradients[0].shape[1:])
        parts: list[Tensor] = []
        for part, size in zip(gradients[0].split(list(shards.sizes)), shards.sizes, strict=True):
            padded = torch.zeros_like(mine)
            padded[:size] = part
            parts.append(padded)
        dist.reduce_scatter(mine, parts)
        return mine[: shards.sizes[shards.rank]], None


def total(value: Tensor) -> Tensor:
    """Return the sum of a value over all processes, outside differentiation.

    Example:
        >>> total(torch.tensor(3))
        tensor(3)
    """
    value = value.detach().clone()
    if world_size() > 1:
        dist.all_reduce(value)
    return value


def with_value(loss: Tensor, value: Tensor) -> Tensor:
    """Return ``value`` with the gradient of ``loss``: every rank shows the global loss, and trains on its own part.

    Example:
        >>> local = torch.tensor(1.0, requires_grad=True)
        >>> with_value(2 * local, torch.tensor(5.0))
        tensor(5., grad_fn=<_WithValueBackward>)
    """
    return _WithValue.apply(loss, value)


class _WithValue(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, value: Tensor) -> Tensor:
        del ctx, loss
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradients[0], None
