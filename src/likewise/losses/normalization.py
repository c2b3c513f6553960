"""L2 normalisation that is exact at zero, and for short and long embeddings."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def normalized(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return each row divided by its length, in float32 or wider; a zero row stays zero, with zero gradient.

    Squares are summed in float64, so that of float32 rows and narrower none overflows or vanishes; a length has to be
    within the dtype's range, and of float64 rows its square. With u = z/‖z‖, the gradient is (g − u (u·g)) / ‖z‖.

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
        ctx.save_for_backward(rows, unit, length)
        return unit

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        rows, unit, length = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of the gradient is asked for, through rows too
            length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            length = length.masked_fill(length == 0, torch.inf)
            unit = rows / length
        along = (unit * gradients[0]).sum(dim=1, keepdim=True)
        return torch.addcmul(gradients[0], unit, along, value=-1) / length
