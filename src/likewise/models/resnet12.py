"""ResNet-12, the usual large encoder of few-shot learning."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.models.drop_block import DropBlock
from likewise.models.encoder import check_images, check_sizes
from likewise.models.map_encoder import MapEncoder

SLOPE = 0.1


@final
class ResNet12(MapEncoder):
    """Four residual stages of three 3 × 3 convolutions with leaky ReLU; all but the last one halve the map.

    The first stages end in dropout, the last two in DropBlock. Sides are halved upwards, so that an image of 84 × 84
    has a map of 11 × 11.

    Args:
        input_shape: (channels, height, width); the command fills it in from the data.
        widths: Channels of each stage, the last of them the length of the features.
        last_pool: Whether the last stage halves the map too.
        dropout: Share that is dropped after each stage in training.
        block: Side of DropBlock's blocks, in cells.
        ramp: Training steps until DropBlock drops its share.

    Raises:
        ValueError: The input is not an image, or an argument has no meaning.

    Source:
        Widths, activation, pooling and dropout: C. Liu et al., Learning a Few-shot Embedding Model with Contrastive
        Learning, 2021, and the authors' code. The network: B. Oreshkin, P. Rodríguez López and A. Lacoste, TADAM, 2018.

    Example:
        >>> encoder = ResNet12((3, 84, 84), widths=(4, 8, 16, 32))
        >>> encoder.maps(torch.zeros(2, 3, 84, 84)).shape, encoder.stride
        (torch.Size([2, 32, 11, 11]), 8)
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        widths: tuple[int, ...] = (64, 128, 256, 512),
        last_pool: bool = False,
        *,
        dropout: float = 0.1,
        block: int = 5,
        ramp: int = 40_000,
    ) -> None:
        check_images("ResNet12", input_shape)
        if not widths:
            raise ValueError("expected widths of at least one stage, got none: (64, 128, 256, 512) is usual")
        check_sizes(widths=min(widths))
        if not 0 <= dropout < 1:
            raise ValueError(f"expected dropout from 0 to below 1, got {dropout}: 0.1 is usual")
        super().__init__(input_shape)
        stages: list[nn.Module] = []
        channels = input_shape[0]
        for level, width in enumerate(widths):
            last = len(widths) - 1 - level
            drop = DropBlock(dropout, block, ramp) if last < 2 else nn.Dropout(dropout)
            stages.append(_Stage(channels, width, drop, pooled=last > 0 or last_pool))
            channels = width
        self.stages = nn.Sequential(*stages)
        self._feature_dim = channels
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, a=SLOPE, mode="fan_out", nonlinearity="leaky_relu")
        self.to(memory_format=torch.channels_last)

    def maps(self, inputs: Float[Tensor, "n ch h w"]) -> Float[Tensor, "n d hm wm"]:
        """Encode images to feature maps."""
        return self.stages(self.standardized(inputs).contiguous(memory_format=torch.channels_last))


class _Stage(nn.Module):
    """Three convolutions beside a projection of the input, then activation, pooling and dropout."""

    def __init__(self, channels: int, width: int, drop: nn.Module, *, pooled: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(channels, width),
            nn.LeakyReLU(SLOPE),
            *_convolution(width, width),
            nn.LeakyReLU(SLOPE),
            *_convolution(width, width),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))
        self.end = nn.Sequential(
            nn.LeakyReLU(SLOPE), nn.MaxPool2d(2, ceil_mode=True) if pooled else nn.Identity(), drop
        )

    def forward(self, maps: Float[Tensor, "n d h w"]) -> Float[Tensor, "n e i j"]:
        return self.end(self.body(maps) + self.shortcut(maps))


def _convolution(channels: int, width: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(width)
