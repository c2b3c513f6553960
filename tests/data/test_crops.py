"""Crops of whole images where they are decoded: against a plain loop over Pillow, whoever reads them."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from photos import smooth
from PIL import Image, ImageOps

from likewise.data import (
    Chain,
    ColourJitter,
    Folder,
    RandomAffine,
    RandomResizedCrop,
    SimCLRViews,
    Views,
    derive_seed,
    image_files,
)
from likewise.data.augmentation import Augmentation
from likewise.data.augmentation.spatial import DRAWS_PER_CROP, TRIES
from likewise.data.image_files import Crops, ImageFiles
from likewise.data.lazy_inputs import JoinedRows, SomeRows
from likewise.data.preprocessing import ImagePreprocessing
from likewise.training.data import CROPS, Loader, Position

SIZES = [(40, 30), (31, 64), (16, 16), (200, 37), (12, 9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Smooth images of several sizes in two classes: PNG, JPEG, one turned by its EXIF, and two that break."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(20):
        width, height = SIZES[number % len(SIZES)]
        image, place = smooth(rng, (width, height)), root / "ab"[number % 2]
        place.mkdir(exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 4 else 1
        kind = "jpg" if number % 3 == 0 else "png"
        image.save(place / f"{number:02}.{kind}", exif=exif, **({"quality": 95} if kind == "jpg" else {}))
    for number in (8, 13):
        path = next(root.glob(f"*/{number:02}.*"))
        path.write_bytes(path.read_bytes()[:90])
    return root


def box_of(numbers, height, width, scale, ratio):
    """Return left, top, right and bottom as torchvision does: the first of ten boxes that fits, or the middle."""
    areas, ratios, tops, lefts = numbers[:-1].reshape(4, TRIES + 1).tolist()
    for area, log, top, left in list(zip(areas, ratios, tops, lefts, strict=True))[:TRIES]:
        pixels = height * width * (scale[0] + (scale[1] - scale[0]) * area)
        shape = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * log)
        w, h = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
        if 0 < w <= width and 0 < h <= height:
            y, x = math.floor((height - h + 1) * top), math.floor((width - w + 1) * left)
            return x, y, x + w, y + h
    shape = min(max(width / height, ratio[0]), ratio[1])
    w, h = min(width, round(height * shape)), min(height, round(width / shape))
    return (width - w) // 2, (height - h) // 2, (width - w) // 2 + w, (height - h) // 2 + h


def plainly(path, numbers, crop, sides):
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    left, top, right, bottom = box_of(numbers, image.height, image.width, crop.scale, crop.ratio)
    view = image.crop((left, top, right, bottom)).resize(sides[::-1], Image.Resampling.BILINEAR)
    pixels = np.asarray(view).transpose(2, 0, 1)
    return pixels[:, :, ::-1] if numbers[-1] < crop.flip else pixels


@pytest.mark.parametrize("sides", [(8, 8), (12, 5), (48, 48)])
def test_crops_are_those_of_a_loop(folder, sides):
    """Equal where the decoder has one scale; a JPEG at a smaller one differs as little as its own resampling does."""
    made, crop = ImagePreprocessing(3, *sides), RandomResizedCrop(scale=(0.1, 1.0), ratio=(0.5, 2.0))
    numbers = torch.rand(200, 4, DRAWS_PER_CROP)
    kinds = set()
    for turn, path in enumerate(sorted(folder.glob("*/*")) * 4):
        if path.stem in {"08", "13"}:
            continue
        own = numbers[turn]
        with Image.open(path) as image:
            views = made.crops(image, partial(crop.boxes, own))
        for view, of in zip(views.numpy(), own, strict=True):
            apart = np.abs(view.astype(int) - plainly(path, of.numpy(), crop, sides)).mean()
            assert apart <= (0 if path.suffix == ".png" else 6)
            kinds.add((path.suffix, bool(of[-1] < crop.flip)))
    assert len(kinds) == 4


@pytest.mark.parametrize(
    ("kind", "orientation"), [("png", 1), ("png", 6), ("tiff", 1), ("tiff", 3), ("tiff", 6), ("tiff", 8), ("webp", 8)]
)
def test_turned_images_are_cropped_upright(tmp_path, kind, orientation):
    """Whatever Pillow does to the size of a turned image as it opens it; so are their headers."""
    rng, exif = np.random.default_rng(0), Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"1.{kind}"
    Image.fromarray(rng.integers(0, 255, (20, 66, 3), dtype=np.uint8)).save(path, exif=exif, lossless=True)
    crop, numbers = RandomResizedCrop(scale=(0.1, 0.5)), torch.rand(9, DRAWS_PER_CROP)
    with Image.open(path) as image:
        views = ImagePreprocessing(3, 8, 8).crops(image, partial(crop.boxes, numbers))
    for view, own in zip(views.numpy(), numbers.numpy(), strict=True):
        assert np.array_equal(view, plainly(path, own, crop, (8, 8)))
    assert image_files._header(path, upright=True).size == ((66, 20) if orientation in {6, 8} else (20, 66))  # noqa: SLF001


class Least(Augmentation):
    """An augmentation of one's own: images from 0 to 1, as in memory."""

    def change(self, images, draw, /):
        assert images.is_floating_point()
        return images.clamp(0.2, 0.5) + 0 * draw.uniform(1)[:, :, None, None]


