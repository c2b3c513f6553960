"""Features from anywhere, without an encoder: searched, deduplicated, and checked for wrong labels, against loops."""

import numpy as np
import pyarrow as pa
import pytest
from in_use import Listener
from pyarrow import parquet

from likewise.evaluation import feature_files, features_of_file, save_features
from likewise.inference import load, open_features
from likewise.runs import Run, load_encoder
from likewise.workflows import Silent, search

pytestmark = pytest.mark.slow

COUNT, WIDTH = 60, 8
KINDS = ("npz", "compressed", "npy folder", "pandas", "parquet folder", "three parts", "run", "linked run")


def told_by(*arguments, **options):
    """Return the lines that a search tells."""
    listener = Listener()
    search(*arguments, progress=listener, **options)
    return "\n".join(listener.told).splitlines()


@pytest.fixture
def given():
    """Features of which two are equal but for their length, ids, and labels of which one is wrong."""
    rng = np.random.default_rng(0)
    labels = np.arange(COUNT) % 3
    features = (np.eye(WIDTH)[labels] + rng.normal(size=(COUNT, WIDTH)) / 10).astype(np.float32)
    features[7] = 2 * features[1]
    named = np.array(["ash", "elm", "oak"])[labels]
    named[20] = "ash"  # which lies among the oaks
    return features, [f"v{number}" for number in range(COUNT)], named


def cut(given):
    """Return the parts of features as a run keeps them."""
    features, ids, named = given
    names, classes = np.unique(named, return_inverse=True)
    arrays = {"features": features, "labels": classes, "names": names, "ids": np.array(ids)}
    arrays["parts"] = np.repeat(["train", "validation", "test"], [30, 10, 20])
    return feature_files.features_of_parts(feature_files.samples_of_arrays(arrays, "here.npz"))


def saved(given, kind, folder, monkeypatch):
    """Save features as people do."""
    features, ids, named = given
    place = folder / "mine.npz"
    if kind in {"npz", "compressed"}:
        (np.savez if kind == "npz" else np.savez_compressed)(place, embeddings=features, ids=ids, labels=named)
    elif kind == "npy folder":
        place = folder / "mine"
        place.mkdir()
        for name, array in {"features": features, "ids": ids, "labels": named}.items():
            np.save(place / f"{name}.npy", array)
    elif kind in {"pandas", "parquet folder"}:
        place, table = folder / "mine.parquet", pa.table({"id": ids, "embeddings": list(features), "label": named})
        if kind == "pandas":
            parquet.write_table(table, place, row_group_size=11)
        else:
            place = folder / "mine"
            place.mkdir()
            parquet.write_table(table.slice(0, 25), place / "a.parquet")
            parquet.write_table(table.slice(25), place / "b.parquet")
    elif kind == "three parts":
        whole, cuts = {"features": features, "ids": ids, "labels": named}, {"train": slice(40), "test": slice(40, None)}
        np.savez(place, **{f"{part}_{name}": of[rows] for part, rows in cuts.items() for name, of in whole.items()})
    else:
        run = Run.create(folder, "evaluation")
        run.describe({"source": "mine.npz"})
        place = run.folder
        mapped = None
        if kind == "linked run":
            monkeypatch.setattr(feature_files, "MIN_LINKED_BYTES", 0)
            np.save(folder / "mine.npy", features)
            mapped = np.load(folder / "mine.npy", mmap_mode="c")
        save_features(run.embeddings, cut(given), mapped)
    return place


@pytest.mark.parametrize("kind", KINDS)
def test_features_from_anywhere_are_searched_where_they_are(given, kind, tmp_path, monkeypatch):
    features, ids, named = given
    place = saved(given, kind, tmp_path, monkeypatch)
    lines = told_by(place, duplicates=0.99999)
    assert [line.split() for line in lines[1:]] == [["1", one, "1.0000", "elm"] for one in ("v1", "v7")]
    assert [line.split()[:2] for line in told_by(place, mistakes=True)[1:]] == [["v20", "ash"]]
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    nearest = np.argsort(-(units @ units[5]))[:3]
    assert [line.split()[2] for line in told_by(place, ["v5"], k=3)[1:]] == [ids[row] for row in nearest]
    found = load(place).search(features[5:6], place, k=3)
    assert found.ids == [[ids[row] for row in nearest]]
    opened = open_features(place if not (place / "run.json").is_file() else place / "embeddings.npz")
    assert [opened.label(row) for row in range(COUNT)] == named.tolist()


