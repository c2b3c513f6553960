"""An encoder around any module."""

from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from likewise.models.cell_grid import CellGrid
from likewise.models.dry_run import dry_run, weight_like
from likewise.models.encoder import Encoder


@final
class Wrapped(Encoder):
    """Any module as an encoder: `--encoder Wrapped --encoder.module my.Net`.

    The length of a feature vector comes from a dry run on zeros, which does not change the module's buffers.

    Args:
        input_shape: The shape of one input; the command fills it in from the data.
        module: Takes (N, *input_shape), floating-point, and returns features (N, D), or feature maps (N, D, H, W),
            which are averaged.
        stride: Pixels between neighbouring cells of the feature maps, which only mixed queries need. None: as followed
            through the module's operations, if they are convolutions, pools and the like.
        cell_start: Where the first cell begins, in pixels, if the stride is given: 0 where pooling or patches divide
            the image, −(stride − 1) / 2 where convolutions with a stride are centred on pixels, as in a ResNet.
        standardize: Whether images are standardised by the mean and std of the training part; otherwise the module gets
            them from 0 to 1.

    Raises:
        ValueError: The module is not a torch.nn.Module, fails on such inputs, or returns something else; the stride is
            below 1, or cell_start is given without one.

    Example:
        >>> import torch
        >>> encoder = Wrapped((3, 8, 8), nn.Conv2d(3, 16, kernel_size=3))
        >>> encoder(torch.zeros(2, 3, 8, 8)).shape, encoder.maps(torch.zeros(2, 3, 8, 8)).shape
        (torch.Size([2, 16]), torch.Size([2, 16, 6, 6]))
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        module: nn.Module,
        *,
        stride: int | None = None,
        cell_start: float = 0.0,
        standardize: bool = True,
    ) -> None:
        super().__init__(input_shape)
        if stride is not None and stride < 1:
            raise ValueError(f"expected a stride of at least 1 pixel, got {stride}: leave it out if there are no maps")
        if cell_start != 0 and (stride is None or not abs(cell_start) <= max(input_shape)):
            raise ValueError(
                f"expected cell_start in pixels of the image, beside a stride, got {cell_start} and stride {stride}: "
                "give both, or neither"
            )
        self._grid = None if stride is None else CellGrid(stride, cell_start)
        if not isinstance(module, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
            raise ValueError(  # noqa: TRY004 - bad input is always a ValueError
                f"expected a torch.nn.Module to wrap, got {type(module).__name__}: pass an instance of its class"
            )
        self.observes = standardize
        outputs = dry_run(module, self.input_shape, type(module).__name__)
        self.module = module
        self._has_maps = outputs.ndim == 4
        self._feature_dim = outputs.shape[1]
        weight = weight_like(module)
        self.mean, self.std = self.mean.to(weight), self.std.to(weight)

    @property
    def feature_dim(self) -> int:
        """Length of a feature vector, D."""
        return self._feature_dim

    @property
    def cell_grid(self) -> CellGrid:
        """Where the cells of the feature maps lie in the image."""
        return super().cell_grid if self._grid is None else self._grid

    def maps(self, inputs: Float[Tensor, "n ch h w"]) -> Float[Tensor, "n d hm wm"]:
        """Encode images to feature maps, if the module returns them."""
        return self.module(self.standardized(inputs)) if self._has_maps else super().maps(inputs)

    def forward(self, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        """Encode a batch of inputs."""
        return self.pool(self.maps(inputs)) if self._has_maps else self.module(self.standardized(inputs))
