"""A pair weight times rows of references, as one autograd function."""

from typing import Any, final

import torch
from torch import Tensor


@final
class Multiply(torch.autograd.Function):
    """The weights times the references; in the backward, the transposed weights times the gradient."""

    @staticmethod
    def forward(ctx: Any, references: Tensor, weight: Any) -> Tensor:
        if references.shape[0] != weight.shape[1]:
            raise ValueError(
                f"expected {weight.shape[1]} references for {weight}, got {references.shape[0]}: "
                "build the weight for the references it multiplies"
            )
        ctx.weight = weight
        return weight.product(references)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        with torch.autocast(gradients[0].device.type, enabled=False):  # backward may be called within autocast
            return ctx.weight.T @ gradients[0], None
