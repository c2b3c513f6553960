"""Embedding caching: a network's outputs for a batch whose activations don't fit, with the exact gradient.

The outputs of all chunks are kept, and no activations. In the backward, chunk after chunk is computed once more, with
activations, and sends back its rows of the outputs' gradient. So a loss contrasts all rows of a batch, and one chunk's
activations are there at a time, for a third more work.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - the base of all of them
from torch.utils.checkpoint import checkpoint

_Buffer = tuple[nn.Module, str, Tensor]


def in_chunks(
    network: nn.Module,
    inputs: Shaped[Tensor, "n ..."],
    chunk_size: int | None,
    method: Callable[[Tensor], Tensor] | None = None,
) -> Float[Tensor, "n ..."]:
    """Return a network's outputs, computed a chunk at a time, without keeping activations for the backward.

    The gradient is that of the whole batch. A chunk meets the same random numbers in both passes, and what the network
    counts or averages in its buffers is changed by the first pass alone; a scalar count, such as that of DropBlock's
    steps, by the first chunk alone. Batch normalisation normalises each chunk by itself.

    Args:
        network: Anything that treats rows one by one.
        inputs: Its inputs, (N, ...).
        chunk_size: Rows at a time, at least 1. None: all at once, and activations are kept.
        method: What to call with a chunk. None: the network itself.

    Returns:
        The outputs, (N, ...).

    Raises:
        ValueError: chunk_size is below 1.

    Memory:
        The outputs, and the activations of chunk_size rows.

    Source:
        L. Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021 (GradCache);
        T. Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.

    Example:
        >>> network, inputs = nn.Linear(3, 2), torch.rand(10, 3)
        >>> torch.equal(in_chunks(network, inputs, 4), network(inputs))
        True
    """
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"expected chunk_size of at least 1, got {chunk_size}: it is the number of rows at a time")
    call = network if method is None else method
    if chunk_size is None or len(inputs) <= chunk_size:
        return call(inputs)
    learns = torch.is_grad_enabled()
    before: list[_Buffer] = []
    for module in network.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if learns or buffer.ndim == 0:
                before.append((module, name, buffer.clone()))
    counts = [of for of in before if of[2].ndim == 0 and not isinstance(of[0], _BatchNorm)]
    made: list[Tensor] = []
    for number, chunk in enumerate(inputs.split(chunk_size)):
        with _lent(counts if number else ()):
            made.append(_recomputed(call, chunk, before) if learns else call(chunk))
    return torch.cat(made)


def _recomputed(call: Callable[[Tensor], Tensor], chunk: Tensor, before: Iterable[_Buffer]) -> Tensor:
    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _lent(before)

    made = checkpoint(call, chunk, use_reentrant=False, context_fn=contexts)
    assert isinstance(made, Tensor)  # noqa: S101 - it returns what the network returns
    return made


@contextmanager
def _lent(buffers: Iterable[_Buffer]) -> Generator[None]:
    """Put copies of tensors into the place of buffers while the block runs, and the buffers back after it."""
    own = [(module, name, module.get_buffer(name)) for module, name, _ in buffers]
    for module, name, value in buffers:
        setattr(module, name, value.clone())
    try:
        yield
    finally:
        for module, name, buffer in own:
            setattr(module, name, buffer)
