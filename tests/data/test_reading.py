"""Inputs read ahead by workers: the same rows as read one by one, and what could not be read is noted here."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

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
    unreadable,
)
from likewise.data.preprocessing import ImagePreprocessing
from likewise.data.samples import Samples
from likewise.data.texts import Texts
from likewise.evaluation.encoding import features_of
from likewise.models import ConvNet


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
