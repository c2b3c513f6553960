"""Residual networks with 8 to 50 layers, with a stem for small images."""

from typing import Any, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from likewise.models.encoder import MapEncoder, check_images, check_sizes

# blocks per stage; four stages from width 64, or three from width 16 for small images
STAGES = {
    8: (1, 1, 1),
    20: (3, 3, 3),
    32: (5, 5, 5),
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
}
BOTTLENECKS = {50}
SMALL = 64  # pixels; below it, the stem keeps the image size


@final
class ResNet(MapEncoder):
    """A residual network: a stem, stages of residual blocks that halve the size and double the width, an average.

    Args:
        input_shape: (channels, height, width); the command fills it in from the data.
        depth: 18, 34 and 50 have four stages of width 64, 128, 256, 512 (50: four times as many maps, from bottleneck
            blocks); 8, 20 and 32 three of width 16, 32, 64, with shortcuts that have no parameters.
        width: Channels of the first stage. None: 64 or 16, as above.
        stem: "small" is a 3 × 3 convolution; "large" is a 7 × 7 convolution and a max-pool, which divide the side by
            four; "auto" is "small" for images below 64 pixels.

    Raises:
        ValueError: The input is not an image, there is no network of that depth, the width is below 1, or the images
            are so small that a stage would halve a single pixel.

    Source:
        K. He et al., Deep Residual Learning for Image Recognition, 2016; table 1 (18, 34, 50) and section 4.2 (8, 20,
        32). The last batch norm of a block starts at zero, as in P. Goyal et al., Accurate, Large Minibatch SGD, 2017.

    Example:
        >>> encoder = ResNet((3, 32, 32), depth=8)
        >>> encoder(torch.zeros(2, 3, 32, 32)).shape, encoder.feature_dim
        (torch.Size([2, 64]), 64)
        >>> encoder.maps(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64, 8, 8])
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        depth: Literal[8, 18, 20, 32, 34, 50] = 18,
        width: int | None = None,
        stem: Literal["auto", "small", "large"] = "auto",
    ) -> None:
        check_images("ResNet", input_shape)
        _check_choices(depth, stem)
        blocks = STAGES[depth]
        width = (64 if len(blocks) == 4 else 16) if width is None else width
        check_sizes(width=width)
        super().__init__(input_shape)
        small = min(input_shape[1:]) < SMALL if stem == "auto" else stem == "small"
        _check_side(max(input_shape[1:]), depth, small=small)
        self.stem = _stem(input_shape[0], width, small=small)
        self.stages, self._feature_dim = _stages(depth, width)
        _initialize(self)
        self.to(memory_format=torch.channels_last)

    def maps(self, inputs: Float[Tensor, "n ch h w"]) -> Float[Tensor, "n d hm wm"]:
        """Encode images to feature maps."""
        images = self.standardized(inputs).contiguous(memory_format=torch.channels_last)
        return self.stages(self.stem(images))


class _Subsample(nn.Module):
    """A shortcut without parameters: every second pixel, and zeros for the channels that the block adds."""

    def __init__(self, added: int) -> None:
        super().__init__()
        self.added = added

    def forward(self, maps: Float[Tensor, "n d h w"]) -> Float[Tensor, "n e i j"]:
        return functional.pad(maps[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added))


def _stem(channels: int, width: int, *, small: bool) -> nn.Sequential:
    size, stride, padding = (3, 1, 1) if small else (7, 2, 3)
    convolution = nn.Conv2d(channels, width, size, stride, padding, bias=False)
    pool = nn.Identity() if small else nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(), pool)


def _stages(depth: int, width: int) -> tuple[nn.Sequential, int]:
    """Return the stages, and the channels of the last."""
    from torchvision.models.resnet import BasicBlock, Bottleneck  # noqa: PLC0415 - torchvision is optional

    kind: Any = Bottleneck if depth in BOTTLENECKS else BasicBlock
    stages: list[nn.Module] = []
    channels = width
    for level, count in enumerate(STAGES[depth]):
        planes, stride = width << level, 2 if level else 1
        outputs = planes * kind.expansion
        blocks: list[nn.Module] = []
        for block in range(count):
            shortcut = None
            if block == 0 and (stride != 1 or channels != outputs):
                free = len(STAGES[depth]) == 3
                shortcut = _Subsample(outputs - channels) if free else _projection(channels, outputs, stride)
            blocks.append(kind(channels, planes, 1 if block else stride, shortcut))
            channels = outputs
        stages.append(nn.Sequential(*blocks))
    return nn.Sequential(*stages), channels


def _projection(channels: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _initialize(network: nn.Module) -> None:
    """Initialise the convolutions as He et al. do, and every block as the identity."""
    from torchvision.models.resnet import BasicBlock, Bottleneck  # noqa: PLC0415

    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(part, BasicBlock | Bottleneck):
            last: Any = part.bn3 if isinstance(part, Bottleneck) else part.bn2
            nn.init.zeros_(last.weight)


def _check_choices(depth: int, stem: str) -> None:
    if depth not in STAGES:
        raise ValueError(f"expected a depth of {', '.join(map(str, sorted(STAGES)))}, got {depth}: choose one of them")
    if stem not in {"auto", "small", "large"}:
        raise ValueError(f"expected the stem auto, small or large, got {stem}: choose one of them")


def _check_side(side: int, depth: int, *, small: bool) -> None:
    halvings = len(STAGES[depth]) - 1 + (0 if small else 2)
    least = 2 ** (halvings - 1) + 1  # the smallest side that has more than one pixel before the last halving
    if side < least:
        remedy = "ResNet with depth 8 or ConvNet" if len(STAGES[depth]) == 4 else "ConvNet"
        raise ValueError(
            f"expected images with a side of at least {least} pixels for ResNet of depth {depth} with a "
            f"{'small' if small else 'large'} stem, got {side}: choose {'' if small else 'the small stem, '}{remedy}"
        )
