"""Photos to be written into files, and files of them within others."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image


def smooth(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """Return an RGB image of a width and height in which neighbours are alike, as in a photo; no two images are."""
    small = Image.fromarray(rng.integers(0, 255, (6, 6, 3), dtype=np.uint8))
    return small.resize(size, Image.Resampling.BICUBIC)


def shaded(root: Path, counts: dict[str, int]) -> dict[str, int]:
    """Write so many images into each folder, each of another shade of grey, and return the shades by path."""
    shades = {}
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True)
        for number in range(count):
            shades[f"{folder}/{number}.png"] = len(shades)
            Image.new("L", (8, 8), len(shades) - 1).save(root / folder / f"{number}.png")
    return shades


def encoded(pixels: np.ndarray, kind: str = "png") -> bytes:
    """Return an image as the bytes of a file."""
    Image.fromarray(pixels).save(content := io.BytesIO(), kind)
    return content.getvalue()


def write_tar(path: Path, files: Iterable[tuple[str, bytes]], form: int = tarfile.GNU_FORMAT) -> Path:
    """Write a tar of files, with names as they are on disk."""
    with tarfile.open(path, "w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for name, content in files:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return path