@pytest.mark.filterwarnings("ignore:an image that cannot be read", "ignore:left out 2 of 20 images")
def test_what_follows_a_crop_takes_images_from_0_to_1(folder):
    views = Views(batch_size=6, augmentation=Chain([RandomResizedCrop(), Least()]))
    for memory in (0, 1):
        samples = Folder(str(folder), size=8, memory=memory).load()
        views.fit(samples)
        batch = next(iter(Loader(samples, views, seed=5)))
        low, high = map(float, views.on_device(batch)["inputs"].aminmax())
        assert (round(low, 4), round(high, 4)) == (0.2, 0.5)
        assert batch.get("cropped", False) == (memory == 0)


def test_parts_that_are_joined_are_cropped_as_each_is(folder):
    files = ImageFiles(sorted(folder.glob("*/*")), ImagePreprocessing(3, 8, 8))
    joined = SomeRows(JoinedRows(SomeRows(files, torch.tensor([5, 1, 7])), files), torch.tensor([4, 0, 2, 10]))
    crops = Crops.of(RandomResizedCrop(), 2, joined)
    numbers = crops.numbers(3, 4, slice(0, 4))
    expected = crops.read(files, torch.tensor([1, 5, 7, 7]), numbers)
    assert torch.equal(crops.read(joined, torch.arange(4), numbers), expected)
    assert Crops.of(RandomResizedCrop(), 2, JoinedRows(files, torch.zeros(2, 3, 8, 8, dtype=torch.uint8))) is None
    padded = ImageFiles(files.items, ImagePreprocessing(3, 8, 8, "pad"))
    for augmentation, inputs in ((SimCLRViews(), padded), (RandomAffine(), files), (None, files)):
        assert Crops.of(augmentation, 2, inputs) is None


def test_a_view_begins_with_a_crop_or_not():
    crop, colour = RandomResizedCrop(size=9, scale=(0.3, 0.4)), ColourJitter()
    assert crop.split() == (crop, None)
    assert Chain([crop]).split() == (crop, None)
    first, rest = Chain([crop, colour]).split()
    assert (first, rest.augmentations) == (crop, [colour])
    first, rest = Chain([SimCLRViews(blur=0.5, scale=(0.3, 1.0)), colour]).split()
    assert (first.scale, first.size) == ((0.3, 1.0), None)
    assert [type(one).__name__ for one in rest.augmentations] == ["Chain", "ColourJitter"]
    for other in (RandomAffine(), Chain([colour, crop])):
        assert other.split() == (None, other)


def batches_of(folder, augmentation, *, workers=0, rank=0, processes=1, batch=0):
    samples = Folder(str(folder), size=8, memory=0).load()
    views = Views(batch_size=6, augmentation=augmentation)
    views.fit(samples)
    place = Position(1, batch, rank, processes)
    loader = Loader(samples, views, seed=5, position=lambda: place, workers=workers)
    found = list(loader)
    return [(one["sample_index"], one["inputs"], views.on_device(one)["inputs"]) for one in found], loader


def equal(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)
    )


@pytest.mark.filterwarnings("ignore:an image that cannot be read")
def test_batches_are_the_same_whoever_reads_them(folder):
    whole, loader = batches_of(folder, SimCLRViews())
    assert [inputs.shape for _, inputs, _ in whole] == [(6, 2, 3, 8, 8)] * 3
    assert all(views.shape == inputs.shape and views.dtype == torch.float32 for _, inputs, views in whole)
    assert len(loader.lost) == 2
    workers, _ = batches_of(folder, SimCLRViews(), workers=2)
    assert equal(whole, workers)
    later, _ = batches_of(folder, SimCLRViews(), batch=1)
    assert equal(whole[1:], later)
    halves = [batches_of(folder, SimCLRViews(), rank=rank, processes=2)[0] for rank in (0, 1)]
    joined = [tuple(map(torch.cat, zip(*pair, strict=True))) for pair in zip(*halves, strict=True)]
    assert equal(whole, joined)


@pytest.mark.filterwarnings("ignore:an image that cannot be read")
def test_crops_of_a_batch_are_those_of_its_images(folder):
    """Each is a box of its own image, at a place that only the step decides; two views differ."""
    crop = RandomResizedCrop(scale=(0.2, 1.0))
    whole, loader = batches_of(folder, crop)
    files = [str(path) for path in loader.samples.inputs.all_rows.items]
    for step, (rows, inputs, views) in enumerate(whole):
        assert torch.allclose(views, inputs / 255)
        numbers = Crops(crop, 2).numbers(derive_seed(5, CROPS, 1, step), 6, slice(0, 6))
        for row, of, own in zip(rows.tolist(), inputs.numpy(), numbers.numpy(), strict=True):
            path = files[int(loader.samples.inputs.rows[row])]
            for view, one in zip(of, own, strict=True):
                apart = np.abs(view.astype(int) - plainly(path, one, crop, (8, 8))).mean()
                assert apart <= (0 if path.endswith("png") else 6)
