"""Token rows with some tokens masked."""

from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.data.augmentation.augmentation import Augmentation
from likewise.data.augmentation.draw import Draw
from likewise.data.augmentation.images import uniform
from likewise.data.augmentation.parameters import check_probability

PADDING = 0
"""Fills a row after its last token."""


@final
class TokenDropout(Augmentation):
    """Token rows with some tokens replaced by a mask; padding, which is 0, stays.

    Args:
        probability: Probability that a token is replaced.
        mask_id: What replaces it: the vocabulary's mask, or its unknown word, above 0.

    Returns:
        Calling it with token rows (N, T), integers, returns integers of the same shape and dtype; other augmentations
        return floating-point values.

    Raises:
        ValueError: A probability is outside [0, 1], mask_id is below 1, or the input is not a batch of token rows.

    Example:
        >>> TokenDropout(probability=1.0, mask_id=3)(torch.tensor([[5, 7, 0]]), Draw(0, rows=1))
        tensor([[3, 3, 0]])
    """

    def __init__(self, *, probability: float = 0.1, mask_id: int = 1) -> None:
        check_probability("probability", probability)
        if mask_id <= PADDING:
            raise ValueError(f"expected mask_id above 0, which is padding, got {mask_id}: use the vocabulary's mask")
        self.probability = probability
        self.mask_id = mask_id

    def __call__(self, inputs: Int[Tensor, "n t"], draw: Draw) -> Int[Tensor, "n t"]:
        """Mask some tokens of each row."""
        if inputs.ndim != 2 or inputs.is_floating_point() or inputs.dtype == torch.bool:
            raise ValueError(
                f"TokenDropout expected token rows (N, T) of integers, got {tuple(inputs.shape)} of {inputs.dtype}: "
                "choose FeatureDropout for vectors, SimCLRViews or RandomAffine for images"
            )
        masked = (uniform(draw, inputs, inputs.shape[1]) < self.probability) & (inputs != PADDING)
        return inputs.masked_fill(masked, self.mask_id)
