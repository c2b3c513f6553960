"""Images in Parquet files are read from their row groups: the bytes that pyarrow reads, and nothing copied."""

import os
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from photos import encoded
from PIL import Image
from pyarrow import parquet as pq
from torch.utils.data import DataLoader

from likewise.data import Pairs, Table, preprocessing, table_files
from likewise.data.lazy_inputs import read_ahead
from likewise.data.table_files import read_in_place

rng = np.random.default_rng(0)
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
WRITTEN = {
    "plain": {"compression": "none", "use_dictionary": False},
    "no statistics": {"compression": "none", "write_statistics": False},
    "snappy": {"compression": "snappy"},
    "zstd": {"compression": "zstd", "use_dictionary": False, "data_page_version": "2.0"},
}


def some_images(count, side=9):
    """Return images in PNG, of lengths that differ, and their pixels."""
    pixels = rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    files = [encoded(image) + b"\0" * int(rng.integers(0, 50)) for image in pixels]
    return files, torch.from_numpy(pixels).permute(0, 3, 1, 2)


def struct_table(files, **columns):
    """Return a table as `datasets` writes it."""
    cells = [None if file is None else {"bytes": file, "path": f"ü {row}.png"} for row, file in enumerate(files)]
    return pa.table({"image": pa.array(cells, STRUCT), "label": [row % 2 for row in range(len(files))], **columns})


def contents_of(path, column="image"):
    read = read_in_place({"train": [str(path)]})
    cells = read[0]["train"].with_format("arrow")[:][column].to_pylist()
    numbers = [None if cell is None else cell["bytes"] for cell in cells]
    return [None if number is None else read[1][number] for number in numbers], read[1]


@pytest.mark.parametrize(
    ("group", "lacks", "alone"),
    [(4, [], True), (7, [0, 3, 4, 11, 28, 29], False), (4, range(8), False), (1000, [0, 29], True)],
)
@pytest.mark.parametrize("how", WRITTEN)
def test_the_bytes_are_those_that_pyarrow_reads(how, group, lacks, alone, tmp_path):
    files, _ = some_images(30)
    files = [None if row in lacks else file for row, file in enumerate(files)]
    table = pa.table({"image": pa.array(files, pa.binary()), "n": range(30)}) if alone else struct_table(files)
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=group, **WRITTEN[how])
    got, contents = contents_of(tmp_path / "t.parquet")
    assert got == files
    again = pickle.loads(pickle.dumps(contents))  # noqa: S301 - our own
    assert [again[number] for number in range(30)] == [file or b"" for file in files]


def test_what_datasets_writes_is_read(tmp_path):
    files, pixels = some_images(30)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["ash", "elm"])})
    given = {"image": [{"bytes": file, "path": None} for file in files], "label": [0, 1] * 15}
    datasets.Dataset.from_dict(given, features=features).to_parquet(tmp_path / "t.parquet", batch_size=8)
    samples = Table(str(tmp_path / "t.parquet"), memory=0).load()
    assert samples.names == ("ash", "elm")
    assert list(samples.ids) == [str(row) for row in range(30)]
    order = torch.from_numpy(rng.permutation(30))
    assert torch.equal(samples.inputs[order], pixels[order])


@pytest.mark.parametrize(("how", "memory"), [("plain", 1.0), ("snappy", 0.0)])
def test_parts_in_several_files_are_read_without_a_copy(how, memory, tmp_path, monkeypatch):
    folder, temporary = tmp_path / "set [1]%", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    files, pixels = some_images(24)
    for number, part in enumerate(["train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"]):
        table = struct_table(files[8 * number : 8 * number + 8], weight=[0.5] * 8)
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=3, **WRITTEN[how])
    samples = Table(str(folder), memory=memory).load()
    assert not list(temporary.iterdir())
    assert samples.parts.tolist() == [0] * 16 + [2] * 8
    assert torch.equal(samples.inputs[torch.arange(24)], pixels)
    assert samples.labels.tolist() == [0, 1] * 12


