"""Inputs read ahead by workers are those read one by one, and what could not be is noted; and bars over reading."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from likewise.data import Folder
from likewise.data.by_class import TurnedRows
from likewise.data.image_files import ImageFiles
from likewise.data.lazy_inputs import (
    JoinedRows,
    LazyInputs,
    SomeRows,
    fetch,
    on_demand,
    read_ahead,
    spans_of,
    track,
    unreadable,
    use_progress,
)
from likewise.data.preprocessing import ImagePreprocessing
from likewise.data.samples import Samples
from likewise.data.texts import Texts
from likewise.evaluation.encoding import features_of
from likewise.models import ConvNet
from meters import Bars


@pytest.fixture
def files(tmp_path):
    """Twenty images, of which three break after the header."""
    rng = np.random.default_rng(0)
    paths = []
    for number in range(20):
        path = tmp_path / f"{number}.png"
        Image.fromarray(rng.integers(0, 255, (6, 5, 3), dtype=np.uint8)).save(path)
        if number in {3, 4, 17}:
            path.write_bytes(path.read_bytes()[:60])
        paths.append(path)
    return paths


def plainly(path):
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except OSError:
        return None


@pytest.mark.parametrize(("workers", "size"), [(0, 1), (0, 50), (1, 50), (2, 4)])
def test_each_row_once_in_order_whoever_reads(files, workers, size):
    made = ImagePreprocessing(3, 6, 5)
    order = torch.tensor([19, 3, 0, 7, 17, 2, 4, 11])
    inputs = JoinedRows(SomeRows(ImageFiles(files, made), order), ImageFiles(files[:5], made))
    expected = [files[row] for row in order.tolist()] + files[:5]
    rows, lost = [], []
    for read in read_ahead(inputs, spans_of(inputs, [range(13)], size), workers):
        assert len(read.rows) == len(read.inputs)
        rows += read.rows.tolist()
        lost += read.lost.tolist()
        for row, image in zip(read.rows.tolist(), read.inputs, strict=True):
            assert np.array_equal(image.numpy(), plainly(expected[row]))
    broken = [row for row, path in enumerate(expected) if plainly(path) is None]
    assert sorted(rows + lost) == list(range(13))
    assert (rows, lost) == (sorted(rows), broken)
    found = unreadable(inputs, torch.arange(13))
    assert [(one.place, Path(one.name).name) for one in found] == [(row, expected[row].name) for row in broken]


@pytest.mark.filterwarnings("ignore:an image that cannot be read")
@pytest.mark.parametrize("workers", [0, 2])
def test_turns_of_what_a_worker_could_not_read_have_no_features(files, workers):
    """Three broken images in four turns each; also where rows of one's own cannot note what a worker found."""
    images, others = (ImageFiles(files, ImagePreprocessing(3, 6, 6)) for _ in range(2))

    class Own(LazyInputs):
        def __init__(self):
            self.shape, self.dtype = images.shape, images.dtype

        def __getitem__(self, rows):
            return others[rows]

        def unreadable(self, rows):
            return unreadable(others, rows)

    turned = TurnedRows(images)
    for inputs, turns in ((turned, 4), (Own(), 1)):
        samples = Samples(inputs, torch.arange(20 * turns) % 2, ("a", "b"))
        features = features_of(samples, ConvNet((3, 6, 6), width=2), "test", workers=workers)
        assert features.numbers.tolist() == [row for row in range(20 * turns) if row % 20 not in {3, 4, 17}]
    assert len(unreadable(turned, torch.arange(80))) == 12


def test_only_what_is_not_in_memory_is_read_ahead(files):
    given = torch.zeros(3), Texts(["a", "b"]), None, ImageFiles(files, ImagePreprocessing(3, 6, 5))
    assert [on_demand(inputs) for inputs in given] == [False, False, False, True]


class _Full(torch.utils.data.Dataset):
    """Items whose reading ends a worker as full shared memory does."""

    def __len__(self):
        return 4

    def __getitem__(self, place):
        if place == 2:
            os.kill(os.getpid(), signal.SIGBUS)
        return place


@pytest.mark.process
def test_too_little_shared_memory_is_said_in_a_line():
    read = fetch(_Full(), 1)
    with pytest.raises(ValueError, match=r"got too little in /dev/shm: .* or take fewer --workers"):
        list(read)


@pytest.fixture
def photos(tmp_path):
    """Folders of two classes with 150 images each, one of them no image."""
    for name in ("ash", "elm"):
        (tmp_path / name).mkdir()
        for number in range(150):
            Image.new("L", (4, 3), number % 256).save(tmp_path / name / f"{number:03}.png")
    (tmp_path / "ash" / "007.png").write_bytes(b"no image")
    return tmp_path


def test_every_file_moves_a_bar_and_none_is_drawn_unasked(photos, capfd):
    bars = Bars()
    with use_progress(bars), pytest.warns(UserWarning, match=r"left out 1 of 300 images"):
        shown = Folder(str(photos)).load()
    assert bars.steps == {"listing files": 300, "reading sizes of images": 300, "reading images": 299}
    with pytest.warns(UserWarning, match="left out 1 of 300 images"):
        silent = Folder(str(photos)).load()
    assert torch.equal(shown.inputs, silent.inputs)
    expected = [number % 256 for number in range(150) if number != 7] + [number % 256 for number in range(150)]
    assert shown.inputs[:, 0, 0, 0].tolist() == expected  # in order, beyond the first chunk
    assert capfd.readouterr().err == ""


def test_a_bar_is_gone_after_an_error():
    with pytest.raises(RuntimeError), use_progress(Bars()):
        raise RuntimeError
    inner, outer = Bars(), Bars()
    with use_progress(outer):
        with use_progress(inner):
            list(track("ab", "spelling"))
        with use_progress(None):
            list(track("abc", "spelling"))
        list(track("abcd", "spelling"))
    assert list(track("abcde", "spelling")) == list("abcde")
    assert (inner.steps, outer.steps) == ({"spelling": 2}, {"spelling": 4})
