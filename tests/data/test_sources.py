"""Sources that read files, by torchvision and by the datasets library."""

import json
import os
import pickle
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from likewise.data import Arrays, Folder, Hub, Stratified, Table, Text, Torchvision, read_image
from likewise.data.image_files import ImageFiles

pytestmark = pytest.mark.slow

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory, monkeypatch):
    """Keep temporary folders where the test can see them, under a short path: workers put sockets there."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def picture(height=12, width=16, channels=3):
    pixels = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(pixels[..., 0] if channels == 1 else pixels)


def class_folders(root, classes=("ash", "elm"), count=6, suffix="png", **options):
    """Write a folder of images for each class, and return every image by its path."""
    written = {}
    for name in classes:
        (root / name).mkdir(parents=True)
        for k in range(count):
            written[root / name / f"{k}.{suffix}"] = image = picture(**options)
            image.save(root / name / f"{k}.{suffix}")
    return written


def as_tensor(image, size=None):
    """Decode plainly with Pillow: resize the central square, channels first."""
    image = image if size is None else ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


# Folders of images


@pytest.mark.parametrize("memory", [1.0, 0.0], ids=["in memory", "when asked for"])
def test_class_folders_are_read_pixel_by_pixel(tmp_path, memory):
    written = class_folders(tmp_path / "trees")
    samples = Folder(str(tmp_path / "trees"), size=8, memory=memory).load()
    assert isinstance(samples.inputs, torch.Tensor) == (memory > 0)
    assert samples.names == ("ash", "elm")
    assert samples.inputs.dtype == torch.uint8
    inputs = samples.inputs[torch.arange(len(samples))]
    expected = {(path.parent.name, as_tensor(image, 8).numpy().tobytes()) for path, image in written.items()}
    assert {(samples.names[y], x.numpy().tobytes()) for x, y in zip(inputs, samples.labels, strict=True)} == expected


def test_grey_images_have_one_channel_and_a_coloured_one_makes_three(tmp_path):
    written = class_folders(tmp_path / "trees", channels=1)
    grey = Folder(str(tmp_path / "trees")).load()
    assert grey.input_shape == (1, 12, 16)
    assert {x.numpy().tobytes() for x in grey.inputs} == {np.array(image).tobytes() for image in written.values()}
    picture().save(tmp_path / "trees" / "ash" / "coloured.png")
    assert Folder(str(tmp_path / "trees")).load().input_shape == (3, 12, 16)


def odd_photos(folder):
    """Write a photo of each kind that is easily read wrongly, and return the files."""
    exif, colours = Image.Exif(), picture(30, 40)
    exif[0x0112] = 6  # the camera was held on its side
    files = {"turned.jpg": colours, "alpha.png": picture(30, 40, 4), "cmyk.jpg": colours.convert("CMYK")}
    files |= {"grey.png": picture(30, 40, 1), "palette.png": colours.convert("P"), "large.jpg": picture(300, 400)}
    files["deep.png"] = Image.fromarray(rng.integers(0, 65536, (30, 40), dtype=np.uint16))
    for name, image in files.items():
        image.save(folder / name, **({"exif": exif} if name == "turned.jpg" else {}))
    return sorted(folder / name for name in files)


@pytest.mark.parametrize("memory", [1.0, 0.0], ids=["in memory", "when asked for"])
def test_an_image_is_read_alone_as_the_command_reads_it(memory, tmp_path):
    for name in ("ash", "elm"):
        (tmp_path / name).mkdir()
        files = odd_photos(tmp_path / name)
    samples = Table(str(tmp_path), size=16, memory=memory).load()
    alone = torch.stack([read_image(file, samples.input_shape) for file in files])
    assert torch.equal(alone, samples.inputs[(samples.labels == 1).nonzero().flatten()])
    deep = torch.from_numpy(np.asarray(Image.open(tmp_path / "elm" / "deep.png")) >> 8).to(torch.uint8)
    assert torch.equal(read_image(tmp_path / "elm" / "deep.png", (1, 30, 40))[0], deep)
    with Image.open(tmp_path / "elm" / "turned.jpg") as turned:
        upright = as_tensor(turned.transpose(Image.Transpose.ROTATE_270))
    assert torch.equal(read_image(str(tmp_path / "elm" / "turned.jpg"), (3, 40, 30)), upright)


def test_what_is_no_image_of_the_shape_is_refused_in_a_line(tmp_path):
    picture(12, 9).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("no image")
    (tmp_path / "photo.jxl").write_bytes(b"ftypheic")
    for name, shape, words in (
        ("b.png", (3, 8, 8), r"got .*b\.png, cannot identify image file .*: check the file"),
        ("c.png", (3, 8, 8), r"got .*c\.png, which does not exist: check the path"),
        ("photo.jxl", (3, 8, 8), r"photo.jxl, a kind that Pillow does not read: convert it to JPEG or PNG"),
        ("a.png", (4, 8, 8), r"expected a shape \(1 or 3, height, width\), got \(4, 8, 8\): give encoder\.input_shape"),
        ("a.png", 8, r"expected a shape \(1 or 3, height, width\), got 8: give encoder.input_shape"),
    ):
        with pytest.raises(ValueError, match=words):
            read_image(tmp_path / name, shape)


def test_unreadable_images_are_left_out_counted_and_named(tmp_path):
    """A text, an empty file and a truncated photo, which is found only when it is decoded."""
    class_folders(tmp_path / "trees")
    (tmp_path / "trees" / "ash" / "text.png").write_text("no image")
    (tmp_path / "trees" / "elm" / "empty.jpg").write_bytes(b"")
    whole = tmp_path / "trees" / "elm" / "half.png"
    picture(64, 64).save(whole)
    whole.write_bytes(whole.read_bytes()[:5000])
    named = r"left out 3 of 15 images, which cannot be read: .*text\.png, .*empty\.jpg, .*half\.png"
    with pytest.warns(UserWarning, match=named) as seen:
        samples = Folder(str(tmp_path / "trees"), size=8).load()
    assert len(seen) == 1
    assert samples.counts.tolist() == [6, 6]
    with pytest.warns(UserWarning, match="left out 2 of 15"):
        late = Folder(str(tmp_path / "trees"), size=8, memory=0).load()
    assert late.counts.tolist() == [6, 7]
    with pytest.warns(UserWarning, match=r"cannot be read is black where it is indexed: .*half\.png") as seen:
        black = [int(late.inputs[torch.tensor([row, row])].sum()) == 0 for row in range(len(late))]
    assert len(seen) == sum(black) == 1
    assert late.readable().counts.tolist() == [6, 6]
    assert black.index(True) not in late.readable().rows.tolist()


def test_parts_come_from_folders_for_any_names_of_files_and_classes(tmp_path):
    for part in ("train", "val", "test"):
        class_folders(
            tmp_path / "trees" / part, classes=("ash", "train"), count={"train": 4, "val": 2, "test": 3}[part]
        )
        (tmp_path / "trees" / part / "ash" / "0.png").rename(tmp_path / "trees" / part / "ash" / "test-0.png")
    samples = Folder(str(tmp_path / "trees")).load()
    assert samples.names == ("ash", "train")
    assert torch.bincount(samples.parts).tolist() == [8, 4, 6]
    assert torch.bincount(samples.labels[samples.parts == 2]).tolist() == [3, 3]
    classes = class_folders(tmp_path / "words [1]", classes=("train", "bicycle", "test"))
    samples = Folder(str(tmp_path / "words [1]")).load()
    assert samples.names == ("bicycle", "test", "train")
    assert samples.parts is None
    assert len(samples) == len(classes)


def folders_of(root, *folders, count=2):
    """Write images into folders, given by their paths, "." for the root."""
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
        for k in range(count):
            picture().save(root / folder / f"{k}.png")


def read_by_hand(root, depth):
    """Return each image below the root, with the name of the folder that lies at a depth on its way."""
    paths = [Path(folder, name) for folder, _, names in os.walk(root, followlinks=True) for name in names]
    shown = [path for path in paths if not any(name.startswith(".") for name in path.relative_to(root).parts)]
    images = [(path.relative_to(root).parts[depth], as_tensor(Image.open(path))) for path in shown]
    return sorted((name, image.numpy().tobytes()) for name, image in images)


def read_by(samples):
    pairs = zip(samples.labels.tolist(), samples.inputs, strict=True)
    return sorted((samples.names[label], image.numpy().tobytes()) for label, image in pairs)


DEEP = {
    "years": (("cat/2023", "cat/2024", "dog/2023"), ("cat", "dog"), 6, "cat/2023/0.png"),
    "one more": (("a", "a/sub", "b"), ("a", "b"), 2, "a/sub/0.png"),
    "several depths": (("a/x/y", "a/z", "b/x"), ("a", "b"), 6, "a/x/y/0.png"),
    "named as parts": (("train", "bicycle", "bicycle/test"), ("bicycle", "train"), 2, "bicycle/test/0.png"),
}


@pytest.mark.parametrize("parts", [(), ("train", "val")], ids=["whole", "parts"])
@pytest.mark.parametrize("case", DEEP)
def test_the_folder_below_the_root_or_part_is_the_class_whatever_lies_deeper(case, parts, tmp_path):
    folders, classes, deeper, first = DEEP[case]
    for part in parts or ["."]:
        folders_of(tmp_path / part, *folders)
    times = len(parts) or 1
    with pytest.warns(UserWarning, match="classes are the folders directly in") as seen:
        samples = Table(str(tmp_path)).load()
    assert samples.names == classes
    assert read_by(samples) == read_by_hand(tmp_path, len(parts) // 2)
    assert (samples.parts is not None) == bool(parts)
    (message,) = (str(one.message) for one in seen)
    assert f": {deeper * times} of {2 * len(folders) * times} images" in message
    assert f"({', '.join(classes)})" in message
    assert message.endswith(f"such as {Path(*parts[:1]) / first}")


SIDE_BY_SIDE = {
    "root": ((".", "a", "b"), r"got 2 directly in \S+trees and 4 in folders \(a, b\): .*data\.label to none"),
    "part": (("train/a", "train/b", "test"), r"got 2 directly in \S+test and 4 in folders \(a, b\)"),
    "some deeper": (("a/x", "a/y", "b", "c"), "those of b, c in their folder and those of a only deeper: .* b, c, x"),
    "parts within classes": (("a/train", "a/test", "b/train", "b/test"), r"as in a/test/0\.png: .* as in test/a"),
    "no training part": (("val/a", "val/b", "test/a"), "got test, val: .*classes are a, b.* they are test, val$"),
    "not only parts": (("train/a", "train/b", "test/a", "more/a"), "got more, test, train: .* more, test, train$"),
}


@pytest.mark.parametrize("case", SIDE_BY_SIDE)
def test_images_at_two_depths_side_by_side_are_refused_with_both_readings(case, tmp_path):
    folders, words = SIDE_BY_SIDE[case]
    folders_of(tmp_path / "trees", *folders)
    with pytest.raises(ValueError, match=words) as raised:
        Folder(str(tmp_path / "trees")).load()
    assert "\n" not in str(raised.value)
    assert len(Folder(str(tmp_path / "trees"), label="none").load()) == 2 * len(folders)


def test_images_beside_the_parts_are_left_out_and_a_part_of_which_nothing_can_be_read_is_refused(tmp_path):
    folders_of(tmp_path, ".", "train/a", "train/b", "test/a", "test/b")
    with pytest.warns(UserWarning, match=r"left out 2 images in \S+ outside of test and train: 0\.png, 1\.png$"):
        assert len(Table(str(tmp_path)).load()) == 8
    for file in tmp_path.glob("test/*/*.png"):
        file.rename(file.with_suffix(".jxl"))
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ValueError, match="in the test part, got"):
        Table(str(tmp_path)).load()


def test_linked_folders_and_files_are_read_and_never_in_a_circle(tmp_path):
    folders_of(tmp_path, "far/elm", "far/oak", "trees/ash")
    trees = tmp_path / "trees"
    (trees / "elm").symlink_to(tmp_path / "far" / "elm")
    (trees / "ash" / "more.png").symlink_to(tmp_path / "far" / "oak" / "0.png")
    (trees / ".hidden").symlink_to(tmp_path / "far")
    samples = Folder(str(trees)).load()
    assert read_by(samples) == read_by_hand(trees, 0)
    assert samples.counts.tolist() == [3, 2]
    (trees / "ash" / "up").symlink_to(trees)
    (trees / "ash" / "aside").symlink_to(tmp_path / "far" / "elm")
    (tmp_path / "far" / "elm" / "self").symlink_to(tmp_path / "far" / "elm")
    (tmp_path / "far" / "elm" / "back").symlink_to(trees / "ash")
    with pytest.warns(UserWarning, match="left out|5 of 10 images lie deeper") as seen:
        samples = Folder(str(trees)).load()
    assert samples.counts.tolist() == [5, 5]
    assert f"left out 6 links in {trees} back to a folder above: ash/aside/back, ash/aside/self, ash/up, ..." in [
        str(one.message) for one in seen
    ]


def test_dead_links_and_images_of_kinds_that_pillow_does_not_read_are_counted_and_named(tmp_path):
    trees = tmp_path / "trees"
    folders_of(trees, "ash", "elm")
    for place in ("ash/lost.png", "elm/lost.jpg", "oak"):
        (trees / place).symlink_to(tmp_path / "gone" / place)
    (trees / "elm" / "more").symlink_to(trees / "elm" / "more")
    for name in ("0.JXL", "1.svg", "2.jxl"):
        (trees / "elm" / name).write_bytes(b"")
    with pytest.warns(UserWarning, match="left out") as seen:
        assert Folder(str(trees)).load().counts.tolist() == [2, 2]
    assert [str(one.message) for one in seen] == [
        f"left out 4 links in {trees} whose target does not exist: ash/lost.png, elm/lost.jpg, elm/more, ...",
        f"left out 2 files in {trees} that must be converted to JPEG or PNG first (.jxl): elm/0.JXL, elm/2.jxl",
        f"left out 1 file in {trees} that must be converted to JPEG or PNG first (.svg): elm/1.svg",
    ]


def test_every_kind_of_image_that_pillow_reads_is_read(tmp_path):
    for name, suffix in (("ash", "avif"), ("elm", "webp")):
        (tmp_path / name).mkdir()
        picture().save(tmp_path / name / f"0.{suffix}")
    (tmp_path / "features.h5").write_bytes(b"")  # which Pillow only claims to read
    assert Table(str(tmp_path)).load().counts.tolist() == [1, 1]


def test_too_large_an_image_is_left_out_with_its_size_and_the_remedy(tmp_path, monkeypatch):
    class_folders(tmp_path / "trees")
    for k in range(4):
        (tmp_path / "trees" / "ash" / f"{k}.png").write_bytes(b"")
    Image.new("1", (90, 40)).save(tmp_path / "trees" / "elm" / "wall.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # of which twice as many are refused
    larger = r"left out 5 of 13 images, which cannot be read: \S+wall\.png \(3,600 pixels, .* 2,000: make"
    with pytest.warns(UserWarning, match=larger):
        Folder(str(tmp_path / "trees"), size=8).load()
    write_table(tmp_path / "t.csv", {"file": ["trees/elm/wall.png"] * 2, "label": ["a", "b"]})
    with pytest.raises(ValueError, match=r"got 2 files .*wall\.png \(3,600 pixels"):
        Table(str(tmp_path / "t.csv"), size=8).load()


def test_rows_read_on_demand_can_be_split_and_sent_elsewhere(tmp_path):
    class_folders(tmp_path / "trees", count=20)
    cut = Stratified()(Folder(str(tmp_path / "trees"), size=8, memory=0).load())
    assert [type(part.inputs.all_rows) for part in (cut.train, cut.validation, cut.test)] == [ImageFiles] * 3
    rows = torch.tensor([3, 0, 3])
    sent = pickle.loads(pickle.dumps(cut.test.inputs))  # noqa: S301 - our own
    assert torch.equal(sent[rows], cut.test.inputs[rows])
    whole = Folder(str(tmp_path / "trees"), size=8).load()
    assert torch.equal(cut.test.inputs[rows], Stratified()(whole).test.inputs[rows])
    joined = cut.refitted().train.inputs
    assert torch.equal(joined[torch.tensor([len(cut.train)])], cut.validation.inputs[torch.tensor([0])])


# Tables


def write_table(path, columns):
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix in {".csv", ".tsv"}:
        separator = "," if path.suffix == ".csv" else "\t"
        path.write_text("\n".join(separator.join(map(str, row)) for row in [columns, *(row.values() for row in rows)]))
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        datasets.Dataset.from_dict(columns).to_parquet(path)
    return path


NUMBERS = {"petal": [1.5, 2.0, 3.5, 4.0], "sepal": [4, 3, 2, 1], "class": ["lily", "rose", "rose", "lily"]}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_number_columns_make_vectors(tmp_path, suffix):
    samples = Table(str(write_table(tmp_path / f"flowers{suffix}", NUMBERS))).load()
    assert samples.inputs.tolist() == [[1.5, 4], [2, 3], [3.5, 2], [4, 1]]
    assert samples.names == ("lily", "rose")
    assert samples.labels.tolist() == [0, 1, 1, 0]
    assert samples.parts is None


def test_lists_and_chosen_columns_make_vectors_too(tmp_path):
    columns = {"embedding": [[0.0, k, 2 * k] for k in range(4)], "weight": [5, 6, 7, 8], "id": [3, 2, 1, 0]}
    path = write_table(tmp_path / "t.parquet", {**columns, "kind": [7, 9, 7, 9]})
    samples = Table(str(path), inputs=["weight", "embedding"], label="kind").load()
    assert samples.inputs.tolist() == [[5.0 + k, 0, k, 2 * k] for k in range(4)]
    assert samples.names == ("7", "9")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_parts_whose_numbers_are_of_other_types_are_joined(tmp_path, suffix):
    """In CSV, labels are what is written."""
    (tmp_path / "flowers").mkdir()
    write_table(tmp_path / "flowers" / f"train{suffix}", {"x": [0.25, 1.5], "y": [1, 2], "label": [0, 1]})
    write_table(tmp_path / "flowers" / f"test{suffix}", {"x": [3, 4], "y": [0.75, 5.5], "label": [1.0, 0.0]})
    names = ("0", "0.0", "1", "1.0") if suffix == ".csv" else ("0", "1")
    samples = Table(str(tmp_path / "flowers")).load()
    assert samples.inputs.tolist() == [[0.25, 1], [1.5, 2], [3, 0.75], [4, 5.5]]
    assert samples.names == names
    assert [float(names[label]) for label in samples.labels] == [0, 1, 1, 0]
    assert samples.parts.tolist() == [0, 0, 2, 2]


def test_a_column_of_integers_may_have_fractions_late_in_a_long_table(tmp_path):
    columns = {"x": [*range(12_000), 0.5], "label": [row % 2 for row in range(12_001)]}
    assert Table(str(write_table(tmp_path / "long.csv", columns))).load().inputs.flatten().tolist() == columns["x"]


def test_an_empty_part_is_refused_by_its_name(tmp_path):
    for number, content in enumerate(("x,label\n", "", "x,label\n,a\n")):
        (tmp_path / f"{number}").mkdir()
        write_table(tmp_path / f"{number}" / "train.csv", {"x": list(range(9)), "label": list("abcabcabc")})
        (tmp_path / f"{number}" / "test.csv").write_text(content)
        with (
            warnings.catch_warnings(action="ignore"),
            pytest.raises(ValueError, match=r"samples in the test part.*, got"),
        ):
            Table(str(tmp_path / f"{number}")).load()


def test_texts_of_digits_only_in_one_part_stay_texts(tmp_path):
    (tmp_path / "notes").mkdir()
    write_table(tmp_path / "notes" / "train.csv", {"text": ["a", "b"], "label": ["x", "y"]})
    write_table(tmp_path / "notes" / "test.csv", {"text": [0, 7], "label": ["x", "y"]})
    assert Table(str(tmp_path / "notes")).load().inputs.strings == ["a", "b", "0", "7"]


@pytest.mark.parametrize(
    ("values", "options", "names", "sets"),
    [
        ([["a", "b"], ["b"], [], ["c", "a"]], {}, "abc", ["ab", "b", "", "ac"]),
        ([[3, 1], [1], [], [5]], {}, "135", ["13", "1", "", "5"]),
        ([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]], {}, "012", ["0", "01", "", "2"]),
        (["a; b", "b", "", "c;a"], {"separator": ";"}, "abc", ["ab", "b", "", "ac"]),
        (["0", "", "1", "10"], {"separator": ";"}, ["0", "1", "10"], [["0"], [], ["1"], ["10"]]),
        (["0;2", "0", "", "2"], {"separator": ";"}, "02", ["02", "0", "", "2"]),
        ([["a", None], ["b"], None, ["c", "a"]], {}, "abc", ["a", "b", "", "ac"]),
    ],
    ids=["strings", "numbers", "indicators", "separated", "separated numbers", "a label called 0", "missing"],
)
def test_lists_of_labels_are_label_sets(tmp_path, values, options, names, sets):
    suffix = ".csv" if options else ".jsonl"
    path = write_table(tmp_path / f"t{suffix}", {"x": [1, 2, 3, 4], "labels": values})
    samples = Table(str(path), **options).load()
    assert samples.names == tuple(names)
    assert samples.labels.tolist() == [[name in own for name in names] for own in sets]


TAGS = {"sky": [1, 0, 1, 0], "animal": [0, 1, 1, 0]}


def test_columns_of_0_and_1_are_label_sets_of_images_and_of_vectors(tmp_path):
    for row in range(4):
        picture().save(tmp_path / f"{row}.png")
    (tmp_path / "2.png").write_bytes(b"cut off")
    photos = write_table(tmp_path / "photos.csv", {"file": [f"{row}.png" for row in range(4)], **TAGS})
    with pytest.warns(UserWarning, match="left out 1 of 4"):
        samples = Table(str(photos), label=["sky", "animal"]).load()
    assert samples.input_shape == (3, 12, 16)
    assert samples.names == ("sky", "animal")
    assert samples.labels.tolist() == [[True, False], [False, True], [False, False]]
    vectors = write_table(tmp_path / "vectors.jsonl", {"x": [1, 2, 3, 4], "y": [5, 6, 7, 8], **TAGS})
    samples = Table(str(vectors), label=["animal", "sky"]).load()
    assert samples.inputs.tolist() == [[1, 5], [2, 6], [3, 7], [4, 8]]
    assert samples.labels.T.int().tolist() == [TAGS["animal"], TAGS["sky"]]
    assert Table(str(vectors), label=["sky"]).load().labels.T.int().tolist() == [TAGS["sky"]]


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (["sky", "size"], "expected 0 or 1 in column 'size' of data.label, got 2 in row 1"),
        (["sky", "gap"], "expected 0 or 1 in column 'gap' of data.label, got None in row 1"),
        (["sky", "list"], r"expected 0 or 1 in column 'list' of data.label, got \[1\] in row 0"),
        (["sky", "sea"], r"expected a column of labels \(sea\)"),
        (["sky", "sky"], r"expected as data.label different columns of 0 and 1, got \['sky', 'sky'\]: name each once"),
        ([], r"expected as data.label different columns of 0 and 1, got \[\]"),
    ],
)
def test_columns_of_anything_but_0_and_1_are_refused_by_name_and_row(tmp_path, label, words):
    columns = {"x": [1, 2], "sky": [1, 0], "size": [1, 2], "gap": [1, None], "list": [[1], [0]]}
    table = write_table(tmp_path / "t.jsonl", columns)
    with pytest.raises(ValueError, match=words):
        Table(str(table), label=label).load()
    with pytest.raises(ValueError, match=r"different columns of 0 and 1, got separator ';'"):
        Table(str(table), label=["sky"], separator=";")


def test_named_classes_keep_their_numbers_and_a_part_with_hidden_labels_is_left_out(tmp_path):
    features = datasets.Features(
        {"x": datasets.Value("float32"), "label": datasets.ClassLabel(names=["oak", "ash", "oak;ash"])}
    )
    splits = {
        name: datasets.Dataset.from_dict({"x": [1.0, 2.0, 3.0], "label": labels}, features=features)
        for name, labels in {"train": [1, 0, 2], "validation": [0, 0, 1], "test": [-1, -1, -1]}.items()
    }
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    samples = Table(str(tmp_path / "saved")).load()
    assert samples.names == ("oak", "ash", "oak;ash")  # without a warning of the separator
    assert samples.labels.tolist() == [1, 0, 2, 0, 0, 1]
    assert samples.parts.tolist() == [0, 0, 0, 2, 2, 2]


@pytest.mark.parametrize("lists", [False, True])
def test_parts_that_number_their_labels_differently_are_joined_by_name(tmp_path, lists):
    splits = {}
    for part, names in (("train", ["cat", "dog"]), ("test", ["dog", "cat", "emu"])):
        kind = datasets.ClassLabel(names=names)
        features = datasets.Features({"x": datasets.Value("float32"), "label": [kind] if lists else kind})
        labels = [[0], [1], [1]] if lists else [0, 1, 1]
        splits[part] = datasets.Dataset.from_dict({"x": [1.0, 2.0, 3.0], "label": labels}, features=features)
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    samples = Table(str(tmp_path / "saved")).load()
    assert samples.names == ("cat", "dog")
    numbers = samples.labels.long().argmax(dim=1) if lists else samples.labels
    assert [samples.names[number] for number in numbers.tolist()] == ["cat", "dog", "dog", "dog", "cat", "cat"]


def test_paths_in_a_table_are_relative_to_its_folder(tmp_path):
    written = class_folders(tmp_path / "trees")
    names = [str(path.relative_to(tmp_path)) for path in written]
    path = write_table(tmp_path / "t.csv", {"file": names, "label": [1, 0] * 6})
    samples = Table(str(path)).load()
    assert torch.equal(samples.inputs, torch.stack([as_tensor(image) for image in written.values()]))
    write_table(path, {"file": ["gone.png", *names[1:]], "label": [1, 0] * 6})
    with pytest.warns(UserWarning, match=r"left out 1 of 12 .*gone\.png"):
        assert len(Table(str(path)).load()) == 11


def test_a_name_is_looked_up_on_the_hub_with_its_parts_and_labels(monkeypatch):
    asked = []
    table = datasets.Dataset.from_dict({"img": [picture() for _ in range(4)], "fine_label": [3, 5, 5, 3]})

    def load_dataset(*given, **options):
        asked.append((given, options))
        return datasets.DatasetDict({"train": table, "test": table, "unsupervised": table})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    samples = Hub("someone/trees", config="large").load()
    assert asked == [(("someone/trees", "large"), {})]
    assert samples.names == ("3", "5")
    assert samples.parts.tolist() == [0] * 4 + [2] * 4
    assert samples.input_shape == (3, 12, 16)


@pytest.mark.parametrize(
    "path", ["../birds", "birds/", "~/birds", "birds.npz", "a/b/c", "photos/cast", "a\\b", ".birds", "b" * 300]
)
def test_what_looks_like_a_path_never_goes_to_the_hub(path, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *given: asked.append(given))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    with pytest.raises(ValueError, match=r"which does not exist: check data\.path") as raised:
        Table(path).load()
    assert "\n" not in str(raised.value)
    assert not asked


def test_a_path_that_does_not_exist_is_answered_with_what_is_near(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Photos" / "cats").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for path, words in {
        "./photo": f", did you mean {tmp_path / 'Photos'}?",
        "Photos/cast/2023": f", did you mean {tmp_path / 'Photos' / 'cats'}?",
        "Photos/zebra/2023": f"; the nearest folder is {tmp_path / 'Photos'}",
        str(tmp_path / "x" / "y"): f"; the nearest folder is {tmp_path}",
        "./link": f"; it is a link to {tmp_path / 'gone'}",
    }.items():
        with pytest.raises(ValueError, match=r"which does not exist: check data\.path") as raised:
            Table(path).load()
        assert str(raised.value).endswith(words)


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path, monkeypatch):
    class_folders(tmp_path / "trees")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(Folder("~/trees").load()) == 12


READS = """
import resource, sys
from likewise.data import Arrays, LongTail, Stratified, Table
resident = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = resident()
parts = Stratified()(Arrays(sys.argv[1]).load(), LongTail())
print(resident() - before, len(parts.train) + len(parts.validation), len(parts.test))
for path in sys.argv[2:]:
    Table(path, memory=0).load()
