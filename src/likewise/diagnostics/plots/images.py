"""Rows of images, in their own colours, and thumbnails."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional

from likewise.diagnostics.plots.figure import styled, told

LARGEST = 64  # pixels a side
GAP = 2  # pixels between images


def image_rows(images: Float[Tensor, "r k ch h w"], captions: Sequence[str], columns: Sequence[str] = ()) -> go.Figure:
    """Draw rows of images in their own colours, the first of each row set apart, with a caption before each row.

    Args:
        images: R rows of K images from 0 to 1, (R, K, channels, height, width): grey of one channel, colour of three.
            Of any other number of channels, the first is drawn in grey.
        captions: One a row.
        columns: What is written above each column; nothing by default.

    Returns:
        The figure; images above 64 pixels a side are averaged down to it.

    Example:
        >>> len(image_rows(torch.zeros(2, 4, 3, 8, 8), ["true 3, predicted 9", "true 1, predicted 7"]).data)
        1
    """
    picture = montage(images)
    rows, height = len(images), picture.shape[0] / max(1, len(images))
    figure = go.Figure(go.Image(source=image_address(picture), hoverinfo="skip"))
    middles = [(row + 0.5) * height - GAP / 2 - 0.5 for row in range(rows)]
    figure = styled(figure, height=80 + 52 * rows)
    figure.update_yaxes(tickvals=middles, ticktext=[told(caption) for caption in captions], showgrid=False, ticks="")
    figure.update_yaxes(constrain="domain", ticklabelstandoff=8)
    width = picture.shape[1] / (images.shape[1] + 0.5)  # the first has half a width more, up to a pixel
    centres = [(place + (0.5 if place == 0 else 1)) * width - GAP / 2 - 0.5 for place in range(images.shape[1])]
    figure.update_xaxes(tickvals=centres, ticktext=[told(name) for name in columns], showticklabels=bool(columns))
    figure.update_xaxes(showgrid=False, constrain="domain", ticks="", side="top", tickangle=0)
    figure.update_layout(margin={"l": 150, "r": 20, "t": 40 if columns else 20, "b": 20})
    return figure


def montage(images: Float[Tensor, "r k ch h w"]) -> UInt8[Tensor, "height width 4"]:
    """Put rows of images into one picture: red, green, blue, and opacity, which is 0 between images."""
    images = images if images.shape[2] == 3 else images[:, :, :1].expand(-1, -1, 3, -1, -1)
    size = (min(LARGEST, images.shape[-2]), min(LARGEST, images.shape[-1]))
    flat = images.float().clamp(0, 1).flatten(0, 1)
    small = flat if size == flat.shape[-2:] else functional.adaptive_avg_pool2d(flat, size)
    tiles = functional.pad(small, (0, 0, 0, 0, 0, 1), value=1.0)  # opacity
    tiles = functional.pad(tiles, (0, GAP, 0, GAP)).unflatten(0, images.shape[:2])
    first = functional.pad(tiles[:, :1], (0, size[1] // 2))
    strips = [part.permute(0, 3, 1, 4, 2).flatten(2, 3) for part in (first, tiles[:, 1:])]
    return (255 * torch.cat(strips, dim=2).flatten(0, 1)).round().to(torch.uint8)


def thumbnails(images: Float[Tensor, "n ch h w"], side: int) -> Float[Tensor, "n 3 h2 w2"]:
    """Return images from 0 to 1 whose longer side has at most so many pixels, in colour.

    Images of one channel are grey, of three in colour; of any other number of channels the first is shown in grey.
    """
    colour = images if images.shape[1] == 3 else images[:, :1].expand(-1, 3, -1, -1)
    longer = max(images.shape[-2:])
    if longer <= side:
        return colour
    size = [max(1, round(side * of / longer)) for of in images.shape[-2:]]
    return functional.interpolate(colour, size=size, mode="bilinear", antialias=True, align_corners=False)


def image_address(picture: UInt8[Tensor, "height width ch"], kind: str = "png", **options: Any) -> str:
    """Return an address that holds a picture, of three channels, or of four with opacity."""
    content = io.BytesIO()
    Image.fromarray(picture.numpy()).save(content, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}"
