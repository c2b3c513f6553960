"""A store has what a loop over Pillow makes of images; it is made once, goes on after SIGKILL, and says what fails."""

import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from threading import Timer

import numpy as np
import pytest
import torch
from photos import smooth
from PIL import Image, ImageOps

from likewise.cli import main
from likewise.data import Folder, RandomResizedCrop, Shards, Table, kept, store
from likewise.data.augmentation.separable import NUMBERS
from likewise.data.image_files import Plain
from likewise.runs import Run

SIZES = [(40, 30), (31, 64), (16, 16), (120, 37), (90, 3), (18, 25)]
MODES = ["RGB", "L", "RGBA", "P", "CMYK", "I;16"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LIKEWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Smooth images of several sizes and modes in two classes, one turned by its EXIF, two that break."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(36):
        place = root / ("ash tree", "élm")[number % 2]
        place.mkdir(exist_ok=True)
        image = smooth(rng, SIZES[number % len(SIZES)])
        mode = MODES[number // 2 % len(MODES)]
        image = (
            Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
            if mode == "I;16"
            else image.convert(mode)
        )
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 1 else 1
        kind = "jpg" if mode in {"RGB", "L", "CMYK"} else "png"
        image.save(place / f"{number:02}.{kind}", exif=exif, **({"quality": 95} if kind == "jpg" else {}))
    for number in (8, 13):
        path = next(root.glob(f"*/{number:02}.*"))
        path.write_bytes(path.read_bytes()[:-40])
    return root


def wanted(path: Path, side: int) -> np.ndarray:
    """What is to be stored of an image: upright, of 8 bits, its shorter side so long, never enlarged."""
    with Image.open(path) as image:
        image.draft("RGB", (2 * side, 2 * side))
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):
            return np.asarray(
                Image.fromarray((np.asarray(upright) // 257).astype(np.uint8)).resize(shape_of(upright, side), 2)
            )
        plain = (
            upright.convert("RGBA").convert("RGB")
            if upright.mode == "P" and "transparency" in upright.info
            else upright
        )
        plain = plain.convert("L" if upright.mode == "L" else "RGB")
        return np.asarray(plain.resize(shape_of(plain, side), Image.Resampling.BILINEAR))


def shape_of(image: Image.Image, side: int) -> tuple[int, int]:
    least = min(image.size)
    return image.size if least <= side else tuple(round(length * side / least) for length in image.size)


@pytest.mark.filterwarnings("ignore:left out")
def test_what_is_stored_is_what_a_loop_makes_and_is_read_without_decoding(folder, monkeypatch, cache):
    samples = Folder(str(folder), size=12, memory=0, store=20).load()
    items = samples.inputs.all_rows.items
    seen = 0
    for row, name in zip(samples.inputs.rows.tolist(), samples.ids, strict=True):
        if (item := items[row]) and isinstance(item, Plain):
            np.testing.assert_array_equal(item.pixels, wanted(folder / name, 20))
            seen += 1
    assert seen == len(samples) - 2 >= 30
    (file,) = cache.glob("store-*.pixels")
    assert file.stat().st_size == sum(
        wanted(folder / name, 20).size for name in samples.ids if name[-6:-4] not in {"08", "13"}
    )
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("an image file was opened"))
    could = samples.could_be_read
    rows = torch.arange(len(samples))[[name[-6:-4] not in {"08", "13"} for name in samples.ids]]
    read = samples.inputs[rows]
    for image, row in zip(read, rows.tolist(), strict=True):
        fitted = ImageOps.fit(
            Image.fromarray(items[int(samples.inputs.rows[row])].pixels), (12, 12), Image.Resampling.BILINEAR
        )
        pixels = np.asarray(fitted.convert("RGB"))
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), pixels)
    assert bool(could.all())


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_read_is_lost_as_it_is_without_a_store(folder):
    lost = []
    for side in (None, 20):
        samples = Folder(str(folder), size=12, memory=0, store=side).load()
        samples.inputs[torch.arange(len(samples))]
        lost.append(
            [name for name, could in zip(samples.ids, samples.could_be_read.tolist(), strict=True) if not could]
        )
    assert lost[0] == lost[1] != []
    assert len(Folder(str(folder), size=12, store=20).load()) == len(Folder(str(folder), size=12).load())