"""


@pytest.mark.process
def test_nothing_is_written_where_something_is_read_and_arrays_take_twice_their_memory(tmp_path, temporary):
    """No output, no file next to the data, in the library's cache, or anywhere else."""
    images = rng.integers(0, 256, (24_000, 32, 32, 3), dtype=np.uint8)
    rows = np.arange(24_000)
    np.savez(tmp_path / "large.npz", images=images, labels=rows % 100, test=rows >= 20_000)
    written = class_folders(tmp_path / "trees")
    lines = [{"file_name": f"{path.parent.name}/{path.name}", "label": path.parent.name} for path in written]
    (tmp_path / "trees" / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for suffix in (".csv", ".jsonl", ".parquet"):
        write_table(tmp_path / f"flowers{suffix}", NUMBERS)
    paths = [tmp_path / "large.npz", tmp_path / "trees", *tmp_path.glob("flowers.*")]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "TMPDIR": str(temporary)}
    ran = subprocess.run(
        [sys.executable, "-c", READS, *paths], env=environment, capture_output=True, text=True, check=True
    )
    peak, *sizes = map(int, ran.stdout.split())
    assert sizes == [sum(int(200 * 100 ** (-label / 99) + 1e-9) for label in range(100)), 4000]
    assert peak < 2.2 * images.nbytes
    assert not ran.stderr
    assert not [file for file in (tmp_path / "home").rglob("*") if file.is_file()]
    assert not list(temporary.iterdir())
    assert sorted(path.name for path in (tmp_path / "trees").iterdir()) == ["ash", "elm", "metadata.jsonl"]


