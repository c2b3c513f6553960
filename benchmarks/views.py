"""Views of images a second of processor time, on one thread, beside torchvision image by image.

uv run python benchmarks/views.py            512 images of 32 pixels a side
uv run python benchmarks/views.py 64 --side 224

Times are medians of `time.process_time` over calls taken turn about in one process, and the least of them: other
processes' work is not counted, but slows ours down where both share caches and cores. Besides, the operations of one
call are counted that are no mere views of a tensor: each is a kernel or two on a GPU.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import v2

from likewise.data.augmentation import Chain, ColourJitter, Draw, GaussianBlur, RandomResizedCrop, SimCLRViews

ALIASES = frozenset(
    f"aten::{name}"
    for name in (
        *("_unsafe_view", "as_strided", "detach", "expand", "permute", "select", "slice", "split", "split_with_sizes"),
        *("new_empty", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view"),
    )
)
"""Operations that look at a tensor in another way, or make room for one, and compute nothing."""


class Operations(TorchDispatchMode):
    """Count the operations that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count one, and do it."""
        del types
        if func.name().split(".")[0] not in ALIASES:
            self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


def torchvision_by_image(side: int) -> Callable[[Tensor], Tensor]:
    """Return the same recipe of torchvision, drawn for each image as a loader's workers do."""
    recipe = v2.Compose(
        [
            v2.RandomResizedCrop(side, scale=(0.2, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v2.RandomGrayscale(0.2),
        ]
    )
    return lambda images: torch.stack([recipe(image) for image in images])


def contenders(images: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Return what is compared, by name."""
    seeds, whole = count(), (images * 255).to(torch.uint8)
    one_by_one = torchvision_by_image(images.shape[-1])
    views, exact, blurred = SimCLRViews(), SimCLRViews(hue_form="exact"), SimCLRViews(blur=0.5)
    parts = Chain([RandomResizedCrop(), ColourJitter(), GaussianBlur()])

    def draw() -> Draw:
        return Draw(next(seeds), rows=len(images))

    return {
        "affine": lambda: views(images, draw()),
        "affine, uint8": lambda: views(whole, draw()),
        "affine, blur": lambda: blurred(images, draw()),
        "affine, blur, as a chain": lambda: parts(images, draw()),
        "exact": lambda: exact(images, draw()),
        "torchvision": lambda: one_by_one(images),
    }


def times(calls: Mapping[str, Callable[[], Tensor]], turns: int) -> dict[str, list[float]]:
    """Return the processor times of each contender's calls, in seconds, of so many taken turn about."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 1):  # the first warms up
        for name, call in calls.items():
            start = time.process_time()
            call()
            if turn:
                taken[name].append(time.process_time() - start)
    return taken


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="?", type=int, default=512)
    parser.add_argument("--side", type=int, default=32, help="of the images, in pixels")
    parser.add_argument("--turns", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.rand(arguments.images, 3, arguments.side, arguments.side)
    calls = contenders(images)
    taken = times(calls, arguments.turns)
    print(f"torch {torch.__version__}, one thread, {arguments.images} images of {arguments.side} px, float32")
    print("| views | images a CPU-second | at best | operations |")
    print("|---|---|---|---|")
    for name, seconds in taken.items():
        with Operations() as operations:
            calls[name]()
        median, best = (arguments.images / taken for taken in (statistics.median(seconds), min(seconds)))
        print(f"| {name} | {median:,.0f} | {best:,.0f} | {operations.counts.total():,} |")


if __name__ == "__main__":
    main()
