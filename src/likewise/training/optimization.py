"""Optimization: the trained parameters, their learning rates and weight decay, and their optimizers."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - the base of all of them
from torch.optim import LBFGS, Optimizer

from likewise.files.detection import suggest
from likewise.models import Encoder, Projected
from likewise.models.weights import Block, blocks_of, names_of

OptimizerCallable = Callable[[Iterable[Any]], Optimizer]

ALL = "all"
STATISTICS = "batch statistics"
BUT_LAST = re.compile(r"all[ -]but[ -](?:the[ -])?last(?:[ -](\d+))?(?:[ -]blocks?)?")


@final
class FineTuning:
    """The trained parameters of an encoder, usually a pretrained one, and their learning rates.

        rate of block b of B = rate · rate_factor · layer_decay^(B − b)

    Frozen parts keep their weights and batch statistics bit for bit, and stay in evaluation mode, without dropout.
    Until `unfreeze_epoch`, counted from 1, their gradients are computed and dropped. `freeze` may be "all", "all but
    the last 3 blocks", or names of parts, such as "layer1,layer2". "batch statistics", alone or beside names, freezes
    the statistics of all batch normalisations, whose weights are trained.

    Source:
        Decay by layer: J. Howard and S. Ruder, Universal Language Model Fine-tuning for Text Classification, 2018,
        section 3.2, where it is 1 / 2.6.
    """

    def __init__(
        self,
        freeze: str | None = None,
        *,
        unfreeze_epoch: int | None = None,
        rate_factor: float = 1.0,
        layer_decay: float = 1.0,
    ) -> None:
        if not rate_factor > 0:
            raise ValueError(f"expected encoder_rate_factor above 0, got {rate_factor}: --freeze all trains nothing")
        if not 0 < layer_decay <= 1:
            raise ValueError(f"expected layer_decay above 0, up to 1, got {layer_decay}: 0.75 is usual")
        if unfreeze_epoch is not None and (freeze is None or unfreeze_epoch < 2):
            got = f"{unfreeze_epoch} without --freeze" if freeze is None else str(unfreeze_epoch)
            raise ValueError(f"expected unfreeze_epoch of 2 or more, and what is frozen until then, got {got}")
        named = [] if freeze is None else [name.strip() for name in freeze.split(",")]
        self.keeps_statistics = STATISTICS in named
        self._names = [name for name in named if name != STATISTICS]
        self.unfreeze_epoch = unfreeze_epoch
        self.rate_factor = rate_factor
        self.layer_decay = layer_decay
        self._frozen: list[nn.Parameter] = []
        self.rates: dict[nn.Parameter, float] = {}  # the factor of each parameter's learning rate

    def begin(self, encoder: Encoder) -> "FineTuning":
        """Freeze the chosen parameters of an encoder; if it is one of two towers, its head is still trained."""
        network = _bare(encoder)
        blocks = blocks_of(network)
        self._frozen = [parameter for name in self._names for parameter in _chosen(network, blocks, name)]
        if self.unfreeze_epoch is None:
            for parameter in self._frozen:
                parameter.requires_grad = False
        self.rates = {
            parameter: self.rate_factor * self.layer_decay ** (len(blocks) - 1 - depth)
            for depth, block in enumerate(blocks)
            for parameter in block.parameters
        }
        return self

    def rests(self, epoch: int) -> bool:
        """Return whether anything is frozen in an epoch, counted from 1."""
        return (bool(self._frozen) or self.keeps_statistics) and (
            self.unfreeze_epoch is None or epoch < self.unfreeze_epoch
        )

    def settle(self, epoch: int, encoder: nn.Module, *copies: nn.Module) -> None:
        """Put frozen parts of an encoder and its copies into evaluation mode, and unfrozen parts into training mode.

        Parts are looked up anew, since batch norms are replaced if several processes train on GPUs.
        """
        frozen = set(self._frozen)
        for name, part in _bare(encoder).named_modules() if frozen or self.keeps_statistics else ():
            parameters = list(part.parameters())
            keeps = self.keeps_statistics and isinstance(part, _BatchNorm)
            if keeps or (parameters and frozen.issuperset(parameters)):
                for network in (encoder, *copies):  # copies: momentum encoders, whose weights are no parameters
                    _bare(network).get_submodule(name).train(not self.rests(epoch))

    def drop_gradients(self, epoch: int) -> None:
        """Drop the gradients of parameters that are still frozen, so the optimizer skips them."""
        if self.rests(epoch):
            for parameter in self._frozen:
                parameter.grad = None


def _chosen(encoder: nn.Module, blocks: list[Block], part_name: str) -> list[nn.Parameter]:
    """Return the parameters with the part's name anywhere in their dotted names."""
    if part_name == ALL:
        return list(encoder.parameters())
    names = names_of([block.name for block in blocks])
    if match := BUT_LAST.fullmatch(part_name.lower()):
        last = int(match[1] or 1)
        if not 0 < last < len(blocks):
            encoder_name = type(encoder).__name__
            raise ValueError(
                f"expected from 1 to {len(blocks) - 1} blocks to train, got {last}: {encoder_name} has {names}"
            )
        return [parameter for block in blocks[:-last] for parameter in block.parameters]
    parameters = [parameter for name, parameter in encoder.named_parameters() if f".{part_name}." in f".{name}."]
    if not parameters:
        parts = dict.fromkeys(part for name, _ in encoder.named_modules() for part in (name, name.rpartition(".")[2]))
        remedy = suggest(part_name, filter(None, parts), f": {names}", most=3)
        raise ValueError(
            f"expected --freeze all, all but the last block, or names of parts of {type(encoder).__name__}, got "
            f"{part_name}{remedy}"
        )
    return parameters


def _bare(network: nn.Module) -> nn.Module:
    """Return the encoder without the head that a tower has."""
    return network.encoder if isinstance(network, Projected) else network


def optimizer_of(
    module: nn.Module,
    make: OptimizerCallable,
    rate_factors: Mapping[nn.Parameter, float] | None = None,
    makers: Mapping[nn.Module, OptimizerCallable] | None = None,
) -> Optimizer:
    """Make an optimizer with factors for learning rates, and without weight decay on biases and normalisations.

    These are the parameters with fewer than two dimensions. `makers` make the optimizers of parts with their own.
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
    """Several optimizers of different parameters that step together; a schedule scales the rate of each."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        super().__init__([dict(group) for optimizer in optimizers for group in optimizer.param_groups], {})
        self.optimizers = list(optimizers)
        self.param_groups = [group for optimizer in optimizers for group in optimizer.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Evaluate the closure once, and step with each optimizer."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all optimizers."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`; the groups stay shared with this optimizer."""
        for optimizer, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
