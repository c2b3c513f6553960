"""L2 normalisation that is exact at zero, and for the smallest and largest embeddings."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def normalized(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return each row divided by its length, in float32 or wider; a zero row stays zero, with zero gradient.

    Squares are summed in float64, so that none overflows or vanishes. With u = z/‖z‖, the gradient is
    (g − u (u·g)) / ‖z‖.

    Args:
        rows: Embeddings, shape (N, D), any floating dtype.

    Returns:
        Shape (N, D), float32 or wider.

    Example:
        >>> normalized(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return _Normalize.apply(rows.to(torch.promote_types(rows.dtype, torch.float32)))


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        wide = rows.dtype if rows.device.type == "mps" else torch.float64  # which that device lacks
        length = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=wide).to(rows.dtype)
        length.masked_fill_(length == 0, torch.inf)
        unit = rows / length
        ctx.save_for_backward(unit, length)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # once_differentiable is untyped
        unit, length = ctx.saved_tensors
        along = torch.linalg.vecdot(unit, gradients[0]).unsqueeze(1)
        return torch.addcmul(gradients[0], unit, along, value=-1).div_(length)
