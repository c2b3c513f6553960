"""Random crops of whole images, taken where they are decoded, at their own resolution."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from likewise.data.augmentation import Augmentation, Draw, RandomResizedCrop
from likewise.data.augmentation.spatial import NUMBERS
from likewise.data.image_files import ImageFiles
from likewise.data.lazy_inputs import JoinedRows, LazyInputs, SomeRows


class Crops(NamedTuple):
    """The crops of each image for a step."""

    crop: RandomResizedCrop
    views: int

    @classmethod
    def of(cls, augmentation: Augmentation | None, views: int, inputs: Tensor | LazyInputs) -> "Crops | None":
        """Return the crops that views begin with; None where there are none, or inputs are no images on demand."""
        first = None if augmentation is None else augmentation.split()[0]
        return cls(first, views) if isinstance(first, RandomResizedCrop) and can_crop(inputs) else None

    def numbers(self, seed: int, samples: int, span: slice) -> Float[Tensor, "n v k"]:
        """Return the random numbers of some of B samples: the same ones whoever reads them."""
        rows = slice(span.start * self.views, span.stop * self.views)
        return Draw(seed, samples * self.views, rows).uniform(NUMBERS).unflatten(0, (-1, self.views))

    def read(self, inputs: Any, rows: Tensor, numbers: Float[Tensor, "n v k"]) -> UInt8[Tensor, "n v ch h w"]:
        if isinstance(inputs, SomeRows):
            return self.read(inputs.all_rows, inputs.rows[rows], numbers)
        if isinstance(inputs, ImageFiles):
            return inputs.crops(rows, self.crop, numbers)
        both = [(there, self.read(side, side_rows, numbers[there])) for side, there, side_rows in inputs.sides(rows)]
        views = torch.empty(len(rows), *both[0][1].shape[1:], dtype=torch.uint8)
        for there, read in both:
            views[there] = read
        return views


def can_crop(inputs: Tensor | LazyInputs) -> bool:
    """Tell whether inputs are images on demand, of which the middle is taken where they are not cropped."""
    if isinstance(inputs, SomeRows):
        return can_crop(inputs.all_rows)
    if isinstance(inputs, JoinedRows):
        return can_crop(inputs.first) and can_crop(inputs.second)
    return isinstance(inputs, ImageFiles) and inputs.preprocessing.resize == "crop"
