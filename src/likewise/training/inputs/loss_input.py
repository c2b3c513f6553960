"""`LossInput`, the abstract module that supplies arguments of a loss's forward, by the names that the forward has."""

import inspect
from abc import ABC
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, TypeVar, final

from torch import Tensor, nn
from torch.optim import Optimizer

from likewise.data import Batches, LabelKind, Samples
from likewise.instantiate import Described
from likewise.losses import Loss
from likewise.models import Encoder, Head
from likewise.training.step import Step

T = TypeVar("T")
EMBEDDINGS = "embeddings"


@final
@dataclass(frozen=True)
class LossSignature:
    """The argument names of a loss's forward.

    Args:
        loss: The loss's name.
        required: Names without a default; `*views` counts as embeddings.
        optional: Names with a default.
        positional: Whether the forward takes views by position, not by name.

    Example:
        >>> import likewise as lw
        >>> signature = LossSignature.by(lw.MSCLoss)
        >>> sorted(signature.required), sorted(signature.optional)
        (['labels', 'prototypes', 'queries'], ['queue', 'queue_labels'])
    """

    loss: str = ""
    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    positional: bool = False

    @classmethod
    def by(cls, loss_class: type[Loss]) -> Self:
        """Read the forward of a loss's class."""
        parameters = list(inspect.signature(loss_class.forward).parameters.values())[1:]
        named = [arg for arg in parameters if arg.kind not in {arg.VAR_POSITIONAL, arg.VAR_KEYWORD}]
        positional = any(arg.kind is arg.VAR_POSITIONAL for arg in parameters)
        required = {arg.name for arg in named if arg.default is arg.empty}
        return cls(
            loss_class.__name__,
            frozenset(required | ({EMBEDDINGS} if positional else set())),
            frozenset(arg.name for arg in named if arg.default is not arg.empty),
            positional,
        )

    @classmethod
    def of(cls, loss: Loss) -> Self:
        """Read the forward of a loss, without the arguments that its configuration ignores."""
        signature = cls.by(type(loss))
        return replace(signature, optional=signature.optional - loss.unused)

    @property
    def names(self) -> frozenset[str]:
        """All names."""
        return self.required | self.optional

    @property
    def keyed(self) -> bool:
        """Whether the last view is a key if there is a momentum encoder: not if the loss takes targets."""
        return "targets" not in self.names


@final
@dataclass(frozen=True)
class InputContext:
    """The context of a training that an input of a loss may need.

    Args:
        encoder: f.
        head: g, or None.
        label_kind: The kind of labels that the data has, or None.
        num_labels: Number of classes or labels.
        signature: The arguments that the loss takes.
        samples: The training part, if it is known.
    """

    encoder: Encoder
    head: Head | None
    label_kind: LabelKind | None = None
    num_labels: int = 0
    signature: LossSignature = field(default_factory=LossSignature)
    samples: Samples | None = None

    @property
    def embedding_dim(self) -> int:
        """Length of an embedding, E."""
        return self.encoder.feature_dim if self.head is None else self.head.embedding_dim

    @property
    def network(self) -> nn.Sequential:
        """Encoder and head as one module."""
        return nn.Sequential(self.encoder, *(() if self.head is None else (self.head,)))


class LossInput(Described, nn.Module, ABC):
    """Abstract: a module whose public methods take a `Step` and supply the loss argument of the same name.

        class Weather(LossInput):
            def temperature_outside(self, step: Step) -> Tensor: ...

    supplies `temperature_outside` to every loss whose forward takes it. The methods below are not arguments.

    Attributes:
        only_if_required: Names that it supplies only if the loss requires them.
        of_labels: Names that it supplies only if the data has labels.
        without_head: Names that are not computed from embeddings. A loss that requires no other has no head.
        batches: The kind of batches that it reads.
        predicts_logits: Whether what it predicts are logits: the sigmoid of each is a label's probability.
    """

    only_if_required: ClassVar[frozenset[str]] = frozenset()
    of_labels: ClassVar[frozenset[str]] = frozenset()
    without_head: ClassVar[frozenset[str]] = frozenset()
    batches: ClassVar[type[Batches]] = Batches
    predicts_logits: ClassVar[bool] = False

    @classmethod
    def names(cls) -> frozenset[str]:
        """The argument names that the class supplies: its public methods that are not in `LossInput`."""
        supplied = {name for base in cls.__mro__ for name, member in vars(base).items() if inspect.isfunction(member)}
        return frozenset(name for name in supplied if not name.startswith("_") and not hasattr(LossInput, name))

    def build(self, context: InputContext) -> None:
        """Make parameters and buffers, once, before training."""

    def check_batches(self, batches: Batches, context: InputContext) -> None:
        """Raise a ValueError unless batches have what it reads."""
        if not isinstance(batches, self.batches):
            class_name, loss = self.batches.__name__, context.signature.loss
            raise ValueError(  # noqa: TRY004 - a choice that does not fit, as all others
                f"expected {class_name} as batches for {loss}, got {type(batches).__name__}: choose {class_name}"
            )

    def given_to(self, signature: LossSignature) -> frozenset[str]:
        """Return the names that it supplies to a loss."""
        return self.names() & (signature.required | (signature.optional - self.only_if_required))

    def serves(self, signature: LossSignature, supplied: frozenset[str]) -> bool:
        """Return whether the loss uses it, given the names that all inputs together supply."""
        return bool(self.given_to(signature))

    def rate_factors(self) -> dict[nn.Parameter, float]:
        """Return the factors of its parameters' learning rates that are not 1."""
        return {}

    def optimizer_of(self, make: Callable[..., Optimizer]) -> Callable[..., Optimizer] | None:
        """Return what makes its own optimizer, given what makes the training's; None where it has the training's."""
        return None

    def start(self, steps: int) -> None:
        """Receive the number of steps of the optimizer, when training begins."""

    def predicted(self, features: Tensor, head: nn.Module | None) -> Tensor | None:
        """Return scores of the classes or labels, (N, C), for features (N, D), if it classifies."""
        return None

    def classifier(self) -> tuple[Tensor, Tensor] | None:
        """Return W, (D, C), and b, (C,), if what it predicts are x W + b, so that a run keeps it.

        x are features, or, where these are no logits, embeddings of length 1.
        """
        return None

    def after_loss(self, step: Step) -> None:
        """Store what later batches need, after the loss of a batch is computed."""

    def after_update(self, network: nn.Module) -> None:
        """Update after a step of the optimizer; `network` is encoder and head."""


def concrete_subclasses(base: type[T]) -> Iterator[type[T]]:
    """Yield the subclasses of a class that are not abstract, and theirs."""
    for subclass in base.__subclasses__():
        yield from concrete_subclasses(subclass)
        if not inspect.isabstract(subclass):
            yield subclass
