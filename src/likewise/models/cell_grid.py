"""Where the cells of feature maps lie in the image, followed through the operations of one forward pass."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from likewise.models.rows import tensors_of

# operations that leave cells where they are, besides those that torch tags as of one number at a time
COPIES = {"clone", "_to_copy", "copy_", "detach", "alias", "cat", "view", "_unsafe_view"}
UNTAGGED = {"native_dropout", "hardswish", "hardswish_", "_prelu_kernel", "masked_fill"}
NORMS = ("batch_norm", "group_norm", "layer_norm")
PADS = {"constant_pad_nd", "reflection_pad2d", "replication_pad2d"}
WINDOWS = {"convolution", "max_pool2d", "max_pool2d_with_indices", "avg_pool2d"}


class CellGrid(NamedTuple):
    """Cell i covers the pixels from start + i · stride to start + (i + 1) · stride, in height and in width."""

    stride: int
    """Pixels between neighbouring cells."""
    start: float
    """Where the first cell begins: 0 where pooling or patches divide the image; −(stride − 1) / 2 where convolutions
    with a stride centre cell i on pixel i · stride, as in a ResNet."""

    def cell_of_pixels(self, side: int, cells: int) -> Tensor:
        """Return for each pixel of a side its cell, (side,) of int64; the first or last beyond the cells' ends.

        Example:
            >>> CellGrid(stride=4, start=-1.5).cell_of_pixels(8, cells=2)
            tensor([0, 0, 1, 1, 1, 1, 1, 1])
        """
        middles = torch.arange(side) + 0.5
        return ((middles - self.start) / self.stride).floor().long().clamp(0, cells - 1)


def followed(maps: Callable[[Tensor], Tensor], images: Tensor) -> CellGrid | None:
    """Find where the cells of a function's maps lie, from the operations that it runs (Araujo et al., 2019).

    A convolution or pool of kernel k, stride s, padding p and dilation d, on cells of stride S that start at a, has

        stride   S · s
        start    a + S · (d (k − 1) + 1 − s − 2p) / 2

    Padding and slices move and thin cells. Operations of one number at a time, normalisation and copies keep them.

    The result is None if an operation is any other, such as a patch embedding's reshaping, or paths through the network
    disagree, or height and width do.
    """
    with torch.inference_mode(mode=False), torch.no_grad():
        blank = torch.zeros_like(images)  # no inference tensor, whose operations come in other parts
        with _Follower(blank) as follower:
            found = follower.of(maps(blank))
    if found is None or found[0] != found[1]:
        return None
    return CellGrid(found[0].stride, found[0].start)


class _Axis(NamedTuple):
    stride: int = 1
    start: float = 0.0

    def windows(self, size: int, stride: int, padding: int) -> "_Axis":
        return _Axis(self.stride * stride, self.start + self.stride * (size - stride - 2 * padding) / 2)


_Grid = tuple[_Axis, _Axis]  # of height and width


class _Follower(TorchDispatchMode):
    """Knows of every tensor that comes from the images where its cells lie, or that this is lost."""

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self._known: dict[int, tuple[Tensor, _Grid | None]] = {}  # a tensor is kept, as another may get its id
        self._lost = False
        self._note(images, (_Axis(), _Axis()))

    def of(self, tensor: Tensor) -> _Grid | None:
        return self._known[id(tensor)][1] if id(tensor) in self._known and not self._lost else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        seen = [some for some in tensors_of((args, given)) if id(some) in self._known]
        if seen:
            for output in tensors_of(result):
                self._note(output, self._grid(func, args, given, seen, output))
            if func._schema.is_mutable and not any(some is args[0] for some in seen):  # noqa: SLF001
                self._lost = True  # written into a tensor, or a part of one, that is used elsewhere
        return result

    def _note(self, tensor: Tensor, grid: _Grid | None) -> None:
        if id(tensor) in self._known and self.of(tensor) != grid:
            self._lost = True  # changed in place, and with it what it is a part of
        self._known[id(tensor)] = tensor, grid

    def _grid(self, func: Any, args: Any, kwargs: Any, seen: list[Tensor], output: Tensor) -> _Grid | None:
        name = func.overloadpacket.__name__
        if name in WINDOWS | PADS | {"slice"}:
            grid = self.of(args[0])
            return None if grid is None or output.ndim != 4 else _moved(name, _named(func, args, kwargs), grid)
        kept = torch.Tag.pointwise in func.tags or name in COPIES | UNTAGGED or any(norm in name for norm in NORMS)
        if not kept:
            return None
        grids = {self.of(some) for some in seen if some.shape[-2:] == output.shape[-2:]}
        return grids.pop() if len(grids) == 1 else None


def _named(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    declared = func._schema.arguments  # noqa: SLF001 - torch offers it nowhere else
    return {one.name: one.default_value for one in declared} | dict(
        zip((one.name for one in declared), args, strict=False), **kwargs
    )


def _moved(name: str, given: dict[str, Any], grid: _Grid) -> _Grid | None:
    """Return the grid after an operation that moves or thins cells."""
    if name == "slice":
        axis, size = given["dim"] % 4 - 2, given["self"].shape[given["dim"]]
        if axis < 0:
            return grid
        begin, _, step = slice(given["start"], None, given["step"]).indices(size)
        moved = grid[axis].windows(1, step, -begin)
        return (moved, grid[1]) if axis == 0 else (grid[0], moved)
    if name in PADS:
        values = [1], [1], (given["pad" if name == "constant_pad_nd" else "padding"] + [0, 0])[2::-2], [1]
    elif name == "convolution":
        if given["transposed"]:
            return None
        values = given["weight"].shape[2:], given["stride"], given["padding"], given["dilation"]
    else:
        kernel = given["kernel_size"]
        values = kernel, given["stride"] or kernel, given["padding"], given.get("dilation", [1])
    windows = zip(*((list(sides) * 2)[:2] for sides in values), strict=True)
    height, width = (axis.windows(d * (k - 1) + 1, s, p) for axis, (k, s, p, d) in zip(grid, windows, strict=True))
    return height, width
