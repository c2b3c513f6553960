"""The optimizer's parameter groups: weight decay and learning rate of each parameter."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer

OptimizerCallable = Callable[[Iterable[Any]], Optimizer]


def optimizer_of(
    module: nn.Module, make: OptimizerCallable, rate_factors: Mapping[nn.Parameter, float] | None = None
) -> Optimizer:
    """Make an optimizer with factors of learning rates, and without weight decay on biases and normalisations.

    These are the parameters with fewer than two dimensions.
    """
    factors = rate_factors or {}
    groups: defaultdict[tuple[bool, float], list[nn.Parameter]] = defaultdict(list)
    for parameter in module.parameters():
        if parameter.requires_grad:
            groups[parameter.ndim >= 2, factors.get(parameter, 1.0)].append(parameter)
    if not groups:
        raise ValueError("expected parameters to train, got none: a frozen encoder needs a head or prototypes")
    if getattr(make, "func", make) is LBFGS:
        raise ValueError("expected an optimizer that evaluates the loss once per step, got LBFGS: choose SGD or AdamW")
    optimizer = make([{"params": parameters} for parameters in groups.values()])
    for (decays, factor), group in zip(groups, optimizer.param_groups, strict=True):
        group["lr"] = group["lr"] * factor
        if "weight_decay" in group and not decays:
            group["weight_decay"] = 0.0
    return optimizer
