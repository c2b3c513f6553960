"""Losses of label sets with a long queue: keys and queue have no gradient, as they come from a momentum encoder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.measuring.case import Batch, Case, Contender, Sampler
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.prediction import Growth
from likewise.losses import MSCLoss, NWSLoss


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure the losses of label sets with a queue of as many keys as a size says, forward and backward."""

    sizes: tuple[int, ...] = option((65536,), "Lengths of the queue.", least=32)
    queries: int = option(1024, "Rows of the batch.", least=1)
    labels: int = option(159, "How many labels there are.", least=4)
    repeats: int = option(5, "Steps to time at least, while time is left.", least=1)

    def contenders(self) -> list[Contender]:
        forms = (
            ("MSCLoss", "likewise", _msc),
            ("NWSLoss", "likewise, mean", self._nws("mean")),
            ("NWSLoss", "likewise, max", self._nws("max")),
        )
        return [Contender(loss, name, "", make, self._batch, Growth(time=1)) for loss, name, make in forms]

    def _batch(self, sampler: Sampler) -> Batch:
        queue = sampler.rows
        embeddings = sampler.embeddings(self.queries), sampler.label_sets(self.queries, self.labels)
        prototypes, keys = sampler.embeddings(self.labels), sampler.embeddings(self.queries, learned=False)
        earlier = sampler.embeddings(queue, learned=False), sampler.label_sets(queue, self.labels)
        return *embeddings, prototypes, keys, *earlier

    def _nws(self, aggregation: Any) -> Callable[[Case], Callable[..., Tensor]]:
        def make(case: Case) -> Callable[..., Tensor]:
            similarity = torch.rand(self.labels, self.labels, generator=torch.Generator().manual_seed(1))
            loss = NWSLoss((similarity + similarity.T) / 2, aggregation=aggregation).to(case.device)
            return lambda z, own, prototypes, keys, queue, older: loss(
                z, own, prototypes, keys=keys, key_labels=own, queue=queue, queue_labels=older
            )

        return make


def _msc(_: Case) -> Callable[..., Tensor]:
    loss = MSCLoss()
    return lambda z, own, prototypes, _, queue, older: loss(z, own, prototypes, queue=queue, queue_labels=older)
