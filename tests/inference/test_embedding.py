"""Features of any data in one file: equal to those of `encode`, of all that can be read, and never computed twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from in_use import encoder_run, rows_of, write_rows
from PIL import Image

from likewise import embed, export, train
from likewise.data import Arrays, ImagePreprocessing, Pairs, Table, Text, fingerprint, parts_of
from likewise.evaluation import features_of_file
from likewise.inference import Model, load
from likewise.inference.inputs import of_side, samples_at, stream_samples
from likewise.inference.outputs import EmbeddingShards
from likewise.models import MLP, BagOfTokens, ConvNet
from likewise.workflows import Silent, predict, search

pytestmark = pytest.mark.slow

BROKEN = b"\xff\xd8\xff no photo"


def of_images(tmp_path):
    torch.manual_seed(0)
    rule = {"channels": 3, "height": 12, "width": 16, "resize": "pad"}
    arguments = {"input_shape": [3, 12, 16], "width": 4}
    return encoder_run(tmp_path, ConvNet(**arguments), arguments, preprocessing=rule).finalize()


def of_vectors(tmp_path, width=3):
    torch.manual_seed(0)
    arguments = {"input_shape": [width], "width": 8}
    return encoder_run(tmp_path, MLP((width,), width=8), arguments).finalize()


def photos(folder, count=23, classes=("cat", "dog")):
    """Write photos of many sizes and modes, a third of them grey, and two that can't be read."""
    rng = np.random.default_rng(0)
    for number in range(count):
        height, width = (int(side) for side in rng.integers(8, 60, 2))
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).convert(("RGB", "L", "RGBA", "CMYK")[number % 4])
        place = folder / classes[number % len(classes)]
        place.mkdir(parents=True, exist_ok=True)
        image.save(place / f"{number:02}.{('png', 'jpg', 'webp', 'jpg')[number % 4]}")
    for number in (5, 12):
        (folder / classes[0] / f"{number:02}x.jpg").write_bytes(BROKEN)
    return folder


def quiet(*arguments, **options):
    return embed(*arguments, progress=Silent(), **options)


def whole(folder):
    """Return the ids and the files that can be read."""
    files = sorted(
        (file for file in folder.rglob("*") if file.is_file()), key=lambda file: str(file.relative_to(folder))
    )
    return [file for file in files if not file.stem.endswith("x")]


def test_photos_of_all_sizes_have_the_features_of_encode(tmp_path):
    run, folder = of_images(tmp_path / "runs"), photos(tmp_path / "photos")
    files = whole(folder)
    file = quiet(run, folder, output=tmp_path / "photos.parquet", shard_size=10, workers=2)
    table = pq.read_table(file)
    assert table["id"].to_pylist() == [str(one.relative_to(folder)) for one in files]
    assert table["label"].to_pylist() == [one.parent.name for one in files]
    kind = table.schema.field("features").type
    assert (kind.list_size, kind.value_type) == (16, pa.float32())
    np.testing.assert_allclose(np.stack(table["features"].to_numpy()), load(run).encode(files), atol=1e-5)
    listed = (tmp_path / "photos.parquet.unreadable.txt").read_text().splitlines()
    assert [Path(one).name for one in listed] == ["05x.jpg", "12x.jpg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "photos", "photos.parquet", "photos.parquet.unreadable.txt", "runs",
    ]  # fmt: skip
    for broken in folder.rglob("*x.jpg"):
        broken.unlink()
    quiet(run, folder, output=tmp_path / "photos.npz", workers=0)
    assert (tmp_path / "photos.parquet.unreadable.txt").exists()
    assert not (tmp_path / "photos.npz.unreadable.txt").exists()
    facts = json.loads(table.schema.metadata[b"likewise"])
    assert (facts["run"], facts["width"], facts["normalised"]) == (run.name, 16, False)
    assert facts["preprocessing"] == {"channels": 3, "height": 12, "width": 16, "resize": "pad", "bits": None}


def test_a_folder_without_classes_needs_no_option(tmp_path):
    run, folder = of_images(tmp_path / "runs"), photos(tmp_path / "photos", classes=("",))
    with pytest.warns(UserWarning, match="without labels: expected at least 2 folders"):
        table = pq.read_table(quiet(run, folder, output=tmp_path / "photos.parquet"))
    assert table.column_names == ["id", "features"]
    assert table["id"].to_pylist() == [file.name for file in whole(folder)]


