"""Images in files: decoded all at once if they fit into memory, otherwise on demand, whole or as random crops."""

import io
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, final

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.utils.data import get_worker_info

from likewise.data.augmentation import Augmentation, Draw, RandomResizedCrop
from likewise.data.augmentation.spatial import DRAWS_PER_CROP
from likewise.data.lazy_inputs import JoinedRows, LazyInputs, SomeRows, Unreadable, track
from likewise.data.preprocessing import (
    DEEP_GREY,
    FoundImages,
    Header,
    ImagePreprocessing,
    Resize,
    bits_of,
    check_rule,
    has_range,
    header_of,
    in_threads,
    read_headers,
)
from likewise.data.samples import Source
from likewise.files.detection import exists
from likewise.files.formats import HEIC, UNREAD_SUFFIXES, as_text, first_of, image_suffixes

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
JUDGED_IMAGES = 32  # images of more than 8 bits inspected for the number of bits in use
BEGINNING = 2**16  # bytes read for the header of a file within another
Size = int | list[int] | None
"""Side of a square, or height and width, in pixels; None: unchanged."""


class Encoded(NamedTuple):
    """The content of an image file stored within another file, and its name in messages."""

    name: str
    content: bytes


class Within(NamedTuple):
    """An image file within another: its start and length, in bytes."""

    name: str
    file: Path
    offset: int
    length: int

    def content(self, most: int | None = None) -> bytes:
        length = self.length if most is None else min(most, self.length)
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.offset)
            content = file.read(length)
        if len(content) < length:
            raise OSError(f"{self.file} ends within what begins at byte {self.offset:,}")
        return content


Item = Path | Encoded | Within
ReadImages = tuple[Tensor | LazyInputs, Tensor, ImagePreprocessing, FoundImages | None]


