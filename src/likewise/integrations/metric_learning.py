"""`ForMetricLearning`: our losses of classes with the call of those of pytorch-metric-learning."""

import inspect
from collections.abc import Iterable
from typing import Any, final

from torch import Tensor, nn

from likewise.losses.matryoshka import signature_of
from likewise.memory import Queue


@final
class ForMetricLearning(nn.Module):
    """A loss of classes for the trainers of pytorch-metric-learning, such as `MetricLossOnly`.

    Args:
        loss: A loss of this library that takes embeddings and labels.
        prototypes: `Prototypes`, if the loss takes these; give the parameters to an optimizer, and where
            there are several processes the whole to DistributedDataParallel.
        queue: A `Queue` of earlier embeddings, for a loss that takes one, in place of `CrossBatchMemory`.

    Returns:
        A call on embeddings and labels returns the loss; with a queue the embeddings are enqueued afterwards.

    Raises:
        ValueError: If a miner's tuples are given, or what the loss does not take, if its prototypes are missing, or if
            the loss or its prototypes are no module.

    Memory:
        That of the loss and of the queue.

    Source:
        Musgrave, Belongie, Lim, "PyTorch Metric Learning", 2020.

    Example:
        >>> import torch
        >>> from likewise import SupConLoss
        >>> loss_of = ForMetricLearning(SupConLoss(temperature=0.1), queue=Queue(4, 2))
        >>> loss_of(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])), len(loss_of.queue)
        (tensor(0.), 2)
    """

    def __init__(self, loss: nn.Module, *, prototypes: nn.Module | None = None, queue: Queue | None = None) -> None:
        super().__init__()
        if not isinstance(loss, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            got = getattr(loss, "__name__", type(loss).__name__)
            raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every public entry
                f"expected a loss that is made, such as SupConLoss(), got {got}: call the class"
            )
        if not isinstance(prototypes, nn.Module | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(  # noqa: TRY004 - bad input is a ValueError at every public entry
                f"expected prototypes as a module, got {type(prototypes).__name__}: give a Prototypes"
            )
        also = {"prototypes": prototypes, "queue": queue}
        _check_taken(loss, [name for name, value in also.items() if value is not None])
        needed = signature_of(loss).parameters.get("prototypes")
        if prototypes is None and needed is not None and needed.default is inspect.Parameter.empty:
            raise ValueError(
                f"expected prototypes for {type(loss).__name__}, got none: prototypes=Prototypes(classes, dimension)"
            )
        self.loss, self.prototypes, self.queue = loss, prototypes, queue

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of embeddings, (N, D), and classes, (N,), with references instead of the batch if given."""
        if indices_tuple is not None:
            raise ValueError(
                "expected no pairs of a miner, got indices_tuple: leave the miner out, and give the loss its selection "
                "instead, as epsilon= of MultiSimilarityLoss or mining= of BatchTripletLoss"
            )
        labels, also = labels.to(embeddings.device), dict[str, Any]()
        if self.prototypes is not None:
            also["prototypes"] = self.prototypes()
        if ref_emb is not None:
            _check_taken(self.loss, ["references"])
            also |= {"references": ref_emb, "reference_labels": ref_labels}
        if self.queue is not None and len(self.queue):
            also |= {"queue": self.queue.keys, "queue_labels": self.queue.labels}
        loss = self.loss(embeddings, labels, **also)
        if self.queue is not None:
            self.queue.enqueue(embeddings, labels)
        return loss


def _check_taken(loss: nn.Module, names: Iterable[str]) -> None:
    takes = signature_of(loss).parameters
    more = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values())
    for name in names:
        if name not in takes and not more:
            signature = f"{type(loss).__name__} takes {', '.join(takes)}"
            raise ValueError(f"expected what the loss takes, got {name}, where {signature}: leave it out")