@pytest.mark.filterwarnings("ignore:left out")
def test_crops_are_of_the_stored_image(folder):
    samples = Folder(str(folder), size=12, memory=0, store=20).load()
    files, numbers = samples.inputs.all_rows, torch.rand(1, 2, NUMBERS, generator=torch.Generator().manual_seed(0))
    row = next(
        row for row, name in zip(samples.inputs.rows.tolist(), samples.ids, strict=True) if name.endswith("00.jpg")
    )
    crop = RandomResizedCrop()
    views = files.crops(torch.tensor([row]), crop, numbers)[0]
    stored = Image.fromarray(wanted(folder / "ash tree/00.jpg", 20)).convert("RGB" if files.shape[1] == 3 else "L")
    boxes = crop.boxes(numbers[0], stored.height, stored.width)
    for view, (top, left), (high, wide), flip in zip(views, *(of.tolist() for of in boxes), strict=True):
        section = stored.crop((round(left), round(top), round(left + wide), round(top + high))).resize((12, 12), 2)
        pixels = np.asarray(ImageOps.mirror(section) if flip else section)
        np.testing.assert_array_equal(view.permute(1, 2, 0).numpy(), pixels)


@pytest.mark.filterwarnings("ignore")
def test_a_second_start_makes_nothing_and_a_changed_file_another_store(folder, tmp_path, monkeypatch, cache):
    root = tmp_path / "copy"
    shutil.copytree(folder, root)
    first = Folder(str(root), size=12, memory=0, store=20).load().inputs[torch.arange(20)]
    with monkeypatch.context() as patch:
        patch.setattr("likewise.data.image_files.plain_image", lambda *_: pytest.fail("an image was decoded"))
        again = Folder(str(root), size=12, memory=0, store=20).load()
    assert torch.equal(again.inputs[torch.arange(20)], first)
    assert len(pickle.dumps(again.inputs)) < 20_000
    Image.new("RGB", (30, 30), (255, 0, 0)).save(root / "ash tree" / "00.jpg")
    changed = Folder(str(root), size=12, memory=0, store=20).load()
    assert int(changed.inputs[torch.tensor([0])][0, 0].min()) > 200
    Folder(str(root), size=12, memory=0, store=24).load()
    assert len(list(cache.glob("store-*.pixels"))) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_training_from_a_store_has_the_same_bits_with_workers(folder, tmp_path, workers):
    common = [
        "train",
        str(folder),
        "--data.size",
        "12",
        "--data.memory",
        "0",
        "--data.store",
        "20",
        "--evaluations",
        "[]",
    ]
    common += ["--encoder", "ConvNet", "--encoder.width", "4", "--trainer.max_epochs", "1", "--batches.batch_size", "8"]
    weights = []
    for number in (0, workers):
        runs = tmp_path / f"runs-{number}"
        assert main([*common, "--report", "false", "--workers", str(number), "--runs", str(runs)]) == 0
        (run,) = runs.iterdir()
        weights.append(Run(run).encoder().state_dict())
        assert Run(run).options["data"]["init_args"]["store"] == 20
        if number == workers:
            break
        runs.rename(tmp_path / "before")
    for name, value in weights[0].items():
        assert torch.equal(value, weights[-1][name])


@pytest.mark.filterwarnings("ignore:left out")
def test_images_in_tars_and_in_parquet_are_stored_and_others_are_refused(folder, tmp_path):
    content = (folder / "ash tree" / "00.jpg").read_bytes()
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(4):
            for name, of in ((f"{number}.jpg", content), (f"{number}.cls", str(number % 2).encode())):
                about = tarfile.TarInfo(name)
                about.size = len(of)
                tar.addfile(about, io.BytesIO(of))
    samples = Shards(str(tmp_path / "a.tar"), size=12, memory=0, store=20).load()
    item = samples.inputs.all_rows.items[2]
    np.testing.assert_array_equal(item.pixels, wanted(folder / "ash tree" / "00.jpg", 20))
    assert item.name.endswith("a.tar/2.jpg")
    import datasets  # noqa: PLC0415 - for one test

    table = {"image": [{"bytes": content, "path": None}] * 4, "label": [0, 1] * 2}
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    datasets.Dataset.from_dict(table, features=kinds).to_parquet(tmp_path / "t.parquet")
    stored = Table(str(tmp_path / "t.parquet"), size=12, memory=0, store=20).load().inputs.all_rows.items[3]
    np.testing.assert_array_equal(stored.pixels, wanted(folder / "ash tree" / "00.jpg", 20))
    datasets.Dataset.from_dict(table, features=kinds).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"expected images in files, tars or Parquet files for data.store, got others"):
        Table(str(tmp_path / "saved"), size=12, store=20).load()