def test_a_table_that_pandas_wrote_is_evaluated_if_its_features_have_one_length(given, tmp_path, monkeypatch):
    place = saved(given, "pandas", tmp_path, monkeypatch)
    assert sum(map(len, features_of_file(place))) == COUNT
    parquet.write_table(pa.table({"id": ["a", "b"], "features": [[1.0, 2.0], [1.0]]}), tmp_path / "ragged.parquet")
    with pytest.raises(ValueError, match=r"features of one length in .*ragged"):
        search(tmp_path / "ragged.parquet", ["a"], progress=Silent())


def test_features_of_pairs_are_searched_across_their_sides(tmp_path):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(12, 4)).astype(np.float32), rng.normal(size=(12, 4)).astype(np.float32)
    ids, others = [f"photo{number}" for number in range(12)], [f"caption{number}" for number in range(12)]
    np.savez(tmp_path / "pairs.npz", features=first, counterpart_features=second, ids=ids, counterpart_ids=others)
    for side, names, asked, among in (("first", others, first, second), ("second", ids, second, first)):
        query = (ids if side == "first" else others)[3]
        cosines = among @ asked[3] / np.linalg.norm(among, axis=1)
        lines = told_by(tmp_path / "pairs.npz", [query], side=side, k=1)
        assert lines[1].split()[2] == names[int(cosines.argmax())]


def test_what_features_alone_do_not_tell_is_asked_for_in_a_line(given, tmp_path, monkeypatch):
    place = saved(given, "npz", tmp_path, monkeypatch)
    run = saved(given, "run", tmp_path, monkeypatch)
    wide = tmp_path / "wide.npz"
    np.savez(wide, features=np.eye(3))
    (tmp_path / "photo.jpg").write_bytes(b"")
    for source in (place, run):
        for words, options, said in (
            ([str(tmp_path / "photo.jpg")], {}, "a file of features, or an id of the samples, got .*photo.jpg"),
            ([str(wide)], {}, "features of 8 numbers, .* got 3"),
            ([], {"side": "second"}, "a run of pairs for the second side"),
            ([], {"negatives": True, "output": tmp_path / "out.jsonl"}, "a run of pairs with --negatives"),
        ):
            with pytest.raises(ValueError, match=said):
                search(source, words, progress=Silent(), **options)
    np.savez(tmp_path / "images.npz", images=np.zeros((4, 2, 2)))
    with pytest.raises(ValueError, match=r"expected the folder of a run, got .*images.npz"):
        load(tmp_path / "images.npz")
    with pytest.raises(ValueError, match=r"expected a run with an encoder, got .*evaluation"):
        load_encoder(run)


def test_a_set_that_is_searched_in_itself_is_told_of_and_left_out(given, tmp_path, monkeypatch):
    place = str(saved(given, "npz", tmp_path, monkeypatch))
    with pytest.warns(UserWarning, match="60 of 60 queries are rows of the gallery"):
        lines = told_by(place, [place], k=1)
    assert all(line.split()[0] == line.split()[2] for line in lines[1:8])
    assert told_by(place, [place], k=2, gallery_includes_queries=True) == told_by(place, k=2)
    features = given[0]
    found = load(place).search(features[:5], features, k=1, gallery_includes_queries=True)
    assert (found.indices[:, 0] != np.arange(5)).all()
    assert found.ids[1] == ["7"]  # its double
    again = load(place).search(features[:5] * (1 + 2e-7), features, k=1, gallery_includes_queries=True)  # rounded anew
    assert (again.indices == found.indices).all()
    with pytest.raises(ValueError, match="got 5 of 5 queries without"):
        load(place).search(features[:5] + 1, features, gallery_includes_queries=True)
