"""Headers of image files, which are cached, and the preprocessing of images for an encoder."""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, final, get_args

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from likewise.data.lazy_inputs import track
from likewise.files.formats import PARTIAL_SUFFIX

if TYPE_CHECKING:
    from PIL.Image import Image

    from likewise.data.augmentation.spatial import Boxes

T = TypeVar("T")
R = TypeVar("R")
MIN_CACHED = 1000  # headers; fewer are not worth keeping
MAX_AHEAD = 256  # items that threads process ahead of need
HEADERS_PER_TASK = 32  # headers read in one task of a thread: in memory they take 40 µs each
Resize = Literal["crop", "pad", "squash"]
DEEP_GREY = "grey of more than 8 bits"
GREY_MODES = {"1", "L", "LA", "I", "I;16", "I;16B", "I;16L"}  # Pillow's modes


class Header(NamedTuple):
    """The facts in the header of an image file."""

    grey: bool
    kind: str
    size: tuple[int, int]  # height and width, in pixels


def read_headers(
    keys: Sequence[str | None], item: Callable[[int], T], read: Callable[[T], Header | None], how: str
) -> list[Header | None]:
    """Read the headers of images in threads; None for one that cannot be read.

    From `MIN_CACHED` on they are cached by path, time of change and length. A key locates an image: its file; for an
    image within a file, that file, NUL and its position there; or None, to cache nothing.
    """

    def read_all(rows: Sequence[int]) -> list[Header | None]:
        read_ahead = in_threads(read, map(item, rows), HEADERS_PER_TASK)
        return [header for _, header in zip(track(rows, "reading sizes of images"), read_ahead, strict=True)]

    known = [os.path.abspath(key) for key in keys if key is not None]  # noqa: PTH100 - ten times as fast as Path
    cache = _cache_path(known, how) if len(known) == len(keys) >= MIN_CACHED else None
    if cache is None:
        return read_all(range(len(keys)))
    state_of = lru_cache(maxsize=1)(_state)  # images within a file follow each other
    states, entries = [state_of(key.partition("\0")[0]) for key in known], _entries(cache)
    headers = [_header(entries.get(key), state) for key, state in zip(known, states, strict=True)]
    unknown = [row for row, header in enumerate(headers) if header is None]
    for row, header in zip(unknown, read_all(unknown), strict=True):
        headers[row] = header
    if any(headers[row] for row in unknown):
        for key, state, header in zip(known, states, headers, strict=True):
            if header is not None:
                entries[key] = [*state, header.grey, header.kind, *header.size]
        _save(cache, entries)
    return headers


def in_threads(function: Callable[[T], R], items: Iterable[T], together: int = 1) -> Iterator[R]:
    """Yield a function's results in order, computed in threads, in tasks of `together` items, at most a chunk ahead."""
    left = iter(items)
    with ThreadPoolExecutor() as pool:
        while some := list(islice(left, MAX_AHEAD)):
            parts = [some[start : start + together] for start in range(0, len(some), together)]
            yield from chain.from_iterable(pool.map(lambda part: list(map(function, part)), parts))


