"""Inputs with networks of their own: prototypes, classifier, predictor, and a momentum encoder with its queue."""

from collections.abc import Callable
from functools import partial
from inspect import isclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from likewise.instantiate import class_of, path_of
from likewise.memory import MomentumEncoder, Prototypes, Queue
from likewise.memory.momentum_encoder import BufferPolicy
from likewise.models import PredictionHead
from likewise.training.inputs.loss_input import InputContext, LossInput, LossSignature, Step


class WithRate(nn.Module):
    """A mixin for inputs whose parameters have a learning rate factor of their own."""

    def __init__(self, rate_factor: float = 1.0) -> None:
        super().__init__()
        if not rate_factor > 0:
            raise ValueError(f"expected rate_factor above 0, got {rate_factor}: 1 is the encoder's rate")
        self.rate_factor = rate_factor

    def rate_factors(self) -> dict[nn.Parameter, float]:
        return dict.fromkeys(self.parameters(), self.rate_factor)


class ClassParameters(WithRate):
    """A mixin for inputs with parameters for each class or label, which may have an optimizer of their own."""

    def __init__(self, rate_factor: float = 1.0, *, lr: float | None = None, optimizer: str | None = None) -> None:
        super().__init__(rate_factor)
        if lr is not None and (not lr > 0 or rate_factor != 1):
            got = f"{lr} with rate_factor {rate_factor}"
            raise ValueError(f"expected lr above 0, or a rate_factor, got {got}: leave one out")
        if optimizer is not None and lr is None:
            raise ValueError(f"expected lr beside optimizer, got none for {optimizer}: give lr, such as 0.1")
        self.lr = lr
        self.optimizer = path_of(optimizer) if isclass(optimizer) else optimizer
        path = str(self.optimizer) if "." in str(self.optimizer) else f"torch.optim.{self.optimizer}"
        self._made_by = None if optimizer is None else class_of(path, Optimizer)

    def optimizer_of(self, make: Callable[..., Optimizer]) -> Callable[..., Optimizer] | None:
        if self.lr is None:
            return None
        keywords = getattr(make, "keywords", {}) if self._made_by is None else {}
        return partial(self._made_by or getattr(make, "func", make), **{**keywords, "lr": self.lr})


@final
class LabelPrototypes(ClassParameters, LossInput):
    """Prototypes, (C, E) or (L, E), learned with the encoder.

    Args:
        rate_factor: Factor of their learning rate. The rates for fine-tuning large models are too low for prototypes,
            which start at random.
        lr: Their own learning rate, in place of a factor; the schedule scales it, too.
        optimizer: Their own optimizer, a class of torch.optim or a path, which gets this rate. None: the training's.
    """

    rows: Prototypes

    def build(self, context: InputContext) -> None:
        self.rows = Prototypes(context.num_labels, context.embedding_dim)

    def predicted(self, features: Float[Tensor, "n d"], head: nn.Module | None) -> Float[Tensor, "n c"]:
        embeddings = features if head is None else head(features)
        return functional.normalize(embeddings) @ functional.normalize(self.rows()).T

    def classifier(self) -> tuple[Float[Tensor, "e c"], Float[Tensor, " c"]]:
        weight = functional.normalize(self.rows()).T
        return weight, torch.zeros_like(weight[0])

    def prototypes(self, step: Step) -> Float[Tensor, "c e"]:
        return self.rows()


@final
class Classifier(ClassParameters, LossInput):
    """Logits of every class or label, (B, V, C), from a linear layer on f(x).

    Args:
        rate_factor: Factor of the layer's learning rate.
        lr: Its own learning rate, in place of a factor; the schedule scales it, too.
        optimizer: Its own optimizer, a class of torch.optim or a path, which gets this rate. None: the training's.
    """

    without_head = frozenset({"class_logits"})
    predicts_logits = True
    linear: nn.Linear

    def build(self, context: InputContext) -> None:
        self.linear = nn.Linear(context.encoder.feature_dim, context.num_labels)

    def predicted(self, features: Float[Tensor, "n d"], head: nn.Module | None) -> Float[Tensor, "n c"]:
        return self.linear(features)

    def classifier(self) -> tuple[Float[Tensor, "d c"], Float[Tensor, " c"]]:
        return self.linear.weight.T, self.linear.bias

    def class_logits(self, step: Step) -> Float[Tensor, "b v c"]:
        return self.linear(step.features)


