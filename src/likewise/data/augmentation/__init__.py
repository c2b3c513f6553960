"""How a view differs from its sample: augmentations of a whole batch at once, on the batch's device."""

from likewise.data.augmentation.affine import RandomAffine
from likewise.data.augmentation.augmentation import Augmentation
from likewise.data.augmentation.blur import GaussianBlur
from likewise.data.augmentation.chain import Chain
from likewise.data.augmentation.colour import ColourJitter
from likewise.data.augmentation.crop import RandomResizedCrop
from likewise.data.augmentation.draw import Draw
from likewise.data.augmentation.shift import RandomShift
from likewise.data.augmentation.tokens import TokenDropout
from likewise.data.augmentation.vectors import FeatureDropout
from likewise.data.augmentation.views import SimCLRViews

__all__ = [
    "Augmentation",
    "Chain",
    "ColourJitter",
    "Draw",
    "FeatureDropout",
    "GaussianBlur",
    "RandomAffine",
    "RandomResizedCrop",
    "RandomShift",
    "SimCLRViews",
    "TokenDropout",
    "usual_augmentation",
]


def usual_augmentation(input_shape: tuple[int, ...]) -> Augmentation:
    """Return the default augmentation for inputs of a shape: colour images, other images, vectors, texts.

    Args:
        input_shape: One input's shape: (channels, height, width) of an image, (F,) of a vector, () of a text.

    Returns:
        `SimCLRViews` for images with 3 channels, `RandomAffine` for other images, `FeatureDropout` for vectors,
        `TokenDropout` for texts.

    Raises:
        ValueError: The shape is neither an image's nor a vector's.

    Example:
        >>> type(usual_augmentation((1, 28, 28))).__name__
        'RandomAffine'
    """
    match input_shape:
        case (3, _, _):
            return SimCLRViews()
        case (_, _, _):
            return RandomAffine()
        case (_,):
            return FeatureDropout()
        case ():
            return TokenDropout()
        case _:
            raise ValueError(
                f"expected an input's shape as (channels, height, width), (F,) or (), got {input_shape}: "
                "specify an augmentation"
            )
