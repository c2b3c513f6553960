"""The operator: one equation with two pair weights, exact, in linear memory."""

from likewise.operator.contrast import Backend, contrast, contrast_and_activity, log_sum_exp, log_sum_exp_both_ways

__all__ = ["Backend", "contrast", "contrast_and_activity", "log_sum_exp", "log_sum_exp_both_ways"]
