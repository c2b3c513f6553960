"""The abstract offer: a module that supplies arguments of losses."""

import inspect
from abc import ABC
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn

from likewise.data import LabelKind
from likewise.models import Encoder, Head
from likewise.training.offers.asked import Asked
from likewise.training.step import Step


@final
@dataclass(frozen=True)
class Plan:
    """What an offer may need to know.

    Args:
        encoder: f.
        head: g, or None.
        label_kind: The kind of labels that the data has, or None.
        num_labels: Number of classes or labels.
        asked: The arguments that the loss takes.
    """

    encoder: Encoder
    head: Head | None
    label_kind: LabelKind | None = None
    num_labels: int = 0
    asked: frozenset[str] = frozenset()

    @property
    def embedding_dim(self) -> int:
        """Length of an embedding, E."""
        return self.encoder.feature_dim if self.head is None else self.head.embedding_dim

    @property
    def network(self) -> nn.Sequential:
        """Encoder and head as one module."""
        return nn.Sequential(self.encoder, *(() if self.head is None else (self.head,)))


class Offer(nn.Module, ABC):
    """Abstract: a module whose public methods take a `Step` and supply the loss argument of the same name.

        class Weather(Offer):
            def temperature_outside(self, step: Step) -> Tensor: ...

    supplies `temperature_outside` to every loss whose forward takes it. The methods below are not arguments.

    Attributes:
        only_if_required: Names that it supplies only if the loss requires them.
        predicts_logits: Whether what it predicts are logits: the sigmoid of each is a label's probability.
    """

    only_if_required: ClassVar[frozenset[str]] = frozenset()
    predicts_logits: ClassVar[bool] = False

    @classmethod
    def names(cls) -> frozenset[str]:
        """The argument names that the class supplies: its public methods that are not in `Offer`."""
        own = {name for kind in cls.__mro__ for name, of in vars(kind).items() if inspect.isfunction(of)}
        return frozenset(name for name in own if not name.startswith("_") and not hasattr(Offer, name))

    def build(self, plan: Plan) -> None:
        """Make parameters and buffers, once, before training."""

    def given_to(self, asked: Asked) -> frozenset[str]:
        """Return the names that it supplies to a loss."""
        optional = asked.optional - self.only_if_required
        return self.names() & (asked.required | optional)

    def serves(self, asked: Asked, offered: frozenset[str]) -> bool:
        """Return whether the loss uses it, given the names that all offers together supply."""
        del offered
        return bool(self.given_to(asked))

    def rate_factors(self) -> dict[nn.Parameter, float]:
        """Return the factors of its parameters' learning rates that are not 1."""
        return {}

    def start(self, steps: int) -> None:
        """Receive the number of steps of the optimizer, when training begins."""

    def predicted(self, features: Tensor, head: nn.Module | None) -> Tensor | None:  # noqa: ARG002 - an override's
        """Return scores of the classes or labels, (N, C), for features (N, D), if it classifies."""
        return None

    def after_loss(self, step: Step) -> None:
        """Store what later batches need, after the loss of a batch is computed."""

    def after_update(self, network: nn.Module) -> None:
        """Update after a step of the optimizer; `network` is encoder and head."""
