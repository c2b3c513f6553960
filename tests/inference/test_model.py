"""A trained model in use: the same photo gives the same features by every way in, and bad input is told in a line."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from in_use import encoder_run
from PIL import Image

from likewise.data import Folder, ImagePreprocessing, Table, Text
from likewise.inference import Model, load
from likewise.inference.inputs import samples_at
from likewise.models import MLP, BagOfTokens, ConvNet


def pictures(folder):
    """Write photos of many modes and sizes, and return their paths: what phones, scanners and web pages give."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (37, 52, 4), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(noise).resize((104, 74), Image.Resampling.BICUBIC))
    plain = Image.fromarray(smooth[..., :3])
    exif = Image.Exif()
    exif[0x0112] = 6
    plain.save(folder / "turned.jpg", exif=exif)
    plain.convert("CMYK").save(folder / "cmyk.jpg")
    plain.quantize(16).save(folder / "palette.png")
    Image.fromarray(smooth).save(folder / "alpha.png")
    Image.fromarray(smooth[..., 0].astype(np.uint16) * 257).save(folder / "deep.png")
    plain.convert("1").save(folder / "bits.png")
    plain.save(folder / "small.webp", lossless=True)
    plain.quantize(8).save(folder / "one.gif")
    return sorted(folder.iterdir())


@pytest.mark.parametrize(("resize", "memory"), [("crop", 0), ("pad", 2), ("squash", 0)])
def test_a_photo_has_the_same_features_by_every_way_in(tmp_path, resize, memory):
    files = pictures(tmp_path / "photos")
    names = [file.name for file in files]
    (tmp_path / "photos.csv").write_text("file\n" + "".join(f"photos/{name}\n" for name in names))
    cells = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    pq.write_table(pa.table({"image": cells}), tmp_path / "photos.parquet")
    options = {"label": "none", "size": [24, 32], "resize": resize, "memory": memory}
    read = Folder(str(tmp_path / "photos"), **options).load()
    assert read.preprocessing == ImagePreprocessing(3, 24, 32, resize, bits=16)
    torch.manual_seed(0)
    model = Model(ConvNet((3, 24, 32), width=4), read.preprocessing)
    expected = model.encoder.encode(read.inputs).numpy()
    assert list(read.ids) == names
    for other in ("photos.csv", "photos.parquet"):
        samples = Table(str(tmp_path / other), **options).load()
        np.testing.assert_allclose(model.encode(samples), expected, atol=1e-5)
        assert [name.rpartition("/")[2] for name in samples.ids] == names
    np.testing.assert_allclose(model.encode(files), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode([str(file) for file in files]), expected, atol=1e-5)
    opened = [Image.open(file) for file in files]
    np.testing.assert_allclose(model.encode(opened), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode(opened[0]), expected[:1], atol=1e-5)
    mixed = [files[0], *opened[1:]]
    np.testing.assert_allclose(model.encode(mixed), expected, atol=1e-5)
    webp = names.index("small.webp")
    pixels = np.asarray(opened[webp].convert("RGB"))
    for array in (pixels, torch.from_numpy(pixels.copy()).movedim(-1, 0)[None]):
        np.testing.assert_allclose(model.encode(array), expected[webp : webp + 1], atol=1e-5)
    for image in opened:
        image.close()


@pytest.mark.parametrize("resize", ["crop", "pad", "squash"])
def test_the_rules_take_the_region_that_they_say(resize):
    """What is seen of regions of one colour tells which were taken; at their edges the filter blends them."""
    image = np.full((32, 96), 200, dtype=np.uint8)
    image[:, :32] = 50  # the left third
    sized = ImagePreprocessing(1, 8, 8, resize)(Image.fromarray(image))[0].int().numpy()
    if resize == "crop":
        assert (sized[:, 1:] == 200).all()  # the middle third
    elif resize == "squash":
        assert abs(sized[:, 0] - 50).max() <= 2
        assert (sized[:, 4:] == 200).all()
    else:
        assert sized[[0, 1, -2, -1]].max() == 0  # of 8 rows, the image has 2 or 3
        assert sized[3, 4:].min() > 150
        assert sized[3, 0] < 100


def test_images_of_floating_point_are_sized_as_bytes_are():
    rng = np.random.default_rng(1)
    images = torch.from_numpy(rng.integers(0, 256, (3, 3, 31, 45), dtype=np.uint8))
    for resize in ("crop", "pad", "squash"):
        rule = ImagePreprocessing(3, 8, 12, resize)
        assert (rule.of_tensor(images).double() / 255 - rule.of_tensor(images / 255).double()).abs().max() < 1.1 / 255
    grey = ImagePreprocessing(1, 31, 45)
    assert torch.equal(grey.of_tensor(images)[1], grey(Image.fromarray(images[1].movedim(0, -1).numpy())))


def test_a_run_is_loaded_with_its_preprocessing_and_one_of_before_without(tmp_path):
    encoder, arguments = ConvNet((1, 8, 8), width=4), {"input_shape": [1, 8, 8], "width": 4}
    rule = {"channels": 1, "height": 8, "width": 8, "resize": "pad"}
    run = encoder_run(tmp_path, encoder, arguments, preprocessing=rule)
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 40), dtype=np.uint8))
    model = load(run.folder)
    assert model.preprocessing == ImagePreprocessing(**rule)
    before = load(encoder_run(tmp_path, encoder, arguments))
    assert before.preprocessing == ImagePreprocessing(1, 8, 8, "crop")
    assert not np.allclose(model.encode(photo), before.encode(photo))


