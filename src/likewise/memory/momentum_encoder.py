"""A momentum encoder: the moving average of an encoder, which computes the keys of MoCo and the targets of BYOL."""

import math
from collections.abc import Callable
from copy import deepcopy
from numbers import Real
from typing import Any, Literal, Self, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from likewise.memory.tables import check_size
from likewise.operator.inputs import one_of

BufferPolicy = Literal["copy", "average", "own"]


@final
class MomentumEncoder(nn.Module):
    r"""An exponential moving average of an encoder's parameters.

    $$
    \theta' \leftarrow m_k \theta' + (1 - m_k)\, \theta, \qquad
    m_k = 1 - (1 - m) \left(\cos(\pi k / K) + 1\right) / 2
    $$

    at update k, counted from 0; without ``total_steps`` K, m_k = m; from K on, m_k = 1. The average starts as an exact
    copy. Its parameters are buffers with the same names, which ``state_dict`` contains and optimisers do not see. A
    call runs it without gradient, in its current mode; MoCo and BYOL use train mode, on augmented views.

    A step is computed in the wider of the two dtypes and stored in the average's dtype. In bfloat16 at m = 0.999 almost
    every step is rounded away: keep the average in float32, with ``MomentumEncoder(encoder).float()``.

    Args:
        encoder: Any module; it is copied, including its mode.
        momentum: m, from 0 (the latest encoder) to 1 (the initial one).
        buffers: How to treat the encoder's own buffers, such as normalisation statistics. "copy": copy them from the
            encoder, right in eval mode. "average": average them like parameters, and copy integers. "own": keep the
            average's own buffers, from its calls in train mode, as in MoCo.
        total_steps: K, the number of updates over which the momentum rises to 1. Each update then reads ``step``,
            which synchronises a GPU. None: constant.

    Attributes:
        encoder: The average; its ``state_dict`` can be loaded into the encoder.
        step: 0-d, int64, the number of updates so far.
        momentum: m_k of the next update.
        base_momentum: m, as passed.

    Memory:
        A second copy of the encoder's parameters and buffers.

    Source:
        He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", 2020, equation 2; Grill et al.,
        "Bootstrap Your Own Latent", 2020, equation 1, and its implementation details for the increase from m = 0.996.

    Example:
        >>> encoder = nn.Linear(2, 1, bias=False)
        >>> average = MomentumEncoder(encoder, momentum=0.75)
        >>> _ = nn.init.zeros_(average.encoder.weight), nn.init.ones_(encoder.weight)
        >>> average.update(encoder)
        >>> average(torch.ones(1, 2)), list(average.parameters())
        (tensor([[0.5000]]), [])
    """

    step: Tensor

    def __init__(
        self, encoder: nn.Module, momentum: float = 0.999, *, buffers: BufferPolicy = "copy",
        total_steps: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if isinstance(momentum, bool) or not isinstance(momentum, Real) or not 0 <= momentum <= 1:
            raise ValueError(f"expected momentum to be a number from 0 to 1, got {momentum!r}: 0.999 is usual")
        one_of("buffers", buffers, BufferPolicy, '"copy" is usual')
        if total_steps is not None:
            total_steps = check_size("total_steps", total_steps, remedy="None keeps the momentum constant")
        _check_encoder(encoder)
        self.base_momentum = float(momentum)
        self.buffer_policy: BufferPolicy = buffers
        self.total_steps = total_steps
        self.encoder = _copy(encoder)
        self._source_names = tuple(self._source_tensors(encoder))
        self.register_buffer("step", torch.tensor(0))

    @property
    def momentum(self) -> float:
        """m_k, the momentum of the next update."""
        if self.total_steps is None:
            return self.base_momentum
        progress = min(int(self.step) / self.total_steps, 1.0)
        return 1 - (1 - self.base_momentum) * (math.cos(math.pi * progress) + 1) / 2

    def update(self, encoder: nn.Module) -> None:
        """Move the average toward the original encoder, on any device; call this after each optimiser step.

        Raises:
            ValueError: If its parameters, or its averaged or copied buffers, have other names or shapes.
        """
        _check_encoder(encoder)
        theirs = self._source_tensors(encoder)
        mine = dict(self.encoder.named_buffers(remove_duplicate=False))
        self._check_same({name: tensor.shape for name, tensor in theirs.items()}, mine)
        parameters, rate = dict(encoder.named_parameters()), 1 - self.momentum
        with torch.no_grad():
            for name, tensor in theirs.items():
                averaged = name in parameters or self.buffer_policy == "average"
                _move(mine[name], tensor, rate if averaged else 1)
            self.step += 1

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the average, without gradient."""
        with torch.no_grad():
            return self.encoder(*args, **kwargs)

    def extra_repr(self) -> str:
        """Return the arguments shown by ``repr``."""
        return f"momentum={self.base_momentum}, buffers={self.buffer_policy!r}, total_steps={self.total_steps}"

    def _source_tensors(self, encoder: nn.Module) -> dict[str, Tensor]:
        """Return the encoder's tensors for an update, by name; tied tensors only once."""
        return dict(encoder.named_parameters()) | dict(() if self.buffer_policy == "own" else encoder.named_buffers())

    def _check_same(self, shapes: dict[str, torch.Size], mine: dict[str, Tensor]) -> None:
        followed = {name: mine[name].shape for name in self._source_names}
        if different := shapes.items() ^ followed.items():
            name, _ = min(different)
            theirs, kept = (tuple(each[name]) if name in each else "none" for each in (shapes, followed))
            got = f"got {name!r} of shape {theirs} where the average has {kept}"
            remedy = "pass that encoder, or the .module of a wrapper around it"
            raise ValueError(f"expected the encoder that was copied, {got}: {remedy}")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert tied buffers only once, so that they stay tied."""
        converted: dict[Tensor, Tensor] = {}

        def once(buffer: Tensor) -> Tensor:
            if buffer not in converted:
                converted[buffer] = fn(buffer)
            return converted[buffer]

        return super()._apply(once, recurse)


def _copy(encoder: nn.Module) -> nn.Module:
    """Return an exact copy whose parameters are buffers with the same names; tied parameters stay tied."""
    computed = {  # deepcopy rejects computed tensors, such as the weight of the older weight norm
        id(value): value.detach().clone()
        for module in encoder.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    copy = deepcopy(encoder, computed)
    buffers: dict[Tensor, Tensor] = {}
    for module in copy.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            delattr(module, name)
            module.register_buffer(name, buffers.setdefault(parameter, parameter.detach()))
    return copy


def _move(average: Tensor, online: Tensor, rate: float) -> None:
    """Set average ← average + rate·(online − average), exactly for rates 0 and 1; integers are copied."""
    wide = torch.promote_types(average.dtype, online.dtype)
    if rate == 1 or not (wide.is_floating_point or wide.is_complex):
        average.copy_(online)
    else:
        here, there = average.to(wide), online.to(average.device, wide)
        average.copy_(torch.where(here == there, here, here.lerp(there, rate)))  # −∞ in a mask stays −∞, not NaN


def _check_encoder(encoder: nn.Module) -> None:
    if not isinstance(encoder, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        got = f"got {type(encoder).__name__}: pass an instance of the class"
        raise ValueError(f"expected encoder to be a module, {got}")  # noqa: TRY004 - as at every public entry
    if any(is_lazy(tensor) for tensor in (*encoder.parameters(), *encoder.buffers())):
        raise ValueError("expected encoder to have initialised parameters, got lazy ones: run a batch through it first")