def test_settings_of_the_library_are_restored(tmp_path, capfd):
    features = datasets.Features({"x": datasets.Value("float32"), "label": datasets.Value("string")})
    table = datasets.Dataset.from_dict({"x": [1.0, 2.0], "label": ["a", "b"]}, features=features)
    table.save_to_disk(tmp_path / "saved")
    capfd.readouterr()
    before = (datasets.logging.get_verbosity(), datasets.utils.are_progress_bars_disabled())
    assert len(Table(str(tmp_path / "saved")).load()) == 2
    assert before == (datasets.logging.get_verbosity(), datasets.utils.are_progress_bars_disabled())
    assert tuple(capfd.readouterr()) == ("", "")


def trees(*folders, **contents):
    """Return a function that writes images into folders, and files by their paths."""

    def write(folder):
        (folder / "trees").mkdir()
        folders_of(folder / "trees", *folders)
        for path, content in contents.items():
            (folder / "trees" / path).parent.mkdir(exist_ok=True)
            (folder / "trees" / path).write_text(content)
        return {"path": "trees"}

    return write


def two_sizes(folder):
    class_folders(folder / "trees")
    picture(20, 30).save(folder / "trees" / "ash" / "large.png")
    return {"path": "trees"}


def table(name="t.csv", columns=NUMBERS, **options):
    def write(folder):
        (folder / name).parent.mkdir(exist_ok=True)
        write_table(folder / name, columns)
        return {"path": name, **options}

    return write


