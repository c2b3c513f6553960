"""Embedding caching: a network's outputs for a batch whose activations don't fit, with the exact gradient.

The outputs of all chunks are kept, and no graph. In the backward, chunk after chunk is computed once more, with
activations, and its rows of the outputs' gradient are sent back to the parameters, which receive the sum. So a loss
contrasts all rows of a batch, and one chunk's activations are there at a time, for a third more work.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._C._autograd import _get_sequence_nr  # pyright: ignore[reportPrivateUsage] - numbers a graph's nodes
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - the base of all of them

from likewise.models.replay import RandomStates, as_one_call, autocasts, buffers_of, by_themselves, lent, replicas
from likewise.models.rows import Form, Joined, count_of_rows, tensors_of

_SMALL = 2**14  # elements of a gradient that may be held until a chunk's others are there
_Inputs = TypeVar("_Inputs")


def in_chunks(
    network: nn.Module,
    inputs: _Inputs,
    chunk_size: int | None,
    method: Callable[[_Inputs], Any] | None = None,
) -> Any:
    """Return a network's outputs, computed a chunk at a time, without keeping activations for the backward.

    The gradient is that of the whole batch; parameters, and inputs that require one, receive it once, as a sum. Each
    chunk reuses its random state in the second pass. What the network counts or averages in its buffers is changed by
    the first pass alone, chunk after chunk; a scalar integer, such as DropBlock's count of steps, by the first chunk
    alone. Batch normalisation normalises each chunk by itself. Hooks on modules run in both passes, chunk after chunk.
    Activation checkpointing within the network must be of the kind `use_reentrant=False`.

    Under DistributedDataParallel all chunks are one call, and gradients are averaged once. Under `fully_shard` each
    chunk gathers the parameters in both passes, and reduces its gradients by itself. Networks that gather within a call
    (`fully_shard`, synchronised batch normalisation) need as many chunks on every process.

    Args:
        network: Anything that treats rows one by one, and changes none of its inputs in place. Where a method calls
            other modules, their buffers change in both passes; their parameters learn if the first chunk uses them.
        inputs: A tensor (N, ...); or a mapping, tuple, list or dataclass in which every tensor has N rows. Mappings,
            such as a tokenizer's `BatchEncoding`, are passed as keywords, tuples and lists as positions. Every chunk
            gets scalars, and values that are not tensors, unchanged.
        chunk_size: Rows at a time, at least 1. None: all at once, and activations are kept.
        method: What to call with a chunk, which is of the type of the inputs. None: the network itself. For a network
            that takes a dictionary as its one argument, as those of sentence-transformers do: `method=network`.

    Returns:
        The outputs, (N, ...): a tensor, or what contains tensors, each joined over chunks. Anything else that a network
        returns must be None, a number or a string, and the same in every chunk.

    Raises:
        ValueError: chunk_size is below 1, tensors of the inputs disagree on N, or outputs of chunks cannot be joined.
        RuntimeError: The network changes its inputs in place; or, in the backward, parameters or a forward have been
            replaced since, or a second derivative is asked for.

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
    call: Callable[[Any], Any] = partial(_unpacked, network) if method is None else method
    if chunk_size is None or count_of_rows(inputs) <= chunk_size:
        return call(inputs)

    def run(inputs: Any) -> Any:
        return _Passes(network, call, inputs, chunk_size).first()

    for replica in replicas(network):
        run = partial(as_one_call, replica, run)
    return run(inputs)


def _unpacked(network: nn.Module, chunk: Any) -> Any:
    if isinstance(chunk, Mapping):
        return network(**chunk)
    return network(*chunk) if isinstance(chunk, tuple | list) else network(chunk)


