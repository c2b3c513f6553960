"""Augmentations one after another."""

from typing import final

from jaxtyping import Shaped
from torch import Tensor

from likewise.data.augmentation.augmentation import Augmentation
from likewise.data.augmentation.draw import Draw


@final
class Chain(Augmentation):
    """Several augmentations, one after another.

    Args:
        augmentations: The augmentations, in order; each takes the output of the one before.

    Returns:
        Calling it with inputs of the first returns outputs of the last.

    Raises:
        ValueError: The list is empty.

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
        """Fit each of them to the training part, without augmentation."""
        for augmentation in self.augmentations:
            augmentation.fit(inputs)