def parts(test):
    """Return a function that writes a training part, and a test part of other columns."""
    train = table("flowers/train.jsonl", {"y": [1, 2], "label": [["a"], ["b"]]})
    return lambda folder: train(folder) and table("flowers/test.jsonl", test)(folder) and {"path": "flowers"}


@pytest.mark.parametrize(
    ("columns", "arguments", "expected"),
    [
        ({"title": ["a", "b"], "label": ["x", "y"]}, {}, ["a", "b"]),
        ({"id": ["p", "q"], "text": ["a", "b"], "likes": [3, 4], "label": ["x", "y"]}, {}, ["a", "b"]),
        ({"title": ["a", "b"], "note": ["c", "d"], "label": ["x", "y"]}, {"inputs": ["note"]}, ["c", "d"]),
    ],
    ids=["the only column", "by its name", "chosen"],
)
def test_a_column_of_texts_is_read(columns, arguments, expected, tmp_path):
    samples = Table(str(write_table(tmp_path / "t.csv", columns)), **arguments).load()
    assert samples.inputs.strings == expected
    assert samples.names == ("x", "y")


def test_rows_without_all_their_numbers_are_counted_and_named_and_the_rest_is_kept(tmp_path):
    numbers = [0.5, None, 2.5, float("inf"), 4.5]
    path = write_table(tmp_path / "t.parquet", {"x": numbers, "y": [1.0] * 5, "label": ["a", "b", "c", "b", "a"]})
    with pytest.warns(UserWarning, match=r"left out 2 of 5 rows of .*t\.parquet, .*: rows 1, 3, counted from 0"):
        samples = Table(str(path)).load()
    assert samples.inputs.tolist() == [[0.5, 1.0], [2.5, 1.0], [4.5, 1.0]]
    assert [samples.names[label] for label in samples.labels] == ["a", "c", "a"]


