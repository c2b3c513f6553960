"""A queue of earlier keys: MoCo's with a momentum encoder, a cross-batch memory without one."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from likewise.memory import Queue
from likewise.training.offers.asked import Asked
from likewise.training.offers.offer import Offer, Plan
from likewise.training.step import Step


@final
class KeyQueue(Offer):
    """The newest keys of earlier steps, with their labels; fewer than `size` until the queue is full.

        queue           z of the last views, (Q, E): by the momentum encoder if there is one, otherwise by the encoder
        queue_labels    their labels

    Args:
        size: Number of keys held, S. MoCo has 65,536.

    Raises:
        ValueError: size is below 1.

    Memory:
        O(S·E), with label sets O(S·(E + L)).
    """

    ring: Queue

    def __init__(self, size: int = 512) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"expected size of at least 1, got {size}: 512 is the default")
        self.size = size
        self._labelled = True

    def build(self, plan: Plan) -> None:
        """Make the queue."""
        self._labelled = plan.label_kind is not None
        sets = plan.num_labels if plan.label_kind == "label sets" else None
        self.ring = Queue(self.size, plan.embedding_dim, num_labels=sets, gather_distributed=True)

    def given_to(self, asked: Asked) -> frozenset[str]:
        """Return the names that it supplies, without labels if there are none."""
        return super().given_to(asked) - (frozenset() if self._labelled else {"queue_labels"})

    def queue(self, step: Step) -> Float[Tensor, "q e"]:
        """Return the keys held."""
        del step
        return self.ring.keys

    def queue_labels(self, step: Step) -> Tensor:
        """Return their labels."""
        del step
        return self.ring.labels

    def after_loss(self, step: Step) -> None:
        """Replace the oldest keys by those of the step."""
        self.ring.enqueue(step.keys, step.labels if self._labelled else None)