def test_images_that_are_missing_or_broken_are_left_out_and_paths_are_followed(tmp_path):
    files, pixels = some_images(12)
    Image.fromarray(pixels[5].permute(1, 2, 0).numpy()).save(tmp_path / "apart.png")
    cells = [{"bytes": file, "path": f"{row}.png"} for row, file in enumerate(files)]
    cells[2], cells[3], cells[4] = None, {"bytes": None, "path": None}, {"bytes": b"no image", "path": "4.png"}
    cells[5], cells[6] = {"bytes": None, "path": "apart.png"}, {"bytes": b"", "path": "6.png"}
    for how in ("plain", "snappy"):
        table = pa.table({"image": pa.array(cells, STRUCT), "label": [0, 1] * 6})
        pq.write_table(table, tmp_path / "t.parquet", row_group_size=5, **WRITTEN[how])
        for memory in (1.0, 0.0):
            with pytest.warns(UserWarning, match=r"left out 4 of 12 images"):
                samples = Table(str(tmp_path / "t.parquet"), memory=memory).load()
            kept = torch.tensor([0, 1, 5, 7, 8, 9, 10, 11])
            assert torch.equal(samples.inputs[torch.arange(8)], pixels[kept]), how
            assert list(samples.ids) == [str(row) for row in kept.tolist()]


@pytest.mark.process
@pytest.mark.parametrize("how", ["plain", "snappy"])
def test_workers_read_the_same(how, tmp_path):
    files, pixels = some_images(40)
    pq.write_table(struct_table(files), tmp_path / "t.parquet", row_group_size=7, **WRITTEN[how])
    inputs = Table(str(tmp_path / "t.parquet"), memory=0).load().inputs
    assert torch.equal(inputs[torch.arange(5)], pixels[:5])  # some are held before there are workers
    order = torch.from_numpy(rng.permutation(40)).split(6)
    loader = DataLoader(inputs, sampler=order, batch_size=None, num_workers=2)
    assert torch.equal(torch.cat(list(loader)), pixels[torch.cat(order)])
    read = read_ahead(inputs, [range(25), range(25, 40)], workers=2)
    assert torch.equal(torch.cat([some.inputs for some in read]), pixels)


def test_the_last_row_groups_are_held(tmp_path, monkeypatch):
    files, _ = some_images(40)
    pq.write_table(struct_table(files), tmp_path / "t.parquet", row_group_size=5, **WRITTEN["snappy"])
    read, images_of = [], table_files._read_images  # noqa: SLF001
    monkeypatch.setattr(table_files, "_read_images", lambda group: (read.append(group.number), images_of(group))[1])
    _, contents = contents_of(tmp_path / "t.parquet")
    read.clear()
    for number in (0, 5, 10, 15, 4, 9, 14, 19, 39, 5, 0):
        assert contents[number] == files[number]
    assert read == [0, 1, 2, 3, 7, 0]


def test_large_row_groups_are_told_only_where_they_are_read_again_and_again(tmp_path, monkeypatch):
    files, _ = some_images(40)
    monkeypatch.setattr(table_files, "MAX_GROUP_BYTES", 500)
    pq.write_table(struct_table(files), tmp_path / "t.parquet", row_group_size=8)
    told = r"images of .*t\.parquet are in row groups of up to 0 MiB, .*row_group_size=100"
    with pytest.warns(UserWarning, match=told):
        Table(str(tmp_path / "t.parquet"), memory=0).load()
    with warnings.catch_warnings(action="error"):
        Table(str(tmp_path / "t.parquet")).load()  # they are read once
        pq.write_table(struct_table(files), tmp_path / "t.parquet", row_group_size=10)  # all are held
        Table(str(tmp_path / "t.parquet"), memory=0).load()


@pytest.mark.parametrize("how", ["plain", "snappy"])
def test_what_happens_to_a_file_while_it_is_read_makes_images_unreadable(how, tmp_path):
    files, _ = some_images(30)
    path = tmp_path / "t.parquet"
    pq.write_table(struct_table(files), path, row_group_size=10, **WRITTEN[how])
    inputs = Table(str(path), memory=0).load().inputs
    whole, start = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    inputs.all_rows.items.contents._hold()  # noqa: SLF001 - forget what was read
    path.write_bytes(whole[: start + 40])
    with pytest.warns(UserWarning, match="an image that cannot be read is black"):
        got = inputs[torch.arange(30)]
    assert not got.any()  # without the file's end, no group is found
    assert {one.item for one in inputs.unreadable(torch.arange(30))} == set(range(30))
    path.unlink()
    assert not inputs[torch.arange(30)].any()