TEXTS = {"title": ["a", "b"], "note": ["c", "d"], "label": ["x", "y"]}
WRONG = {
    "no table": (lambda _: {"path": "none.csv"}, r"got none\.csv, which does not exist"),
    "one class": (trees("ash"), r"at least 2 folders of images .* got 1 \('ash'\): add another, .*data\.label to none"),
    "classes deeper": (trees("images/raw/ash", "images/raw/elm"), r"set data\.path to \S+images/raw if"),
    "no images": (trees(), "got an empty folder"),
    "notes": (trees(**{"notes.txt": "later"}), r"images, or tables of one kind .* got \.txt"),
    "all unreadable": (
        trees(**dict.fromkeys(["ash/0.png", "elm/0.png"], "no image")),
        r"got 2 files that cannot be read as images, the first .*0\.png",
    ),
    "sizes": (two_sizes, r"got 2 sizes from 16 by 12 to 30 by 20 pixels: set data\.size"),
    "parts without classes": (trees("train", "test"), r"in each part, one per class, got none: .*data\.label to none"),
    "no label": (table(columns={"a": [1, 2], "b": [3, 4]}), r"got a, b: name it in data\.label"),
    "wrong label": (table(label="color"), r"labels \(color\) in t\.csv, got petal, sepal, class: name it"),
    "wrong input": (table(inputs=["leaf"]), "got 'leaf': choose from petal, sepal, class"),
    "several texts": (table(columns=TEXTS), r"got title \(text\), note \(text\): name it in data\.inputs"),
    "text beside numbers": (table(inputs=["petal", "class"], label="sepal"), r"got class \(text\): name it in"),
    "labels alone": (table(columns={"label": [1, 2]}), "got only the labels"),
    "missing labels": (table(columns={"x": [1, 2], "label": ["a", ""]}), "got none for 1 of 2$"),
    "real labels": (table("t.jsonl", columns={"x": [1, 2], "label": [0.5, 1.5]}), "integers, strings, .* got float64"),
    "no numbers": (table(columns={"x": [float("inf"), -float("inf")], "label": [1, 2]}), "in all 2: choose"),
    "ragged": (table("t.jsonl", {"x": [[1], [1, 2]], "label": [1, 2]}), "lists of one length, .* column 'x'"),
    "size of numbers": (table(size=8), "no size for columns of numbers, got 8"),
    "no training part": (
        lambda folder: {"path": str(Path(table("flowers/test.csv")(folder)["path"]).parent)},
        r"named after their parts, train and test, .*test\.csv: rename it",
    ),
    "no labels in a part": (parts({"y": [2]}), "a column 'label' in the test part of .*, got y$"),
    "no inputs in a part": (parts({"label": [["a"]]}), "a column 'y' in the test part of .*, got label$"),
    "single labels in a part": (
        parts({"y": [2], "label": ["a"]}),
        "lists of labels in every part .*, got no lists in test$",
    ),
    "malformed": (
        trees(**{"t.jsonl": '{"a": 1}\nno json\n'}),
        r"expected an object in each line of trees/t\.jsonl, got no JSON in line 2",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_refused_in_one_line_with_the_remedy(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    write, words = WRONG[case]
    options = write(tmp_path)
    with pytest.raises(ValueError, match=words) as raised:
        Table(**options).load()
    assert "\n" not in str(raised.value)


# torchvision


def write_fashion(root, train=60, test=20):
    """Write files in FashionMNIST's format, and return the images and classes of both parts."""
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    images = rng.integers(0, 256, (train + test, 28, 28), dtype=np.uint8)
    labels = rng.permutation(np.arange(train + test) % 10).astype(np.uint8)
    for name, rows in (("train", slice(train)), ("t10k", slice(train, None))):
        few = len(images[rows])
        (folder / f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">4i", 2051, few, 28, 28) + images[rows].tobytes()
        )
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, few) + labels[rows].tobytes())
    return images, labels


