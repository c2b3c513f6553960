"""A multilayer perceptron, for vectors."""

import math
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from likewise.models.encoder import Encoder, check_sizes


@final
class MLP(Encoder):
    """A multilayer perceptron on flattened inputs, with an initial batch norm that standardises each entry.

    Args:
        input_shape: The shape of one input, (F,) or that of an image; the command fills it in from the data.
        width: Units per layer, and length of a feature vector.
        depth: Number of layers.

    Raises:
        ValueError: width or depth is below 1.

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

    @property
    def feature_dim(self) -> int:
        """Length of a feature vector, D."""
        return self._feature_dim

    def forward(self, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """Encode a batch of inputs."""
        return self.layers(self.standardized(inputs))
