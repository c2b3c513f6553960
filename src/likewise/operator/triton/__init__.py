"""Fused kernels of the contrastive equation for NVIDIA GPUs, imported only when chosen."""

from likewise.operator.triton.fused import backward, forward
from likewise.operator.triton.operands import half_of

__all__ = ["backward", "forward", "half_of"]
