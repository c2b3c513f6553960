"""The file of measured tiles: what it says is launched, and what it cannot mean is refused."""

import json

import pytest
import torch

import likewise as lw

pytest.importorskip("triton", reason="Triton is not installed: it has no wheel for this platform")

from likewise.operator.triton import launches, tuning

pytestmark = pytest.mark.triton

ENTRY = {
    "capability": 90,
    "kernel": "sums",
    "chunk": 32,
    "two": True,
    "whole": True,
    "overlaps": 0,
    "busy": True,
    "tiles": [32, 16, 2, 5],
}


@pytest.fixture
def tiles_file(tmp_path, monkeypatch):
    """Return the file that LIKEWISE_TILES names, which is read anew."""
    path = tmp_path / "tiles.json"
    monkeypatch.setenv("LIKEWISE_TILES", str(path))
    tuning._read_measured.cache_clear()  # noqa: SLF001 - a process reads it once
    yield path
    tuning._read_measured.cache_clear()  # noqa: SLF001 - likewise


def test_measured_tiles_are_launched(tiles_file, monkeypatch):
    """In the forward whose key they have, and there alone."""
    tiles_file.write_text(json.dumps([ENTRY]), encoding="utf-8")
    launched, launch = [], launches._kernel  # noqa: SLF001 - where every launch passes

    def noted(kernel, grid):
        def run(*values, **keywords):
            how = keywords.get("HOW")
            if how is not None:
                launched.append((how.N, how.R, keywords["num_warps"], keywords["num_stages"]))
            launch(kernel, grid)(*values, **keywords)

        return run

    monkeypatch.setattr(launches, "_kernel", noted)
    rows, labels = torch.randn(70, 20, requires_grad=True), torch.arange(70) % 5
    loss = lw.SupConLoss(backend="triton")(rows, labels)
    loss.backward()
    other = {"two": True, "whole": True, "overlaps": 0, "busy": True, "device": rows.device}
    assert launched == [(32, 16, 2, 5), tuning.tiles("backward", 32, **other)[:4]]
    torch.testing.assert_close(loss, lw.SupConLoss(backend="dense")(rows, labels))
    assert tuning.tiles("sums", 64, **other)[:4] != (32, 16, 2, 5)
    monkeypatch.setattr(tuning, "capability", lambda _: 100)
    assert tuning.tiles("sums", 32, **other)[:4] != (32, 16, 2, 5)


def test_the_shipped_file_can_be_read_and_has_one_entry_a_key():
    assert len(tuning.read(tuning.SHIPPED_TILES)) == len(json.loads(tuning.SHIPPED_TILES.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "FileNotFoundError"),
        ("{", "JSONDecodeError"),
        ('{"tiles": 3}', "TypeError"),
        ([{**ENTRY, "tiles": [48, 16, 2, 5]}], r"with \[48, 16, 2, 5, 1\]"),
        ([{**ENTRY, "tiles": [32, 16, 2, True]}], r"with \[32, 16, 2, True, 1\]"),
        ([{**ENTRY, "tiles": [32, 16, 2]}], "TypeError"),
        ([{**ENTRY, "tiles": [32, 16, 2, 5, 0]}], r"with \[32, 16, 2, 5, 0\]"),
        ([{**ENTRY, "kernel": "forward"}], "'kernel': 'forward'"),
        ([{**ENTRY, "capability": "9.0"}], "'capability': '9.0'"),
        ([{name: value for name, value in ENTRY.items() if name != "busy"}], "KeyError: 'busy'"),
    ],
)
def test_a_wrong_file_is_refused(content, told, tiles_file):
    """By one line that names it, at the loss."""
    if content is not None:
        tiles_file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"^expected tiles as .* in {tiles_file}, got .*{told}.*") as error:
        lw.SupConLoss(backend="triton")(torch.randn(9, 4), torch.arange(9) % 2)
    assert str(error.value).endswith(": measure them again, or unset LIKEWISE_TILES")
    assert "\n" not in str(error.value)
