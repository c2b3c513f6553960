"""Headers of image files that are kept: the same as read anew, whatever happened to the files and to what is kept."""

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from likewise.data import Folder, image_files, preprocessing
from likewise.data.preprocessing import Header, read_headers

KINDS = (("RGB", "JPEG"), ("L", "PNG"), ("P", "PNG"), ("RGBA", "PNG"), ("I;16", "PNG"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LIKEWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(preprocessing, "MIN_CACHED", 2)
    return tmp_path / "cache"


@pytest.fixture
def paths(tmp_path):
    """Images of several kinds and sizes, in folders with odd names."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(12):
        mode, kind = KINDS[number % len(KINDS)]
        folder = tmp_path / "set" / ("a b;c" if number % 2 else "ü\n%")
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(rng.integers(0, 255, (5 + number, 9, 3), dtype=np.uint8))
        image = Image.new(mode, (9, 5 + number)) if mode == "I;16" else image.convert(mode)
        image.save(folder / f"{number}.{kind.lower()}", kind)
        made.append(str(folder / f"{number}.{kind.lower()}"))
    return made


class Reads:
    """Reads headers in an order of its own, by Pillow alone, and notes which it was asked for."""

    def __init__(self, paths):
        self.paths, self.asked = paths, []

    def __call__(self, row):
        self.asked.append(self.paths[row])
        try:
            with Image.open(self.paths[row]) as image:
                return Header(image.mode in {"L", "I;16"}, image.mode, image.size[::-1])
        except OSError:
            return None


def found(paths):
    reads = Reads(paths)
    return read_headers(paths, range(len(paths)).__getitem__, reads, "plain"), sorted(reads.asked)


def plainly(paths):
    return [Reads(paths)(row) for row in range(len(paths))]


def test_a_second_start_reads_nothing_but_in_another_way_or_without_a_file(paths):
    assert found(paths) == (plainly(paths), sorted(paths))
    assert found(paths) == (plainly(paths), [])
    back = paths[::-1]
    assert found(back) == (plainly(back), [])
    for keys, how in ((paths, "upright"), ([None, *paths[1:]], "plain")):
        reads = Reads(paths)
        assert read_headers(keys, range(len(paths)).__getitem__, reads, how) == plainly(paths)
        assert len(reads.asked) == len(paths)


def test_what_is_new_or_changed_is_read_and_what_is_gone_is_not_missed(paths, tmp_path):
    found(paths)
    Image.new("RGB", (31, 7)).save(paths[3])
    os.utime(paths[3], ns=(1, 1))
    same = Path(paths[4]).stat()
    Image.new("L", (200, 100)).save(paths[4])  # another length, and the time of before
    os.utime(paths[4], ns=(same.st_atime_ns, same.st_mtime_ns))
    new = str(tmp_path / "set" / "a b;c" / "new.png")
    Image.new("L", (3, 4)).save(new)
    now = [path for path in paths if path != paths[7]] + [new]
    Path(paths[7]).unlink()
    assert found(now) == (plainly(now), sorted([paths[3], paths[4], new]))
    assert found(now) == (plainly(now), [])


def test_unreadable_files_are_asked_again_and_nothing_is_written_for_them(paths, cache):
    Path(paths[2]).write_bytes(b"no image")
    Path(paths[5]).unlink()
    assert found(paths) == (plainly(paths), sorted(paths))
    (kept,) = cache.glob("*.json")
    before = kept.stat().st_mtime_ns
    assert found(paths) == (plainly(paths), sorted([paths[2], paths[5]]))
    assert kept.stat().st_mtime_ns == before
    Image.new("RGB", (4, 4)).save(paths[5])
    assert found(paths) == (plainly(paths), sorted([paths[2], paths[5]]))
    assert found(paths) == (plainly(paths), [paths[2]])


def test_several_sets_below_one_folder_are_kept_beside_each_other(paths):
    """As train and test lists, or the two sides of pairs; what is read of one is not lost by the other."""
    first, second = paths[:8], paths[5:]
    assert found(first)[1] == sorted(first)
    assert found(second)[1] == sorted(paths[8:])
    for some in (first, second, paths):
        assert found(some) == (plainly(some), [])


def test_without_a_home_all_is_read(paths, monkeypatch):
    def nowhere(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("LIKEWISE_CACHE")
    monkeypatch.setattr(Path, "expanduser", nowhere)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for _ in range(2):
        assert found(paths) == (plainly(paths), sorted(paths))


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "no table", "other entries", "bytes"])
def test_what_is_damaged_is_read_anew(paths, cache, damage):
    found(paths)
    (kept,) = cache.glob("*.json")
    whole = kept.read_bytes()
    damaged = {"cut": whole[: len(whole) // 2], "empty": b"", "text": b"names", "no table": b"[1]", "bytes": b"\xff"}
    damaged["other entries"] = json.dumps({key: [1, 2] for key in json.loads(whole)}).encode()
    kept.write_bytes(damaged[damage])
    assert found(paths) == (plainly(paths), sorted(paths))
    assert found(paths) == (plainly(paths), [])


def test_a_full_disk_leaves_what_was_kept(paths, cache, monkeypatch):
    found(paths)
    (kept,) = cache.glob("*.json")
    before = kept.read_bytes()
    Image.new("RGB", (31, 7)).save(paths[3])

    def full(file, text, **_):
        file.write_bytes(text[:40].encode())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.warns(UserWarning, match=r"takes none \(No space left on device\): LIKEWISE_CACHE"):
        assert found(paths)[0] == plainly(paths)
    assert kept.read_bytes() == before
    assert not list(cache.glob("*.partial"))


@pytest.mark.usefixtures("paths")
def test_a_folder_is_the_same_by_what_is_kept(tmp_path, monkeypatch):
    """A folder of classes, twice: the second time no header is read."""
    root = tmp_path / "set"
    first = Folder(str(root), size=8, memory=0).load()
    asked = []
    monkeypatch.setattr(image_files, "_header", lambda item, *, upright: asked.append((item, upright)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = Folder(str(root), size=8, memory=0).load()
    assert asked == []
    rows = torch.arange(len(first))
    assert torch.equal(first.inputs[rows], second.inputs[rows])
    assert (list(first.ids), first.found) == (list(second.ids), second.found)
