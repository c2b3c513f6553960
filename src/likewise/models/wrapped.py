"""Encoders around existing networks: any module, or the encoder of an earlier run."""

from itertools import chain
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from likewise.data.lazy_inputs import LazyInputs
from likewise.instantiate import Spec, instantiate
from likewise.models.encoder import CellGrid, Encoder, SizedEncoder, frozen, kept_buffers
from likewise.runs import Run, Side

REMEDY = "wrap it in a module whose forward returns them"


def dry_run(module: nn.Module, input_shape: tuple[int, ...], name: str) -> Tensor:
    """Return features or maps of two inputs of zeros, in evaluation mode; keep buffers, and give lazy layers shapes."""
    weight = weight_like(module)
    try:
        with frozen(module), kept_buffers(module):
            outputs = module(torch.zeros(2, *input_shape, dtype=weight.dtype, device=weight.device))
    except Exception as error:
        raise ValueError(
            f"expected {name} to take inputs of shape {tuple(input_shape)}, got {type(error).__name__}: "
            f"{shortened(str(error))}: if the images are too small for it, choose larger ones or a shallower encoder"
        ) from error
    if not isinstance(outputs, Tensor):
        raise ValueError(  # noqa: TRY004 - bad input is always a ValueError
            f"expected {name} to return a tensor, got {type(outputs).__name__}: {REMEDY}"
        )
    if outputs.ndim not in {2, 4} or len(outputs) != 2 or outputs.numel() == 0 or not outputs.is_floating_point():
        raise ValueError(
            f"expected {name} to return features (2, D) or maps (2, D, H, W) for two inputs of shape "
            f"{tuple(input_shape)}, got {tuple(outputs.shape)} of {outputs.dtype}: {REMEDY}"
        )
    return outputs


def _memory_format(module: nn.Module, input_shape: tuple[int, ...]) -> torch.memory_format:
    """Return channels last if convolutions are faster with it, unless it raises an error, as in a `view` of maps."""
    if len(input_shape) != 3 or not any(isinstance(part, nn.Conv2d) for part in module.modules()):
        return torch.contiguous_format
    blank = weight_like(module).new_zeros(2, *input_shape).contiguous(memory_format=torch.channels_last)
    try:
        with frozen(module), kept_buffers(module):
            module(blank)
    except Exception:  # noqa: BLE001 - any error is due to this format alone
        return torch.contiguous_format
    return torch.channels_last


def weight_like(module: nn.Module) -> Tensor:
    """Return an empty tensor with the dtype and device of a module's weights; float32 on the CPU if it has none."""
    floating = (some for some in chain(module.parameters(), module.buffers()) if some.is_floating_point())
    first = next(floating, torch.zeros(0))
    return torch.zeros(0, dtype=first.dtype, device=first.device)


def shortened(message: str, length: int = 160) -> str:
    """Return another library's message in one line of at most about `length` characters."""
    text = " ".join(message.split())
    return text if len(text) <= length else text[:length].rsplit(" ", 1)[0] + " …"


@final
class Wrapped(SizedEncoder):
    """Any module as an encoder: `--encoder Wrapped --encoder.module my.Net`.

    The length of a feature vector comes from a dry run on zeros, which does not change the module's buffers.

    Args:
        input_shape: The shape of one input; the command fills it in from the data.
        module: Takes (N, *input_shape), floating-point, and returns features (N, D), or feature maps (N, D, H, W),
            which are averaged.
        stride: Pixels between neighbouring cells of the feature maps, needed only for mixed queries.
        cell_start: The start of the first cell, in pixels, if the stride is given: 0 if pooling or patches divide the
            image, −(stride − 1) / 2 if convolutions with a stride are centred on pixels, as in a ResNet.
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
                f"expected cell_start in pixels beside a stride, got {cell_start} and stride {stride}: "
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
        self._format = _memory_format(module, self.input_shape)
        self._has_maps = outputs.ndim == 4
        self._feature_dim = outputs.shape[1]
        weight = weight_like(module)
        self.mean, self.std = self.mean.to(weight), self.std.to(weight)

    @property
    def cell_grid(self) -> CellGrid:
        return super().cell_grid if self._grid is None else self._grid

    def maps(self, inputs: Float[Tensor, "n ch h w"]) -> Float[Tensor, "n d hm wm"]:
        return self._outputs(inputs) if self._has_maps else super().maps(inputs)

    def forward(self, inputs: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        return self.pool(self.maps(inputs)) if self._has_maps else self._outputs(inputs)

    def _outputs(self, inputs: Float[Tensor, "n ..."]) -> Tensor:
        return self.module(self.standardized(inputs, self._format))


@final
class Given(nn.Module):
    """A placeholder for a network passed as an object, which a configuration cannot make."""

    def __init__(self) -> None:
        raise ValueError(
            "expected the network that this training was given as an object, got none: give it, encoder=network to "
            "likewise.train, or name an encoder; of pairs, inputs.shared lets both sides have it"
        )


@final
class FromRun(Encoder):
    """The encoder trained by another run, with its weights, mean and standard deviation.

    Args:
        input_shape: The shape of one input, equal to the input shape of the run's encoder; the command fills it in from
            the data.
        run: The run's folder.
        side: The encoder's side, in a run of pairs: "first" or "second".
        trained: Whether it begins with the run's weights; otherwise it is the same network with random ones.

    Raises:
        ValueError: The folder is not a run's, the run has not trained an encoder yet, or inputs have another shape.

    Attributes:
        encoder: The encoder.
        spec: The class and the arguments of the encoder.
    """

    def __init__(
        self, input_shape: tuple[int, ...], run: Path | str, side: Side = "first", *, trained: bool = True
    ) -> None:
        super().__init__(input_shape or (1,))
        opened = Run.open(run)
        self.spec: Spec = opened.encoder_spec(side)
        self.trained = trained
        encoder: Any = opened.encoder(side) if trained else instantiate(self.spec, Encoder)
        expected = tuple(encoder.input_shape)
        if expected != tuple(input_shape):
            raise ValueError(
                f"expected inputs of shape {expected}, which the encoder of {run} was made for, "
                f"got {tuple(input_shape)}: give data of that shape; data.size resizes images"
            )
        self.encoder: Encoder = encoder.train()

    @property
    def feature_dim(self) -> int:
        return self.encoder.feature_dim

    def encode(self, inputs: Tensor | LazyInputs, *args: Any, **kwargs: Any) -> Float[Tensor, "n d"]:
        return self.encoder.encode(inputs, *args, **kwargs)

    def observe(self, inputs: Tensor | LazyInputs) -> None:
        """Keep the mean and standard deviation of the run's training part."""

    def forward(self, inputs: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        return self.encoder(inputs)
