"""Pixels of other kinds than 8 bits a channel: what is transparent, and grey images of more bits."""

import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from likewise.data import Folder, ImagePreprocessing, Shards, read_image

rng = np.random.default_rng(0)
COLOURS = rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)
ALPHA = rng.integers(0, 256, (12, 10), dtype=np.uint8)
ALPHA[:4], ALPHA[4:8] = 0, 255


def over_white(colours: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Blend each pixel with white by its opacity, from 0 to 255."""
    share = alpha[..., None] / 255 if colours.ndim == 3 else alpha / 255
    return colours * share + 255 * (1 - share)


def see_through() -> dict[str, tuple[Image.Image, dict[str, object], np.ndarray]]:
    """Images with transparency of every kind, options to save them, and what shows."""
    grey, palette = COLOURS[..., 0], Image.fromarray(COLOURS).quantize(8)
    of_palette, hidden = np.asarray(palette.convert("RGB")), np.asarray(palette) == 3
    none = np.where(hidden, 0, 255)
    one_colour = tuple(COLOURS[0, 0].tolist())
    spot = np.where((COLOURS[0, 0] == COLOURS).all(axis=2), 0, 255)
    return {
        "RGBA": (Image.fromarray(np.dstack([COLOURS, ALPHA])), {}, over_white(COLOURS, ALPHA)),
        "LA": (Image.fromarray(np.dstack([grey, ALPHA]), "LA"), {}, over_white(grey, ALPHA)),
        "P": (palette, {"transparency": 3}, over_white(of_palette, none)),
        "L, one level": (Image.fromarray(grey), {"transparency": 77}, np.where(grey == 77, 255, grey)),
        "RGB, one colour": (Image.fromarray(COLOURS), {"transparency": one_colour}, over_white(COLOURS, spot)),
    }


@pytest.mark.parametrize("kind", see_through())
def test_what_is_transparent_shows_white_and_not_what_it_hides(tmp_path, kind):
    image, options, expected = see_through()[kind]
    image.save(tmp_path / "image.png", **options)
    channels = 3 if expected.ndim == 3 else 1
    read = read_image(tmp_path / "image.png", (channels, 12, 10)).numpy()
    shown = read[0] if channels == 1 else np.moveaxis(read, 0, -1)
    np.testing.assert_allclose(shown, expected, atol=1)
    exact = np.isin(expected, [255, *range(256)]) & (np.round(expected) == expected)
    np.testing.assert_array_equal(shown[exact], expected[exact])


def test_all_levels_of_grey_that_8_bits_hold_are_kept(tmp_path):
    levels = np.arange(256).reshape(16, 16)
    kinds = [(np.uint16, "tif", 10), (np.uint16, "tif", 14), (np.int32, "tif", 12), (np.int32, "tif", 30)]
    for dtype, ending, bits in (*kinds, *((np.uint16, "png", bits) for bits in (8, 12, 16))):
        Image.fromarray((levels << (bits - 8)).astype(dtype)).save(tmp_path / f"a.{ending}")
        read = read_image(tmp_path / f"a.{ending}", (1, 16, 16))[0]
        np.testing.assert_array_equal(read.numpy(), levels)


def camera(folder, largest: list[int]) -> list[np.ndarray]:
    """Write an image for each largest value, in two classes, and return them."""
    images = [rng.integers(0, most + 1, (8, 8)).astype(np.uint16) for most in largest]
    for number, (image, most) in enumerate(zip(images, largest, strict=True)):
        image[0, 0] = most
        place = folder / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.png")
    return images


@pytest.mark.parametrize("memory", [0, 1])
def test_images_of_a_set_have_one_scale_the_dark_ones_stay_dark(tmp_path, memory):
    images = camera(tmp_path / "photos", [200, 4095, 3000, 100])
    samples = Folder(str(tmp_path / "photos"), size=8, memory=memory).load()
    assert samples.preprocessing == ImagePreprocessing(1, 8, 8, bits=12)
    assert samples.found.kinds == {"grey of 12 bits": 4}
    expected = {f"{'ab'[number % 2]}/{number}.png": image >> 4 for number, image in enumerate(images)}
    for name, image in zip(samples.ids, samples.inputs[torch.arange(4)], strict=True):
        np.testing.assert_array_equal(image[0].numpy(), expected[name])
    with Image.open(tmp_path / "photos/a/0.png") as dark:  # as the run reads it later
        np.testing.assert_array_equal(samples.preprocessing(dark)[0].numpy(), images[0] >> 4)


def test_a_set_in_a_tar_has_one_scale_and_what_is_lighter_than_white_is_white(tmp_path):
    camera(tmp_path / "photos", [1000, 4000])
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        tar.add(tmp_path / "photos", arcname=".")
    made_of = Shards(str(tmp_path / "photos.tar"), size=8).load().preprocessing
    assert made_of.bits == 12
    Image.fromarray(np.full((8, 8), 65535, np.uint16)).save(tmp_path / "white.png")
    assert made_of(Image.open(tmp_path / "white.png")).unique().tolist() == [255]


@pytest.mark.parametrize("pixels", [np.linspace(0, 1, 64, dtype=np.float32), np.arange(-9, 55, dtype=np.int32)])
def test_pixels_of_no_known_range_are_left_out_and_said(tmp_path, pixels):
    """They would become black or white."""
    camera(tmp_path / "photos", [255, 255, 255, 255])
    Image.fromarray(pixels.reshape(8, 8)).save(tmp_path / "photos/a/odd.tif")
    said = r"odd\.tif \(whose pixels are below 0 or of floating point, of no known range: write it with 8 or 16 bits\)"
    with pytest.warns(UserWarning, match=rf"left out 1 of 5 images, which cannot be read: .*{said}"):
        assert len(Folder(str(tmp_path / "photos"), size=8).load()) == 4
    with pytest.raises(ValueError, match=r"got .*odd\.tif, whose pixels are below 0 .*: write it with 8 or 16 bits"):
        read_image(tmp_path / "photos/a/odd.tif", (1, 8, 8))
