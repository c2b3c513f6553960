"""Few-shot: evaluating episodes of ready features, and training Conv-4 on images."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.measuring.case import Batch, Case, Contender, Sampler
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.prediction import Growth
from likewise.evaluation import Features, FewShot
from likewise.models import Conv4

PER_CLASS = 600
SIDE = 28


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure episodes of ready features, so many as a size says, and a training step of Conv-4 on as many images."""

    sizes: tuple[int, ...] = option((2000,), "Numbers of episodes, and of images.", least=32)
    features: int = option(64, "Features of a sample.", least=2)
    classes: int = option(20, "How many classes there are.", least=5)
    repeats: int = option(5, "Calls to time at least, while time is left.", least=1)
    clock: str = option("cpu", "What to time on a CPU: elapsed or processor time.", choices=("wall", "cpu"))

    def contenders(self) -> list[Contender]:
        shots = [
            Contender("few-shot", f"5-way {shots}-shot", "", _episodes(shots), self._features, Growth(time=1))
            for shots in (1, 5)
        ]
        return [
            *shots,
            Contender("Conv-4", "float32", "", _training(torch.float32), _images, Growth(time=1)),
            Contender("Conv-4", "bfloat16", "", _training(torch.bfloat16), _images, Growth(time=1)),
        ]

    def _features(self, sampler: Sampler) -> Batch:
        labels = torch.arange(self.classes * PER_CLASS) % self.classes
        vectors = sampler.values(self.classes, sampler.case.features, learned=False)[labels]
        vectors = vectors + 2 * sampler.values(len(labels), sampler.case.features, learned=False)
        return (Features(vectors.float().cpu(), labels),)


def _episodes(shots: int) -> Callable[[Case], Callable[..., Any]]:
    def make(case: Case) -> Callable[..., Any]:
        evaluation = FewShot(5, shots, episodes=case.rows, distance="cosine")

        def evaluated(test: Features) -> Tensor:
            none = Features(test.vectors[:0], torch.zeros(0, dtype=torch.int64), test.names)
            return torch.tensor([score.value for score in evaluation(none, none, test).headline])

        return evaluated

    return make


def _training(dtype: torch.dtype) -> Callable[[Case], Callable[..., Any]]:
    def make(case: Case) -> Callable[..., Any]:
        encoder = Conv4((1, SIDE, SIDE)).to(case.device).train()

        def step(images: Tensor) -> Tensor:
            with torch.autocast(images.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                return encoder(images).float().square().mean()

        return step

    return make


def _images(sampler: Sampler) -> Batch:
    return (sampler.values(sampler.rows, 1, SIDE, SIDE, learned=False).sigmoid(),)
