"""Shards: tars read at random are the folder that they were made of, to the bit; what is odd in them is said."""

import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photos import encoded, smooth, write_tar
from PIL import Image

from likewise.cli import main
from likewise.data import Folder, Shards, preprocessing
from likewise.files.detection import source_for
from likewise.runs import Run

SIZES = [(40, 30), (31, 64), (16, 16), (90, 37)]


@pytest.fixture(autouse=True)
def headers_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("LIKEWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(preprocessing, "MIN_CACHED", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Smooth photos of several sizes in two classes, one turned by its EXIF."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(24):
        place = root / ("ash tree", "élm")[number % 2]
        place.mkdir(exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 4 else 1
        smooth(rng, SIZES[number % len(SIZES)]).save(place / f"{number:02}.jpg", exif=exif, quality=95)
    return root


def image(seed: int = 0, kind: str = "png") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (12, 10, 3), dtype=np.uint8)
    return encoded(pixels, kind)


def refused(words: str, path: str, *args: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=words):
        Shards(path, *args, **options).load()


def sharded(folder: Path, root: Path, count: int = 3, form: int = tarfile.PAX_FORMAT, *, classes: bool = True) -> Path:
    """Put the photos of a folder in tars, in the order of the folder."""
    root.mkdir()
    photos = sorted(folder.glob("*/*.jpg"))
    for number in range(count):
        files = []
        for photo in photos[number * len(photos) // count : (number + 1) * len(photos) // count]:
            key = f"{photo.parent.name}/{photo.stem}"
            files += [(f"{key}.cls", photo.parent.name.encode())] if classes else []
            files += [(f"{key}.jpg", photo.read_bytes()), (f"{key}.json", b'{"n": 1}')]
        write_tar(root / f"{number:03}.tar", files, form)
    return root


@pytest.mark.parametrize(
    ("form", "memory"), [(tarfile.PAX_FORMAT, 0), (tarfile.GNU_FORMAT, 2), (tarfile.USTAR_FORMAT, 0)]
)
def test_shards_are_the_folder_they_were_made_of(folder, tmp_path, form, memory):
    found = Shards(str(sharded(folder, tmp_path / "tars", form=form)), size=16, memory=memory).load()
    wanted = Folder(str(folder), size=16, memory=memory).load()
    assert found.names == wanted.names
    assert torch.equal(found.labels, wanted.labels)
    assert [f"{name}.jpg" for name in found.ids] == list(wanted.ids)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found.inputs[order], wanted.inputs[order])
    assert found.preprocessing == wanted.preprocessing
    assert found.found == wanted.found


@pytest.mark.slow
def test_a_training_on_shards_is_that_on_the_folder_to_the_bit_and_its_features_have_their_keys(folder, tmp_path):
    sharded(folder, tmp_path / "tars")
    common = ["--data.size", "16", "--data.memory", "0", "--encoder", "ConvNet", "--encoder.width", "4"]
    common += ["--trainer.max_epochs", "1", "--batches.batch_size", "8", "--workers", "2", "--report", "false"]
    weights = []
    for kind, place in (("Folder", folder), ("Shards", tmp_path / "tars")):
        runs = tmp_path / f"runs-{kind}"
        words = ["train", "--data", kind, "--data.path", str(place), *common, "--evaluations", "[]"]
        assert main([*words, "--runs", str(runs)]) == 0
        (run,) = runs.iterdir()
        weights.append(Run(run).encoder().state_dict())
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name
    output = tmp_path / "features.npz"
    assert main(["embed", str(run), f"{tmp_path}/tars/{{000..001}}.tar", "--output", str(output)]) == 0
    features = np.load(output)
    assert features["ids"].tolist()[:2] == ["ash tree/00", "ash tree/02"]
    assert len(features["features"]) == 16


def test_a_second_start_reads_no_header_and_a_tar_that_changed_is_read(folder, tmp_path, monkeypatch):
    root = sharded(folder, tmp_path / "tars")
    first = Shards(str(root), size=16, memory=0).load()
    with monkeypatch.context() as patch:
        patch.setattr("likewise.data.image_files._header", lambda *_, **__: pytest.fail("a header was read"))
        second = Shards(str(root), size=16, memory=0).load()
    assert torch.equal(second.inputs[torch.arange(24)], first.inputs[torch.arange(24)])
    write_tar(root / "001.tar", [("new/1.jpg", image(kind="jpeg")), ("new/1.cls", b"new")])
    after = Shards(str(root), size=16, memory=0).load()
    assert len(after) == 17
    assert "new" in after.names


def test_paths_are_folders_files_patterns_and_ranges(folder, tmp_path, monkeypatch):
    root = sharded(folder, tmp_path / "a [odd] place")
    for path, count in (
        (root, 24), (root / "001.tar", 8), (f"{root}/{{000..001}}.tar", 16), (f"{root}/{{000..002}}.tar", 24)
    ):  # fmt: skip
        assert len(Shards(str(path), size=16).load()) == count
    monkeypatch.chdir(root)
    assert len(Shards("00[01].tar", size=16).load()) == 16
    assert len(Shards("*.tar", size=16).load()) == 24
    assert source_for("*.tar") == ("Shards", {"path": "*.tar"})
    assert source_for(root)[0] == source_for(root / "000.tar")[0] == source_for("{000..001}.tar")[0] == "Shards"
    refused(r"expected 5 tars, .*, got 3: .*003.tar does not exist", "{000..004}.tar")
    refused("expected tars, got none-here, where there are none", "none-here")


def test_parts_are_told_by_the_names_of_tars(folder, tmp_path):
    root = sharded(folder, tmp_path / "tars")
    for number, name in enumerate(["train-000", "imagenet-train-001", "val-000"]):
        (root / f"{number:03}.tar").rename(root / f"{name}.tar")
    samples = Shards(str(root), size=16, label="folder").load()
    assert torch.bincount(samples.parts, minlength=3).tolist() == [16, 0, 8]
    shutil.copy(root / "val-000.tar", root / "test-000.tar")
    parts = Shards(str(root), size=16, label="folder").load()
    assert torch.bincount(parts.parts, minlength=3).tolist() == [16, 8, 8]
    assert len(set(parts.ids)) == 32
    shutil.copy(root / "val-000.tar", root / "more.tar")
    refused(r"named after their parts, train and test, in .*, got more.tar: rename it", str(root), size=16)


def test_labels_are_found_where_they_are(tmp_path):
    files = []
    for number in range(12):
        kept = {"label": number % 3, "tags": ["red", "round"][: number % 3], "of": None}
        contents = {"png": image(number), "cls": b" %d\n" % (number % 11), "json": json.dumps(kept).encode()}
        contents["txt"] = b"spring" if number % 4 else b"autumn"
        files += [(f"c{number % 2}/{number}.{kind}", content) for kind, content in contents.items()]
    path = str(write_tar(tmp_path / "a.tar", files))
    classes = Shards(path).load()
    assert classes.names == tuple(map(str, range(11)))
    assert classes.labels.tolist() == [number % 11 for number in range(12)]
    assert Shards(path, "json.label").load().labels.tolist() == [number % 3 for number in range(12)]
    assert Shards(path, "folder").load().names == ("c0", "c1")
    assert Shards(path, "txt").load().names == ("autumn", "spring")
    sets = Shards(path, "json.tags").load()
    assert sets.label_kind == "label sets"
    assert sets.labels.sum(dim=1).tolist() == [number % 3 for number in range(12)]
    assert Shards(path, "none").load().labels is None
    (tmp_path / "names.txt").write_text("\n".join(f"class {number}" for number in range(11)), encoding="utf-8")
    assert Shards(path, names=str(tmp_path / "names.txt")).load().names[10] == "class 10"
    coded = write_tar(tmp_path / "b.tar", [("1.png", image()), ("1.cls", b"007"), ("2.png", image()), ("2.cls", b"10")])
    assert Shards(str(coded)).load().names == ("007", "10")
    with pytest.raises(ValueError, match=r"expected numbers from 0 as labels in .* for the names in .*, got '007'"):
        Shards(str(coded), names=str(tmp_path / "names.txt")).load()
    for label, match in {
        "json.of": r"expected a label of each of 12 samples in .*, got none of 12: set data.label",
        "json": "expected data.label as cls, json.FIELD, txt, folder or none, got 'json'",
        "label": "expected data.label as cls",
    }.items():
        refused(match, path, label)
    refused(r"expected a file of names, got .*nowhere.txt, which is no file", path, names=str(tmp_path / "nowhere.txt"))


def test_usual_labels_are_those_that_are_there(tmp_path):
    files = [("1.png", image()), ("1.json", b'{"cls": "a"}'), ("2.png", image()), ("2.json", b'{"cls": "b"}')]
    by_json = write_tar(tmp_path / "json.tar", files)
    assert Shards(str(by_json)).load().names == ("a", "b")
    by_json.rename(tmp_path / "json-2.tar")
    write_tar(tmp_path / "json-1.tar", [])
    assert Shards(str(tmp_path / "json-*.tar")).load().names == ("a", "b")
    refused(r"expected an image in each sample of .*json-1.tar, got no file", str(tmp_path / "json-1.tar"))
    bare = write_tar(tmp_path / "bare.tar", [("1.png", image()), ("2.png", image())])
    refused(r"expected labels in .*, got .png: set data.label, or set that to none", str(bare))
    broken = write_tar(tmp_path / "broken.tar", [("1.png", image()), ("1.json", b"{")])
    refused(r"expected JSON in .*broken.tar/1.json, got none", str(broken))


def test_several_images_of_a_sample_and_none(tmp_path):
    files = [(f"{n}.{side}.png", image(2 * n + (side == "right"))) for n in (1, 2) for side in ("left", "right")]
    files += [("1.cls", b"0"), ("2.cls", b"1")]
    path = str(write_tar(tmp_path / "two.tar", files))
    refused(r"expected one image in 1 of .*two.tar, got .left.png, .right.png: name one", path)
    right = Shards(path, image="right.png").load()
    wanted = torch.from_numpy(np.array(Image.open(io.BytesIO(image(5))))).permute(2, 0, 1)
    assert torch.equal(right.inputs[torch.tensor([1])][0], wanted)
    refused(r"expected files called .up.png in .*, got .cls, .left.png, .right.png", path, image="up.png")
    files = [("1.png", image(1)), ("1.cls", b"0"), ("2.jpeg", image(2, "jpeg")), ("2.cls", b"1"), ("3.cls", b"1")]
    mixed = write_tar(tmp_path / "mixed.tar", files)
    with pytest.warns(UserWarning, match="left out 1 of 3 samples, without an image"):
        samples = Shards(str(mixed)).load()
    assert list(samples.ids) == ["1", "2"]
    texts = write_tar(tmp_path / "texts.tar", [("1.txt", b"a"), ("1.cls", b"0")])
    refused(r"expected an image in each sample of .*, got only .cls, .txt", str(texts))


def test_dots_within_names_are_said_and_not_guessed_about(tmp_path):
    """A sample's name ends at the first dot of its file's, as in WebDataset: 22.05 and 22.06 are of one sample."""
    told = r"write 22_05\.png for 22\.05\.png, as the name of a sample ends at its first dot"
    one = [(f"p22.{n:02}.{kind}", of) for n in range(9) for kind, of in (("png", image(n)), ("cls", b"0"))]
    with pytest.raises(ValueError, match=rf"expected one image in p22 of .*, got .00.png, .01.png, .*: {told}"):
        Shards(str(write_tar(tmp_path / "one.tar", one))).load()
    each = [(f"ash/{n}.5.{kind}", of) for n in range(9) for kind, of in (("png", image(n)), ("cls", b"elm"))]
    path = str(write_tar(tmp_path / "each.tar", each))
    refused(rf"expected labels in .*, got .5.cls, .5.png: {told}", path)  # and not by folders
    assert len(Shards(path, "none").load()) == 9


def by_sample(numbers: list[int]) -> list[tuple[str, bytes]]:
    return [(f"{n % 5}.{kind}", of) for n in numbers for kind, of in (("png", image(n)), ("cls", str(n).encode()))]


@pytest.mark.parametrize("memory", [0, 1])
def test_samples_of_one_name_are_all_read_each_with_its_own_class(tmp_path, memory):
    """Whether they follow each other or not, as two counters that started at 0 give; the second start says it too."""
    for name, numbers in (("after.tar", list(range(10))), ("beside.tar", [0, 5, 1, 6, 2, 7, 3, 8, 4, 9])):
        path = str(write_tar(tmp_path / name, by_sample(numbers)))
        for _ in range(2):
            with pytest.warns(UserWarning, match="^5 names come again in their tar, such as 0: all are read$"):
                samples = Shards(path, memory=memory).load()
            assert [int(samples.names[label]) for label in samples.labels] == numbers
            assert sorted(samples.ids) == sorted([*"01234", *(f"{n} (2)" for n in range(5))])
            for read, number in zip(samples.inputs[torch.arange(10)], numbers, strict=True):
                pixels = np.array(Image.open(io.BytesIO(image(number))))
                assert torch.equal(read, torch.from_numpy(pixels).permute(2, 0, 1))
    files = by_sample(list(range(5)))  # files of a sample need not follow each other either
    samples = Shards(str(write_tar(tmp_path / "apart.tar", [*files[::2], *files[1::2]]))).load()
    assert (list(samples.ids), samples.names) == (list("01234"), tuple("01234"))


def test_what_is_no_sample_in_a_tar_is_passed_over(folder, tmp_path):
    path = tmp_path / "odd.tar"
    long = "n" * 180
    with tarfile.open(path, "w") as tar:
        tar.add(folder, "photos", recursive=True)
        for kind, name in ((tarfile.SYMTYPE, "l/1.jpg"), (tarfile.LNKTYPE, "l/2.jpg"), (tarfile.DIRTYPE, "d.jpg")):
            about = tarfile.TarInfo(name)
            about.type, about.linkname = kind, "photos"
            tar.addfile(about)
        for name in ("photos/._x.jpg", f"photos/élm/{long}.jpg", "photos/README"):
            about = tarfile.TarInfo(name)
            content = image(kind="jpeg") if name.endswith("jpg") else b"read me"
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    samples = Shards(str(path), size=16).load()
    assert samples.names == ("ash tree", "élm")
    assert len(samples) == 25
    assert f"photos/élm/{long}" in list(samples.ids)


def test_tars_that_are_compressed_cut_or_none_are_refused(folder, tmp_path):
    root = sharded(folder, tmp_path / "tars", 1)
    whole = (root / "000.tar").read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(whole))
    refused(r"expected tars that are not compressed, got .*a.tar.gz: unpack it", str(tmp_path / "a.tar.gz"))
    for content in (whole[: len(whole) // 2], gzip.compress(whole), b"", b"no tar" * 200):
        (root / "000.tar").write_bytes(content)
        told = "which can't be read as one" if content[:9] != whole[:9] else "whole up to '.+': "
        refused(f"expected a tar, got .*000.tar, {told}.*: copy it again", str(root), size=16)


def test_an_image_whose_header_takes_all_of_it_is_read_whole(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (200, 160, 3), dtype=np.uint8)
    content = encoded(noise)  # whether it is turned stands behind its pixels
    assert len(content) > 2**16
    files = [(f"{n}.{kind}", of) for n in "01" for kind, of in (("png", content), ("cls", n.encode()))]
    path = write_tar(tmp_path / "a.tar", files)
    samples = Shards(str(path)).load()
    assert torch.equal(samples.inputs[torch.tensor([0])][0], torch.from_numpy(noise).permute(2, 0, 1))


def test_a_header_that_is_damaged_loses_no_samples_unsaid(folder, tmp_path):
    root = sharded(folder, tmp_path / "tars", 1, tarfile.USTAR_FORMAT)
    content = bytearray((root / "000.tar").read_bytes())
    place = content.index(b"ash tree/10.cls")
    content[place + 148 : place + 156] = b"no sum  "
    (root / "000.tar").write_bytes(content)
    refused(rf"whole up to 'ash tree/08': no header at byte {place:,}: copy it again", str(root), size=16)
    (root / "000.tar").write_bytes(content[:place])  # at the end of a member, as some writers leave it
    assert len(Shards(str(root), size=16).load()) == 5


def test_a_tar_that_is_cut_while_it_is_read_loses_images_and_no_more(folder, tmp_path):
    root = sharded(folder, tmp_path / "tars", 1)
    samples = Shards(str(root), size=16, memory=0).load()
    content = (root / "000.tar").read_bytes()
    (root / "000.tar").write_bytes(content[: len(content) // 2])
    with pytest.warns(UserWarning, match="an image that cannot be read is black where it is indexed: .*000.tar/"):
        read = samples.inputs[torch.arange(24)]
    could = samples.could_be_read
    assert 0 < int(could.sum()) < 24
    assert bool((read[~could] == 0).all())