def test_data_sets_in_arrays_are_unchanged_with_names_and_parts(tmp_path):
    images, labels = write_fashion(tmp_path)
    samples = Torchvision("FashionMNIST", root=tmp_path).load()
    assert samples.inputs.dtype == torch.uint8
    assert np.array_equal(samples.inputs[:, 0].numpy(), images)
    assert np.array_equal(samples.labels.numpy(), labels)
    assert samples.parts.tolist() == [0] * 60 + [2] * 20
    assert samples.names[:2] == ("T-shirt/top", "Trouser")
    assert Torchvision("FashionMNIST", root=tmp_path, size=14).load().input_shape == (1, 14, 14)


@pytest.mark.parametrize("memory", [1.0, 0.0], ids=["in memory", "when asked for"])
def test_data_sets_in_files_are_read_without_their_loader(tmp_path, memory):
    written = class_folders(tmp_path / "trees")
    samples = Torchvision("ImageFolder", root=tmp_path / "trees", size=8, memory=memory).load()
    assert isinstance(samples.inputs, torch.Tensor) == (memory > 0)
    expected = torch.stack([as_tensor(image, 8) for image in written.values()])
    assert torch.equal(samples.inputs[torch.arange(12)], expected)
    assert list(samples.ids) == [str(path.relative_to(tmp_path / "trees")) for path in written]
    assert samples.labels.tolist() == [0] * 6 + [1] * 6
    assert samples.names == ("ash", "elm")
    assert samples.parts is None


