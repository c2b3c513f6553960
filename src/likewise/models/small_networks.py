"""Small networks that are trained from scratch: MLP for vectors, ConvNet, and Conv-4 of few-shot learning."""

import math
from collections import OrderedDict
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.models.encoder import CellGrid, MapEncoder, SizedEncoder, check_images, check_sizes

BLOCKS = 4  # of Conv-4


@final
class MLP(SizedEncoder):
    """A multilayer perceptron on flattened inputs, with an initial batch norm that standardises each entry.

    Args:
        input_shape: The shape of one input, (F,) or that of an image; the command fills it in from the data.
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


class _Blocks(MapEncoder):
    """Blocks of a convolution each, channels last, which is nearly twice as fast on a CPU."""

    blocks: nn.Sequential

    @property
    def cell_grid(self) -> CellGrid:
        return CellGrid(2 ** sum(isinstance(part, nn.MaxPool2d) for part in self.modules()), start=0)

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
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        for level in range(depth):
            pooled = level > 0 and side >= 4
            blocks[f"block_{level}"] = _block(channels, width << level, nn.ReLU(), _pool(pooled=pooled))
            channels, side = width << level, side // 2 if pooled else side
        self.blocks = nn.Sequential(blocks)
        self._feature_dim = channels
        self.to(memory_format=torch.channels_last)


@final
class Conv4(_Blocks):
    """Four blocks of a 3 × 3 convolution, batch norm, 2 × 2 max-pool and ReLU, all of the same width.

    Pooling comes before the activation, which is the same function and less work: max and ReLU commute.

    Args:
        input_shape: (channels, height, width); the command fills it in from the data.
        width: Channels of every block.
        pools: How many blocks pool, from the first. 4 leaves one cell of a 28 × 28 image and 2 × 2 of a 32 × 32 image;
            losses of cells, such as InfoPatchLoss, need more: 3 or fewer.
        features: "mean", the average over the map, or "flat", all of its cells, as prototypical networks have it.

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
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        for level in range(BLOCKS):
            blocks[f"block_{level}"] = _block(channels, width, _pool(pooled=level < pools), nn.ReLU())
            channels = width
        self.blocks = nn.Sequential(blocks)
        self._flat = features == "flat"
        self._feature_dim = width * (sides[0] >> pools) * (sides[1] >> pools) if self._flat else width
        self.to(memory_format=torch.channels_last)

    def pool(self, maps: Float[Tensor, "n c hm wm"]) -> Float[Tensor, "n d"]:
        return maps.flatten(1) if self._flat else super().pool(maps)


def _block(channels: int, width: int, *end: nn.Module) -> nn.Sequential:
    convolution = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), *end)


def _pool(*, pooled: bool) -> nn.Module:
    return nn.MaxPool2d(2) if pooled else nn.Identity()
