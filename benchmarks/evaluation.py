"""Evaluations of frozen features: the linear probe along its path of penalties, kNN, and retrieval."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.measuring.case import Batch, Case, Contender, Sampler
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.prediction import Growth
from likewise.evaluation import KNN, Evaluation, Features, LinearProbe, Retrieval

SEPARATION = 0.15  # of class centres, in deviations of the noise: a probe is right for half of the samples


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure evaluations of overlapping classes, with a tenth of the samples to choose by and a fifth to report on.

    Features are correlated, of very different variance, and not negative, as those of a network with ReLU are.
    """

    sizes: tuple[int, ...] = option((50_000,), "Numbers of training samples.", least=1000)
    features: int = option(512, "Features of a sample.", least=2)
    classes: int = option(100, "How many classes there are.", least=2)
    repeats: int = option(1, "Evaluations to time at least, while time is left.", least=1)
    clock: str = option("cpu", "What to time on a CPU: elapsed or processor time.", choices=("wall", "cpu"))

    def contenders(self) -> list[Contender]:
        evaluations: tuple[tuple[str, Evaluation], ...] = (
            ("linear probe", LinearProbe()),
            ("kNN", KNN()),
            ("retrieval", Retrieval()),
        )
        return [
            Contender(
                "evaluation", name, "", _step(evaluation), self._parts, Growth(time=2 if name != "linear probe" else 1)
            )
            for name, evaluation in evaluations
        ]

    def _parts(self, sampler: Sampler) -> Batch:
        width, device = sampler.case.features, sampler.case.device
        centres = SEPARATION * sampler.values(self.classes, width, learned=False)
        scales = torch.logspace(0, -1.5, width, device=device)
        mixing = sampler.values(width, width, learned=False) / width**0.5 * scales
        names = tuple(map(str, range(self.classes)))
        parts: list[Features] = []
        for part, count in (("train", sampler.rows), ("validation", sampler.rows // 10), ("test", sampler.rows // 5)):
            labels = sampler.integers(count, self.classes)
            vectors = (centres[labels] + sampler.values(count, width, learned=False)) @ mixing
            parts.append(Features(torch.relu(vectors + 0.1).float(), labels, names, part=part))
        return tuple(parts)


def _step(evaluation: Evaluation) -> Callable[[Case], Callable[..., Any]]:
    """Return a step that evaluates; a step's result is a tensor, here without gradient."""

    def make(_: Case) -> Callable[..., Any]:
        return lambda *parts: torch.tensor([score.value for score in evaluation(*parts).headline])

    return make
