"""Parameters that are learned for each class or label beside the encoder: prototypes, and a linear classifier."""

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
from likewise.memory import Prototypes
from likewise.training.inputs.loss_input import InputContext, LossInput
from likewise.training.step import Step


class WithRate(nn.Module):
    """Mixed into inputs with parameters whose learning rate has a factor of its own."""

    def __init__(self, rate_factor: float = 1.0) -> None:
        super().__init__()
        if not rate_factor > 0:
            raise ValueError(f"expected rate_factor above 0, got {rate_factor}: 1 is the encoder's rate")
        self.rate_factor = rate_factor

    def rate_factors(self) -> dict[nn.Parameter, float]:
        return dict.fromkeys(self.parameters(), self.rate_factor)


class ClassParameters(WithRate):
    """Mixed into inputs with parameters for each class or label, which may have an optimizer of their own."""

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