@dataclass(repr=False, eq=False, kw_only=True)
class ImageSource(Source):
    """Abstract: a source of images in files.

    Args:
        size: Side of the square that images are resized to, in pixels, or height and width. None: all have one size.
        resize: How images of another aspect ratio are fitted to `size`: "crop" takes their middle, "pad" adds black,
            "squash" stretches; see `ImagePreprocessing`.
        memory: GiB of decoded images to hold in memory. Larger sets are decoded on demand.
    """

    size: Size = None
    resize: Resize = "crop"
    memory: float = 2.0

    def __post_init__(self) -> None:
        check_size(self.size, self.resize, self.memory)

    def read_images(self, items: Sequence[Item], rows: Sequence[int] | None = None) -> ReadImages:
        """Return images (n, channels, height, width), uint8, their items' indices, their preprocessing, their kinds.

        Images that would take too much memory are decoded on demand, and errors beyond the header then show only on
        reading. Unreadable files are left out, with a warning. With `made_of`, no header is read.
        """
        subset, rows = rows, range(len(items)) if rows is None else rows
        if self.made_of is not None:
            files, chosen = ImageFiles(items, self.made_of), torch.tensor(rows, dtype=torch.int64)
            return files if subset is None else files.take(chosen), chosen, self.made_of, None
        headers = _headers(items, rows, upright=self.size is None)
        readable = [row for row, header in zip(rows, headers, strict=True) if header is not None]
        known = [header for header in headers if header is not None]
        sizes = {header.size for header in known}
        if not readable:
            if not rows:
                raise ValueError("expected images, got none: check the path")
            first = f"{len(rows)} files that cannot be read as images, the first {_name(items[rows[0]])}"
            raise ValueError(f"expected images, got {first}{_why(items[rows[0]]) or ': check the path'}")
        if self.size is None:
            check_one_size(sizes)
        height, width = next(iter(sizes)) if self.size is None else sides(self.size)
        grey = all(header.grey for header in known)
        kinds, by_pixels = Counter(header.kind for header in known), sorted(sizes, key=math.prod)
        deep = [row for row, header in zip(rows, headers, strict=True) if header and header.kind == DEEP_GREY]
        judged = deep[:: -(-len(deep) // JUDGED_IMAGES) or 1]
        bits = max(in_threads(lambda row: _try_read(items[row], bits_of) or 8, judged), default=None)
        renamed = {DEEP_GREY: f"grey of {bits} bits"}
        kind_counts = {renamed.get(mode, mode): count for mode, count in kinds.most_common()}
        stats = FoundImages(kind_counts, len(sizes), by_pixels[0], by_pixels[-1])
        files = ImageFiles(items, ImagePreprocessing(1 if grey else 3, height, width, self.resize, bits))
        images: Tensor | LazyInputs = SomeRows(files, torch.tensor(readable))
        if not self.streams and math.prod(images.shape) <= self.memory * 2**30:
            images, readable = files.read(readable)
        elif (warn := getattr(items, "warn", None)) is not None:
            warn()
        lost = sorted(set(rows) - set(readable))
        if lost:
            why = {row: _why(items[row]) for row in lost}
            names = first_of([_name(items[row]) + why[row] for row in sorted(lost, key=lambda row: not why[row])])
            warnings.warn(f"left out {len(lost)} of {len(rows)} images, which cannot be read: {names}", stacklevel=2)
        return images, torch.tensor(readable, dtype=torch.int64), files.preprocessing, stats


@final
class ImageFiles(LazyInputs):
    """Images decoded on demand, uint8; an unreadable image is black, and listed by `unreadable`."""

    def __init__(self, items: Sequence[Item], preprocessing: ImagePreprocessing) -> None:
        self.shape, self.dtype = (len(items), *preprocessing.shape), torch.uint8
        self.items, self.preprocessing = items, preprocessing
        self._lost: set[int] = set()

    def __getitem__(self, rows: Tensor) -> Tensor:
        images = torch.zeros(len(rows), *self.shape[1:], dtype=torch.uint8)
        for image, row in zip(images, rows.tolist(), strict=True):
            item = self.items[row]
            pixels = _try_read(item, self.preprocessing)
            if pixels is not None:
                image.copy_(pixels)
                continue
            if not self._lost and get_worker_info() is None:  # training reports failures in workers
                warnings.warn(f"an image that cannot be read is black where it is indexed: {_name(item)}", stacklevel=3)
            self._lost.add(row)
        return images

    def crops(self, rows: Tensor, crop: RandomResizedCrop, numbers: Tensor) -> UInt8[Tensor, "n v ch h w"]:
        """Read rows, and crop V views of each whole image at its own resolution, by random numbers, (n, V, k)."""
        height, width = self.shape[2:] if crop.size is None else (crop.size, crop.size)
        views = torch.zeros(len(rows), numbers.shape[1], self.shape[1], height, width, dtype=torch.uint8)
        for output, row, draws in zip(views, rows.tolist(), numbers, strict=True):
            boxes = partial(crop.boxes, draws)
            cropped = _try_read(self.items[row], partial(self.preprocessing.crops, boxes=boxes, sides=(height, width)))
            if cropped is None:
                self._lost.add(row)
            else:
                output.copy_(cropped)
        return views

    def unreadable(self, rows: Tensor) -> list[Unreadable]:
        places = enumerate(rows.tolist()) if self._lost else ()
        return [Unreadable(position, row, _name(self.items[row])) for position, row in places if row in self._lost]

    def note_unreadable(self, rows: Tensor) -> None:
        self._lost.update(rows.tolist())

    def read(self, rows: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Decode images into memory, (n, channels, height, width), and return the n rows that could be decoded."""
        images = torch.empty(len(rows), *self.shape[1:], dtype=torch.uint8)
        kept: list[int] = []
        decoded = in_threads(partial(_try_read, make=self.preprocessing), (self.items[row] for row in rows))
        for row, pixels in zip(track(rows, "reading images"), decoded, strict=True):
            if pixels is not None:
                images[len(kept)] = pixels
                kept.append(row)
        return images[: len(kept)], kept


def read_image(file: str | Path, preprocessing: ImagePreprocessing | tuple[int, int, int]) -> UInt8[Tensor, "ch h w"]:
    """Read an image file as training and evaluation do.

    Args:
        file: The file.
        preprocessing: The preprocessing, or the shape (channels, height, width) to crop and resize the image to, such
            as `encoder.input_shape`.

    Raises:
        ValueError: The file cannot be read, or the shape is not an image's.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.NamedTemporaryFile(suffix=".png") as file:
        ...     Image.new("L", (40, 30), 255).save(file)
        ...     read_image(file.name, (3, 16, 16)).shape
        torch.Size([3, 16, 16])
    """
    transform: Any = preprocessing
    if not isinstance(transform, ImagePreprocessing):
        if not isinstance(transform, tuple | list) or len(transform) != 3:
            raise ValueError(f"expected a shape (1 or 3, height, width), got {transform}: give encoder.input_shape")
        transform = ImagePreprocessing(*transform)
    try:
        with _open_image(Path(file)) as image:
            return transform(image)
    except Exception as error:
        why = _why(Path(file)).strip(" ()") or f"{' '.join(str(error).split())[:160]}: check the file"
        raise ValueError(f"expected an image, got {file}, {why}") from error


def check_size(size: Size, resize: Resize = "crop", memory: float = 0.0) -> None:
    """Raise a ValueError unless images can be resized to `size` and `memory` is a number of GiB; 0 holds no images."""
    if size is not None and (len(sides(size)) != 2 or min(sides(size)) < 1):
        raise ValueError(f"expected data.size of at least 1 pixel, or a height and a width, got {size}: leave it out")
    check_rule(resize)
    if not memory >= 0:
        raise ValueError(f"expected data.memory of 0 GiB or more, got {memory}: 0 decodes images each time")


def sides(size: int | list[int]) -> list[int]:
    """Return a height and a width; a single number is the side of a square."""
    return [size, size] if isinstance(size, int) else list(size)


def check_one_size(sizes: Collection[tuple[int, int]]) -> None:
    """Refuse images of several sizes, (height, width)."""
    if len(sizes) > 1:
        small, large = (f"{width} by {height}" for height, width in (min(sizes), max(sizes)))
        got = f"{len(sizes)} sizes from {small} to {large} pixels"
        raise ValueError(f"expected images of one size, got {got}: set data.size")


def _headers(items: Sequence[Item], rows: Sequence[int], *, upright: bool) -> list[Header | None]:
    def key_of(item: Item) -> str | None:
        return (
            f"{item.file}\0{item.offset}" if isinstance(item, Within) else str(item) if isinstance(item, Path) else None
        )

    def item(index: int) -> Item:
        key = keys[index]
        return items[rows[index]] if key is None or "\0" in key else Path(key)

    listed = getattr(items, "files", None)  # a table lists all files at once
    keys = [key_of(items[row]) if listed is None else listed[row] for row in rows]

    return read_headers(keys, item, partial(_header, upright=upright), f"upright: {upright}")


def _header(item: Item, *, upright: bool) -> Header | None:
    if isinstance(item, Within) and item.length > BEGINNING:
        with suppress(OSError):
            begins = _header(Encoded(item.name, item.content(BEGINNING)), upright=upright)
            if begins is not None:
                return begins
    return _try_read(item, partial(header_of, upright=upright))


def _why(item: Item) -> str:
    """Return the reason for an unreadable image and the remedy, in parentheses, if they are known."""
    from PIL import Image  # noqa: PLC0415 - only images in files need it

    if isinstance(item, Path) and not exists(item):
        return " (which does not exist: check the path, in a table relative to its folder)"
    suffix = Path(_name(item)).suffix.lower()
    if suffix in UNREAD_SUFFIXES and suffix not in image_suffixes():
        first = "pip install 'likewise[heic]', or " if suffix in HEIC else ""
        return f" (a kind that Pillow does not read: {first}convert it to JPEG or PNG)"
    try:
        with _open_image(item) as image:
            if not has_range(image):
                return " (whose pixels are below 0 or of floating point, of no known range: write it with 8 or 16 bits)"
    except Image.DecompressionBombError as error:
        size, most = (f"{int(number):,}" for number in re.findall(r"\d+", str(error))[:2])
        return f" ({size} pixels, more than Pillow's {most}: make it smaller)"
    except Exception:  # noqa: BLE001 - a broken file can raise anything
        return ""
    return ""


def _try_read(item: Item, make: Callable[["Image"], T]) -> T | None:
    try:
        with _open_image(item) as image:
            return make(image)
    except Exception:  # noqa: BLE001 - a broken file can raise anything
        return None


def _open_image(item: Item) -> "Image":
    from PIL import Image  # noqa: PLC0415 - only images in files need it

    image_suffixes()  # makes formats read by an extension known, in workers too
    if isinstance(item, Path):
        return Image.open(item)
    return Image.open(io.BytesIO(item.content() if isinstance(item, Within) else item.content))


def _name(item: Item) -> str:
    return as_text(str(item) if isinstance(item, Path) else item.name)


class Crops(NamedTuple):
    """The random crops of each image in a step."""

    crop: RandomResizedCrop
    views: int

    @classmethod
    def of(cls, augmentation: Augmentation | None, views: int, inputs: Tensor | LazyInputs) -> "Crops | None":
        """Return the initial crops of views; None if there are none, or inputs are not images read on demand."""
        first = None if augmentation is None else augmentation.split()[0]
        return cls(first, views) if isinstance(first, RandomResizedCrop) and _can_crop(inputs) else None

    def numbers(self, seed: int, samples: int, span: slice) -> Float[Tensor, "n v k"]:
        """Return the random numbers of some of B samples, the same in every process."""
        rows = slice(span.start * self.views, span.stop * self.views)
        return Draw(seed, samples * self.views, rows).uniform(DRAWS_PER_CROP).unflatten(0, (-1, self.views))

    def read(self, inputs: Any, rows: Tensor, numbers: Float[Tensor, "n v k"]) -> UInt8[Tensor, "n v ch h w"]:
        if isinstance(inputs, SomeRows):
            return self.read(inputs.all_rows, inputs.rows[rows], numbers)
        if isinstance(inputs, ImageFiles):
            return inputs.crops(rows, self.crop, numbers)
        both = [(there, self.read(side, side_rows, numbers[there])) for side, there, side_rows in inputs.sides(rows)]
        views = torch.empty(len(rows), *both[0][1].shape[1:], dtype=torch.uint8)
        for there, read in both:
            views[there] = read
        return views


def _can_crop(inputs: Tensor | LazyInputs) -> bool:
    """Tell whether inputs are images read on demand whose preprocessing is a central crop."""
    if isinstance(inputs, SomeRows):
        return _can_crop(inputs.all_rows)
    if isinstance(inputs, JoinedRows):
        return _can_crop(inputs.first) and _can_crop(inputs.second)
    return isinstance(inputs, ImageFiles) and inputs.preprocessing.resize == "crop"