@final
class Momentum(LossInput):
    """A moving average of encoder and head, and its embeddings z of the views, without gradient.

        keys, references                z of the last view, (B, E), which the encoder itself then does not see
        key_labels, reference_labels    its labels
        targets                         z of all views, (B, V, E)

    If there is only one view, both networks see it.

    Args:
        momentum: m, from 0 to 1. MoCo uses 0.999, for 200,000 steps and more; BYOL's rises from 0.996.
        rising: Whether it rises to 1 over the training along a cosine, as in BYOL.
        buffers: How batch normalisation statistics are updated; see `likewise.memory.MomentumEncoder`.
    """

    of_labels = frozenset({"key_labels", "reference_labels"})
    slow: MomentumEncoder

    def __init__(self, momentum: float = 0.99, *, rising: bool = False, buffers: BufferPolicy = "own") -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise ValueError(f"expected momentum from 0 to 1, got {momentum}: 0.99 is usual")
        self.momentum = momentum
        self.rising = rising
        self.buffers_policy: BufferPolicy = buffers

    def build(self, context: InputContext) -> None:
        self.slow = MomentumEncoder(context.network, self.momentum, buffers=self.buffers_policy)

    def start(self, steps: int) -> None:
        self.slow.total_steps = max(steps, 1) if self.rising else None

    def serves(self, signature: LossSignature, supplied: frozenset[str]) -> bool:
        return bool(self.given_to(signature)) or "queue" in signature.names & supplied  # whose keys are its own

    def given_to(self, signature: LossSignature) -> frozenset[str]:
        names = super().given_to(signature)
        return names - {f"{what}_labels" for what in ("key", "reference") if f"{what}s" not in names}

    def keys(self, step: Step) -> Float[Tensor, "b e"]:
        return step.keys

    references = keys

    def key_labels(self, step: Step) -> Tensor:
        return step.labels

    reference_labels = key_labels

    def targets(self, step: Step) -> Float[Tensor, "b v e"]:
        return step.targets

    def after_update(self, network: nn.Module) -> None:
        self.slow.update(network)


@final
class KeyQueue(LossInput):
    """The newest keys of earlier steps, with their labels; fewer than `size` until the queue is full.

        queue           z of the last views, (Q, E): by the momentum encoder if there is one, otherwise by the encoder
        queue_labels    their labels

    It is MoCo's queue with a momentum encoder, and a cross-batch memory without one.

    Args:
        size: Number of keys held, S. MoCo uses 65,536.

    Memory:
        O(S·E), with label sets O(S·(E + L)).
    """

    of_labels = frozenset({"queue_labels"})
    ring: Queue

    def __init__(self, size: int = 512) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"expected size of at least 1, got {size}: 512 is the default")
        self.size = size
        self._labelled = True

    def build(self, context: InputContext) -> None:
        if context.samples is not None and context.samples.counterparts is not None:
            raise ValueError(
                "expected no KeyQueue for pairs, as it holds no keys of their other side, got one: leave it out, and "
                "take larger batches, with --chunk_size where they don't fit"
            )
        self._labelled = context.label_kind is not None
        sets = context.num_labels if context.label_kind == "label sets" else None
        self.ring = Queue(self.size, context.embedding_dim, num_labels=sets, gather_distributed=True)

    def queue(self, step: Step) -> Float[Tensor, "q e"]:
        return self.ring.keys

    def queue_labels(self, step: Step) -> Tensor:
        return self.ring.labels

    def after_loss(self, step: Step) -> None:
        self.ring.enqueue(step.keys, step.labels if self._labelled else None)


@final
class Predictor(LossInput):
    """Predictions q(z) of all views, (B, V, E), by a second head, trained as in BYOL to match the momentum encoder's z.

    Args:
        hidden_dim: Units of the hidden layer. None: the length of an embedding.
        batch_norm: Whether the hidden layer is batch-normalised, as in BYOL.
    """

    network: PredictionHead

    def __init__(self, hidden_dim: int | None = None, *, batch_norm: bool = True) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.batch_norm = batch_norm

    def build(self, context: InputContext) -> None:
        self.network = PredictionHead(context.embedding_dim, hidden_dim=self.hidden_dim, batch_norm=self.batch_norm)

    def predictions(self, step: Step) -> Float[Tensor, "b v e"]:
        return self.network(step.embeddings.flatten(0, 1)).unflatten(0, step.embeddings.shape[:2])
