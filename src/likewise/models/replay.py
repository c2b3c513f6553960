"""What a call meets besides its inputs, kept so that it can be made again: random numbers, buffers, autocast, DDP."""

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import get_device_states, set_device_states

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class Buffer(NamedTuple):
    """The values of a module's buffer."""

    module: nn.Module
    name: str
    values: Tensor


def buffers_of(modules: Iterable[nn.Module], *, scalars: bool) -> list[Buffer]:
    """Copy all buffers, or scalars alone; one that stands in several places is copied once."""
    copies: dict[Tensor, Tensor] = {}
    return [
        Buffer(module, name, copies.setdefault(buffer, buffer.detach().clone()))
        for module in modules
        for name, buffer in module.named_buffers(recurse=False)
        if buffer.ndim == 0 or not scalars
    ]


@contextmanager
def lent(buffers: Iterable[Buffer]) -> Generator[None]:
    """Put copies of tensors into the place of buffers while the block runs, and the buffers back after it."""
    own = [(module, name, module.get_buffer(name)) for module, name, _ in buffers]
    copies: dict[Tensor, Tensor] = {}
    for module, name, value in buffers:
        setattr(module, name, copies.setdefault(value, value.clone()))
    try:
        yield
    finally:
        for module, name, buffer in own:
            setattr(module, name, buffer)


class RandomStates:
    """States of the generators of the CPU and of tensors' devices; equal ones in a row are kept once."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        on = {tensor.device: tensor for tensor in tensors if tensor.device.type not in {"cpu", "meta"}}
        self._on = list(on.values())
        self._states: list[list[Tensor]] = []

    def _now(self) -> list[Tensor]:
        return [torch.get_rng_state(), *(get_device_states(*self._on)[1] if self._on else ())]

    def _set(self, state: Sequence[Tensor]) -> None:
        torch.set_rng_state(state[0])
        if self._on:
            indices = [tensor.get_device() for tensor in self._on]
            set_device_states(indices, list(state[1:]), device_type=self._on[0].device.type)

    def remember(self) -> None:
        """Keep the states as they are now."""
        now, last = self._now(), self._states[-1:]
        same = bool(last) and all(torch.equal(one, other) for one, other in zip(now, last[0], strict=True))
        self._states.append(last[0] if same else now)

    @contextmanager
    def replayed(self) -> Generator[Iterator[None]]:
        """Give an iterator that sets what was remembered, one after the other, and put back what was before."""
        before = self._now()
        try:
            yield (self._set(state) for state in self._states)
        finally:
            self._set(before)


def autocasts(tensors: Iterable[Tensor]) -> list[torch.autocast]:
    """Return autocast as it is now, of the CPU and of the devices that tensors are on."""
    kinds = sorted({"cpu", *(tensor.device.type for tensor in tensors)})
    cached = torch.is_autocast_cache_enabled()
    return [
        torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cached)
        for kind in kinds
        if torch.amp.is_autocast_available(kind)
    ]


def replicas(network: nn.Module) -> list[Any]:
    """List the DistributedDataParallel in a network, or that it is."""
    return [module for module in network.modules() if isinstance(module, DistributedDataParallel)]


@contextmanager
def _with(module: nn.Module, **attributes: Any) -> Generator[None]:
    own = {name: vars(module)[name] for name in attributes if name in vars(module)}
    vars(module).update(attributes)
    try:
        yield
    finally:
        for name in attributes.keys() - own.keys():
            del vars(module)[name]
        vars(module).update(own)


@contextmanager
def by_themselves(network: nn.Module) -> Generator[None]:
    """Let calls of DistributedDataParallel go to their modules alone while the block runs."""
    with ExitStack() as stack:
        for replica in replicas(network):
            stack.enter_context(_with(replica, forward=replica.module.__call__))
        yield


def as_one_call(replica: Any, run: Callable[[Any], Any], inputs: Any) -> Any:
    """Run something as if it were one call of a DistributedDataParallel, which prepares its gradients once."""
    module = replica.module
    hooks = {name: vars(module)[name] for name in HOOKS}
    own = module.forward

    def once(inputs: Any) -> Any:
        with _with(module, forward=own, **hooks):
            return run(inputs)

    with _with(module, forward=once, **{name: OrderedDict() for name in HOOKS}):  # chunks meet the hooks, not the whole
        return replica.forward(inputs)