def _cache_path(keys: Sequence[str], how: str) -> Path | None:
    try:
        root = os.path.commonpath([min(keys), max(keys)])  # common to the first and the last, and so to all
        folder = os.environ.get("LIKEWISE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "likewise")
        digest = hashlib.sha256(f"{how} {root}".encode(errors="surrogateescape")).hexdigest()[:32]
        return Path(folder).expanduser() / f"headers-{digest}.json"
    except (RuntimeError, ValueError):  # no home, or files on two drives
        return None


def _state(file: str) -> tuple[int, int]:
    with suppress(OSError, ValueError):
        state = os.stat(file)  # noqa: PTH116 - faster than Path
        return state.st_mtime_ns, state.st_size
    return -1, -1


def _entries(cache: Path) -> dict[str, Any]:
    try:
        entries = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _header(entry: Any, state: tuple[int, int]) -> Header | None:
    match entry:
        case [int(changed), int(length), bool(grey), str(mode), int(height), int(width)] if (changed, length) == state:
            return Header(grey, mode, (height, width))
        case _:
            return None


def _save(cache: Path, entries: dict[str, Any]) -> None:
    partial = cache.with_suffix(f".{os.getpid()}{PARTIAL_SUFFIX}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(entries), encoding="utf-8")
        partial.replace(cache)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        why = error.strerror or type(error).__name__
        message = f"sizes of images are read again next time, as {cache.parent} takes none ({why})"
        warnings.warn(f"{message}: LIKEWISE_CACHE names another folder", stacklevel=2)


@final
@dataclass(frozen=True)
class ImagePreprocessing:
    """The preprocessing of images: upright by EXIF orientation, grey or RGB of 8 bits, and resized to one size.

    Transparency shows white. Grey images of more bits keep the highest 8, and pixels above their range become
    white. Resizing is bilinear, over all covered pixels.

    Args:
        channels: 1 for grey, or 3 for RGB.
        height: Pixels from top to bottom.
        width: Pixels from left to right.
        resize: "crop" takes the largest central region of the target aspect ratio; "pad" adds black around the image;
            "squash" stretches the whole image.
        bits: Bits in use in grey images of more than 8 bits, such as 12 for many cameras: 8, 10, 12, 14, 16 or more. A
            source derives them from the largest value in 32 of its images. None: from each image's own values.

    Raises:
        ValueError: A number is out of range, or the rule is unknown.

    Example:
        >>> from PIL import Image
        >>> photo = Image.new("CMYK", (40, 20))
        >>> ImagePreprocessing(1, 16, 16, "pad")(photo)[0, :, 0].tolist()
        [0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0]
    """

    channels: int
    height: int
    width: int
    resize: Resize = "crop"
    bits: int | None = None

    def __post_init__(self) -> None:
        shape: Any = self.shape
        if not all(isinstance(number, int) for number in shape) or shape[0] not in {1, 3} or min(shape) < 1:
            raise ValueError(f"expected a shape (1 or 3, height, width), got {shape}: give encoder.input_shape")
        check_rule(self.resize)

    @classmethod
    def of(cls, images: Tensor, resize: Resize = "crop") -> "ImagePreprocessing":
        """Return the preprocessing that makes other images like these, (N, channels, height, width)."""
        channels, height, width = images.shape[1:]
        return cls(channels, height, width, resize)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a preprocessed image: (channels, height, width)."""
        return self.channels, self.height, self.width

    def __call__(self, image: "Image") -> UInt8[Tensor, "ch h w"]:
        """Preprocess a Pillow image; a truncated image, or one of unknown range, raises an error."""
        image.draft("RGB", (2 * self.width, 2 * self.height))  # a large JPEG is decoded faster at reduced size
        image = self.resized(plain_image(image, self.bits)).convert("RGB" if self.channels == 3 else "L")
        pixels = np.asarray(image).reshape(self.height, self.width, self.channels)
        return torch.from_numpy(np.array(np.moveaxis(pixels, -1, 0), order="C"))

    def crops(
        self, image: "Image", boxes: Callable[[int, int], "Boxes"], sides: tuple[int, int] | None = None
    ) -> UInt8[Tensor, "v ch h w"]:
        """Crop `boxes` of an upright image's height and width, each resized to `sides` from its own resolution."""
        # a JPEG is decoded at the smallest scale at which no section is enlarged
        from PIL import Image  # noqa: PLC0415 - only images in files need it

        high, wide = sides or (self.height, self.width)
        mode, scale, crop_boxes = "RGB" if self.channels == 3 else "L", 1.0, None
        if image.format == "JPEG":  # need not be decoded at full resolution
            drawn, (height, width) = image.width, upright_sides(image)
            crop_boxes = boxes(height, width)
            spare = max(1.0, float((crop_boxes.lengths / torch.tensor([high, wide])).min()))
            reduced = image.draft("RGB", (math.ceil(image.width / spare), math.ceil(image.height / spare)))
            scale = 1.0 if reduced is None else reduced[1][2] / drawn
        plain = plain_image(image, self.bits).convert(mode)
        starts, lengths, flips = (tensor.tolist() for tensor in crop_boxes or boxes(plain.height, plain.width))
        views = torch.empty(len(starts), self.channels, high, wide, dtype=torch.uint8)
        for view, (top, left), (tall, broad), flip in zip(views, starts, lengths, flips, strict=True):
            right, bottom = (left + broad) * scale, (top + tall) * scale
            if scale == 1:  # whole pixels: those beyond the section have no influence
                section, box = plain.crop((round(left), round(top), round(right), round(bottom))), None
            else:
                section, box = plain, (left * scale, top * scale, min(right, plain.width), min(bottom, plain.height))
            pixels = np.asarray(section.resize((wide, high), Image.Resampling.BILINEAR, box))
            pixels = pixels.reshape(high, wide, self.channels)
            view.copy_(torch.from_numpy(np.moveaxis(pixels[:, ::-1] if flip else pixels, -1, 0).copy()))
        return views

    def resized(self, image: "Image") -> "Image":
        from PIL import Image, ImageOps  # noqa: PLC0415 - only images in files need it

        size, bilinear = (self.width, self.height), Image.Resampling.BILINEAR
        if self.resize == "squash":
            return image.resize(size, bilinear)
        return (ImageOps.fit if self.resize == "crop" else ImageOps.pad)(image, size, bilinear)

    def of_tensor(self, images: Tensor) -> Tensor:
        """Bring images (N, channels, H, W), uint8 or from 0 to 1, to the size and the number of channels."""
        from PIL import Image  # noqa: PLC0415 - as above

        count, channels = images.shape[:2]
        if tuple(images.shape[2:]) != (self.height, self.width):
            sized = torch.empty(count, channels, self.height, self.width, dtype=images.dtype)
            for plane, whole in zip(sized.flatten(0, 1), images.flatten(0, 1), strict=True):
                plane.copy_(torch.from_numpy(np.array(self.resized(Image.fromarray(whole.cpu().numpy())))))
            images = sized
        if channels == self.channels:
            return images
        if self.channels == 3:
            return images.expand(-1, 3, -1, -1)
        weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)  # as Pillow's
        grey = (images.float() * weights).sum(dim=1, keepdim=True)
        return grey.round().to(torch.uint8) if images.dtype == torch.uint8 else grey


@final
@dataclass(frozen=True)
class FoundImages:
    """The kinds and sizes of images in their files, before preprocessing."""

    kinds: dict[str, int]  # counts of RGB, grey, CMYK, with alpha and so on, the most frequent first
    sizes: int  # the number of sizes
    smallest: tuple[int, int]  # height and width of an image with the fewest pixels
    largest: tuple[int, int]  # height and width of an image with the most pixels


def check_rule(resize: Any) -> None:
    """Raise a ValueError unless `resize` is a known rule for bringing images to a size."""
    if resize not in get_args(Resize):
        raise ValueError(f"expected resize as one of {', '.join(get_args(Resize))}, got {resize!r}")


def header_of(image: "Image", *, upright: bool) -> Header | None:
    """Return the header of a Pillow image; None if its range is unknown."""
    if not has_range(image):
        return None
    grey = image.mode in GREY_MODES
    deep = {"L": "grey", "1": "black and white"}.get(image.mode, DEEP_GREY)
    plain = deep if grey else {"P": "with a palette"}.get(image.mode, image.mode)
    size = upright_sides(image) if upright else (image.height, image.width)  # upright_sides decodes a PNG
    return Header(grey, "with alpha" if image.has_transparency_data else plain, size)


def upright_sides(image: "Image") -> tuple[int, int]:
    """Return height and width of a Pillow image, turned by its EXIF orientation; a turned TIFF is decoded."""
    from PIL import ExifTags  # noqa: PLC0415 - only images in files need it

    turned = image.getexif().get(ExifTags.Base.Orientation, 1) > 4
    if turned and image.format == "TIFF":  # some versions of Pillow have turned its size already
        image, turned = plain_image(image), False
    return (image.width, image.height) if turned else (image.height, image.width)


def plain_image(image: "Image", bits: int | None = None) -> "Image":
    """Return the image upright, grey or RGB, 8 bits per channel; see `ImagePreprocessing` on its bits."""
    from PIL import Image, ImageOps  # noqa: PLC0415 - only images in files need it

    if not has_range(image):
        raise ValueError("of no known range")
    ImageOps.exif_transpose(image, in_place=True)
    grey = image.mode in GREY_MODES
    if image.mode.startswith("I"):  # a conversion would clip it
        bits = bits or bits_of(image)
        image = Image.fromarray((np.asarray(image).clip(0, 2**bits - 1) >> (bits - 8)).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if grey else "RGB")


def has_range(image: "Image") -> bool:
    """Tell whether the range of an image is known; it is not in floating point, or with pixels below 0."""
    return image.mode != "F" and (image.mode != "I" or image.getextrema()[0] >= 0)  # pyright: ignore[reportOperatorIssue]


def bits_of(image: "Image") -> int:
    """Return the number of bits in use in a grey image: an even number, at least 8."""
    bits = max(8, int(np.asarray(image).max()).bit_length())
    return bits + bits % 2
