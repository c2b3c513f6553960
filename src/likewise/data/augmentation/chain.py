"""Augmentations one after another."""

from typing import final

from jaxtyping import Shaped
from torch import Tensor

from likewise.data.augmentation.augmentation import Augmentation
from likewise.data.augmentation.draw import Draw


@final
class Chain(Augmentation):
    """Several augmentations, one after another, on one draw.

    Args:
        augmentations: What is applied, in this order; each takes what the one before it returns.

    Returns:
        Calling it with what the first takes returns what the last returns.

    Raises:
        ValueError: There is none.

    Example:
        >>> import torch
        >>> from likewise.data.augmentation import ColourJitter, GaussianBlur, RandomResizedCrop
        >>> chain = Chain([RandomResizedCrop(size=24), ColourJitter(), GaussianBlur()])
        >>> chain(torch.rand(4, 3, 32, 32), Draw(0, rows=4)).shape
        torch.Size([4, 3, 24, 24])
    """

    def __init__(self, augmentations: list[Augmentation]) -> None:
        if not augmentations:
            raise ValueError("expected augmentations to apply, got none: name at least one")
        self.augmentations = augmentations

    def __call__(self, inputs: Shaped[Tensor, "n ..."], draw: Draw) -> Shaped[Tensor, "n ..."]:
        """Apply one after another."""
        for augmentation in self.augmentations:
            inputs = augmentation(inputs, draw)
        return inputs

    def fit(self, inputs: Tensor) -> None:
        """Show each of them the training part, as it is."""
        for augmentation in self.augmentations:
            augmentation.fit(inputs)