class _Passes:
    """Both passes over the chunks of some inputs."""

    def __init__(self, network: nn.Module, call: Callable[[Any], Any], inputs: Any, size: int) -> None:
        self._network, self._call = network, call
        self._tensors, self._form = tensors_of(inputs), Form(inputs)
        self._rows = [slice(start, start + size) for start in range(0, count_of_rows(inputs), size)]
        self._leaves = [weight for weight in network.parameters() if weight.requires_grad]
        self._learns = torch.is_grad_enabled()
        self._before = buffers_of(network.modules(), scalars=not self._learns)
        others = [buffer for buffer in self._before if not isinstance(buffer.module, _BatchNorm)]
        self._counts = [each for each in others if each.values.ndim == 0 and not each.values.is_floating_point()]
        placed = [*self._tensors, *network.parameters()]
        self._random, self._autocasts = RandomStates(placed), autocasts(placed)
        # as `fully_shard` leaves them
        self._sharded = any(hasattr(module, "set_requires_gradient_sync") for module in network.modules())
        self._made = Joined()
        self._leads_on = False  # whether the graph of a chunk leads on to one from before

    def first(self) -> Any:
        """Return the outputs; where there is something to learn, a backward from them makes the second pass."""
        learning: list[bool] = []
        versions = _versions(self._tensors)
        with by_themselves(self._network):
            for number, rows in enumerate(self._rows):
                probed = self._learns and not number
                if self._learns:
                    self._random.remember()
                with lent(self._counts if number else ()), torch.set_grad_enabled(probed):
                    chunk, cut = self._chunk(self._tensors, rows)
                    if probed:
                        out, learning = self._probed(chunk, cut)
                    else:
                        out = self._call(chunk)
                    self._made.add(out)
                    del out
        if learning and versions != _versions(self._tensors):
            raise RuntimeError(
                "expected a network that leaves its inputs as they are, got one that changes them in place, so that "
                "the second pass would meet others: clone them first, in method="
            )
        torch.clear_autocast_cache()  # weights that were cast without a graph would learn nothing later
        outputs = self._made.joined()
        if any(learning):
            tensors, self._tensors = self._tensors, []  # kept by autograd instead, which watches them
            self._versions, self._forwards = _versions(self._leaves), _forwards(self._network)
            outputs = _Cached.apply(self, outputs, learning, len(self._leaves), *self._leaves, *tensors)
        return self._made.form.filled(outputs)

    def _chunk(self, tensors: Sequence[Tensor], rows: slice) -> tuple[Any, list[Tensor]]:
        cut = [(whole[rows] if whole.ndim else whole).detach().requires_grad_(whole.requires_grad) for whole in tensors]
        return self._form.filled(cut), cut

    def _probed(self, chunk: Any, cut: list[Tensor]) -> tuple[Any, list[bool]]:
        """Call with a chunk, note what its outputs depend on, and return them and whether each learns."""
        start = _get_sequence_nr()
        with saved_tensors_hooks(lambda _: None, lambda _: None):  # pyright: ignore[reportArgumentType] - nothing is kept
            out = self._call(chunk)
        tensors = tensors_of(out)
        known = {*self._leaves, *cut}
        for node in _graph_of(tensors):
            if type(node).__name__ != "AccumulateGrad":
                self._leads_on |= node._sequence_nr() < start  # noqa: SLF001 - it has no public name
            elif node.variable not in known and not self._sharded:
                self._leaves.append(node.variable)
        return out, [tensor.requires_grad for tensor in tensors]

    def second(self, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of leaves and inputs, given those of the outputs."""
        if self._versions != _versions(self._leaves):
            raise RuntimeError(
                "expected the parameters of the forward in the backward, got some that have changed in place since: "
                "call backward() before the optimizer's step()"
            )
        if self._forwards != _forwards(self._network):
            raise RuntimeError(
                "expected the network's forward in the backward too, got another, as if it had been wrapped for the "
                "forward alone: leave chunk_size out"
            )
        learned = [torch.zeros_like(tensor) if tensor.requires_grad else None for tensor in tensors]
        sums = _GradientSums(self._leaves)
        with ExitStack() as stack:
            for context in (by_themselves(self._network), lent(self._before), torch.enable_grad(), *self._autocasts):
                stack.enter_context(context)
            states = stack.enter_context(self._random.replayed())
            for number, (rows, _) in enumerate(zip(self._rows, states, strict=True)):
                chunk, cut = self._chunk(tensors, rows)
                with lent(self._counts if number else ()):
                    out = tensors_of(self._call(chunk))
                pairs = zip(out, self._made.rows_of(gradients, number), strict=True)
                ends = [
                    (output, gradient) for output, gradient in pairs if gradient is not None and output.requires_grad
                ]
                if ends:
                    self._send(ends, sums, [tensor for tensor in cut if tensor.requires_grad])
                for total, tensor in zip(learned, cut, strict=True):
                    if total is not None and tensor.grad is not None:
                        (total[rows] if total.ndim else total).add_(tensor.grad)
        return [*sums.result(), *learned]

    def _send(self, ends: list[tuple[Tensor, Tensor]], sums: "_GradientSums", cut: list[Tensor]) -> None:
        """Send gradients back from a chunk's outputs, and add up what arrives at leaves."""
        outputs, gradients = zip(*ends, strict=True)
        if self._sharded:
            torch.autograd.backward(outputs, gradients, retain_graph=self._leads_on)
            return
        with sums.in_place_of_hooks():
            made = torch.autograd.grad(
                outputs, [*self._leaves, *cut], gradients, retain_graph=self._leads_on, allow_unused=True
            )
        sums.add(made[: len(self._leaves)])
        for tensor, gradient in zip(cut, made[len(self._leaves) :], strict=True):
            tensor.grad = gradient


class _GradientSums:
    """Gradients of leaves, large ones added up as soon as each is there, so that not all of a chunk's are held."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._values: list[Tensor | None] = [None] * len(leaves)
        aside = [place for place, leaf in enumerate(leaves) if leaf.numel() > _SMALL or leaf._backward_hooks]  # noqa: SLF001
        self._rest = sorted({*range(len(leaves))} - {*aside})
        self._aside = [(leaves[place], {0: partial(self._take, place)}) for place in aside]

    def _take(self, place: int, gradient: Tensor) -> Tensor:
        total = self._values[place]
        self._values[place] = gradient.clone() if total is None else total.add_(gradient)
        return torch.zeros_like(gradient) if gradient.is_sparse else gradient.new_zeros(()).expand_as(gradient)

    @contextmanager
    def in_place_of_hooks(self) -> Generator[None]:
        """Take gradients while the block runs. Hooks of the leaves do not meet them, but the sum."""
        theirs = [leaf._backward_hooks for leaf, _ in self._aside]  # noqa: SLF001
        for leaf, ours in self._aside:
            leaf._backward_hooks = ours  # noqa: SLF001
        try:
            yield
        finally:
            for (leaf, _), hooks in zip(self._aside, theirs, strict=True):
                leaf._backward_hooks = hooks  # noqa: SLF001

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        for place in self._rest:
            gradient, total = gradients[place], self._values[place]
            if gradient is not None:
                self._values[place] = gradient.clone() if total is None else total.add_(gradient)

    def result(self) -> list[Tensor | None]:
        """Return the sums, and let them go: autograd then keeps them without a copy."""
        values, self._values = self._values, []
        return values


def _versions(leaves: Iterable[Tensor]) -> list[int]:
    """Return how often each tensor has been changed in place, as autograd counts it."""
    return [0 if leaf.is_inference() else leaf._version for leaf in leaves]  # noqa: SLF001


def _forwards(network: nn.Module) -> list[Any]:
    """Return the forward of each module, which somebody may have replaced for a while."""
    return [module.forward for module in network.modules()]


def _graph_of(tensors: Iterable[Tensor]) -> list[Any]:
    found: dict[Any, None] = {get_gradient_edge(tensor).node: None for tensor in tensors if tensor.requires_grad}
    left = list(found)
    while left:
        for node, _ in left.pop().next_functions:
            if node is not None and node not in found:
                found[node] = None
                left.append(node)
    return list(found)


class _Cached(torch.autograd.Function):
    """Outputs that have been computed; their gradients come from the second pass."""

    @staticmethod
    def forward(
        ctx: Any, passes: _Passes, outputs: list[Tensor], learning: list[bool], leaves: int, *tensors: Tensor
    ) -> Any:
        ctx.passes = passes
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors[leaves:])
        ctx.mark_non_differentiable(*[output for output, learns in zip(outputs, learning, strict=True) if not learns])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "expected a backward without create_graph, got one to differentiate again: in_chunks keeps no graph, "
                "so leave chunk_size out"
            )
        return None, None, None, None, *ctx.passes.second(ctx.saved_tensors, gradients)