def test_a_val_split_without_a_test_split_is_used_for_testing(tmp_path):
    folders = {"n01440764": "tench, Tinca tinca", "n02102040": "English springer, English springer spaniel"}
    for split, count in (("train", 5), ("val", 2)):
        class_folders(tmp_path / "imagenette2" / split, classes=tuple(folders), count=count, suffix="jpeg")
    samples = Torchvision("Imagenette", root=tmp_path).load()
    assert samples.parts.tolist() == [0] * 10 + [2] * 4
    assert samples.names[:2] == tuple(folders.values())


def test_files_that_a_data_set_opens_itself_are_decoded_later(tmp_path):
    root = tmp_path / "caltech101" / "101_ObjectCategories"
    written = {}
    for name in ("accordion", "zebra"):
        (root / name).mkdir(parents=True)
        for k in range(1, 4):
            written[name, k] = picture(16, 16)
            written[name, k].save(root / name / f"image_{k:04}.jpg", quality=100, subsampling=0)
    (root / "BACKGROUND_Google").mkdir()
    (tmp_path / "caltech101" / "Annotations").mkdir()
    samples = Torchvision("Caltech101", root=tmp_path, memory=0).load()
    assert isinstance(samples.inputs.all_rows, ImageFiles)
    assert samples.names == ("accordion", "zebra")
    assert samples.labels.tolist() == [0, 0, 0, 1, 1, 1]
    read = samples.inputs[torch.arange(6)].float()
    assert (read - torch.stack([as_tensor(image) for image in written.values()])).abs().mean() < 3