def test_texts_and_vectors_are_encoded(tmp_path):
    texts, rows = ["a cat sat", "two dogs ran", "a cat ran"], [[1.0, 2, 3], [4, 5, 6]]
    (tmp_path / "t.csv").write_text("text\n" + "\n".join(texts))
    read, encoder = Text(tmp_path / "t.csv", label="none").load(), BagOfTokens((), width=4, vocabulary=50)
    encoder.observe(read.inputs)
    model, vectors = Model(encoder), Model(MLP((3,), width=4))
    assert np.allclose(model.encode(texts), model.encode(read))
    assert model.encode(texts[0]).shape == (1, model.feature_dim)
    assert list(read.ids) == ["t.csv:2", "t.csv:3", "t.csv:4"]
    assert np.allclose(vectors.encode(rows), vectors.encode(np.array(rows)))
    assert np.allclose(vectors.encode(rows)[:1], vectors.encode(torch.tensor(rows[0])))


def test_what_cannot_be_encoded_is_told_in_a_line(tmp_path):
    encoders = ConvNet((3, 8, 8), width=4), BagOfTokens((), width=4), MLP((3,), width=4)
    images, texts, vectors = map(Model, encoders)
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xffnot a photo")
    Image.new("RGB", (8, 8)).save(tmp_path / "good.png")
    for model, given, words in (
        (images, tmp_path / "gone.jpg", r"gone\.jpg, which does not exist: check the path"),
        (images, tmp_path, "which is a folder: likewise embed"),
        (images, [tmp_path / "good.png", tmp_path / "broken.jpg"], r"cannot be read: \S+broken\.jpg"),
        (images, [], "at least one input, got none"),
        (images, [3], "expected images as paths, arrays or Pillow's, got int"),
        (images, np.zeros((2, 5, 8, 8), dtype=np.uint8), "expected images of 1 or 3 channels"),
        (texts, np.zeros((2, 3)), "expected texts as strings, got an array"),
        (vectors, np.zeros((2, 4)), r"expected vectors \(N, 3\), numbers, as this run was trained on, got \(2, 4\)"),
        (vectors, ["a"], r"expected vectors \(N, 3\)"),
    ):
        with pytest.raises(ValueError, match=words):
            model.encode(given)


def test_one_array_of_the_models_channels_is_one_image():
    images = np.random.default_rng(0).integers(0, 256, (3, 10, 12), dtype=np.uint8)
    colours, grey = (Model(ConvNet((channels, 10, 12), width=4)) for channels in (3, 1))
    expected = colours.encode(Image.fromarray(np.moveaxis(images, 0, -1)))
    for one in (images, torch.from_numpy(images), torch.from_numpy(images) / 255):
        np.testing.assert_allclose(colours.encode(one), expected, atol=1e-5)
    np.testing.assert_allclose(colours.encode([images, images])[1:], expected, atol=1e-5)
    with pytest.raises(ValueError, match="one image in each place"):
        colours.encode([images[None].repeat(2, 0)] * 2)
    np.testing.assert_allclose(grey.encode(images), grey.encode([Image.fromarray(one) for one in images]), atol=1e-5)
    np.testing.assert_allclose(grey.encode(images[:1]), grey.encode(Image.fromarray(images[0])), atol=1e-5)
    in_grey = Image.fromarray(np.moveaxis(images, 0, -1)).convert("L")
    np.testing.assert_allclose(grey.encode([images]), grey.encode(in_grey), atol=1e-5)


def test_a_table_without_the_labels_of_the_run_is_read_without(tmp_path):
    """Also where the labels of the run were several columns."""
    run = encoder_run(tmp_path, MLP((2,), width=8), {"input_shape": [2], "width": 8})
    encoder = run.metadata["parts"]["encoder"]
    data = {"class_path": "likewise.data.Table", "init_args": {"path": "old.csv", "label": ["sky", "sea"]}}
    run.describe({"parts": {"encoder": encoder, "data": data}})
    (tmp_path / "new.csv").write_text("a,b\n1,2\n3,4\n")
    samples = samples_at(tmp_path / "new.csv", load(run))
    assert (len(samples), samples.labels) == (2, None)
    data["init_args"]["label"] = "none"
    run.describe({"parts": {"encoder": encoder, "data": data}})
    (tmp_path / "few.csv").write_text("a,b,label\n1,2,x\n3,4,y\n")
    assert samples_at(tmp_path / "few.csv", load(run)).labels is None
    assert samples_at(tmp_path / "few.csv", load(run), labelled=True).names == ("x", "y")


def test_a_large_jpeg_is_the_same_as_a_path_and_as_an_image(tmp_path):
    """Pillow decodes it at a smaller size, which is not what resizing its pixels would be."""
    noise = np.random.default_rng(3).integers(0, 256, (150, 200, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((800, 600), Image.Resampling.BICUBIC).save(tmp_path / "large.jpg")
    model = Model(ConvNet((3, 16, 16), width=4))
    expected = model.encode(tmp_path / "large.jpg")
    with Image.open(tmp_path / "large.jpg") as opened:
        np.testing.assert_allclose(model.encode(opened), expected, atol=1e-6)
        np.testing.assert_allclose(model.encode([opened, tmp_path / "large.jpg"])[:1], expected, atol=1e-6)
        opened.thumbnail((40, 40))  # what is changed in place is taken as it is
        assert not np.allclose(model.encode(opened), expected, atol=1e-6)
