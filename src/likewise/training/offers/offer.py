"""The abstract offer: who has something that a loss may ask for."""

import inspect
from abc import ABC
from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from likewise.data import LabelKind
from likewise.models import Encoder, Head
from likewise.training.offers.asked import Asked
from likewise.training.step import Step


@final
@dataclass(frozen=True)
class Plan:
    """What an offer may need to know to make what it offers.

    Args:
        encoder: f.
        head: g, or None.
        label_kind: What labels the data has, or None.
        num_labels: How many classes or labels there are.
    """

    encoder: Encoder
    head: Head | None
    label_kind: LabelKind | None = None
    num_labels: int = 0

    @property
    def embedding_dim(self) -> int:
        """Length of an embedding, E."""
        return self.encoder.feature_dim if self.head is None else self.head.embedding_dim

    @property
    def network(self) -> nn.Sequential:
        """Encoder and head as one module."""
        return nn.Sequential(self.encoder, *(() if self.head is None else (self.head,)))


class Offer(nn.Module, ABC):
    """Abstract: a module whose public methods of one `Step` are what it offers, by the names that losses ask for.

        class Weather(Offer):
            def temperature_outside(self, step: Step) -> Tensor: ...

    is offered to every loss whose forward names `temperature_outside`. What stands below is no offer.

    Attributes:
        only_if_required: Names that it fills only where the loss cannot do without them.
    """

    only_if_required: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def names(cls) -> frozenset[str]:
        """What the class offers: its public methods that an offer does not have anyway."""
        own = {name for kind in cls.__mro__ for name, of in vars(kind).items() if inspect.isfunction(of)}
        return frozenset(name for name in own if not name.startswith("_") and not hasattr(Offer, name))

    def build(self, plan: Plan) -> None:
        """Make what it needs, once, before training."""

    def given_to(self, asked: Asked) -> frozenset[str]:
        """Return the names that it fills for a loss that asks for these."""
        optional = asked.optional - self.only_if_required
        return self.names() & (asked.required | optional)

    def serves(self, asked: Asked, offered: frozenset[str]) -> bool:
        """Tell whether the loss has a use for it, where all offers together have these names."""
        del offered
        return bool(self.given_to(asked))

    def rate_factors(self) -> dict[nn.Parameter, float]:
        """Return by what each of its parameters' learning rate is multiplied, where that is not 1."""
        return {}

    def start(self, steps: int) -> None:
        """Learn how many steps of the optimizer there will be, when training begins."""

    def after_loss(self, step: Step) -> None:
        """Take from a batch what later ones need, when its loss is known."""

    def after_update(self, network: nn.Module) -> None:
        """Follow encoder and head, after a step of the optimizer."""
