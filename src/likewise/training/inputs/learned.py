"""What is learned of each class or label beside the encoder: prototypes, and a linear classifier."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

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


class Learned(WithRate):
    """Mixed into inputs with parameters for each class or label."""


@final
class LabelPrototypes(Learned, LossInput):
    """Prototypes, (C, E) or (L, E), learned with the encoder.

    Args:
        rate_factor: Factor of their learning rate. The rates for fine-tuning large models are too low for prototypes,
            which start at random.
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
class Classifier(Learned, LossInput):
    """Logits of every class or label, (B, V, C), from a linear layer on f(x).

    Args:
        rate_factor: Factor of the layer's learning rate.
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
