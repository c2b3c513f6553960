"""A momentum encoder: for keys as in MoCo, and targets as in BYOL."""

from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from likewise.memory import MomentumEncoder
from likewise.memory.momentum_encoder import BufferPolicy
from likewise.training.offers.asked import Asked
from likewise.training.offers.offer import Offer, Plan
from likewise.training.step import Step

QUEUE = "queue"  # its keys come from the momentum encoder, if there is one


@final
class Momentum(Offer):
    """A moving average of encoder and head, and its embeddings z of the views, without gradient.

        keys, references                z of the last view, (B, E), which the encoder itself then does not see
        key_labels, reference_labels    its labels
        targets                         z of all views, (B, V, E)

    If there is only one view, both networks see it.

    Args:
        momentum: m, from 0 to 1. MoCo has 0.999, for 200,000 steps and more; BYOL's rises from 0.996.
        rising: Whether it rises to 1 over the training along a cosine, as in BYOL.
        buffers: How batch normalisation statistics are updated; see `likewise.memory.MomentumEncoder`.

    Raises:
        ValueError: momentum is outside [0, 1].
    """

    slow: MomentumEncoder

    def __init__(self, momentum: float = 0.99, *, rising: bool = False, buffers: BufferPolicy = "own") -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise ValueError(f"expected momentum from 0 to 1, got {momentum}: 0.99 is usual")
        self.momentum = momentum
        self.rising = rising
        self.buffers_policy: BufferPolicy = buffers

    def build(self, plan: Plan) -> None:
        """Copy encoder and head."""
        self.slow = MomentumEncoder(plan.network, self.momentum, buffers=self.buffers_policy)

    def start(self, steps: int) -> None:
        """Let the momentum rise over this number of steps, if `rising`."""
        self.slow.total_steps = max(steps, 1) if self.rising else None

    def serves(self, asked: Asked, offered: frozenset[str]) -> bool:
        """Return whether the loss uses it: directly, or through the keys of an offered queue."""
        return bool(self.given_to(asked)) or QUEUE in asked.names & offered

    def given_to(self, asked: Asked) -> frozenset[str]:
        """Return the names that it supplies, with labels only for what it supplies."""
        given = super().given_to(asked)
        unused = {f"{of}_labels" for of in ("key", "reference") if f"{of}s" not in given}
        return given - unused

    def keys(self, step: Step) -> Float[Tensor, "b e"]:
        """Return z of the last view."""
        return step.keys

    def references(self, step: Step) -> Float[Tensor, "b e"]:
        """Return the keys under their other name."""
        return step.keys

    def key_labels(self, step: Step) -> Tensor:
        """Return the labels of the keys."""
        return step.labels

    def reference_labels(self, step: Step) -> Tensor:
        """Return the labels of the references."""
        return step.labels

    def targets(self, step: Step) -> Float[Tensor, "b v e"]:
        """Return z of all views."""
        return step.targets

    def after_update(self, network: nn.Module) -> None:
        """Update the moving average of encoder and head."""
        self.slow.update(network)
