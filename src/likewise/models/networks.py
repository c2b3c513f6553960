"""Networks trained from scratch: MLP for vectors, ConvNet, Conv-4 for few-shot learning, and residual networks."""

import math
from typing import Any, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from likewise.models.encoder import CellGrid, MapEncoder, SizedEncoder, check_images, check_sizes

BLOCKS = 4  # of Conv-4
# of ResNet, blocks per stage; four stages from width 64, or three from width 16 for small images
STAGES = {8: (1, 1, 1), 20: (3, 3, 3), 32: (5, 5, 5), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
BOTTLENECKS = {50}
SMALL_SIDE = 64  # pixels; below it, the stem keeps the image size
SLOPE = 0.1  # of ResNet-12's leaky ReLU


@final
class MLP(SizedEncoder):
    """A multilayer perceptron on flattened inputs, with an initial batch norm that standardises each entry.

    Args:
        input_shape: The shape of one input, (F,) or an image's; the command fills it in from the data.
        width: Units per layer, and length of a feature vector.
        depth: Number of layers.

    Example:
        >>> import torch
        >>> encoder = MLP((1, 8, 8), width=16)
        >>> encoder(torch.zeros(2, 1, 8, 8)).shape, encoder.feature_dim
        (torch.Size([2, 16]), 16)
    """

    def __init__(self, input_shape: tuple[int, ...], width: int = 256, depth: int = 2) -> None:
        check_sizes(width=width, depth=depth)
        super().__init__(input_shape)
        inputs = math.prod(input_shape)
        # without scale and shift: running statistics standardise features of any unit
        layers: list[nn.Module] = [nn.Flatten(), nn.BatchNorm1d(inputs, affine=False)]
        for level in range(depth):
            layers += [nn.Linear(inputs if level == 0 else width, width), nn.BatchNorm1d(width), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self._feature_dim = width

    def forward(self, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        return self.layers(self.standardized(inputs))


class _Pooled(MapEncoder):
    """Convolutions and 2 × 2 max-pools, channels last, which is nearly twice as fast on a CPU."""

    @property
    def cell_grid(self) -> CellGrid:
        return CellGrid(2 ** sum(isinstance(part, nn.MaxPool2d) for part in self.modules()), start=0)


class _Blocks(_Pooled):
    """Blocks of one convolution, some with pooling."""

    blocks: nn.Sequential

    def maps(self, inputs: Float[Tensor, "n ch h w"]) -> Float[Tensor, "n d hm wm"]:
        return self.blocks(self.standardized(inputs, torch.channels_last))


@final
class ConvNet(_Blocks):
    """A small convolutional encoder: blocks that double the width, max-pooled while the image allows, then averaged.

    Args:
        input_shape: (channels, height, width); the command fills it in from the data.
        width: Channels of the first block.
        depth: Blocks; the features have width · 2^(depth - 1) entries.

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
        self.blocks = nn.Sequential()
        for level in range(depth):
            pool = nn.MaxPool2d(2) if level > 0 and side >= 4 else nn.Identity()
            side = side // 2 if level > 0 and side >= 4 else side
            block = nn.Sequential(*_convolution(channels, width << level), nn.ReLU(), pool)
            self.blocks.add_module(f"block_{level}", block)
            channels = width << level
        self._feature_dim = channels
        self.to(memory_format=torch.channels_last)


@final
class Conv4(_Blocks):
    """Four blocks of a 3 × 3 convolution, batch norm, 2 × 2 max-pool and ReLU, all of the same width.

    Pooling comes before the activation, which is the same function and less work: max and ReLU commute.

    Args:
        input_shape: (channels, height, width); the command fills it in from the data.
        width: Channels of every block.
        pools: Number of pooling blocks, from the first. 4 leaves one cell of a 28 × 28 image and 2 × 2 of a 32 × 32
            image; losses of cells, such as InfoPatchLoss, need more: 3 or fewer.
        features: "mean", the average over the map, or "flat", all of its cells, as in prototypical networks.

    Source:
        O. Vinyals et al., Matching Networks for One Shot Learning, 2016, section 4.1; J. Snell, K. Swersky and
        R. Zemel, Prototypical Networks for Few-shot Learning, 2017, section 3.

    Example:
        >>> encoder = Conv4((3, 32, 32), features="flat")
        >>> encoder(torch.zeros(2, 3, 32, 32)).shape, encoder.stride
        (torch.Size([2, 256]), 16)
        >>> Conv4((1, 28, 28), pools=3).maps(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 64, 3, 3])
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        width: int = 64,
        pools: int = BLOCKS,
        features: Literal["mean", "flat"] = "mean",
    ) -> None:
        check_images("Conv4", input_shape)
        check_sizes(width=width)
        if not 0 <= pools <= BLOCKS:
            raise ValueError(f"expected pools from 0 to {BLOCKS}, the number of blocks, got {pools}: 4 is usual")
        if features not in {"mean", "flat"}:
            raise ValueError(f"expected features mean or flat, got {features}: choose one of them")
        if min(input_shape[1:]) < 2**pools:
            raise ValueError(
                f"expected sides of at least {2**pools} pixels for {pools} pools, got "
                f"{min(input_shape[1:])}: lower pools"
            )
        super().__init__(input_shape)
        channels, *sides = input_shape
        self.blocks = nn.Sequential()
        for level in range(BLOCKS):
            pool = nn.MaxPool2d(2) if level < pools else nn.Identity()
            self.blocks.add_module(f"block_{level}", nn.Sequential(*_convolution(channels, width), pool, nn.ReLU()))
            channels = width
        self._flat = features == "flat"
        self._feature_dim = width * (sides[0] >> pools) * (sides[1] >> pools) if self._flat else width
        self.to(memory_format=torch.channels_last)

    def pool(self, maps: Float[Tensor, "n c hm wm"]) -> Float[Tensor, "n d"]:
        return maps.flatten(1) if self._flat else super().pool(maps)


@final
class ResNet(MapEncoder):
    """A residual network: a stem, stages of residual blocks that halve the size and double the width, an average.

    Args:
        input_shape: (channels, height, width); the command fills it in from the data.
        depth: 18, 34 and 50 have four stages of width 64, 128, 256, 512 (50: four times as many maps, from bottleneck
            blocks); 8, 20 and 32 three of width 16, 32, 64, with parameter-free shortcuts.
        width: Channels of the first stage. None: 64 or 16, as above.
        stem: "small" is a 3 × 3 convolution; "large" is a 7 × 7 convolution and a max-pool, which divide the side by
            four; "auto" is "small" for images below 64 pixels.

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
        if depth not in STAGES:
            known = ", ".join(map(str, sorted(STAGES)))
            raise ValueError(f"expected a depth of {known}, got {depth}: choose one of them")
        if stem not in {"auto", "small", "large"}:
            raise ValueError(f"expected the stem auto, small or large, got {stem}: choose one of them")
        blocks = STAGES[depth]
        width = (64 if len(blocks) == 4 else 16) if width is None else width
        check_sizes(width=width)
        super().__init__(input_shape)
        small = min(input_shape[1:]) < SMALL_SIDE if stem == "auto" else stem == "small"
        _check_side(max(input_shape[1:]), depth, small=small)
        self.stem = _stem(input_shape[0], width, small=small)
        self.stages, self._feature_dim = _stages(depth, width)
        self._stride = (1 if small else 4) * 2 ** (len(self.stages) - 1)
        _initialize(self, slope=0)
        self.to(memory_format=torch.channels_last)

    @property
    def cell_grid(self) -> CellGrid:
        return CellGrid(self._stride, start=(1 - self._stride) / 2)  # every convolution and pool is centred on a pixel

    def maps(self, inputs: Float[Tensor, "n ch h w"]) -> Float[Tensor, "n d hm wm"]:
        images = self.standardized(inputs, torch.channels_last)
        return self.stages(self.stem(images))


class _Subsample(nn.Module):
    """A shortcut without parameters: every second pixel, and zeros for the added channels."""

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
    from torchvision.models.resnet import BasicBlock, Bottleneck  # noqa: PLC0415 - torchvision is optional

    block_class: Any = Bottleneck if depth in BOTTLENECKS else BasicBlock
    stages: list[nn.Module] = []
    channels = width
    for level, count in enumerate(STAGES[depth]):
        planes, stride = width << level, 2 if level else 1
        outputs = planes * block_class.expansion
        blocks: list[nn.Module] = []
        for block in range(count):
            shortcut = None
            if block == 0 and (stride != 1 or channels != outputs):
                free = len(STAGES[depth]) == 3
                shortcut = _Subsample(outputs - channels) if free else _projection(channels, outputs, stride)
            made: Any = block_class(channels, planes, 1 if block else stride, shortcut)
            nn.init.zeros_((made.bn3 if block_class is Bottleneck else made.bn2).weight)  # blocks begin as the identity
            blocks.append(made)
            channels = outputs
        stages.append(nn.Sequential(*blocks))
    return nn.Sequential(*stages), channels


def _projection(channels: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _initialize(network: nn.Module, slope: float) -> None:
    """Initialise the convolutions as He et al. do, for ReLUs of this slope below 0."""
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, a=slope, mode="fan_out", nonlinearity="leaky_relu")


def _check_side(side: int, depth: int, *, small: bool) -> None:
    halvings = len(STAGES[depth]) - 1 + (0 if small else 2)
    least = 2 ** (halvings - 1) + 1  # the smallest side with more than one pixel before the last halving
    if side < least:
        remedy = "ResNet with depth 8 or ConvNet" if len(STAGES[depth]) == 4 else "ConvNet"
        raise ValueError(
            f"expected images with a side of at least {least} pixels for ResNet of depth {depth} with a "
            f"{'small' if small else 'large'} stem, got {side}: choose {'' if small else 'the small stem, '}{remedy}"
        )


@final
class DropBlock(nn.Module):
    r"""Dropout of square blocks of each channel in training; the rest is scaled, so a batch of ones keeps its sum.

    Each position where a block of side b fits becomes the corner of a dropped block with the probability

    $$
    \gamma = \frac{r_t}{b^2} \cdot \frac{h w}{(h - b + 1)(w - b + 1)}, \qquad r_t = r \min(1, t / T)
    $$

    so about a share r_t of the map is dropped in training step t (Ghiasi et al., 2018, algorithm 1). The ramp T is in
    steps; on smaller maps b is the map's smaller side. The step is a buffer, so it is saved with the weights, and a
    resumed training continues with the share it had reached; evaluation doesn't count.
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
class ResNet12(_Pooled):
    """Four residual stages of three 3 × 3 convolutions with leaky ReLU; all but the last one halve the map.

    The first stages end in dropout, the last two in DropBlock. Halved sides are rounded up, so an image of 84 × 84 has
    a map of 11 × 11.

    Args:
        input_shape: (channels, height, width); the command fills it in from the data.
        widths: Channels of each stage; the last is the length of the features.
        last_pool: Whether the last stage halves the map too.
        dropout: Share dropped after each stage in training.
        block: Side of DropBlock's blocks, in cells.
        ramp: Training steps until DropBlock drops its full share.

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
        _initialize(self, SLOPE)
        self.to(memory_format=torch.channels_last)

    def maps(self, inputs: Float[Tensor, "n ch h w"]) -> Float[Tensor, "n d hm wm"]:
        return self.stages(self.standardized(inputs, torch.channels_last))


class _Stage(nn.Module):
    """Three convolutions beside a projection of the input, then activation, pooling and dropout."""

    def __init__(self, channels: int, width: int, drop: nn.Module, *, pooled: bool) -> None:
        super().__init__()
        first, second = [*_convolution(channels, width), nn.LeakyReLU(SLOPE)], _convolution(width, width)
        self.body = nn.Sequential(*first, *second, nn.LeakyReLU(SLOPE), *_convolution(width, width))
        self.shortcut = _projection(channels, width, stride=1)
        pool = nn.MaxPool2d(2, ceil_mode=True) if pooled else nn.Identity()
        self.end = nn.Sequential(nn.LeakyReLU(SLOPE), pool, drop)

    def forward(self, maps: Float[Tensor, "n d h w"]) -> Float[Tensor, "n e i j"]:
        return self.end(self.body(maps) + self.shortcut(maps))


def _convolution(channels: int, width: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(width)
