"""The handwritten digits that scikit-learn ships: real data without a download."""

from typing import Any, final

import torch
from sklearn.datasets import load_digits

from likewise.data.samples import Samples
from likewise.data.source import LabelledData


@final
class Digits(LabelledData):
    """1,797 handwritten digits, 8 by 8 pixels, values from 0 to 1, ten classes.

    Args:
        **options: What every source takes, see LabelledData.

    Source:
        E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998:
        its test part, as scikit-learn ships it.

    Example:
        >>> digits = Digits()
        >>> digits.input_shape, len(digits.train_samples), len(digits.test_samples)
        ((1, 8, 8), 1348, 449)
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)

    def load(self) -> Samples:
        """Load the digits."""
        pixels, classes = load_digits(return_X_y=True)
        images = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 16
        return Samples(images, torch.from_numpy(classes), tuple(str(digit) for digit in range(10)))
