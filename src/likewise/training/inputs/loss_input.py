"""`LossInput`, the abstract module that supplies arguments of a loss's forward, and the `Step` that it reads."""

import inspect
from abc import ABC
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.optim import Optimizer

from likewise.data import Batch, Batches, Draw, EpisodeShape, LabelKind, LocalBatch, Samples, derive_seed
from likewise.instantiate import Described
from likewise.losses import Loss
from likewise.models import Encoder, Head, in_chunks


@final
@dataclass(eq=False, repr=False)
class Step:
    """A batch of B samples in V views, with outputs of encoder and head, each computed on first access.

    Args:
        batch: Views (B, V, ...), sample_index (B,), and labels if there are any.
        encoder: f, from inputs to features.
        head: g, from features to embeddings. None: the embeddings are the features.
        slow: A momentum encoder of both, or None.
        keyed: Whether the last view is a key, which only the momentum encoder sees if there is one.
        chunk_size: Inputs encoded at a time; see `likewise.models.in_chunks`. None: all.
    """

    batch: Batch
    encoder: nn.Module
    head: nn.Module | None
    _: KW_ONLY
    slow: nn.Module | None = None
    keyed: bool = False
    chunk_size: int | None = None

    @property
    def inputs(self) -> Shaped[Tensor, "b v ..."]:
        """The views, (B, V, ...)."""
        return self.batch["inputs"]

    @property
    def views(self) -> int:
        """Number of views per sample, V."""
        return self.inputs.shape[1]

    @property
    def encoded(self) -> int:
        """Number of views that the encoder sees: all except a key for the momentum encoder."""
        return self.views - (self.slow is not None and self.keyed and self.views > 1)

    @property
    def labels(self) -> Tensor:
        """Classes (B,) or label sets (B, L)."""
        labels = self.batch.get("labels")
        if labels is None:
            raise RuntimeError("this batch has no labels")  # inputs are checked before training
        return labels

    @cached_property
    def features(self) -> Float[Tensor, "b v d"]:
        """Features f(x) of the views that the encoder sees."""
        seen = self.inputs[:, : self.encoded]
        return in_chunks(self.encoder, seen.flatten(0, 1), self.chunk_size).unflatten(0, seen.shape[:2])

    @cached_property
    def maps(self) -> Float[Tensor, "b d h w"]:
        """Feature maps of the first view."""
        maps: Any = self.encoder.maps  # an `Encoder`
        return in_chunks(self.encoder, self.inputs[:, 0], self.chunk_size, maps)

    @property
    def represented(self) -> Float[Tensor, "n d"] | None:
        """The latest result for the samples: embeddings, else features, else the means of feature maps."""
        computed = vars(self)
        for name in ("embeddings", "features"):
            if name in computed:
                return computed[name].flatten(0, 1)
        return computed["maps"].flatten(2).mean(dim=2) if "maps" in computed else None

    @property
    def episodes(self) -> EpisodeShape:
        """The shape of the batch's episodes."""
        shape = self.batch.get("episodes")
        if shape is None:
            raise RuntimeError("this batch has no episodes")  # batches are checked before training
        return shape

    def by_episode(self, rows: Shaped[Tensor, "b ..."]) -> tuple[Tensor, Tensor]:
        """Split rows of samples into supports, (E, N, K, ...), and queries, (E, N, Q, ...)."""
        shape = self.episodes
        parted = rows.unflatten(0, (shape.episodes, shape.ways, shape.each))
        return parted[:, :, : shape.shots], parted[:, :, shape.shots :]

    @cached_property
    def embeddings(self) -> Float[Tensor, "b v e"]:
        """Embeddings z = g(f) of the views that the encoder sees."""
        if self.head is None:
            return self.features
        return self.head(self.features.flatten(0, 1)).unflatten(0, self.features.shape[:2])

    @cached_property
    def keys(self) -> Float[Tensor, "b e"]:
        """Embeddings of the last view, without gradient, by the momentum encoder if there is one."""
        if self.slow is None:
            return self.embeddings[:, -1].detach()
        return self._encode_slow(self.slow, self.inputs[:, -1])

    @cached_property
    def targets(self) -> Float[Tensor, "b v e"]:
        """Embeddings of all views by the momentum encoder."""
        if self.slow is None:
            raise RuntimeError("targets need a momentum encoder")  # inputs are checked before training
        return self._encode_slow(self.slow, self.inputs.flatten(0, 1)).unflatten(0, self.inputs.shape[:2])

    @torch.no_grad()
    def _encode_slow(self, slow: nn.Module, inputs: Tensor) -> Tensor:
        return in_chunks(slow, inputs, self.chunk_size)

    def draw(self, purpose: int) -> Draw:
        """Return random numbers for each sample, different for each purpose."""
        share = LocalBatch.of(self.batch)
        return share._replace(seed=derive_seed(share.seed, purpose)).draw(1, len(self.inputs), self.inputs.device)

    def others(self, purpose: int) -> Int[Tensor, " b"]:
        """Sample another row of the batch for each sample, of another class if labels are classes.

        If the whole batch has one class, any other sample is chosen.
        """
        count, device = len(self.inputs), self.inputs.device
        if count < 2:
            raise ValueError(
                f"expected another sample in the batch for negatives, got {count} here: increase batch_size"
            )
        rows = torch.arange(count, device=device)
        known = self.batch.get("labels")
        labels = rows if known is None or known.ndim != 1 else known
        in_order, order = labels.sort(stable=True)
        first, end = torch.searchsorted(in_order, labels), torch.searchsorted(in_order, labels, right=True)
        one_class = end - first == count
        position = torch.empty_like(order).scatter_(0, order, rows)
        first, end = torch.where(one_class, position, first), torch.where(one_class, position + 1, end)
        chosen = (self.draw(purpose).uniform() * (count - (end - first))).long()
        return order[torch.where(chosen < first, chosen, chosen + end - first)]


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
    """The facts about a training that an input of a loss may need.

    Args:
        encoder: f.
        head: g, or None.
        label_kind: The kind of the data's labels, or None.
        num_labels: Number of classes or labels.
        signature: The arguments of the loss.
        samples: The training part, if known.
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
        without_head: Names not computed from embeddings. A loss that requires no other names has no head.
        batches: The kind of batches that it reads.
        predicts_logits: Whether its predictions are logits: the sigmoid of each is a label's probability.
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
        """Raise a ValueError unless batches are of the kind that it reads."""
        if not isinstance(batches, self.batches):
            class_name, loss = self.batches.__name__, context.signature.loss
            raise ValueError(  # noqa: TRY004 - an unsuitable choice, as all others
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
        """Return the factory of its own optimizer, given the training's factory; None if it uses the training's."""
        return None

    def start(self, steps: int) -> None:
        """Receive the number of optimizer steps when training begins."""

    def predicted(self, features: Tensor, head: nn.Module | None) -> Tensor | None:
        """Return scores of the classes or labels, (N, C), for features (N, D), if it classifies."""
        return None

    def classifier(self) -> tuple[Tensor, Tensor] | None:
        """Return W, (D, C), and b, (C,), if its predictions are x W + b, for a run to keep.

        x are features, or embeddings of length 1 if the predictions are not logits.
        """
        return None

    def after_loss(self, step: Step) -> None:
        """Store values for later batches after the loss of a batch is computed."""

    def after_update(self, network: nn.Module) -> None:
        """Update after a step of the optimizer; `network` is encoder and head."""


def concrete_subclasses(base: type[T]) -> Iterator[type[T]]:
    """Yield the concrete subclasses of a class, direct and indirect."""
    for subclass in base.__subclasses__():
        yield from concrete_subclasses(subclass)
        if not inspect.isabstract(subclass):
            yield subclass
