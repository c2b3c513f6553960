"""Momentum encoder, queue and predictor: keys as in MoCo, targets and predictions as in BYOL."""

from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from likewise.memory import MomentumEncoder, Queue
from likewise.memory.momentum_encoder import BufferPolicy
from likewise.models import PredictionHead
from likewise.training.inputs.loss_input import InputContext, LossInput, LossSignature
from likewise.training.step import Step

QUEUE = "queue"


@final
class Momentum(LossInput):
    """A moving average of encoder and head, and its embeddings z of the views, without gradient.

        keys, references                z of the last view, (B, E), which the encoder itself then does not see
        key_labels, reference_labels    its labels
        targets                         z of all views, (B, V, E)

    If there is only one view, both networks see it.

    Args:
        momentum: m, from 0 to 1. MoCo has 0.999, for 200,000 steps and more; BYOL's rises from 0.996.
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
        return bool(self.given_to(signature)) or QUEUE in signature.names & supplied  # whose keys are its own

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
        size: Number of keys held, S. MoCo has 65,536.

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
    """Predictions q(z) of all views, (B, V, E), by a second head, as BYOL trains to give the momentum encoder's z.

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