def test_arrays_of_a_table_are_as_the_parquet_file_and_can_be_evaluated_and_trained_on(tmp_path):
    run, folder = of_images(tmp_path / "runs"), photos(tmp_path / "photos", 40)
    table = pq.read_table(quiet(run, folder, output=tmp_path / "a.parquet", shard_size=7, workers=0))
    with np.load(quiet(run, folder, output=tmp_path / "a.npz", shard_size=16, workers=0)) as arrays:
        assert arrays["ids"].tolist() == table["id"].to_pylist()
        assert [arrays["names"][label] for label in arrays["labels"]] == table["label"].to_pylist()
        np.testing.assert_allclose(arrays["features"], np.stack(table["features"].to_numpy()), atol=1e-6)
    assert sum(map(len, features_of_file(tmp_path / "a.npz"))) == len(table)
    for source in (Arrays(tmp_path / "a.npz"), Table(str(tmp_path / "a.parquet"))):
        samples = source.load()
        assert list(samples.ids) == table["id"].to_pylist()
        assert [samples.names[label] for label in samples.classes.tolist()] == table["label"].to_pylist()
        np.testing.assert_allclose(samples.inputs.numpy(), np.stack(table["features"].to_numpy()), atol=1e-6)


def test_label_sets_and_half_precision(tmp_path):
    run = of_vectors(tmp_path / "runs")
    vectors, sets = np.random.default_rng(0).normal(size=(30, 3)), np.random.default_rng(1).random((30, 4)) < 0.4
    np.savez(tmp_path / "in.npz", vectors=vectors, labels=sets, names=["a", "b", "c", "d"], ids=np.arange(30) * 7)
    expected = load(run).encode(vectors).astype(np.float16)
    for suffix, source in ((".parquet", Table), (".npz", Arrays)):
        file = quiet(run, tmp_path / "in.npz", output=tmp_path / f"out{suffix}", dtype="float16", shard_size=8)
        samples = source(str(file)).load()
        assert torch.equal(samples.labels, torch.from_numpy(sets))
        assert list(samples.ids) == [str(number * 7) for number in range(30)]
        np.testing.assert_array_equal(samples.inputs.numpy().astype(np.float16), expected)
    assert pq.read_schema(tmp_path / "out.parquet").field("features").type.value_type == pa.float16()


