"""Optimizers: groups of parameters by rate and weight decay, and several optimizers as one."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

OptimizerCallable = Callable[[Iterable[Any]], Optimizer]


def optimizer_of(
    module: nn.Module,
    make: OptimizerCallable,
    rate_factors: Mapping[nn.Parameter, float] | None = None,
    makers: Mapping[nn.Module, OptimizerCallable] | None = None,
) -> Optimizer:
    """Make an optimizer with factors of learning rates, and without weight decay on biases and normalisations.

    These are the parameters with fewer than two dimensions. `makers` make the optimizers of parts that have their own.
    """
    factors, apart = rate_factors or {}, dict[nn.Parameter, OptimizerCallable]()
    for part, other in (makers or {}).items():
        apart |= dict.fromkeys(part.parameters(), other)
    by_maker = defaultdict[OptimizerCallable, list[nn.Parameter]](list)
    for parameter in module.parameters():
        if parameter.requires_grad:
            by_maker[apart.get(parameter, make)].append(parameter)
    if not by_maker:
        raise ValueError("expected parameters to train, got none: a frozen encoder needs a head or prototypes")
    made = [_optimizer(parameters, each, factors) for each, parameters in by_maker.items()]
    return made[0] if len(made) == 1 else Together(made)


def _optimizer(
    parameters: Iterable[nn.Parameter], make: OptimizerCallable, factors: Mapping[nn.Parameter, float]
) -> Optimizer:
    groups = defaultdict[tuple[bool, float], list[nn.Parameter]](list)
    for parameter in parameters:
        groups[parameter.ndim >= 2, factors.get(parameter, 1.0)].append(parameter)
    if getattr(make, "func", make) is LBFGS:
        raise ValueError("expected an optimizer that evaluates the loss once per step, got LBFGS: choose SGD or AdamW")
    try:
        optimizer = make([{"params": group} for group in groups.values()])
    except ValueError as error:
        optimizer_name = getattr(getattr(make, "func", make), "__name__", make)
        raise ValueError(
            f"expected options that {optimizer_name} takes, got its error {str(error)!r}: correct --optimizer"
        ) from error
    for (decays, factor), group in zip(groups, optimizer.param_groups, strict=True):
        group["lr"] = group["lr"] * factor
        if "weight_decay" in group and not decays:
            group["weight_decay"] = 0.0
    return optimizer


@final
class Together(Optimizer):
    """Several optimizers of different parameters that step as one; a schedule scales the rate of each."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        super().__init__([dict(group) for optimizer in optimizers for group in optimizer.param_groups], {})
        self.optimizers = list(optimizers)
        self.param_groups = [group for optimizer in optimizers for group in optimizer.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Evaluate the closure once, and step with each."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned; the groups stay this optimizer's, too."""
        for optimizer, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
