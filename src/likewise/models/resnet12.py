"""ResNet-12, the usual large encoder of few-shot learning, and DropBlock, by which it is regularised."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from likewise.models.encoder import MapEncoder, check_images, check_sizes

SLOPE = 0.1


@final
class DropBlock(nn.Module):
    r"""Set square blocks of each channel to zero in training, and scale what is left to the same sum of ones.

    Each position where a block of side b fits becomes the corner of a dropped block with the probability

    $$
    \gamma = \frac{r_t}{b^2} \cdot \frac{h w}{(h - b + 1)(w - b + 1)}, \qquad r_t = r \min(1, t / T)
    $$

    so that about a share r_t of the map is dropped in training step t (Ghiasi et al., 2018, algorithm 1). The ramp T is
    in steps; on smaller maps b is the map's smaller side. The step is a buffer, so it is saved with the weights and a
    resumed training goes on with the share that it had reached; evaluation doesn't count.
    """

    step: Tensor

    def __init__(self, rate: float = 0.1, block: int = 5, ramp: int = 40_000) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"expected a rate from 0 to below 1, got {rate}: 0.1 is usual")
        if block < 1 or ramp < 1:
            raise ValueError(f"expected block and ramp of at least 1, got {block} and {ramp}: 5 and 40,000 are usual")
        self.rate = rate
        self.block = block
        self.ramp = ramp
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, maps: Float[Tensor, "n d h w"]) -> Float[Tensor, "n d h w"]:
        """Drop blocks in training; return maps unchanged otherwise."""
        if not self.training or self.rate == 0:
            return maps
        self.step += 1
        height, width = maps.shape[2:]
        block = min(self.block, height, width)
        places = (height - block + 1, width - block + 1)
        share = self.rate * (self.step / self.ramp).clamp(max=1)
        probability = share / block**2 * (height * width / (places[0] * places[1]))
        corners = (torch.rand(*maps.shape[:2], *places, device=maps.device) < probability).to(maps.dtype)
        dropped = functional.max_pool2d(functional.pad(corners, [block - 1] * 4), block, stride=1)
        kept = 1 - dropped
        return maps * (kept * (kept.numel() / kept.sum(dtype=torch.float32).clamp(min=1)).to(maps.dtype))


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
