"""Large Parquet files are read through a folder that is kept: once for all starts and processes."""

import io
import os
import subprocess
import sys
import warnings
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from likewise.data import Table, tables


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LARGE", 1)
    monkeypatch.setenv("LIKEWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path, seed: int = 0, count: int = 12) -> np.ndarray:
    """Write images as bytes, and return their pixels."""
    pixels = np.random.default_rng(seed).integers(0, 255, (count, 8, 8, 3), dtype=np.uint8)
    images = []
    for one in pixels:
        Image.fromarray(one).save(content := io.BytesIO(), "png")
        images.append({"bytes": content.getvalue(), "path": None})
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    table = {"image": images, "label": [number % 2 for number in range(count)]}
    datasets.Dataset.from_dict(table, features=kinds).to_parquet(path)
    return pixels


def read(path: Path) -> np.ndarray:
    inputs = Table(str(path), memory=0).load().inputs
    return inputs[torch.arange(len(inputs))].permute(0, 2, 3, 1).numpy()


def test_a_second_start_reads_what_the_first_kept_and_nothing_is_left_elsewhere(tmp_path, monkeypatch, cache):
    path = tmp_path / "bîrds [all].parquet"
    wanted = write(path)
    monkeypatch.setattr(tables, "TemporaryFolder", lambda: pytest.fail("a temporary folder was made"))
    np.testing.assert_array_equal(read(path), wanted)
    kept = sorted(file for file in cache.rglob("*.arrow"))
    assert kept
    before = [file.stat().st_mtime_ns for file in kept]
    np.testing.assert_array_equal(read(path), wanted)
    assert sorted(cache.rglob("*.arrow")) == kept
    assert [file.stat().st_mtime_ns for file in kept] == before


def test_a_file_that_has_changed_is_read_anew(tmp_path):
    path = tmp_path / "t.parquet"
    write(path)
    read(path)
    wanted = write(path, seed=1)
    os.utime(path, ns=(1, 10**18))
    np.testing.assert_array_equal(read(path), wanted)


def test_parts_in_a_folder_are_kept_too(tmp_path, cache):
    (tmp_path / "birds").mkdir()
    wanted = [write(tmp_path / "birds" / f"{part}.parquet", seed) for seed, part in enumerate(("train", "test"))]
    for _ in range(2):
        np.testing.assert_array_equal(read(tmp_path / "birds"), np.concatenate(wanted))
    assert len(list(cache.rglob("*.arrow"))) == 2


def test_where_nothing_can_be_kept_a_warning_says_so(tmp_path, monkeypatch):
    wanted = write(tmp_path / "t.parquet")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LIKEWISE_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"of tables are read anew at each start, as nothing can be kept \(.+\): LIKE"):
        found = read(tmp_path / "t.parquet")
    np.testing.assert_array_equal(found, wanted)


def test_small_tables_and_others_are_not_kept(tmp_path, monkeypatch, cache):
    write(tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("x,label\n1,a\n2,b\n3,a\n", encoding="utf-8")
    Table(str(tmp_path / "t.csv")).load()
    monkeypatch.setattr(tables, "LARGE", 2**28)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(tmp_path / "t.parquet")
    assert not list(cache.rglob("*.arrow"))


CODE = """
import sys, hashlib, torch
from likewise.data import Table, tables
tables.LARGE = 1
inputs = Table(sys.argv[1], memory=0).load().inputs
print(hashlib.sha256(inputs[torch.arange(len(inputs))].numpy().tobytes()).hexdigest())
"""


@pytest.mark.process
def test_two_that_start_at_once_read_the_same(tmp_path, cache):
    write(tmp_path / "t.parquet", count=200)
    command = [sys.executable, "-c", CODE, str(tmp_path / "t.parquet")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate()[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert said[0] == said[1] != ""
    assert len(list(cache.rglob("*.arrow"))) == 1
