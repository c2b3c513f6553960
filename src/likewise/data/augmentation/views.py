"""The usual recipe for images, in as few operations as it takes."""

from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from likewise.data.augmentation.augmentation import Augmentation
from likewise.data.augmentation.blur import GaussianBlur
from likewise.data.augmentation.colour import ColourJitter, HueForm
from likewise.data.augmentation.crop import RandomResizedCrop
from likewise.data.augmentation.draw import Draw
from likewise.data.augmentation.images import floating, full_precision, returned
from likewise.data.augmentation.parameters import check_probability, check_size
from likewise.data.augmentation.separable import separable


@final
class SimCLRViews(Augmentation):
    """Images cropped, flipped and jittered as SimCLR has it: crop, flip, colours, grey, and blur where it is asked for.

    It draws what `Chain([RandomResizedCrop(...), ColourJitter(...), GaussianBlur(...)])` draws, and makes the same
    images, but that the blur is done with the crop, in its weights: before colours are clamped and contrast's mean is
    taken, not after it. On images of CIFAR-10 that is a mean difference of 0.0004.

    Args:
        size: Side of the square that comes out, in pixels; None: height and width of what comes in.
        scale: Least and greatest area of a crop, as a part of the image's.
        flip: Probability that left and right change places.
        jitter: Probability that colours change.
        strength: How much they do: 0.4 · strength in brightness, contrast and saturation, 0.1 · strength in hue.
        grey: Probability that an image becomes grey.
        blur: Probability that an image is blurred.
        hue_form: "affine", or "exact", see `ColourJitter`.

    Returns:
        Calling it with images (N, 3 or 1, height, width), uint8 or from 0 to 1, returns images (N, channels, size,
        size) from 0 to 1, of the inputs' dtype; uint8 becomes float32.

    Raises:
        ValueError: A parameter is out of range, or an input is no batch of images of 1 or 3 channels.

    Source:
        T. Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020, appendix A;
        the defaults are those of P. Khosla et al., Supervised Contrastive Learning, NeurIPS 2020, for CIFAR.

    Example:
        >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
        >>> SimCLRViews()(images, Draw(0, rows=8)).shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(
        self,
        *,
        size: int | None = None,
        scale: tuple[float, float] = (0.2, 1.0),
        flip: float = 0.5,
        jitter: float = 0.8,
        strength: float = 1.0,
        grey: float = 0.2,
        blur: float = 0.0,
        hue_form: HueForm = "affine",
    ) -> None:
        check_probability("jitter", jitter)
        check_size("strength", strength, most=5)
        check_probability("blur", blur)
        self.crop = RandomResizedCrop(size=size, scale=scale, flip=flip)
        self.colour = ColourJitter(
            brightness=0.4 * strength,
            contrast=0.4 * strength,
            saturation=0.4 * strength,
            hue=0.1 * strength,
            probability=jitter,
            grey=grey,
            hue_form=hue_form,
        )
        self.blur = GaussianBlur(probability=blur) if blur else None

    @full_precision
    def __call__(self, inputs: Shaped[Tensor, "n ch h w"], draw: Draw) -> Float[Tensor, "n ch new_h new_w"]:
        """Make a view of every image."""
        images = floating(inputs, "SimCLRViews")
        rows, columns = self.crop.weights(images, draw)
        change = self.colour.drawn(images, draw)
        if self.blur is not None:
            blur_rows, blur_columns = self.blur.weights(images, draw, (rows.shape[1], columns.shape[1]))
            rows, columns = torch.bmm(blur_rows, rows), torch.bmm(blur_columns, columns)
        return returned(self.colour.changed(separable(images, rows, columns), change), inputs)