def test_numbers_in_tables_and_arrays_stay_where_they_are(tmp_path):
    run, rng = of_vectors(tmp_path / "runs"), np.random.default_rng(0)
    vectors = rng.normal(size=(700, 3)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    vectors[[3, 411], 1] = np.nan
    columns = {"x": vectors[:, 0], "yz": list(vectors[:, 1:]), "class": ["a", "b"] * 350}
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    mapped = stream_samples(Arrays(tmp_path / "v.npy")).inputs
    assert not isinstance(mapped, torch.Tensor)
    with pytest.warns(UserWarning, match="left out 2 of 700 rows"):
        table = stream_samples(Table(str(tmp_path / "v.parquet")))
    assert not isinstance(table.inputs, torch.Tensor)
    kept = np.delete(np.arange(700), [3, 411])
    some = torch.tensor([600, 2, 3, 4, 5])
    np.testing.assert_array_equal(table.inputs[some].numpy(), vectors[kept[some]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pq.read_table(quiet(run, tmp_path / "v.parquet", output=tmp_path / "t.parquet", shard_size=100))
    assert found["id"].to_pylist() == [str(row) for row in kept]
    np.testing.assert_allclose(np.stack(found["features"].to_numpy()), load(run).encode(vectors[kept]), atol=1e-5)
    parts = tmp_path / "parts"
    parts.mkdir()
    for part, rows in (("train", kept[:400]), ("test", kept[400:])):
        pq.write_table(pa.table({"x": list(vectors[rows])}), parts / f"{part}.parquet")
    both = stream_samples(Table(str(parts), label="none"))
    np.testing.assert_array_equal(both.inputs[torch.tensor([0, 399, 400, 697])], vectors[kept[[0, 399, 400, 697]]])


def test_texts_are_encoded_as_alone(tmp_path):
    encoder = BagOfTokens((), width=4, vocabulary=50)
    words = ["a cat sat", "two dogs ran far away", "a", "cat ran"] * 9
    (tmp_path / "t.csv").write_text("id,text\n" + "".join(f"n{row},{text}\n" for row, text in enumerate(words)))
    encoder.observe(Text(tmp_path / "t.csv", label="none").load().inputs)
    run = encoder_run(tmp_path / "runs", encoder, {"input_shape": [], "width": 4, "vocabulary": 50})
    with pytest.warns(UserWarning, match="without labels"):
        table = pq.read_table(quiet(run, tmp_path / "t.csv", output=tmp_path / "t.parquet", shard_size=10))
    assert table["id"].to_pylist() == [f"n{row}" for row in range(36)]
    np.testing.assert_allclose(np.stack(table["features"].to_numpy()), load(run).encode(words), atol=1e-5)


@pytest.mark.filterwarnings("ignore:left out 2 of 25")
def test_an_encoder_needs_no_run_and_may_begin_with_a_file_of_weights(tmp_path, capsys):
    folder, chosen = photos(tmp_path / "photos"), {"encoder": "ConvNet", "encoder.width": 4}
    with pytest.raises(ValueError, match=r"of one size, got .* set data\.size"):
        quiet(data=folder, output=tmp_path / "c.parquet", **chosen)
    chosen |= {"data.size": 8}
    first, again = (quiet(data=folder, output=tmp_path / f"{name}.parquet", **chosen) for name in "rs")
    assert pq.read_table(first).equals(pq.read_table(again))
    encoder = ConvNet((3, 8, 8), width=4)
    encoder.observe(torch.rand(9, 3, 8, 8))
    torch.save({f"backbone.{name}": of for name, of in encoder.state_dict().items()}, tmp_path / "w.pth")
    made = embed(data=folder, output=tmp_path / "a.parquet", weights=tmp_path / "w.pth", **chosen)
    expected = Model(encoder, ImagePreprocessing(3, 8, 8)).encode(whole(folder))
    assert [row["id"] for row in rows_of(made)] == [str(one.relative_to(folder)) for one in whole(folder)]
    np.testing.assert_allclose(np.stack(pq.read_table(made)["features"].to_numpy()), expected, atol=1e-5)
    assert f"weights: 20 of 20 tensors from {tmp_path / 'w.pth'}" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"got gone.pth, which does not exist"):
        quiet(data=folder, output=tmp_path / "b.parquet", weights="gone.pth", **chosen)


def test_what_was_finished_before_ctrl_c_is_not_done_again(tmp_path, monkeypatch):
    run, folder = of_images(tmp_path / "runs"), photos(tmp_path / "photos")
    options = {"output": tmp_path / "p.parquet", "shard_size": 4, "workers": 0}
    write, written = EmbeddingShards.write, []

    def interrupted(self, shard, pieces):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(shard)
        write(self, shard, pieces)

    with monkeypatch.context() as patched:
        patched.setattr(EmbeddingShards, "write", interrupted)
        with pytest.raises(KeyboardInterrupt) as ended:
            quiet(run, folder, **options)
    assert "same command goes on" in ended.value.__notes__[0]
    assert not options["output"].exists()
    with pytest.raises(ValueError, match=r"in \S+\.partial what was begun .* another dtype: remove"):
        quiet(run, folder, **options, dtype="float16")
    monkeypatch.setattr(EmbeddingShards, "write", lambda *given: (written.append(given[1]), write(*given)))
    resumed = pq.read_table(quiet(run, folder, **options))
    assert [shard.start for shard in written] == list(range(0, 25, 4))
    options["output"] = tmp_path / "q.parquet"
    assert resumed.equals(pq.read_table(quiet(run, folder, **options)))
    assert not (tmp_path / "p.parquet.partial").exists()


@pytest.mark.parametrize("kind", ["photo", "array", "labels", "table in a folder"])
@pytest.mark.filterwarnings("ignore:without labels")
def test_shards_of_files_that_changed_meanwhile_are_not_used(tmp_path, monkeypatch, kind):
    """Neither a photo, nor numbers, nor labels that were replaced after Ctrl-C come from before it."""
    data = tmp_path / "data"
    data.mkdir()
    if kind == "photo":
        run, changed, given = of_images(tmp_path / "runs"), photos(data) / "cat" / "00.png", data
    else:
        run, changed = of_vectors(tmp_path / "runs"), data / ("t.csv" if kind == "table in a folder" else "v.npz")
        given = data if kind == "table in a folder" else changed

    def write(number):
        if kind == "photo":
            Image.new("RGB", (20, 20), "red").save(changed)
        elif kind == "array":
            np.savez(changed, vectors=number * np.eye(3, dtype=np.float32), labels=["x", "y", "x"])
        elif kind == "labels":
            np.savez(changed, vectors=np.eye(3, dtype=np.float32), labels=["x", "y", "xy"[number - 1]])
            os.utime(changed, (0, 0))  # as large and as old as before
        else:
            changed.write_text(f"id,a,b,c\nx,1,2,3{'0' * number}\ny,4,5,6\nz,7,8,9\n")

    if kind != "photo":
        write(1)
    options = {"output": (data if kind == "photo" else tmp_path) / "p.parquet", "shard_size": 2, "workers": 0}

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EmbeddingShards, "join", interrupted)
        for _ in range(2):  # what did not change is gone on with
            with pytest.raises(KeyboardInterrupt):
                quiet(run, given, **options)
    write(2)
    with pytest.raises(ValueError, match=f"another {'labelling' if kind == 'labels' else 'state of files'}: remove"):
        quiet(run, given, **options)
    quiet(run, given, **options, force=True)


def test_the_columns_are_those_of_the_run(tmp_path):
    run = of_vectors(tmp_path / "runs", 2)
    spec = {"class_path": "likewise.data.Table", "init_args": {"path": "old.csv", "inputs": ["b", "a"]}}
    run.describe({"parts": {**run.metadata["parts"], "data": spec}})
    (tmp_path / "t.csv").write_text("a,b,label\n1,2,x\n3,4,y\n")
    found = np.load(quiet(run, tmp_path / "t.csv", output=tmp_path / "t.npz"))["features"]
    np.testing.assert_allclose(found, load(run).encode([[2.0, 1.0], [4.0, 3.0]]), atol=1e-6)
    other = quiet(run, tmp_path / "t.csv", **{"output": tmp_path / "u.npz", "data.inputs": ["a", "b"]})
    np.testing.assert_allclose(np.load(other)["features"], load(run).encode([[1.0, 2.0], [3.0, 4.0]]), atol=1e-6)


@pytest.mark.filterwarnings("ignore:without labels")
def test_columns_in_another_order_are_the_same_vectors(tmp_path):
    """A run on all number columns knows which they were: beside others, in any order, with labels and without."""
    rng, names = np.random.default_rng(0), ["a", "b", "c", "d"]
    kinds = rng.integers(0, 2, 60)
    table = {name: kinds * number + rng.normal(size=60) * 10**number for number, name in enumerate(names)}
    files = [tmp_path / name for name in ("old.csv", "new.csv", "unlabelled.csv", "short.csv")]
    for file, columns in zip(files, ("abcd", "dexbac", "bdca", "dab"), strict=True):
        extra = {"e": np.arange(60.0), "x": np.array(["word"] * 60)}
        given = {name: (table | extra)[name] for name in columns}
        given |= {"label": np.array(["lily", "rose"])[kinds]} if file.stem in {"old", "new"} else {}
        pa.csv.write_csv(pa.table(given), file)
    options = {"encoder": "MLP", "encoder.width": 8, "epochs": 1, "evaluations": "KNN", "runs": tmp_path / "runs"}
    run = train({"data": str(files[0]), "report": False, "split.refit": True, **options}, progress=Silent())
    expected = load(run).encode(np.stack(list(table.values()), axis=1))
    for file in files[:3]:
        found = quiet(run, file, output=file.with_suffix(".npz"))
        np.testing.assert_allclose(np.load(found)["features"], expected, atol=1e-5)
        np.testing.assert_allclose(load(run).encode(samples_at(file, load(run))), expected, atol=1e-5)
        rows = rows_of(predict(run, file, file.with_suffix(".jsonl"), progress=Silent()))
        assert [row["class"] for row in rows] == load(run).predict(list(zip(*table.values(), strict=True))).labels
    exported = load(export(run, tmp_path / "run.onnx", progress=Silent()))
    np.testing.assert_allclose(exported.encode(samples_at(files[1], exported)), expected, atol=1e-4)
    with pytest.raises(ValueError, match=r"columns of .*short\.csv in data\.inputs, got 'c': choose from d, a, b"):
        quiet(run, files[3], output=tmp_path / "s.npz")


def test_an_output_is_not_among_the_tables_that_are_read(tmp_path):
    run, data = of_vectors(tmp_path / "runs"), tmp_path / "data"
    (data / "deeper").mkdir(parents=True)
    pq.write_table(pa.table({"x": list(np.eye(3)), "label": ["a", "b", "a"]}), data / "t.parquet")
    for output in (data / "out.parquet", data / "deeper" / "out.npz"):
        with pytest.raises(ValueError, match=r"--output outside of the tables that are read, got \S+out\.\S+: name"):
            quiet(run, data, output=output)
    with pytest.raises(ValueError, match="--output outside of the tables that are read"):
        search(run, "what", among=data, output=data / "out.jsonl", progress=Silent())
    with pytest.raises(ValueError, match="--output outside of the tables that are read"):
        predict(run, data, data / "out.csv", progress=Silent())
    quiet(run, data, output=tmp_path / "out.parquet")
    quiet(run, data / "t.parquet", output=data / "out.parquet")  # beside the file alone


@pytest.mark.filterwarnings("ignore:without labels")
def test_an_output_is_replaced_by_force_alone_and_others_leave_nothing(tmp_path):
    run, folder = of_images(tmp_path / "runs"), photos(tmp_path / "photos")
    vectors = of_vectors(tmp_path / "runs")
    output = tmp_path / "p.parquet"
    output.write_text("mine")
    np.save(tmp_path / "v.npy", np.full((9, 3), 1e30, dtype=np.float32))
    (tmp_path / "broken").mkdir()
    for number in range(3):
        (tmp_path / "broken" / f"{number}.jpg").write_bytes(BROKEN)
    new = tmp_path / "new.parquet"
    for arguments, options, words in (
        ((run, folder), {"output": output}, r"p\.parquet: name another, or --force"),
        ((run, folder), {"output": tmp_path / "p.csv"}, r"expected --output of \.parquet or \.npz, got \S+p\.csv"),
        ((None, tmp_path / "v.npy"), {"output": new}, "expected RUN or --encoder, got neither"),
        ((run, folder), {"output": new, "encoder": "ConvNet"}, "expected RUN or --encoder, got both"),
        ((run, folder), {"output": new, "weights": "w.pth"}, "expected no --weights beside a run"),
        ((run, folder), {"output": new, "shard_size": 0}, "--shard_size of at least 1, got 0"),
        ((run, folder), {"output": new, "data.size": 8}, "expected no --data.size beside a run"),
        ((vectors, folder), {"output": new}, "expected vectors of 3 numbers, .* got images: give"),
        ((run, tmp_path / "broken"), {"output": new}, "images that can be read, got none of 3"),
        ((vectors, tmp_path / "v.npy"), {"output": new, "dtype": "float16"}, "finite features of float16, .* of 0"),
    ):
        with pytest.raises(ValueError, match=words):
            quiet(*arguments, **{"workers": 0, **options})
        assert not new.exists()
        assert not list(tmp_path.glob("*.partial"))
    assert output.read_text() == "mine"
    quiet(run, folder, output=output, force=True, workers=0)
    assert pq.read_table(output).num_rows == 23


@pytest.mark.process
def test_sigkill_at_random_moments_does_no_shard_twice(tmp_path):
    """After each kill the finished shards stay as they are, and at the end the file is that of a run without kills."""
    run, folder = of_images(tmp_path / "runs"), photos(tmp_path / "photos", 60)
    output = tmp_path / "p.parquet"
    words = ["embed", str(run.folder), str(folder), "--output", str(output), "--shard_size", "3", "--batch_size", "1"]
    slow = (
        "import sys, time; from likewise.inference import outputs; w = outputs.EmbeddingShards.write\n"
        "outputs.EmbeddingShards.write = lambda *a: (time.sleep(0.05), w(*a))\n"
        "from likewise.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    draw, kills, seen = random.Random(0), 0, {}  # noqa: S311 - no secret
    while not output.exists():
        process = subprocess.Popen([sys.executable, "-c", slow, *words, "--workers", "1"], stderr=subprocess.DEVNULL)
        before = len(list(tmp_path.glob("p.parquet.partial/0*.parquet")))
        wanted = before + draw.randint(0, 6) if kills < 3 else 10**9
        while process.poll() is None and len(list(tmp_path.glob("p.parquet.partial/0*.parquet"))) <= wanted:
            time.sleep(0.005)
        if process.poll() is None:
            time.sleep(draw.uniform(0, 0.06))
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        assert process.wait() in {0, -signal.SIGKILL}
        for file in tmp_path.glob("p.parquet.partial/0*.parquet"):
            assert seen.setdefault(file.name, file.stat().st_ino) == file.stat().st_ino
            assert pq.read_metadata(file).num_rows >= 1
    assert kills >= 2
    once = quiet(run, folder, output=tmp_path / "q.parquet", shard_size=3, batch_size=1, workers=0)
    table, expected = pq.read_table(output), pq.read_table(once)
    assert table.drop(["features"]).equals(expected.drop(["features"]))
    assert np.allclose(table["features"].to_pylist(), expected["features"].to_pylist(), rtol=1e-5)


def test_parts_of_the_data_are_kept_and_evaluated_by(tmp_path):
    run, rng = of_vectors(tmp_path / "runs"), np.random.default_rng(0)
    parts = rng.permutation(["train"] * 20 + ["validation"] * 5 + ["test"] * 15)
    np.savez(tmp_path / "in.npz", vectors=rng.normal(size=(40, 3)), labels=["a", "b"] * 20, parts=parts)
    for suffix in (".parquet", ".npz"):
        file = quiet(run, tmp_path / "in.npz", output=tmp_path / f"out{suffix}", shard_size=16)
        for part in features_of_file(file):
            assert {parts[int(name)] for name in part.ids} == {part.part}
    assert np.load(file)["parts"].tolist() == parts.tolist()
    assert torch.equal(Arrays(file).load().parts, Arrays(tmp_path / "in.npz").load().parts)
    assert pq.read_table(tmp_path / "out.parquet")["part"].to_pylist() == parts.tolist()


@pytest.mark.parametrize("split", ["Stratified", "ByClass"])
def test_a_runs_own_data_keeps_the_runs_parts(tmp_path, split):
    rng = np.random.default_rng(0)
    vectors, labels, ids = rng.normal(size=(120, 3)), np.arange(120) % 12, [f"v{number}" for number in range(120)]
    np.savez(tmp_path / "in.npz", vectors=vectors, labels=labels, ids=ids)
    specs = {"data": {"class_path": "likewise.data.Arrays", "init_args": {"path": f"{tmp_path}/in.npz"}}}
    specs["split"] = {"class_path": f"likewise.data.{split}", "init_args": {}}
    (parts, _), run = parts_of(specs), of_vectors(tmp_path / "runs")
    run.describe({"parts": run.metadata["parts"] | specs, "samples": {"fingerprint": fingerprint(parts)}})
    for kind in (".npz", ".parquet"):
        found = features_of_file(quiet(run, f"{tmp_path}/in.npz", output=tmp_path / f"out{kind}"))
        for part, own in zip(found, (parts.train, parts.validation, parts.test), strict=True):
            assert sorted(part.ids) == sorted(own.ids)
    other = tmp_path / "other.npz"
    np.savez(other, vectors=vectors, labels=labels, ids=ids)
    assert "parts" not in np.load(quiet(run, other, output=tmp_path / "other-out.npz"))
    np.savez(tmp_path / "in.npz", vectors=vectors[:-1], labels=labels[:-1], ids=ids[:-1])
    with pytest.warns(UserWarning, match="without the parts of .* expected the data that"):
        file = quiet(run, tmp_path / "in.npz", output=tmp_path / "changed.npz")
    assert "parts" not in np.load(file)


def test_a_side_of_pairs_keeps_the_parts_of_its_pairs(tmp_path):
    for part, count in (("train", 8), ("test", 4)):
        rows = [{"first": f"{part} question {number}", "second": f"{part} answer {number}"} for number in range(count)]
        write_rows(tmp_path / f"{part}.jsonl", rows)
    samples = Pairs(str(tmp_path), first="first", second="second").load()
    for side in ("first", "second"):
        assert of_side(samples, side).parts.tolist() == [0] * 8 + [2] * 4
