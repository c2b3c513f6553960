"""The equation fused, for NVIDIA GPUs: imported only when it is chosen."""

from likewise.operator.triton.fused import log_sum_exp, log_sum_exp_both_ways
from likewise.operator.triton.operands import half_of
from likewise.operator.triton.weights import plan

__all__ = ["half_of", "log_sum_exp", "log_sum_exp_both_ways", "plan"]
