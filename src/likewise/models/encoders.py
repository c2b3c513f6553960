"""Encoders: inputs become the features that evaluation reads."""

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Encoder(nn.Module, ABC):
    """An encoder f: one input to one feature vector, before any head."""

    @property
    @abstractmethod
    def feature_dim(self) -> int:
        """Length of a feature vector, D."""

    @abstractmethod
    def forward(self, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """Encode a batch of inputs."""

    @torch.no_grad()
    def encode(self, inputs: Float[Tensor, "n ..."], batch_size: int = 1024) -> Float[Tensor, "n d"]:
        """Encode inputs frozen: evaluation mode, no gradient, in batches, on the encoder's own device and in its dtype.

        Args:
            inputs: (N, ...), on any device, of any floating-point dtype.
            batch_size: Inputs encoded at a time.

        Returns:
            Features (N, D), float32 on the CPU.

        Memory:
            One batch of activations beside inputs and features.

        Example:
            >>> MLP((3,), width=8).encode(torch.zeros(5, 3)).shape
            torch.Size([5, 8])
        """
        training, weights = self.training, next(self.parameters())
        self.eval()
        features = [self(batch.to(weights)).float().cpu() for batch in inputs.split(batch_size)]
        self.train(training)
        return torch.cat(features)


@final
class ConvNet(Encoder):
    """A small convolutional encoder: blocks that double the width, pooled by two while the image allows, then averaged.

    Args:
        input_shape: (channels, height, width); the command fills it in from the data.
        width: Channels of the first block.
        depth: Blocks; the features have width · 2^(depth - 1) entries.

    Raises:
        ValueError: The input is no image, or width or depth is below 1.

    Example:
        >>> encoder = ConvNet((1, 8, 8), width=4)
        >>> encoder(torch.zeros(2, 1, 8, 8)).shape, encoder.feature_dim
        (torch.Size([2, 16]), 16)
    """

    def __init__(self, input_shape: tuple[int, ...], width: int = 32, depth: int = 3) -> None:
        super().__init__()
        if len(input_shape) != 3:
            raise ValueError(
                f"ConvNet expected images, input_shape (channels, height, width), got {tuple(input_shape)}: "
                "choose the encoder MLP for vectors"
            )
        _check_sizes(width=width, depth=depth)
        channels, side = input_shape[0], min(input_shape[1:])
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        for level in range(depth):
            pooled = level > 0 and side >= 4
            blocks[f"block_{level}"] = _block(channels, width << level, pooled=pooled)
            channels, side = width << level, side // 2 if pooled else side
        self.blocks = nn.Sequential(blocks)
        self._feature_dim = channels
        self.to(memory_format=torch.channels_last)  # nearly twice as fast on a CPU

    @property
    def feature_dim(self) -> int:
        """Length of a feature vector, D."""
        return self._feature_dim

    def forward(self, inputs: Float[Tensor, "n ch h w"]) -> Float[Tensor, "n d"]:
        """Encode a batch of inputs."""
        return self.blocks(inputs.contiguous(memory_format=torch.channels_last)).mean(dim=(2, 3))


@final
class MLP(Encoder):
    """A multilayer perceptron on flattened inputs, which it first standardises.

    Args:
        input_shape: The shape of one input, (F,) or an image's; the command fills it in from the data.
        width: Units a layer, and entries of a feature vector.
        depth: Layers.

    Raises:
        ValueError: The width or the depth is below 1.

    Example:
        >>> encoder = MLP((1, 8, 8), width=16)
        >>> encoder(torch.zeros(2, 1, 8, 8)).shape, encoder.feature_dim
        (torch.Size([2, 16]), 16)
    """

    def __init__(self, input_shape: tuple[int, ...], width: int = 256, depth: int = 2) -> None:
        super().__init__()
        _check_sizes(width=width, depth=depth)
        inputs = math.prod(input_shape)
        # without scale and shift: running statistics bring features of any unit to one scale
        layers: list[nn.Module] = [nn.Flatten(), nn.BatchNorm1d(inputs, affine=False)]
        for level in range(depth):
            layers += [nn.Linear(inputs if level == 0 else width, width), nn.BatchNorm1d(width), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self._feature_dim = width

    @property
    def feature_dim(self) -> int:
        """Length of a feature vector, D."""
        return self._feature_dim

    def forward(self, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """Encode a batch of inputs."""
        return self.layers(inputs)


def _block(channels: int, width: int, *, pooled: bool) -> nn.Sequential:
    convolution = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
    pool = nn.MaxPool2d(2) if pooled else nn.Identity()
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(), pool)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"expected {name} of at least 1, got {size}: give a positive integer")
