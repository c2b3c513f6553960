"""Which backend evaluates a push, chosen once, and in which precision: the only room that knows them all."""

import importlib.util
import math
import os
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module, metadata
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from likewise.operator import dense, tiled
from likewise.pairs import PairWeight, concat
from likewise.pairs.concat import Concat

Backend = Literal["auto", "dense", "tiled", "triton"]

SMALL = 64 * 64
"""Up to this many pairs, ``backend="auto"`` computes all of them at once."""

TRITON = 3, 4
"""The oldest Triton with what the kernels are written in."""

AMPERE = 8, 0
"""The oldest compute capability with bfloat16 tensor cores."""


def check_backend(backend: object, device: torch.device, dtype: torch.dtype) -> None:
    """Raise unless a backend is known and, if it is "triton", can run on the device in the dtype."""
    if backend not in get_args(Backend):
        raise ValueError(f"backend is one of {', '.join(get_args(Backend))}, got {backend!r}")
    if backend != "triton":
        return
    why = no_triton(device)
    if why is None and dtype == torch.float64:
        why = "kernels multiply in float32 or less, got float64"
    if why is not None:
        raise ValueError(f'backend="triton" cannot run here: {why}; "auto" and "tiled" run anywhere')


def half_of(backend: Backend, device: torch.device, dtypes: Iterable[torch.dtype]) -> torch.dtype | None:
    """Return the half precision in which kernels multiply rows that came in these dtypes, or None: float32.

    Rows that all came in one half precision are multiplied in it; float32 is rounded to bfloat16 only where
    ``torch.set_float32_matmul_precision("medium")`` asks for that. Rows that no kernel multiplies are not rounded.
    """
    came = set(dtypes)
    if backend not in {"auto", "triton"} or torch.float64 in came or no_triton(device) is not None:
        return None
    if backend == "auto" and device.type == "cpu":
        return None
    return kernels().half_of(came)


@cache
def triton_is_missing() -> str | None:
    """Return what is wrong with the Triton of this environment, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    version = metadata.version("triton")
    if tuple(int(part) for part in version.split(".")[:2]) < TRITON:
        return f"Triton {TRITON[0]}.{TRITON[1]} or newer is needed, got {version} (pip install -U triton)"
    return None


def no_triton(device: torch.device) -> str | None:
    """Return why no kernel can run on a device, or None if they can; the CPU stands in under Triton's interpreter."""
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return triton_is_missing()
    if device.type != "cuda" or torch.version.hip is not None:
        return f"kernels need tensors on an NVIDIA GPU, got {device.type} (TRITON_INTERPRET=1 interprets them on a CPU)"
    if (capability := torch.cuda.get_device_capability(device)) < AMPERE:
        return (
            f"kernels need compute capability {AMPERE[0]}.{AMPERE[1]} or newer, "
            f"got {capability[0]}.{capability[1]}, {torch.cuda.get_device_name(device)}"
        )
    return triton_is_missing()


def kernels() -> Any:
    """Return the room of the kernels, imported only when it is chosen."""
    return import_module("likewise.operator.triton")


def log_sum_exp(
    queries: Tensor,
    sections: tuple[Tensor, ...],
    push: PairWeight,
    temperature: Tensor,
    *,
    backend: Backend,
    half: torch.dtype | None,
) -> Tensor:
    """Return log Σ_u push_iu e^{z_i·v_u/τ} of each query by the backend that was asked for, or the one that fits."""
    chosen = _chosen(backend, push, queries)
    if chosen == "dense":
        return dense.log_sum_exp(queries, sections, push, temperature)
    if chosen == "tiled":
        return tiled.log_sum_exp(queries, sections, push, temperature)
    return _fused(queries, sections, push, temperature, half)


def log_sum_exp_both_ways(
    queries: Tensor,
    references: Tensor,
    push: PairWeight,
    temperature: Tensor,
    *,
    backend: Backend,
    half: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp of each query over the references, and of each reference over the queries."""
    chosen = _chosen(backend, push, queries)
    if chosen == "dense":
        return dense.log_sum_exp_both_ways(queries, references, push, temperature)
    plan = kernels().plan(push, queries.device) if chosen == "triton" else None
    if plan is None:
        return tiled.log_sum_exp_both_ways(queries, references, push, temperature)
    return kernels().log_sum_exp_both_ways(queries, references, plan, temperature, half)


def _chosen(backend: Backend, push: PairWeight, queries: Tensor) -> Literal["dense", "tiled", "triton"]:
    check_backend(backend, queries.device, queries.dtype)
    if backend != "auto":
        return backend
    if math.prod(push.shape) <= SMALL:
        return "dense"
    fits = queries.device.type == "cuda" and queries.dtype == torch.float32 and no_triton(queries.device) is None
    return "triton" if fits else "tiled"


def _fused(
    queries: Tensor, sections: tuple[Tensor, ...], push: PairWeight, temperature: Tensor, half: torch.dtype | None
) -> Tensor:
    """Return the log-sum-exp by kernels, that of sections whose weights have no form by tiles."""
    parts, sections = _aligned(push, sections)
    plans = [kernels().plan(part, queries.device) for part in parts]
    known = [k for k, plan in enumerate(plans) if plan is not None]
    unknown = [k for k, plan in enumerate(plans) if plan is None]
    results: list[Tensor] = []
    if known:
        chosen = tuple(sections[k] for k in known)
        results.append(kernels().log_sum_exp(queries, chosen, tuple(plans[k] for k in known), temperature, half))
    if unknown:
        chosen = tuple(sections[k] for k in unknown)
        rest = parts[unknown[0]] if len(unknown) == 1 else concat([parts[k] for k in unknown])
        results.append(tiled.log_sum_exp(queries, chosen, rest, temperature))
    return results[0] if len(results) == 1 else _log_add_exp(*results)


def _aligned(push: PairWeight, sections: tuple[Tensor, ...]) -> tuple[Sequence[PairWeight], tuple[Tensor, ...]]:
    """Return the parts of a push, and a section for each of them."""
    parts = list(push.flat) if isinstance(push, Concat) else [push]
    lengths = [part.shape[1] for part in parts]
    if lengths != [len(v) for v in sections]:
        whole = sections[0] if len(sections) == 1 else torch.cat(sections)
        sections = (whole,) if len(parts) == 1 else whole.split(lengths)
    return parts, sections


def _log_add_exp(one: Tensor, other: Tensor) -> Tensor:
    """Return log(e^a + e^b), −inf without gradient where both are."""
    empty = (one == -torch.inf) & (other == -torch.inf)
    return torch.logaddexp(one.masked_fill(empty, 0), other.masked_fill(empty, 0)).masked_fill(empty, -torch.inf)
