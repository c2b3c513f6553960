"""Take steps of losses on Triton's own launcher, on a driver that computes nothing; print what a CUDA graph would hold.

PYTHONPATH=.:tests python tests/processes/recorded_steps.py

A graph holds what was launched while it was captured: functions, grids, numbers, and where tensors lie. So the launches
of a step are compared with those of the next: nothing changed, values changed in place, and a number changed.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from triton import knobs

import likewise as lw
from benchmarks import stub_driver
from likewise.operator.triton import launches, weights

N, D = 96, 20


class Case(NamedTuple):
    """A loss, the tensors that every step is given, and a change of a number that is on the host."""

    loss: Any
    given: dict[str, Tensor]
    change: Callable[[Any], None] | None = None


def rows(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, D).to(dtype).requires_grad_()


def colder(loss):
    loss.temperature *= 0.9


def harder(loss):
    loss.beta = 0.7


def cases():
    """Return a few losses: what they launch differs by precision, by τ, by reduction, by section."""
    labels, learned, on = torch.arange(N) % 7, torch.tensor(0.1, requires_grad=True), {"backend": "triton"}
    return {
        "SupCon": Case(lw.SupConLoss(**on), {"embeddings": rows(N), "labels": labels}, colder),
        "SupCon, sorted": Case(
            lw.SupConLoss(**on),
            {"embeddings": rows(weights.MIN_ROWS_TO_SORT), "labels": torch.arange(weights.MIN_ROWS_TO_SORT) % 7},
            colder,
        ),
        "float32, every row, τ learned": Case(
            lw.SupConLoss(temperature=learned, reduction="none", **on),
            {"embeddings": rows(N, dtype=torch.float32), "labels": labels},
        ),
        "InfoNCE with a queue": Case(
            lw.InfoNCELoss(**on), {"queries": rows(N), "keys": rows(N), "queue": rows(2 * N).detach()}, colder
        ),
        "hard negatives": Case(lw.HardNegativeLoss(beta=0.5, **on), {"embeddings": rows(N, 2)}, harder),
    }


class Operations(TorchDispatchMode):
    """Record torch's operations, what is no tensor of their arguments, and the tensors that they made."""

    def __init__(self):
        super().__init__()
        self.found, self.made = [], []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        self.found.append((operation.name(), str(tree_map_only(Tensor, described, (args, kwargs)))))
        self.made += [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        return result


def described(tensor):
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def step(case, stub):
    """Take a step; return torch's operations, the launches as a graph would hold them, and their streams."""
    known = {value.untyped_storage().data_ptr(): name for name, value in case.given.items()}
    known |= {value.untyped_storage().data_ptr(): "learned" for value in case.loss.parameters()}
    if isinstance(case.loss.temperature, Tensor):
        known[case.loss.temperature.untyped_storage().data_ptr()] = "τ"
    stub.record.clear()
    with Operations() as operations:
        first, *others = case.given
        case.loss(case.given[first], **{name: case.given[name] for name in others}).sum().backward()
    made = {value.untyped_storage().data_ptr() for value in operations.made}

    def place(value):
        at = value.untyped_storage().data_ptr()
        name = known.get(at, "made in the step" if at in made else "FOREIGN")
        return f"{name}, {value.storage_offset()}: {described(value)}"

    held = [
        (each.kernel, each.compiled, each.grid, str(tree_map_only(Tensor, place, each.arguments)))
        for each in stub.record
    ]
    for value in case.given.values():
        value.grad = None
    return operations.found, held, {each.stream for each in stub.record}


def examined(case, stub):
    """Return what is the same of steps of a loss, and what is not."""
    step(case, stub)  # which compiles
    before = stub.launches
    first = step(case, stub)
    reached = stub.launches - before
    launches._compiled.clear()  # noqa: SLF001 - so that Triton finds what it has compiled
    by_triton = step(case, stub)
    seen: list[str] = []
    knobs.runtime.launch_enter_hook = lambda metadata: seen.append(metadata.get()["name"])
    watched = step(case, stub)
    knobs.runtime.launch_enter_hook = None
    with torch.no_grad():
        for value in (*case.given.values(), *filter(torch.is_tensor, [case.loss.temperature])):
            value.add_(1)
    in_place = step(case, stub)
    if case.change is not None:
        case.change(case.loss)
    return {
        "launches": len(first[1]),
        "reached the driver": reached,
        "streams": sorted(first[2]),
        "foreign": [launch for launch in first[1] if "FOREIGN" in launch[3]],
        "as Triton finds them": by_triton == first,
        "seen by a hook": len(seen),
        "same though watched": watched == first,
        "same after values changed": in_place == first,
        "same after a number changed": case.change is None or step(case, stub) == first,
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    with stub_driver.installed(recorded=True) as stub:
        given = cases()
        for case in given.values():
            case.loss._told = True  # noqa: SLF001 - values, which nothing computes here, are looked at on a CPU alone
        print(json.dumps({name: examined(case, stub) for name, case in given.items()}))
