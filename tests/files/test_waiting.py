"""Bars over the reading of data are drawn by whoever asked for it, and by nobody else."""

import pytest
import torch
from PIL import Image

from likewise.data import Folder
from likewise.data.lazy_inputs import track, use_progress


class Bars:
    """Counts what is walked through, by what is being done."""

    def __init__(self):
        self.steps = {}

    def __call__(self, walked, doing):
        self.steps[doing] = 0
        for one in walked:
            self.steps[doing] += 1
            yield one


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
