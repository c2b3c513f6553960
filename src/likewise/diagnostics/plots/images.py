"""Thumbnails of images, and addresses that hold pictures."""

import base64
import io
from typing import Any

from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional


def thumbnails(images: Float[Tensor, "n ch h w"], side: int) -> Float[Tensor, "n 3 h2 w2"]:
    """Return images from 0 to 1 with at most so many pixels a side; unless of three channels, the first in grey."""
    colour = images if images.shape[1] == 3 else images[:, :1].expand(-1, 3, -1, -1)
    longer = max(images.shape[-2:])
    if longer <= side:
        return colour
    size = [max(1, round(side * length / longer)) for length in images.shape[-2:]]
    return functional.interpolate(colour, size=size, mode="bilinear", antialias=True, align_corners=False)


def image_address(picture: UInt8[Tensor, "height width ch"], image_format: str = "png", **options: Any) -> str:
    """Return an address that holds a picture, of three channels, or of four with opacity."""
    content = io.BytesIO()
    Image.fromarray(picture.numpy()).save(content, image_format, **options)
    return f"data:image/{image_format};base64,{base64.b64encode(content.getvalue()).decode()}"
