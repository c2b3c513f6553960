"""The handwritten digits that scikit-learn ships: real data without a download."""

from typing import final

import torch

from likewise.data.samples import Samples
from likewise.data.source import Source


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
        """Load the digits."""
        from sklearn.datasets import load_digits  # noqa: PLC0415 - only this source needs it

        pixels, classes = load_digits(return_X_y=True)
        images = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 16
        return Samples(images, torch.from_numpy(classes), tuple(str(digit) for digit in range(10)))
