"""The operator: one equation with two pair weights, exact, in linear memory."""

from likewise.operator.backends import Backend, half_of, no_triton
from likewise.operator.contrast import (
    contrast,
    contrast_and_activity,
    log_sum_exp,
    log_sum_exp_both_ways,
    log_sum_exp_of_rows,
)
from likewise.operator.precision import rounded

__all__ = [
    "Backend",
    "contrast",
    "contrast_and_activity",
    "half_of",
    "log_sum_exp",
    "log_sum_exp_both_ways",
    "log_sum_exp_of_rows",
    "no_triton",
    "rounded",
]
