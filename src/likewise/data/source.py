"""The abstract source, and the handwritten digits that scikit-learn ships: real data without a download."""

from abc import ABC, abstractmethod
from typing import final

import torch

from likewise.data.samples import Samples


class Source(ABC):
    """Abstract: a data set. A source reads samples and does nothing else."""

    @abstractmethod
    def load(self) -> Samples:
        """Read all samples. Their inputs may be `Rows`, which are read on demand."""


@final
class Digits(Source):
    """1,797 handwritten digits of 8 by 8 pixels, values from 0 to 1, ten classes.

    Source:
        E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998:
        the test part, as scikit-learn ships it.

    Example:
        >>> digits = Digits().load()
        >>> digits.input_shape, len(digits), digits.counts.min()
        ((1, 8, 8), 1797, tensor(174))
    """

    def load(self) -> Samples:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - only this source needs it

        pixels, classes = load_digits(return_X_y=True)
        images = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 16
        return Samples(images, torch.from_numpy(classes), tuple(str(digit) for digit in range(10)))


def check_size(size: int | None, memory: float = 0.0) -> None:
    """Raise a ValueError unless images of this size, in pixels, can be held in so many GiB; 0 GiB hold none of them."""
    if size is not None and size < 1:
        raise ValueError(f"expected data.size of at least 1 pixel, got {size}: leave it out to keep the images' own")
    if not memory >= 0:
        raise ValueError(f"expected data.memory of 0 GiB or more, got {memory}: 0 decodes images each time")
