"""RASCAL's rankings and SupCon on the same batches, in training with a warm cache."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.measuring.case import Batch, Case, Contender, Sampler
from benchmarks.measuring.measurement import Measurement
from benchmarks.measuring.rivals import TEMPERATURE
from likewise.losses import RASCALLoss, SupConLoss

FORMS: dict[str, dict[str, Any]] = {
    "RASCAL": {},
    "by sample": {"rank_level": "sample"},
    "current": {"ranking": "current"},
    "uniform": {"ranking": "uniform"},
}
LABELS: dict[str, Callable[[Sampler, int], Tensor]] = {
    "100 classes": lambda sampler, samples: sampler.classes(samples),
    "10 classes": lambda sampler, samples: sampler.classes(samples, 10),
    "100, random size": lambda sampler, samples: sampler.integers(samples, 100),
}


def _sup_con(_: Case) -> Callable[..., Tensor]:
    loss = SupConLoss(temperature=TEMPERATURE)
    return lambda embeddings, labels, _: loss(embeddings, labels)


def _rascal(options: dict[str, Any]) -> Callable[[Case], Callable[..., Tensor]]:
    return lambda case: RASCALLoss(case.rows // 2, case.features, temperature=TEMPERATURE, **options).to(case.device)


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure RASCAL, by each of its rankings, and SupCon on the same batch, in training with a warm cache.

    The rows are two views of half as many samples. Every ranking computes the ranks, "uniform" only for its statistics.
    """

    def contenders(self) -> list[Contender]:
        forms = {"SupCon": _sup_con} | {name: _rascal(options) for name, options in FORMS.items()}

        def batch(sampler: Sampler, labels: Callable[[Sampler, int], Tensor]) -> Batch:
            samples = sampler.rows // 2
            index = torch.arange(samples, device=sampler.case.device)
            return sampler.embeddings(samples, 2), labels(sampler, samples), index

        return [
            Contender(case, name, "", make, lambda sampler, labels=labels: batch(sampler, labels))
            for case, labels in LABELS.items()
            for name, make in forms.items()
        ]
