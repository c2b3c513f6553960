"""Views of images per second: this library's batched augmentations, and torchvision's applied image by image."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measuring.case import Case, Contender, Sampler
from benchmarks.measuring.measurement import Measurement, option
from benchmarks.measuring.prediction import Growth
from benchmarks.measuring.results import Timing
from likewise.data.augmentation import Chain, ColourJitter, Draw, GaussianBlur, RandomResizedCrop, SimCLRViews

NOTHING = frozenset({"aten::_unsafe_view", "aten::new_empty"})  # computed, although these are not called views


class Operations(TorchDispatchMode):
    """Count the operations that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count one, and run it."""
        del types
        if not func.is_view and func.name() not in NOTHING:
            self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


def _ours(make: Callable[[], Any]) -> Callable[[Case], Callable[[Tensor], Tensor]]:
    def made(_: Case) -> Callable[[Tensor], Tensor]:
        views, seeds = make(), count()
        return lambda images: views(images, Draw(next(seeds), rows=len(images), device=images.device))

    return made


def _torchvision(case: Case) -> Callable[[Tensor], Tensor]:
    """Return the same recipe of torchvision, with new random values for each image as in a loader's workers."""
    v2 = import_module("torchvision.transforms.v2")
    crop = v2.RandomResizedCrop(int((case.features // 3) ** 0.5), scale=(0.2, 1.0), antialias=True)
    jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    recipe = v2.Compose([crop, v2.RandomHorizontalFlip(), jitter, v2.RandomGrayscale(0.2)])
    return lambda images: torch.stack([recipe(image) for image in images])


FORMS = {
    "affine": _ours(SimCLRViews),
    "affine, uint8": _ours(SimCLRViews),
    "affine, blur": _ours(lambda: SimCLRViews(blur=0.5)),
    "affine, blur, as a chain": _ours(lambda: Chain([RandomResizedCrop(), ColourJitter(), GaussianBlur()])),
    "exact": _ours(lambda: SimCLRViews(hue_form="exact")),
    "torchvision": _torchvision,
}


@dataclass(kw_only=True)
class Measure(Measurement):
    """Measure views of images per second, and count the operations of a call that compute something.

    Each operation is one kernel or two on a GPU. For one thread, set OMP_NUM_THREADS=1.
    """

    sizes: tuple[int, ...] = option((512,), "Numbers of images.", least=1)
    side: int = option(32, "Pixels of an image on each side.", least=8)
    clock: str = option("cpu", "What to time on a CPU: elapsed or processor time.", choices=("wall", "cpu"))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.features = 3 * self.side**2

    def contenders(self) -> list[Contender]:
        growth = Growth(time=1)
        names = [name for name in FORMS if name != "torchvision" or not self.missing()]
        modules = {"torchvision": "torchvision.transforms.v2"}
        return [
            Contender("views", name, "", FORMS[name], self._images(name), growth, module=modules.get(name, ""))
            for name in names
        ]

    def missing(self) -> dict[str, str]:
        return {} if find_spec("torchvision") else {"torchvision": "pip install 'likewise[images]'"}

    def results(self, tell: Callable[[str], object]) -> Iterator[Timing]:
        made = {each.key: each for each in self.contenders()}
        for result in super().results(tell):
            yield result if result.skipped else replace(result, figures=self._figures(made[result.key], result))

    def _figures(self, contender: Contender, result: Timing) -> dict[str, Any]:
        case = Case(result.rows, self.features, self.dtype, self.device)
        call, batch = contender.make(case), contender.batch(Sampler(case))
        with Operations() as operations:
            call(*batch)
        per_second = [round(1e3 * result.rows / (ms or 1)) for ms in (result.milliseconds, result.fastest)]
        return {"images/s": per_second[0], "at best": per_second[1], "operations": operations.counts.total()}

    def _images(self, name: str) -> Callable[[Sampler], tuple[Tensor]]:
        def batch(sampler: Sampler) -> tuple[Tensor]:
            images = sampler.values(sampler.rows, 3, self.side, self.side, learned=False).sigmoid()
            return ((images * 255).to(torch.uint8) if "uint8" in name else images,)

        return batch
