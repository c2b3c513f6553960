"""A small convolutional encoder, for small images and CPUs."""

from collections import OrderedDict
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.models.encoder import check_images, check_sizes
from likewise.models.map_encoder import MapEncoder


@final
class ConvNet(MapEncoder):
    """A small convolutional encoder: blocks that double the width, max-pooled while the image allows, then averaged.

    Args:
        input_shape: (channels, height, width); the command fills it in from the data.
        width: Channels of the first block.
        depth: Blocks; the features have width · 2^(depth - 1) entries.

    Raises:
        ValueError: The input is not an image, or width or depth is below 1.

    Example:
        >>> encoder = ConvNet((1, 8, 8), width=4)
        >>> encoder(torch.zeros(2, 1, 8, 8)).shape, encoder.feature_dim
        (torch.Size([2, 16]), 16)
    """

    def __init__(self, input_shape: tuple[int, ...], width: int = 32, depth: int = 3) -> None:
        check_images("ConvNet", input_shape)
        check_sizes(width=width, depth=depth)
        super().__init__(input_shape)
        channels, side = input_shape[0], min(input_shape[1:])
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        for level in range(depth):
            pooled = level > 0 and side >= 4
            blocks[f"block_{level}"] = _block(channels, width << level, pooled=pooled)
            channels, side = width << level, side // 2 if pooled else side
        self.blocks = nn.Sequential(blocks)
        self._feature_dim = channels
        self.to(memory_format=torch.channels_last)  # nearly twice as fast on a CPU

    def maps(self, inputs: Float[Tensor, "n ch h w"]) -> Float[Tensor, "n d hm wm"]:
        """Encode images to feature maps."""
        return self.blocks(self.standardized(inputs).contiguous(memory_format=torch.channels_last))


def _block(channels: int, width: int, *, pooled: bool) -> nn.Sequential:
    convolution = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
    pool = nn.MaxPool2d(2) if pooled else nn.Identity()
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(), pool)
