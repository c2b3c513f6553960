"""The grid of feature maps' cells in the image."""

from typing import NamedTuple


class CellGrid(NamedTuple):
    """Cell i covers the pixels from start + i · stride to start + (i + 1) · stride, in height and in width."""

    stride: int
    """Pixels between neighbouring cells."""
    start: float
    """The pixel where the first cell begins: 0 where pooling or patches divide the image; −(stride − 1) / 2 where
    convolutions with a stride centre cell i on pixel i · stride, as in a ResNet."""
