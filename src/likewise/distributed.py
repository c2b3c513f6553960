"""Collectives over all processes' rows: a gather with exact gradients, and reductions that count each anchor once.

Each anchor is evaluated once, on its own rank, against the references of all ranks. With W processes and A active
anchors in total, the loss of rank k has the gradient of

    L_k = W/A · Σ_{i on k} ℓ_i

The gradients of references are summed and returned to their own ranks. If weights are symmetric, each rank instead
computes the gradient of Σ_k L_k for its own rows. The mean over ranks, computed by DistributedDataParallel, is then the
gradient of the single-process loss 1/A · Σ_i ℓ_i, for shards of any size.
"""

import hashlib
import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from likewise.operator.inputs import first_derivative


class RankSizes(NamedTuple):
    """The number of rows of each process, in rank order."""

    sizes: tuple[int, ...]
    rank: int

    @property
    def offset(self) -> int:
        """The position of this process's first row among all rows."""
        return sum(self.sizes[: self.rank])

    @property
    def total(self) -> int:
        """The number of rows of all processes."""
        return sum(self.sizes)

    @property
    def even(self) -> bool:
        """Whether all processes have the same number of rows."""
        return len(set(self.sizes)) == 1


def world_size() -> int:
    """Return the number of processes; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@contextmanager
def agreement(
    device: torch.device,
    facts: Callable[[], Mapping[str, str]] = dict,
    subject: str = "loss, options and kind of batch",
    remedy: str = "build losses and batches the same way on all ranks",
) -> Generator[None]:
    """Turn an error on one rank into an error on all ranks, to leave none waiting in a collective.

    Different facts are also an error. ``facts``, called after the block, returns the values that must be the same on
    all ranks, by name. One message of fixed length reports both; ranks exchange facts in full only if these differ.
    """
    if world_size() == 1:
        yield
        return
    problem, text = None, ""
    try:
        yield
        text = json.dumps(facts())
    except Exception as error:  # noqa: BLE001 - the other ranks must learn of any error
        problem = error
    digest = hashlib.blake2b(text.encode(), digest_size=7).digest()  # fits into an int64
    everyone = exchange((int(problem is not None), int.from_bytes(digest)), device)
    if problem is not None:
        raise problem
    refused = [failed for failed, _ in everyone]
    if 1 in refused:
        got = f"an error: rank {refused.index(1)} was refused, see its message"
        raise ValueError(f"expected valid input on all ranks, got {got}")
    if len(set(everyone)) > 1:
        everyone_in_full = map(json.loads, exchange_texts(text, device))
        raise ValueError(difference(dict(enumerate(everyone_in_full)), subject, remedy))


def exchange(numbers: tuple[int, ...], device: torch.device) -> list[tuple[int, ...]]:
    """Return every rank's integers, in rank order."""
    if world_size() == 1:
        return [numbers]
    mine = torch.tensor(numbers, device=device)
    everyone = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(everyone, mine)
    return [tuple(int(number) for number in theirs.tolist()) for theirs in everyone]


def exchange_texts(text: str, device: torch.device) -> list[str]:
    """Return every rank's text, in rank order."""
    if world_size() == 1:
        return [text]
    mine = text.encode()
    longest = max(length for (length,) in exchange((len(mine),), device))
    return [bytes(theirs).decode() for theirs in exchange(tuple(mine.ljust(longest)), device)]


def difference(everyone: Mapping[int, Mapping[str, str]], subject: str, remedy: str) -> str:
    """Return a message with the facts in which ranks differ, and each rank's value; empty if nothing differs.

    A fact missing on some ranks, which have other parts, is reported only if the facts common to all ranks are equal.
    """
    names = list(dict.fromkeys(name for facts in everyone.values() for name in facts))
    shared = [name for name in names if all(name in facts for facts in everyone.values())]
    for some in (shared, names):
        differences: list[str] = []
        for name in some:
            first: dict[str, int] = {}
            for rank_index, facts in everyone.items():
                first.setdefault(facts.get(name, "nothing"), rank_index)
            if len(first) > 1:
                values = (f"{value} on rank {rank_index}" for value, rank_index in first.items())
                differences.append(f"{name} {' and '.join(values)}")
        if differences:
            return f"expected the same {subject} on all ranks, got {'; '.join(differences)}: {remedy}"
    return ""


def rank() -> int:
    """Return the rank of this process; 0 without a process group."""
    return dist.get_rank() if world_size() > 1 else 0


def gather(rows: Tensor, shards: RankSizes, dtype: torch.dtype | None = None) -> Tensor:
    """Return the rows (N_k, …) of all processes in rank order, (Σ N_k, …), with the exact gradient.

    With several processes, rows are sent in their own precision and then widened to `dtype`. Gradients are sent in the
    precision of the result. The backward sums the gradients of all ranks and returns this process's rows of the sum.
    """
    return rows if len(shards.sizes) == 1 else _Gather.apply(rows, shards, rows.dtype if dtype is None else dtype)


class _Gather(torch.autograd.Function):
    """Forward: the rows of all ranks. Backward: the sum over ranks of the gradients of this rank's rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, shards: RankSizes, dtype: torch.dtype) -> Tensor:
        ctx.shards, ctx.dtype = shards, rows.dtype
        longest = max(shards.sizes)
        gathered = rows.new_empty(longest * len(shards.sizes), *rows.shape[1:])
        dist.all_gather_into_tensor(gathered, _padded(rows, longest))
        if not shards.even:
            parts = zip(gathered.split(longest), shards.sizes, strict=True)
            gathered = torch.cat([part[:size] for part, size in parts])
        return gathered.to(dtype)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        shards: RankSizes = ctx.shards
        every, longest = gradients[0].contiguous(), max(shards.sizes)
        if not shards.even:
            every = torch.cat([_padded(part, longest) for part in every.split(list(shards.sizes))])
        mine = every.new_empty(longest, *every.shape[1:])
        dist.reduce_scatter_tensor(mine, every)
        return mine[: shards.sizes[shards.rank]].to(ctx.dtype), None, None


def _padded(rows: Tensor, longest: int) -> Tensor:
    if len(rows) == longest:
        return rows.contiguous()
    return torch.cat([rows, rows.new_zeros(longest - len(rows), *rows.shape[1:])])


def total(value: Tensor) -> Tensor:
    """Return the sum of a value over all processes, without gradient."""
    value = value.detach().clone()
    if world_size() > 1:
        dist.all_reduce(value)
    return value


def summed(value: Tensor) -> Tensor:
    """Return the sum of a value over all processes, with the exact gradient of the sum of all processes' losses."""
    return value if world_size() == 1 else _Summed.apply(value)


class _Summed(torch.autograd.Function):
    """Forward and backward: the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        del ctx
        return total(value)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return total(gradients[0])


def with_value(loss: Tensor, value: Tensor) -> Tensor:
    """Return ``value`` with the gradient of ``loss``: every rank reports the global loss and trains on its own part."""
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
