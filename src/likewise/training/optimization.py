"""The optimizer's groups of parameters: which of them decay, and at which rate each learns."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer

OptimizerCallable = Callable[[Iterable[Any]], Optimizer]


def optimizer_of(
    module: nn.Module, make: OptimizerCallable, rate_factors: Mapping[nn.Parameter, float] | None = None
) -> Optimizer:
    """Make an optimizer: biases and normalisations don't decay, and some parameters learn at rates of their own.

    Args:
        module: Whose parameters are trained.
        make: Makes the optimizer from groups of parameters, such as `torch.optim.AdamW` or a partial of it.
        rate_factors: By what a parameter's learning rate is multiplied; 1 where nothing is said.

    Returns:
        The optimizer: at most one group for each kind of parameters; those with less than two dimensions have
        weight_decay 0.

    Raises:
        ValueError: It evaluates the loss several times a step, or there is nothing to train.

    Example:
        >>> import torch
        >>> optimizer = optimizer_of(nn.Linear(3, 2), torch.optim.AdamW)
        >>> [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups]
        [(1, 0.01), (1, 0.0)]
    """
    factors = rate_factors or {}
    groups: defaultdict[tuple[bool, float], list[nn.Parameter]] = defaultdict(list)
    for parameter in module.parameters():
        if parameter.requires_grad:
            groups[parameter.ndim >= 2, factors.get(parameter, 1.0)].append(parameter)
    if not groups:
        raise ValueError("expected parameters to train, got none: an encoder that is frozen needs a head or prototypes")
    if getattr(make, "func", make) is LBFGS:
        raise ValueError(
            "expected an optimizer that evaluates the loss once a step, got LBFGS: its views would "
            "change within a step; choose SGD or AdamW"
        )
    optimizer = make([{"params": parameters} for parameters in groups.values()])
    for (decays, factor), group in zip(groups, optimizer.param_groups, strict=True):
        group["lr"] = group["lr"] * factor
        if "weight_decay" in group and not decays:
            group["weight_decay"] = 0.0
    return optimizer
