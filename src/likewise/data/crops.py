"""Random crops of whole images, taken where they are decoded, at their own resolution."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from likewise.data.augmentation import Augmentation, Draw, RandomResizedCrop
from likewise.data.augmentation.separable import NUMBERS
from likewise.data.image_files import ImageFiles
from likewise.data.rows import Rows, SomeRows


class Crops(NamedTuple):
    """What is cropped of each image for a step.

    Example:
        >>> Crops(RandomResizedCrop(size=24), views=2).numbers(seed=3, samples=8, own=slice(2, 4)).shape
        torch.Size([2, 2, 45])
    """

    crop: RandomResizedCrop
    views: int

    @classmethod
    def of(cls, augmentation: Augmentation | None, views: int, inputs: Tensor | Rows) -> "Crops | None":
        """Return the crops that views begin with; None where there are none, or inputs are no images on demand."""
        first = None if augmentation is None else augmentation.split()[0]
        on_demand = _files(inputs, torch.arange(0))[0] is not None
        return cls(first, views) if isinstance(first, RandomResizedCrop) and on_demand else None

    def numbers(self, seed: int, samples: int, own: slice) -> Float[Tensor, "n v k"]:
        """Return the random numbers of some of B samples: the same ones whoever reads them."""
        rows = slice(own.start * self.views, own.stop * self.views)
        return Draw(seed, samples * self.views, rows).uniform(NUMBERS).unflatten(0, (-1, self.views))

    def read(
        self, inputs: Tensor | Rows, rows: Int[Tensor, " n"], numbers: Float[Tensor, "n v k"]
    ) -> UInt8[Tensor, "n v ch h w"]:
        """Read images, and crop V views of each."""
        files, rows = _files(inputs, rows)
        return files.crops(rows, self.crop, numbers)


def _files(inputs: Any, rows: Int[Tensor, " n"]) -> tuple[Any, Int[Tensor, " n"]]:
    """Return the images on demand that inputs are a part of, None where they are others, and the rows there."""
    while isinstance(inputs, SomeRows):
        inputs, rows = inputs.all_rows, inputs.rows[rows]
    return (inputs if isinstance(inputs, ImageFiles) else None), rows
