"""Gradient caching: a network's outputs for a batch whose activations don't fit, with the exact gradient.

The outputs of all chunks are kept, but no graph. In the backward, each chunk is computed once more, with activations,
and its rows of the outputs' gradient are sent back to the parameters, which receive the sum. So a loss contrasts all
rows of a batch, while only one chunk's activations are in memory, for a third more work.

Tensors may be in mappings, tuples, lists and dataclasses, such as a tokenizer's batch or a language model's outputs.
"""

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import get_device_states, set_device_states

_PLAIN = (type(None), bool, int, float, str)
_Inputs = TypeVar("_Inputs")


def _children(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def _leaves_of(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """List the leaves of containers, with names such as "past.0"; a value that is no container is its only leaf."""
    children = _children(value)
    if children is None:
        return [(name, value)]
    named = ((f"{name}.{key}" if name else str(key), child) for key, child in children.items())
    return [leaf for key, child in named for leaf in _leaves_of(child, key)]


def _tensors_of(value: Any) -> list[Tensor]:
    return [leaf for _, leaf in _leaves_of(value) if isinstance(leaf, Tensor)]


def _with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """Return the same containers, of the same types, with other tensors in the order of `_tensors_of`."""
    children = _children(value)
    if children is None:
        return next(tensors) if isinstance(value, Tensor) else value
    filled = {key: _with_tensors(child, tensors) for key, child in children.items()}
    if is_dataclass(value) and not isinstance(value, type):  # also the `ModelOutput` of transformers, a mapping
        return replace(value, **filled)
    if isinstance(value, Mapping):
        mapping = copy.copy(value) if isinstance(value, MutableMapping) else dict[Any, Any]()
        mapping.update(filled)  # a `BatchEncoding` stays one
        return mapping
    sequence: Any = type(value)
    return sequence(*filled.values()) if hasattr(value, "_fields") else sequence(filled.values())


def _count_of_rows(inputs: Any) -> int:
    """Return the first dimension, which must be equal for all tensors that have one."""
    leaves = _leaves_of(inputs)
    shapes = [(name, leaf.shape) for name, leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim]
    if not shapes:
        got = ", ".join(sorted({type(leaf).__name__ for _, leaf in leaves})) or "nothing"
        raise ValueError(f'expected inputs with tensors, got {got}: of a tokenizer ask for return_tensors="pt"')
    if len({shape[0] for _, shape in shapes}) > 1:
        got = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes)
        raise ValueError(f"expected tensors with as many rows, got {got}: repeat what all share, or add it in method=")
    return shapes[0][1][0]


def _check_alike(first: Any, other: Any) -> None:
    """Check that the outputs of two chunks can be joined by rows."""
    first, other = _leaves_of(first), _leaves_of(other)
    if [name for name, _ in first] != [name for name, _ in other]:
        names, differing = (", ".join(name for name, _ in leaves) or "none" for leaves in (first, other))
        raise ValueError(f"expected outputs of the same names from every chunk, got {names}, then {differing}")
    for (name, value), (_, its) in zip(first, other, strict=True):
        if isinstance(its, Tensor):
            alike = its.ndim > 0 and isinstance(value, Tensor) and value.shape[1:] == its.shape[1:]
        else:
            alike = isinstance(its, _PLAIN) and value == its
        if not alike:
            raise ValueError(
                f"expected outputs with rows, alike in every chunk, got {name and name + ' '}{_show_leaf(value)}, then "
                f"{_show_leaf(its)}: return what you need alone, by method="
            )


def _show_leaf(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__


def in_chunks(
    network: nn.Module, inputs: _Inputs, chunk_size: int | None, method: Callable[[_Inputs], Any] | None = None
) -> Any:
    """Return a network's outputs, computed a chunk at a time, without keeping activations for the backward.

    The gradient is that of the whole batch; parameters, and inputs that require a gradient, receive it once, as a sum.
    Each chunk reuses its random state in the second pass. Counts and averages in buffers are changed by the first pass
    alone, chunk by chunk; a scalar integer, such as DropBlock's step count, by the first chunk alone. Batch
    normalisation normalises each chunk by itself. Hooks on modules run in both passes, chunk by chunk.

    Under DistributedDataParallel all chunks count as one call, and gradients are averaged once. Under `fully_shard`
    each chunk gathers the parameters in both passes, and reduces its gradients by itself. Networks that gather within a
    call (`fully_shard`, synchronised batch normalisation) need equally many chunks on every process.

    Args:
        network: Anything that treats rows one by one. Each chunk is a copy, which it may change in place.
        inputs: A tensor (N, ...); or a mapping, tuple, list or dataclass in which every tensor has N rows. Mappings,
            such as a tokenizer's `BatchEncoding`, are passed as keyword arguments, tuples and lists as positional ones.
            Every chunk gets scalars and non-tensors unchanged.
        chunk_size: Rows at a time, at least 1. None: all at once, and activations are kept.
        method: The function to call with a chunk, which has the type of the inputs. None: the network itself. For a
            network that takes one dictionary, as in sentence-transformers: `method=network`. Trained tensors outside
            the network, such as another module's parameters, receive their gradients chunk by chunk, in `.grad`, where
            `torch.autograd.grad` and DistributedDataParallel don't see them: put both into one module.

    Returns:
        The outputs, (N, ...): a tensor, or a container of tensors, each joined over chunks. Any other returned value
        must be None, a number or a string, and the same in every chunk.

    Raises:
        ValueError: chunk_size is below 1, tensors of the inputs disagree on N, or outputs of chunks cannot be joined.
        RuntimeError: In the backward, parameters, inputs or a forward have been replaced or changed since; a second
            derivative is requested; or a method uses the result of an operation from before the call.

    Memory:
        The outputs, the activations of chunk_size rows, one gradient for each parameter, and two copies of the buffers.
        If random numbers are drawn on a CPU, 5 KB a chunk.

    Source:
        L. Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021 (GradCache).

    Example:
        >>> network, inputs = nn.Linear(3, 2), torch.rand(10, 3)
        >>> torch.equal(in_chunks(network, inputs, 4), network(inputs))
        True
        >>> in_chunks(network, {"input": inputs}, 4).shape
        torch.Size([10, 2])
    """
    if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"expected chunk_size of at least 1, got {chunk_size!r}: it is the number of rows at a time")
    call: Callable[[Any], Any] = partial(_call_unpacked, network) if method is None else method
    if chunk_size is None or _count_of_rows(inputs) <= chunk_size:
        return call(inputs)

    def run(inputs: Any) -> Any:
        return _Passes(network, call, inputs, chunk_size).first()

    for replica in _replicas(network):
        run = partial(_as_one_call, replica, run)
    return run(inputs)


def _call_unpacked(network: nn.Module, chunk: Any) -> Any:
    if isinstance(chunk, Mapping):
        return network(**chunk)
    return network(*chunk) if isinstance(chunk, tuple | list) else network(chunk)


class _Passes:
    """The two passes over the chunks of the inputs."""

    def __init__(self, network: nn.Module, call: Callable[[Any], Any], inputs: Any, size: int) -> None:
        self._network, self._call, self._size = network, call, size
        self._tensors, self._empty = _tensors_of(inputs), _with_tensors(inputs, repeat(torch.empty(0)))
        # `fully_shard` replaces these parameters for each call
        sharded = any(hasattr(module, "set_requires_gradient_sync") for module in network.modules())
        weights = [weight for weight in network.parameters() if weight.requires_grad and not sharded]
        self._leaves = weights or [torch.zeros((), requires_grad=True)]
        self._before = _copies(dict(_slots(network, nn.Module.named_buffers)))
        self._counts = {
            name: value
            for name, value in self._before.items()
            if value.ndim == 0 and not value.is_floating_point() and not name.endswith("num_batches_tracked")
        }
        self._forwards = _forwards(network)
        devices = {tensor.device for tensor in [*self._tensors, *network.parameters()]}
        self._autocasts, self._generators = _autocasts(devices), _Generators(devices)
        self._states = list[list[Tensor]]()

    def first(self) -> Any:
        """Return the outputs; if anything is trained, a backward from them makes the second pass."""
        learns, learning, chunks = torch.is_grad_enabled(), list[bool](), list[Any]()
        drop: Any = lambda _: None  # noqa: E731
        with _by_themselves(self._network), saved_tensors_hooks(drop, drop):
            for number in range(-(-_count_of_rows(self._tensors) // self._size)):
                if learns:
                    state, last = self._generators.state(), self._states[-1:]
                    self._states += last if last and all(map(torch.equal, state, last[0])) else [state]
                with torch.set_grad_enabled(learns and not number):  # the first chunk shows which outputs learn
                    made = self._call_chunk(self._call, number, self._tensors)
                learning = learning or [tensor.requires_grad for tensor in _tensors_of(made)]
                chunks.append(_with_tensors(made, (tensor.detach() for tensor in _tensors_of(made))))
                del made
                _check_alike(chunks[0], chunks[-1])
        torch.clear_autocast_cache()  # weights cast without a graph would receive no gradient later
        columns = list(zip(*map(_tensors_of, chunks), strict=True))
        self._spans = [[len(rows) for rows in column] for column in columns]
        outputs = [torch.cat(column) for column in columns]
        if any(learning):
            tensors, self._tensors = self._tensors, []  # kept by autograd instead, which notices changes
            outputs = _Cached.apply(self, outputs, learning, len(self._leaves), *self._leaves, *tensors)
        return _with_tensors(chunks[0], iter(outputs))

    def _call_chunk(self, function: Callable[[Any], Any], number: int, tensors: Iterable[Tensor]) -> Any:
        rows = slice(number * self._size, (number + 1) * self._size)
        cut = ((tensor[rows] if tensor.ndim else tensor).clone() for tensor in tensors)
        counts = _copies(self._counts) if number else {}
        return _with_state(self._network, counts, function, _with_tensors(self._empty, cut))

    def second(self, tensors: Iterable[Tensor], gradients: Iterable[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of leaves and inputs, given those of the outputs."""
        if self._forwards != _forwards(self._network):
            raise RuntimeError(
                "expected the network's forward in the backward too, got another, as if it had been wrapped for the "
                "forward alone: leave chunk_size out"
            )
        # these collect the sums, so hooks of the parameters see only the sums
        sums = {leaf: nn.Parameter(leaf.detach()) for leaf in self._leaves}
        slots = _slots(self._network, nn.Module.named_parameters)
        state = {name: sums[weight] for name, weight in slots if weight in sums} | _copies(self._before)
        wholes = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
        columns = [
            repeat(None, len(self._states)) if gradient is None else gradient.split(spans)
            for gradient, spans in zip(gradients, self._spans, strict=True)
        ]

        def send_back() -> None:
            for number, (states, *rows) in enumerate(zip(self._states, *columns, strict=True)):
                self._generators.set(states)
                self._call_chunk(partial(self._send_back, rows), number, wholes)

        with ExitStack() as stack:
            for context in (_by_themselves(self._network), torch.enable_grad(), *self._autocasts):
                stack.enter_context(context)
            stack.callback(self._generators.set, self._generators.state())
            _with_state(self._network, state, send_back)
        return [leaf.grad for leaf in (*sums.values(), *wholes)]

    def _send_back(self, gradients: list[Tensor | None], chunk: Any) -> None:
        pairs = zip(_tensors_of(self._call(chunk)), gradients, strict=True)
        ends = [(output, gradient) for output, gradient in pairs if gradient is not None and output.requires_grad]
        if ends:
            outputs, arriving = zip(*ends, strict=True)
            torch.autograd.backward(outputs, arriving)


class _Cached(torch.autograd.Function):
    """Precomputed outputs; their gradients come from the second pass."""

    @staticmethod
    def forward(
        ctx: Any, passes: _Passes, outputs: list[Tensor], learning: list[bool], leaves: int, *tensors: Tensor
    ) -> Any:
        ctx.passes, ctx.leaves = passes, leaves
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*[output for output, learns in zip(outputs, learning, strict=True) if not learns])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "expected a backward without create_graph, got one to differentiate again: in_chunks keeps no graph, "
                "so leave chunk_size out"
            )
        return None, None, None, None, *ctx.passes.second(ctx.saved_tensors[ctx.leaves :], gradients)


class _Calling(nn.Module):
    """A function as a module, with the network that it calls as a submodule."""

    def __init__(self, function: Callable[..., Any], network: nn.Module) -> None:
        super().__init__()
        self.network, self._function = network, partial(function)  # no submodule, even if it is a module

    def forward(self, *arguments: Any) -> Any:
        return self._function(*arguments)


def _with_state(network: nn.Module, state: dict[str, Tensor], function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function while a network has other parameters and buffers, which may change."""
    return functional_call(_Calling(function, network), state, arguments, tie_weights=False)


def _slots(network: nn.Module, members: Callable[..., Iterator[tuple[str, Tensor]]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters or buffers of every module, under one name even if the module is in several places."""
    for prefix, module in network.named_modules(prefix="network"):
        yield from members(module, prefix, recurse=False, remove_duplicate=False)


def _copies(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    copies = {tensor: tensor.detach().clone() for tensor in state.values()}
    return {name: copies[tensor] for name, tensor in state.items()}


def _forwards(network: nn.Module) -> list[Any]:
    return [module.forward for module in network.modules()]


class _Generators:
    """The random generators of the CPU and of other devices."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._on = [torch.empty(0, device=device) for device in devices if device.type not in {"cpu", "meta"}]

    def state(self) -> list[Tensor]:
        return [torch.get_rng_state(), *get_device_states(*self._on)[1]]

    def set(self, state: list[Tensor]) -> None:
        torch.set_rng_state(state[0])
        for tensor, values in zip(self._on, state[1:], strict=True):
            set_device_states([tensor.get_device()], [values], device_type=tensor.device.type)


def _autocasts(devices: Iterable[torch.device]) -> list[torch.autocast]:
    """Return the current autocast settings of the CPU and of other devices."""
    cached = torch.is_autocast_cache_enabled()
    return [
        torch.autocast(name, torch.get_autocast_dtype(name), torch.is_autocast_enabled(name), cached)
        for name in sorted({"cpu", *(device.type for device in devices)})
        if torch.amp.is_autocast_available(name)
    ]


def _replicas(network: nn.Module) -> list[DistributedDataParallel]:
    return [module for module in network.modules() if isinstance(module, DistributedDataParallel)]


@contextmanager
def _by_themselves(network: nn.Module) -> Generator[None]:
    """Make calls of DistributedDataParallel go straight to their modules while the block runs."""
    wrapped = [(replica, vars(replica).get("forward")) for replica in _replicas(network)]
    for replica, _ in wrapped:
        replica.forward = replica.module.__call__
    try:
        yield
    finally:
        for replica, forward in wrapped:
            del replica.forward
            if forward is not None:
                replica.forward = forward


def _as_one_call(replica: DistributedDataParallel, run: Callable[[Any], Any], inputs: Any) -> Any:
    """Run a function as one call of a DistributedDataParallel, which prepares its gradients once."""
    module = replica.module

    def once(inputs: Any) -> Any:
        replica.module = module
        return run(inputs)

    replica.module = _Calling(once, module)
    try:
        return replica.forward(inputs)
    finally:
        replica.module = module
