"""Augmentations: random changes that make views of a whole batch at once, on the batch's device."""

from likewise.data.augmentation.augmentation import (
    Augmentation,
    Chain,
    Draw,
    FeatureDropout,
    ImageAugmentation,
    NoAugmentation,
    TokenDropout,
)
from likewise.data.augmentation.simclr import ColourJitter, SimCLRViews
from likewise.data.augmentation.spatial import GaussianBlur, RandomAffine, RandomResizedCrop, RandomShift

__all__ = [
    "Augmentation", "Chain", "ColourJitter", "Draw", "FeatureDropout", "GaussianBlur", "ImageAugmentation",
    "NoAugmentation", "RandomAffine", "RandomResizedCrop", "RandomShift", "SimCLRViews", "TokenDropout",
    "usual_augmentation",
]  # fmt: skip


def usual_augmentation(input_shape: tuple[int, ...], *, described: bool = False) -> Augmentation:
    """Return the default augmentation for inputs of a shape: colour images, other images, vectors, texts.

    Colour images of pairs, `described`, are only cropped: their counterparts may name colours and sides.
    """
    match input_shape:
        case (3, _, _):
            return RandomResizedCrop(scale=(0.5, 1.0), flip=0.0) if described else SimCLRViews()
        case (_, _, _):
            return RandomAffine()
        case (_,):
            return FeatureDropout()
        case ():
            return TokenDropout()
        case _:
            got = f"{input_shape}: specify an augmentation"
            raise ValueError(f"expected an input's shape as (channels, height, width), (F,) or (), got {got}")