def test_what_cannot_be_is_said(folder, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"expected data.store of at least data.size, got 20: 256 is usual"):
        Folder(str(folder), size=24, store=20)
    with pytest.raises(ValueError, match=r"expected data.store of at least"):
        Folder(str(folder), store=0)
    with monkeypatch.context() as patch:
        patch.setattr(store.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))  # noqa: SLF001
        with pytest.raises(ValueError, match=r"expected 0.0 MiB on disk for data.store, got 0.0 MiB in .*: free some"):
            Folder(str(folder), size=12, store=20).load()
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LIKEWISE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"expected room for .* of data.store, got none \(.+\): LIKEWISE_CACHE names"):
        Folder(str(folder), size=12, store=20).load()


@pytest.mark.filterwarnings("ignore:left out")
def test_a_full_disk_keeps_what_is_done(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "BETWEEN", 5)
    with monkeypatch.context() as patch:
        noted, save = [], store.save

        def full(place, arrays):
            if len(noted) == 3:
                raise OSError(28, "No space left on device")
            noted.append(len(arrays["shapes"]))
            save(place, arrays)

        patch.setattr(store, "save", full)
        with pytest.raises(ValueError, match=r"got none \(No space left on device\)"):
            Folder(str(folder), size=12, memory=0, store=20).load()
    read = []
    monkeypatch.setattr(store, "in_threads", lambda function, rows: (read.append(row) or function(row) for row in rows))
    samples = Folder(str(folder), size=12, memory=0, store=20).load()
    assert read[0] == 15
    monkeypatch.setenv("LIKEWISE_CACHE", str(tmp_path / "other"))
    anew = Folder(str(folder), size=12, memory=0, store=20).load()
    rows = torch.tensor([0, 9, 20, 33])
    assert torch.equal(samples.inputs[rows], anew.inputs[rows])


@pytest.mark.filterwarnings("ignore")
def test_a_store_is_waited_for_however_long_it_takes(folder, cache, monkeypatch):
    import fcntl  # noqa: PLC0415 - not on Windows

    monkeypatch.setattr(kept, "LONGEST_WAIT", 0.05)
    wanted = Folder(str(folder), size=12, memory=0, store=20).load().inputs[torch.arange(5)]
    (lock,) = cache.glob("store-*.lock")
    for file in (*cache.glob("store-*.npz"), *cache.glob("store-*.pixels")):
        file.unlink()
    held, freed, began = lock.open("w"), [], []
    fcntl.flock(held, fcntl.LOCK_EX)
    Timer(0.6, lambda: (freed.append(time.monotonic()), held.close())).start()
    made = store._made  # noqa: SLF001
    monkeypatch.setattr(store, "_made", lambda *given: (began.append(time.monotonic()), made(*given))[1])
    assert torch.equal(Folder(str(folder), size=12, memory=0, store=20).load().inputs[torch.arange(5)], wanted)
    assert freed[0] <= began[0]


CODE = """
import sys, time, hashlib, torch
from likewise.data import Folder, image_files, kept, store
store.BETWEEN, kept.LONGEST_WAIT = 2, 0.05
plain, made = image_files.plain_image, []
def slowly(image, bits):
    made.append(image)
    time.sleep(float(sys.argv[2]))
    return plain(image, bits)
image_files.plain_image = slowly
inputs = Folder(sys.argv[1], size=12, memory=0, store=20).load().inputs
image_files.plain_image = plain
print(len(made), hashlib.sha256(inputs[torch.arange(5)].numpy().tobytes()).hexdigest())
"""


@pytest.mark.process
def test_what_a_killed_process_made_is_gone_on_with_and_two_at_once_make_one(folder, cache):
    command = [sys.executable, "-W", "ignore", "-c", CODE, str(folder)]
    first = subprocess.Popen([*command, "0.3"], stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not list(cache.glob("store-*.npz")) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    (index,) = cache.glob("store-*.npz")
    begun = len(np.load(index)["shapes"])
    assert 0 < begun < 36
    both = [subprocess.Popen([*command, "0.01"], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate()[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    (one, of), (other, of_other) = (words.split() for words in said)
    assert of == of_other
    assert int(one) + int(other) == 36 - begun  # one made all, however long the other waited
    (file,) = cache.glob("store-*.pixels")
    whole = file.read_bytes()
    shutil.rmtree(cache)
    subprocess.run([*command, "0"], check=True, capture_output=True)
    (file,) = cache.glob("store-*.pixels")
    assert file.read_bytes() == whole