def test_damage_within_a_row_group_leaves_out_its_images(tmp_path):
    files, pixels = some_images(30)
    path = tmp_path / "t.parquet"
    pq.write_table(struct_table(files), path, row_group_size=10, **WRITTEN["snappy"])
    content, start = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    path.write_bytes(content[:start] + bytes([255]) * 400 + content[start + 400 :])
    with pytest.warns(UserWarning, match=r"left out 10 of 30 images, which cannot be read: ü 10\.png"):
        samples = Table(str(path)).load()
    assert torch.equal(samples.inputs, torch.cat([pixels[:10], pixels[20:]]))


@pytest.mark.parametrize("content", [b"PAR1", b"no table" * 99, b""], ids=["cut", "none", "empty"])
def test_a_file_that_is_none_is_refused_in_a_line(content, tmp_path):
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"^expected .*, got .*t\.parquet.*: (repair the file|fill it)") as raised:
        Table(str(tmp_path / "t.parquet")).load()
    assert "\n" not in str(raised.value)


def test_tables_without_rows_or_of_different_columns_are_refused(tmp_path):
    files, _ = some_images(4)
    pq.write_table(struct_table(files), tmp_path / "train-0.parquet")
    pq.write_table(pa.table({"label": [0, 1]}), tmp_path / "train-1.parquet")
    with pytest.raises(ValueError, match=r"train-1\.parquet has no images in column 'image'.*: repair the file"):
        Table(str(tmp_path)).load()
    pq.write_table(struct_table(files).slice(0, 0), tmp_path / "train-1.parquet")
    assert len(Table(str(tmp_path)).load()) == 4
    pq.write_table(struct_table(files).slice(0, 0), tmp_path / "train-0.parquet")
    with pytest.raises(ValueError, match=r"expected samples in the train part, got none in .*train-0\.parquet"):
        Table(str(tmp_path)).load()


def test_headers_are_kept_until_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(preprocessing, "MIN_CACHED", 2)
    files, pixels = some_images(20)
    path = tmp_path / "t.parquet"
    pq.write_table(struct_table(files), path, row_group_size=6, **WRITTEN["snappy"])
    asked = []
    read = table_files.Contents.__getitem__
    monkeypatch.setattr(table_files.Contents, "__getitem__", lambda self, row: asked.append(row) or read(self, row))
    for expected in (20, 0):
        samples = Table(str(path), memory=0).load()
        assert len(asked) == expected
        asked.clear()
    assert torch.equal(samples.inputs[torch.arange(20)], pixels)
    larger, _ = some_images(20, side=11)
    pq.write_table(struct_table(larger), path, row_group_size=6)
    os.utime(path, ns=(1, 1))
    assert Table(str(path), memory=0).load().input_shape == (3, 11, 11)


def test_both_sides_of_pairs_and_negatives_are_read_in_place(tmp_path):
    files, pixels = some_images(20)
    images = struct_table(files)["image"]
    columns = [images[:8], images[8:16], images.take(pa.array([16, 17, 18, 19, None, 16, 17, 18]))]
    pq.write_table(pa.table(columns, ["photo", "sketch", "wrong"]), tmp_path / "t.parquet")
    pairs = Pairs(str(tmp_path / "t.parquet"), first="photo", second="sketch", negatives="wrong", memory=0).load()
    sides = pairs.inputs, pairs.counterparts.inputs, pairs.negatives.inputs
    assert torch.equal(torch.cat([side[torch.arange(len(side))] for side in sides]), pixels)


def test_threads_read_groups_that_are_dropped_meanwhile(tmp_path):
    """Many row groups, of which few are held, are asked for by threads at once, as headers are."""
    contents = [bytes([number]) * 2000 for number in range(240)]
    pq.write_table(struct_table(contents), tmp_path / "t.parquet", row_group_size=4, compression="snappy")
    _, read = read_in_place({"train": [str(tmp_path / "t.parquet")]})
    order = [number * 7 % 240 for number in range(240)] * 3
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read.__getitem__, order)) == [contents[number] for number in order]