def test_omniglot_has_the_characters_of_both_its_parts(tmp_path):
    for folder, alphabet in (("images_background", "Greek"), ("images_evaluation", "Tengwar")):
        for character in ("character01", "character02"):
            place = tmp_path / "omniglot-py" / folder / alphabet / character
            place.mkdir(parents=True)
            for k in range(3):
                picture(channels=1).convert("1").save(place / f"{k}.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        omniglot = pytest.MonkeyPatch()
        omniglot.setattr("torchvision.datasets.Omniglot._check_integrity", lambda _: True)
        samples = Torchvision("Omniglot", root=tmp_path).load()
        omniglot.undo()
    assert len(samples.names) == 4
    assert samples.counts.tolist() == [3] * 4
    assert samples.input_shape == (1, 12, 16)


def test_generated_images_are_stacked(monkeypatch):
    monkeypatch.setattr("torchvision.datasets.FakeData.__init__.__defaults__", (40, (3, 20, 24), 10, None, None, 0))
    samples = Torchvision("FakeData", size=8).load()
    assert samples.inputs.shape == (40, 3, 8, 8)
    assert samples.inputs.dtype == torch.uint8
    assert samples.names == tuple(map(str, range(10)))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("FashonMNIST", r"got FashonMNIST, did you mean FashionMNIST"),
        ("Zzz", "choose one of CIFAR10, CIFAR100, "),
        ("CIFAR10", r"expected the files of CIFAR10 in .*not found.*: add --data\.download true"),
        ("ImageNet", r"expected the files of ImageNet in .*: put them there yourself"),
        ("CocoDetection", "set for classification, got CocoDetection"),
    ],
)
def test_unavailable_data_sets_are_refused_with_the_remedy(tmp_path, name, words):
    with pytest.raises(ValueError, match=words) as raised:
        Torchvision(name, root=tmp_path).load()
    assert "\n" not in str(raised.value)


def test_options_that_cannot_be_are_refused_at_once():
    for source in (Table, Text):
        with pytest.raises(ValueError, match="expected a separator of at least one character, such as ;, got an empty"):
            source("anywhere.csv", separator="")
    wrong = [(Arrays, {"size": 0}), (Table, {"size": -3}), (Torchvision, {"memory": -1.0})]
    for source, options in (*wrong, (Table, {"memory": float("nan")})):
        with pytest.raises(ValueError, match=r"expected data\.(size|memory) of .*, got .*: "):
            source("CIFAR10", **options)


JOINED = [
    (["sky | animal", "sky", "animal", "animal | sky"], "|", True),
    (["sky,animal", "animal", "sky"], ",", True),
    (["sky;animal", "road"], ";", True),
    (["sky, animal", "animal, tree", "tree, sky", "road"], ",", True),
    (["Labrador, yellow", "Labrador, black", "pug"], ",", False),
    (["maillot", "maillot, tank suit", "crane", "crane, bird"], ",", False),
    (["sky", "animal", "sky & animal", "a/b"], ";", False),
]


@pytest.mark.parametrize("source", [Table, Text])
@pytest.mark.parametrize(("labels", "separator", "told"), JOINED)
def test_several_labels_in_a_cell_are_told_from_names(tmp_path, source, labels, separator, told):
    table = {"text": [f"text {row}" for row in range(2 * len(labels))], "label": labels * 2}
    path = write_table(tmp_path / "t.jsonl", table)
    if told:
        with pytest.warns(UserWarning, match=rf"classes have .*: if .*, set data\.separator to '\{separator}'"):
            assert source(str(path)).load().names == tuple(sorted(set(labels)))
    else:
        assert source(str(path)).load().names == tuple(sorted(set(labels)))  # and no warning, which is an error here
    sets = source(str(path), separator=separator).load()
    assert sets.label_kind == "label sets"
    found = [{sets.names[place] for place in row.nonzero().flatten().tolist()} for row in sets.labels]
    assert found == [{part.strip() for part in label.split(separator)} for label in labels * 2]


@pytest.mark.parametrize(("source", "name"), [(Table, "net.pth"), (Text, "net.pt"), (Arrays, "net.pth")])
def test_a_pickled_module_as_data_is_named_and_never_loaded(tmp_path, source, name):
    torch.save(torch.nn.Linear(2, 1), tmp_path / name)
    told = r"^expected .*, got .*net\.pth?, pickled objects \(torch\.nn\.modules\.linear\.Linear\), .*: .*state_dict"
    with pytest.raises(ValueError, match=told):
        source(str(tmp_path / name)).load()
