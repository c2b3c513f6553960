"""Images in files: decoded all at once if they fit into memory, otherwise on demand."""

import io
import math
import re
import warnings
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from likewise.data.rows import Rows, SomeRows, Unreadable
from likewise.files.formats import UNREAD, first_of, image_suffixes

if TYPE_CHECKING:
    from PIL.Image import Image

_GREY = {"1", "L", "LA", "I", "I;16", "I;16B", "I;16L"}
_CHUNK = 256


@final
@dataclass(frozen=True)
class Encoded:
    """The content of an image file that is stored within another file, and its name in messages."""

    name: str
    content: bytes


Item = Path | Encoded


@final
class ImageFiles(Rows):
    """Images decoded on demand, uint8, channels first.

    With `square`, their central square is resized to the shape; otherwise they have it already. A file that cannot be
    decoded becomes a black image, which `unreadable` tells from others, and a warning names the first.
    """

    def __init__(self, items: Sequence[Item], shape: tuple[int, int, int], *, square: bool) -> None:
        self.shape, self.dtype = (len(items), *shape), torch.uint8
        self.items = items
        self._image_shape = shape
        self._square = square
        self._lost: set[int] = set()

    def __getitem__(self, rows: Tensor) -> Tensor:
        images = torch.zeros(len(rows), *self._image_shape, dtype=torch.uint8)
        for image, row in zip(images, rows.tolist(), strict=True):
            item = self.items[row]
            pixels = self.decode(item)
            if pixels is not None:
                image.copy_(torch.from_numpy(pixels))
                continue
            if not self._lost and get_worker_info() is None:  # of what workers read, the training tells
                warnings.warn(
                    f"an image that cannot be decoded is black where it is indexed: {_name(item)}", stacklevel=3
                )
            self._lost.add(row)
        return images

    def unreadable(self, rows: Tensor) -> list[Unreadable]:
        places = enumerate(rows.tolist()) if self._lost else ()
        return [Unreadable(place, row, _name(self.items[row])) for place, row in places if row in self._lost]

    def decode(self, item: Item) -> NDArray[np.uint8] | None:
        """Decode one file, (channels, height, width); None if that fails."""
        try:
            return _pixels(item, self._image_shape, square=self._square)
        except Exception:  # noqa: BLE001 - a broken file can raise anything
            return None

    def read(self, rows: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Decode images into memory, (n, channels, height, width), and return the n rows that could be decoded."""
        images = torch.empty(len(rows), *self._image_shape, dtype=torch.uint8)
        kept: list[int] = []
        with ThreadPoolExecutor() as pool:
            for start in range(0, len(rows), _CHUNK):
                chunk = rows[start : start + _CHUNK]
                decoded = pool.map(self.decode, [self.items[row] for row in chunk])
                for row, pixels in zip(chunk, decoded, strict=True):
                    if pixels is not None:
                        images[len(kept)] = torch.from_numpy(pixels)
                        kept.append(row)
        return images[: len(kept)], kept


def read_image(file: str | Path, shape: tuple[int, int, int]) -> UInt8[Tensor, "ch h w"]:
    """Read an image file as training and evaluation do: upright, grey or RGB, its central square resized.

    Args:
        file: The file.
        shape: (channels, height, width), such as `encoder.input_shape`. Channels are 1 for grey or 3; where height and
            width differ, the image must have that size.

    Raises:
        ValueError: The file cannot be read, or the shape isn't one of images.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (40, 30), 255).save(f"{folder}/white.png")
        ...     image = read_image(f"{folder}/white.png", (3, 16, 16))
        >>> image.shape, image.unique()
        (torch.Size([3, 16, 16]), tensor([255], dtype=torch.uint8))
    """
    given: Any = shape
    if not isinstance(given, tuple | list) or len(given) != 3 or given[0] not in {1, 3} or min(given) < 1:
        raise ValueError(f"expected a shape (1 or 3, height, width), got {given}: give encoder.input_shape")
    try:
        return torch.from_numpy(_pixels(Path(file), shape, square=shape[1] == shape[2]))
    except Exception as error:
        why = _why(Path(file)).strip(" ()") or f"{' '.join(str(error).split())[:160]}: check the file, and the shape"
        raise ValueError(f"expected an image of shape {tuple(shape)}, got {file}, {why}") from error


def read_images(items: Sequence[Item], size: int | None, memory: float) -> tuple[Tensor | Rows, Tensor]:
    """Read images into memory, or leave them to be decoded on demand if they would take too much memory.

    Every file's header is read either way. Files that cannot be read are left out; a warning counts them and names the
    first three. If images are decoded on demand, an error beyond the header shows only then. Returned are the images,
    (n, channels, height, width), uint8, with one channel if all are grey, and the indices of their items, (n,).
    """
    kinds = _headers(items, upright=size is None)
    readable = [row for row, kind in enumerate(kinds) if kind is not None]
    sizes = {kind[1:] for kind in kinds if kind is not None}
    if not readable:
        first = f"the first {_name(items[0])}{_why(items[0])}" if len(items) else ""
        got = f"{len(items)} files that cannot be read as images, {first}" if first else "none"
        raise ValueError(f"expected images, got {got}: check the path")
    if size is None:
        check_one_size(sizes)
    side = (size, size) if size is not None else next(iter(sizes))
    grey = all(kind[0] for kind in kinds if kind is not None)
    files = ImageFiles(items, (1 if grey else 3, *side), square=size is not None)
    images: Tensor | Rows = SomeRows(files, torch.tensor(readable))
    if math.prod(images.shape) <= memory * 2**30:
        images, readable = files.read(readable)
    lost = sorted(set(range(len(items))) - set(readable))
    if lost:
        why = {row: _why(items[row]) for row in lost}
        names = first_of([_name(items[row]) + why[row] for row in sorted(lost, key=lambda row: not why[row])])
        warnings.warn(f"left out {len(lost)} of {len(items)} images, which cannot be read: {names}", stacklevel=2)
    return images, torch.tensor(readable, dtype=torch.int64)


def check_size(size: int | None, memory: float = 0.0) -> None:
    """Raise a ValueError unless images of this size, in pixels, can be held in so many GiB; 0 GiB hold none of them."""
    if size is not None and size < 1:
        raise ValueError(f"expected data.size of at least 1 pixel, got {size}: leave it out to keep the images' own")
    if not memory >= 0:
        raise ValueError(f"expected data.memory of 0 GiB or more, got {memory}: 0 decodes images each time")


def check_one_size(sizes: Collection[tuple[int, int]]) -> None:
    """Refuse images of several sizes, (height, width)."""
    if len(sizes) > 1:
        small, large = (f"{width} by {height}" for height, width in (min(sizes), max(sizes)))
        raise ValueError(
            f"expected images of one size, got {len(sizes)} sizes from {small} to {large} pixels: set data.size"
        )


def _headers(items: Sequence[Item], *, upright: bool) -> list[tuple[bool, int, int] | None]:
    """Return whether each image is grey, its height and its width; None where that cannot be read."""
    found: list[tuple[bool, int, int] | None] = []
    remaining = iter(items[row] for row in range(len(items)))
    with ThreadPoolExecutor() as pool:
        while chunk := list(islice(remaining, _CHUNK)):
            found.extend(pool.map(partial(_header, upright=upright), chunk))
    return found


def _header(item: Item, *, upright: bool) -> tuple[bool, int, int] | None:
    from PIL import ExifTags, Image  # noqa: PLC0415 - only images in files need it

    try:
        with Image.open(_source(item)) as image:
            # only if needed: it makes a PNG decode
            turned = upright and image.getexif().get(ExifTags.Base.Orientation, 1) > 4
            width, height = image.size[::-1] if turned else image.size
            return None if image.mode == "F" else (image.mode in _GREY, height, width)
    except Exception:  # noqa: BLE001 - a broken file can raise anything
        return None


def plain_image(image: "Image", size: int | None) -> "Image":
    """Return the image upright, grey or RGB, 8 bits per channel; with a size, its central square of that side."""
    from PIL import Image, ImageOps  # noqa: PLC0415 - only images in files need it

    if image.mode == "F":
        raise ValueError("which has floating-point pixels, of no known range")
    ImageOps.exif_transpose(image, in_place=True)
    grey = image.mode in _GREY
    if image.mode.startswith("I"):  # 16 bits, which a conversion would clip
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    image = image.convert("L" if grey else "RGB")
    return image if size is None else ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)


def _why(item: Item) -> str:
    """Return why an image cannot be read and what to do, in parentheses, where that is known."""
    from PIL import Image  # noqa: PLC0415 - only images in files need it

    suffix = Path(_name(item)).suffix.lower()
    if suffix in UNREAD and suffix not in image_suffixes():
        return " (a kind that Pillow does not read: convert it to JPEG or PNG)"
    try:
        Image.open(_source(item)).close()
    except Image.DecompressionBombError as error:
        size, most = (f"{int(number):,}" for number in re.findall(r"\d+", str(error))[:2])
        return f" ({size} pixels, more than Pillow's {most}: make it smaller)"
    except Exception:  # noqa: BLE001 - a broken file can raise anything
        return ""
    return ""


def _pixels(item: Item, shape: tuple[int, int, int], *, square: bool) -> NDArray[np.uint8]:
    """Decode one file, (channels, height, width); whatever the file makes Pillow raise is raised."""
    from PIL import Image  # noqa: PLC0415 - only images in files need it

    channels, height, width = shape
    with Image.open(_source(item)) as image:
        if square:
            image.draft("RGB", (2 * width, 2 * height))  # a large JPEG is decoded faster at reduced size
        plain = plain_image(image, width if square else None)
        if plain.size != (width, height):
            raise ValueError(f"which has {plain.width} x {plain.height} pixels")
        pixels = np.array(plain.convert("RGB" if channels == 3 else "L")).reshape(height, width, channels)
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0))


def _source(item: Item) -> Any:
    return io.BytesIO(item.content) if isinstance(item, Encoded) else item


def _name(item: Item) -> str:
    return item.name if isinstance(item, Encoded) else str(item)
