"""The operator: one equation with two pair weights, evaluated exactly in linear memory."""

from likewise.operator.backends import Backend, no_triton
from likewise.operator.contrast import contrast, evaluate, log_sum_exp, pairwise_sum
from likewise.operator.rows import normalized
from likewise.operator.spec import ContrastSpec, Outcome, Push, Reduction

__all__ = [
    "Backend",
    "ContrastSpec",
    "Outcome",
    "Push",
    "Reduction",
    "contrast",
    "evaluate",
    "log_sum_exp",
    "no_triton",
    "normalized",
    "pairwise_sum",
]
