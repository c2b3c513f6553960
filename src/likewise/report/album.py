"""The pictures of a page: thumbnails of samples, each of them once, in one mosaic."""

import math
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from likewise.diagnostics import plots
from likewise.diagnostics.plots.figure import image_address, thumbnails

MAX_SIDE = 64  # pixels of a thumbnail's longer side
MAX_PIXELS = 3_000_000  # of all thumbnails
MAX_LOSSLESS_PIXELS = 400_000  # pixels up to which a mosaic is stored losslessly
QUALITY = 75
NO_TILE = -1
BATCH = 256  # images that are loaded together


class Thumbnail(NamedTuple):
    """A sample on a page: its number in the album, -1 for none, and what is written below it."""

    tile: int
    name: str
    place: str
    text: str = ""


@final
class Album:
    """Thumbnails that sections ask for and a page shows; each sample has one, however often it is asked for."""

    def __init__(self, inputs_of: Any) -> None:
        self._inputs_of = inputs_of
        self._tiles: dict[tuple[str, int], int] = {}
        self._there: dict[str, bool] = {}

    def tiles(self, part: str, rows: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return the numbers of thumbnails of a part's samples by their rows, (N,): -1 where there are no images."""
        if not len(rows) or not self._has(part, rows[:1]):
            return torch.full((len(rows),), NO_TILE)
        return torch.tensor([self._tiles.setdefault((part, row), len(self._tiles)) for row in rows.tolist()])

    @property
    def html(self) -> str:
        """The mosaic as an element that the page's scripts read; empty without thumbnails."""
        if not self._tiles:
            return ""
        small = self._small()
        columns = math.ceil(math.sqrt(len(small)))
        rest = -len(small) % columns
        grid = functional.pad(small, (0, 0, 0, 0, 0, 0, 0, rest)).unflatten(0, (-1, columns))
        picture = grid.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
        height, width = small.shape[-2:]
        exact = picture.shape[0] * picture.shape[1] <= MAX_LOSSLESS_PIXELS
        pixels = (255 * picture.clamp(0, 1)).round().to(torch.uint8)
        source = image_address(pixels, "webp", lossless=exact, quality=QUALITY)
        data = {"source": source, "columns": columns, "width": width, "height": height}
        return plots.as_data(data, "album")

    def _has(self, part: str, row: Tensor) -> bool:
        if part not in self._there:
            images = self._inputs_of(part, row)
            self._there[part] = images is not None and images.ndim == 4
        return self._there[part]

    def _small(self) -> Tensor:
        """Return all thumbnails, (N, 3, height, width)."""
        small: list[Tensor] = [torch.empty(0)] * len(self._tiles)
        side = min(MAX_SIDE, math.isqrt(MAX_PIXELS // len(self._tiles)))
        for part in self._there:
            pairs = [(row, number) for (name, row), number in self._tiles.items() if name == part]
            for some in (pairs[start : start + BATCH] for start in range(0, len(pairs), BATCH)):
                rows, numbers = zip(*some, strict=True)
                images = thumbnails(self._inputs_of(part, torch.tensor(rows)), side)
                for number, image in zip(numbers, images, strict=True):
                    small[number] = image
        return torch.stack(small)
