"""Photos to be written into files: smooth, as a JPEG's are, and no two alike."""

import numpy as np
from PIL import Image


def smooth(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """Return an RGB image of a width and height, in which neighbours are alike."""
    small = Image.fromarray(rng.integers(0, 255, (6, 6, 3), dtype=np.uint8))
    return small.resize(size, Image.Resampling.BICUBIC)
