"""Samples without a class beside others: who is trained on them, and that nothing else sees them."""

import json
import warnings

import numpy as np
import pytest
import torch
from photos import shaded

import likewise as lw
from likewise.data import Arrays, Digits, FewLabels, Folder, Samples, Table, Text, Torchvision, parts_of, parts_of_run
from likewise.data.columns import labels_of
from likewise.data.split import Stratified
from likewise.workflows import Silent

# what is written by files of a data set that cannot be downloaded is no longer what its sums are of
WHOLE = "torchvision.datasets.STL10._check_integrity"
SPLIT = {"class_path": "likewise.data.Stratified", "init_args": {}}


def _arrays(path, labels=60, blank=40, change=0.0, **more):
    """Three clusters, and samples of them without a class, perhaps moved."""
    rng = np.random.default_rng(0)
    classes = np.arange(labels + blank) % 3
    vectors = rng.normal(size=(labels + blank, 4)) + 3 * np.eye(3, 4)[classes]
    vectors[labels:] += change
    given = np.where(np.arange(labels + blank) < labels, np.array(["ash", "elm", "oak"])[classes], "")
    np.savez(path, vectors=vectors, labels=given, **more)
    return str(path)


def _of(kind, **arguments):
    return {"data": {"class_path": f"likewise.data.{kind}", "init_args": arguments}, "split": SPLIT}


def test_they_are_in_none_of_the_parts_and_keep_their_rows(tmp_path):
    path = _arrays(tmp_path / "some.npz")
    parts, _ = parts_of(_of("Arrays", path=path))
    assert (len(parts.unlabelled), parts.unlabelled.labels) == (40, None)
    assert parts.unlabelled.rows.tolist() == list(range(60, 100))
    assert next(iter(parts.unlabelled.ids)) == "60"
    assert "" in Arrays(path).load().names  # where nobody asks for samples without a class
    rows = torch.cat([of.rows for of in (parts.train, parts.validation, parts.test)])
    assert rows.sort().values.tolist() == list(range(60))
    inputs = np.load(path)["vectors"].astype(np.float32)
    for of in (parts.train, parts.test, parts.unlabelled):
        assert np.array_equal(of.inputs.numpy(), inputs[of.rows])


def test_an_empty_cell_is_no_class(tmp_path):
    rows = [(f"words {row}", ("a", "b")[row % 2] if row < 12 else "") for row in range(16)]
    files = {"t.csv": "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows)}
    for name, blank in (("null.jsonl", None), ("empty.jsonl", "")):
        files[name] = "".join(json.dumps({"text": text, "label": label or blank}) + "\n" for text, label in rows)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        for kind in ("Table", "Text"):
            parts, _ = parts_of(_of(kind, path=str(tmp_path / name)))
            assert (len(parts.unlabelled), parts.train.names) == (4, ("a", "b"))


def test_numbers_without_a_class_need_names(tmp_path):
    """-1 is a class like any other, unless classes are numbered by names."""
    labels = np.arange(30) % 3 - 1
    np.savez(tmp_path / "named.npz", vectors=np.zeros((30, 2)), labels=labels, names=["x", "y"])
    np.savez(tmp_path / "plain.npz", vectors=np.zeros((30, 2)), labels=labels)
    parts, _ = parts_of(_of("Arrays", path=str(tmp_path / "named.npz")))
    assert (parts.train.names, len(parts.unlabelled)) == (("x", "y"), 10)
    parts, _ = parts_of(_of("Arrays", path=str(tmp_path / "plain.npz")))
    assert (parts.train.names, parts.unlabelled) == (("-1", "0", "1"), None)
    assert labels_of([0, 1, -1], None, ("a", "b", "c"), in_part=True)[0].tolist() == [0, 1, -1]
    with pytest.raises(ValueError, match="got a negative number, for none, in 1 of 3"):
        labels_of([0, 1, -1], None, ("a", "b", "c"))


def test_who_needs_a_class_of_every_sample_refuses_them(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": "a"}\n{"text": "y", "label": null}\n')
    with pytest.raises(ValueError, match="expected a label for every sample, got none for 1 of 2"):
        Table(str(tmp_path / "a.jsonl")).load()
    with pytest.warns(UserWarning, match="left out 1 of 2 lines of .*: line 2: no label"):
        Text(tmp_path / "a.jsonl").load()
    samples = Samples(torch.zeros(4, 1), torch.tensor([0, -1, 1, -1]), ("a", "b"))
    assert samples.counts.tolist() == [1, 1]
    with pytest.raises(ValueError, match="fewer_of_each expected samples with one class each, got 2 of 4 without"):
        samples.fewer_of_each(2)
    some = Samples(samples.inputs, torch.tensor([1, -1, 3, -1]), ("w", "a", "x", "b"))  # of two of four classes
    assert some.compact().labels.tolist() == [0, -1, 1, -1]


def test_those_of_validation_and_test_are_left_out(tmp_path):
    parts = np.array(["train"] * 50 + ["test"] * 10 + ["train"] * 30 + ["test"] * 10)
    path = _arrays(tmp_path / "parts.npz", parts=parts)
    with pytest.warns(UserWarning, match="left out 10 of the validation and test samples, which have no class"):
        found, _ = parts_of(_of("Arrays", path=path))
    assert found.given == ("test",)
    assert (len(found.test), len(found.unlabelled)) == (10, 30)


def test_few_labels_hide_the_others_of_training(tmp_path):
    path = _arrays(tmp_path / "some.npz")
    few = {"class_path": "likewise.data.FewLabels", "init_args": {"per_class": 5}}
    whole, _ = parts_of(_of("Arrays", path=path))
    parts, _ = parts_of(_of("Arrays", path=path) | {"subset": few})
    assert torch.equal(parts.test.rows, whole.test.rows)
    seen = torch.cat([parts.train.rows, parts.validation.rows])
    assert len(seen) == 15
    hidden = set(parts.unlabelled.rows.tolist())
    assert hidden == set(range(100)) - set(seen.tolist()) - set(parts.test.rows.tolist())
    fraction = {"class_path": "likewise.data.Fraction", "init_args": {"fraction": 0.5}}
    both, _ = parts_of(_of("Arrays", path=path) | {"subset": [fraction, few]})
    half, _ = parts_of(_of("Arrays", path=path) | {"subset": fraction})
    kept = {int(row) for of in (half.train, half.validation) for row in of.rows}
    assert set(both.unlabelled.rows.tolist()) - set(range(60, 100)) < kept  # what a fraction drops is not kept


def test_what_few_labels_hide_is_of_no_class_that_is_held_out():
    few = {"class_path": "likewise.data.FewLabels", "init_args": {"fraction": 0.5}}
    split = {"class_path": "likewise.data.ByClass", "init_args": {"train": 6, "validation": 2, "test": 2}}
    digits = {"data": {"class_path": "likewise.data.Digits"}, "split": split, "subset": few}
    parts, _ = parts_of(digits)
    classes = Digits().load().labels[parts.unlabelled.rows]
    assert {str(one) for one in classes.tolist()} == set(parts.train.names)


def test_turned_images_are_not_taken_for_images_without_a_class(tmp_path):
    """Each row is one image's, and parts that the source gives are still known as such."""
    images = np.random.default_rng(0).random((80, 4, 4))
    classes = np.array(["abcdef"[row // 10] if row < 60 else "" for row in range(80)])
    of = np.array(["train", "train", "validation", "validation", "test", "test", "train", "train"]).repeat(10)
    np.savez(tmp_path / "turned.npz", images=images, labels=classes, parts=of)
    split = {"class_path": "likewise.data.ByClass", "init_args": {"rotations": True}}
    parts, _ = parts_of(_of("Arrays", path=str(tmp_path / "turned.npz")) | {"split": split})
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [80, 80, 80]
    assert parts.given == ("validation", "test")
    rows = torch.cat([part.rows for part in (parts.train, parts.validation, parts.test, parts.unlabelled)])
    assert len(rows.unique()) == 240 + 20
    assert torch.equal(parts.unlabelled.inputs[:, 0], torch.from_numpy(images[60:]).float())


def _trained(tmp_path, name, loss, change=0.0, **more):
    path = _arrays(tmp_path / f"{name}.npz", change=change)
    options = {"data": "Arrays", "data.path": path, "encoder": "MLP", "encoder.width": 8, "epochs": 1, "batch_size": 16}
    options |= {"batches.augmentation": "FeatureDropout", "runs": tmp_path / name, "report": False, "loss": loss}
    return lw.train(options | more, progress=Silent())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "more", "seen"),
    [
        ("SupConLoss", {"split.refit": True}, False),
        ("NTXentLoss", {}, True),
        ("SupConLoss", {"unlabelled": "own-class"}, True),
    ],
)
def test_only_losses_without_labels_are_trained_on_them(loss, more, seen, tmp_path):
    """Weights depend on samples without a class, or do not in any bit; scores and features never have them."""
    one, other = (_trained(tmp_path, name, loss, change, **more) for name, change in (("one", 0.0), ("other", 5.0)))
    weights = [run.encoder().state_dict() for run in (one, other)]
    assert all(torch.equal(of, weights[1][name]) for name, of in weights[0].items()) is not seen
    assert one.metadata["samples"]["unlabelled"] == 40
    assert one.metadata["labels"] == {"kind": "classes", "names": ["ash", "elm", "oak"]}
    parts, refit = parts_of_run(one)
    assert one.metadata["samples"]["train"] == (40 if seen else 0) + len((parts.refitted() if refit else parts).train)
    features = np.load(one.embeddings)
    assert sum(len(features[f"{part}_features"]) for part in ("train", "validation", "test")) == 60
    table = dict(lw.report.run_summary.summary_table(one.metadata))
    assert table["without labels"] == f"40, {'trained on' if seen else 'left out'}"


def test_a_loss_with_something_for_each_class_has_none_for_each_sample(tmp_path):
    with pytest.raises(ValueError, match="has nothing for each of them, got CrossEntropyLoss: leave out --unlabelled"):
        _trained(tmp_path, "x", "CrossEntropyLoss", unlabelled="own-class")


def test_numbers_of_labels_that_cannot_be_are_refused():
    for number in (float("nan"), float("inf"), 2.5, 0, 1):
        with pytest.raises(ValueError, match=r"expected per_class of 2 or more.*got"):
            FewLabels(per_class=number)
        if number != 1:
            with pytest.raises(ValueError, match=r"expected fraction above 0 and at most 1, got"):
                FewLabels(fraction=number)
    for both in ({}, {"fraction": 0.1, "per_class": 3}):
        with pytest.raises(ValueError, match="expected fraction or per_class, got"):
            FewLabels(**both)


def test_a_fraction_that_would_leave_a_class_without_a_label_is_told():
    """Each class keeps one label, which is trained on and not validated by; with no second label there is no part."""
    labels = torch.tensor([0] * 40 + [1] * 4 + [2])
    samples = Samples(torch.zeros(45, 1), labels, ("ash", "elm", "oak"))
    with pytest.warns(UserWarning, match=r"^0\.1 of the labels would leave none in 2 of 3 classes, .*: elm, oak$"):
        kept = FewLabels(0.1)(samples)
    assert samples[kept].counts.tolist() == [4, 1, 1]
    given = torch.tensor([0] * 36 + [2] * 4 + [0, 0, 0, 2] + [0])
    with pytest.warns(UserWarning, match="would leave none"):
        parts = Stratified()(Samples(samples.inputs, labels, samples.names, given), FewLabels(0.1))
    assert (parts.train.counts.tolist(), parts.validation.counts.tolist()) == ([3, 1, 1], [1, 0, 0])
    with (
        pytest.warns(UserWarning, match="would leave none in 3 of 3 classes"),
        pytest.raises(ValueError, match="expected a class with a sample for training and one for validation"),
    ):
        Stratified()(Samples(samples.inputs, labels, samples.names, given), FewLabels(0.01))


def test_a_class_whose_labels_are_all_in_validation_is_trained_on():
    """Where validation is given, and a class keeps no label in training, those of validation take its place."""
    labels = torch.arange(80) % 2
    given = torch.tensor([0] * 20 + [1] * 40 + [2] * 20)
    seeds = range(12)
    for seed in seeds:
        samples = Samples(torch.zeros(80, 1), labels, ("ash", "elm"), given)
        parts = Stratified()(samples, FewLabels(per_class=3, seed=seed))
        assert int(parts.train.counts.min()) > 0
        assert (parts.train.counts + parts.validation.counts).tolist() == [3, 3]


def write_stl10(root, train=60, test=20, blank=50):
    """Write files in STL-10's format, and return the images of each, channels first, and the classes of the first two.

    Each image is three channels, and each channel is written by columns; classes are numbered from 1.
    """
    folder = root / "stl10_binary"
    folder.mkdir()
    rng = np.random.default_rng(1)
    written = {}
    for part, count in (("train", train), ("test", test), ("unlabeled", blank)):
        images = rng.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)
        content = bytearray()
        for channel in images.reshape(-1, 96, 96):
            for column in range(96):
                content += channel[:, column].tobytes()
        (folder / f"{part}_X.bin").write_bytes(content)
        classes = np.arange(count) % 10
        if part != "unlabeled":
            (folder / f"{part}_y.bin").write_bytes((classes + 1).astype(np.uint8).tobytes())
        written[part] = torch.from_numpy(images), classes.tolist()
    names = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]
    (folder / "class_names.txt").write_text("".join(f"{name}\n" for name in names))
    folds = [sorted(rng.permutation(train)[: train // 2].tolist()) for _ in range(10)]
    (folder / "fold_indices.txt").write_text("".join(" ".join(map(str, fold)) + " \n" for fold in folds))
    return written, folds


@pytest.mark.parametrize("memory", [2.0, 0.0], ids=["in memory", "on demand"])
def test_stl10_has_its_images_without_a_class_in_part(memory, tmp_path, monkeypatch):
    """Each pixel where its file has it; labelled images are in memory either way, and keep their numbers."""
    written, folds = write_stl10(tmp_path)
    monkeypatch.setattr(WHOLE, lambda _: True)
    data = {"name": "STL10", "root": str(tmp_path), "memory": memory}
    parts, _ = parts_of(_of("Torchvision", **data))
    assert parts.given == ("test",)
    assert isinstance(parts.unlabelled.inputs, torch.Tensor) == (memory > 0)
    labelled = [parts.train, parts.validation, parts.test]
    assert all(isinstance(of.inputs, torch.Tensor) and of.names[:2] == ("airplane", "bird") for of in labelled)
    assert torch.equal(parts.unlabelled.inputs[torch.arange(50)], written["unlabeled"][0])
    assert parts.unlabelled.rows.tolist() == list(range(80, 130))
    seen = torch.cat([parts.train.rows, parts.validation.rows])
    assert seen.sort().values.tolist() == list(range(60))
    for of, images, first in ((parts.train, "train", 0), (parts.validation, "train", 0), (parts.test, "test", 60)):
        assert torch.equal(of.inputs, written[images][0][of.rows - first])
        assert of.labels.tolist() == [written[images][1][row - first] for row in of.rows.tolist()]
    alone = Torchvision("STL10", tmp_path).load()
    assert (len(alone), alone.counts.tolist()) == (80, [8] * 10)  # as ever, where nobody asks for them
    few, _ = parts_of(_of("Torchvision", **data, size=32, fold=3))
    assert (len(few.train) + len(few.validation), len(few.test), len(few.unlabelled)) == (30, 20, 50)
    assert few.unlabelled.inputs[torch.tensor([49, 0])].shape == (2, 3, 32, 32)
    fold = Torchvision("STL10", tmp_path, fold=3).load()
    assert torch.equal(fold.inputs[:30], written["train"][0][folds[3]])
    assert fold.labels[:30].tolist() == [written["train"][1][row] for row in folds[3]]


def test_a_fold_that_does_not_exist_is_refused(tmp_path, monkeypatch):
    for fold in (10, -1):
        with pytest.raises(ValueError, match=rf"expected data\.fold from 0 to 9, got {fold}: choose one"):
            Torchvision("STL10", tmp_path, fold=fold)
    with pytest.raises(ValueError, match=r"expected no fold of CIFAR10, got 3: leave out data\.fold"):
        Torchvision("CIFAR10", tmp_path, fold=3).load()
    write_stl10(tmp_path)
    monkeypatch.setattr(WHOLE, lambda _: True)
    (tmp_path / "stl10_binary" / "fold_indices.txt").write_text("0 1 2\n")
    with pytest.raises(ValueError, match="expected the files of STL10 in"):
        Torchvision("STL10", tmp_path, fold=3).load()


@pytest.mark.parametrize(
    ("classes", "blank", "left_out"),
    [
        (["ash", "elm"], ["unlabelled"], 0),
        (["ash", "elm"], ["Unlabeled/2023/may"], 0),
        (["ash", "elm"], ["unlabelled", "unlabeled"], 0),
        (["train/ash", "train/elm", "test/ash", "test/elm"], ["train/unlabelled"], 0),
        (["train/ash", "train/elm", "test/ash", "test/elm"], ["unlabeled/any"], 0),
        (["train/ash", "train/elm", "test/ash", "test/elm"], ["unlabeled", "train/unlabeled", "test/unlabeled"], 4),
    ],
)
def test_a_folder_of_images_without_a_class(classes, blank, left_out, tmp_path):
    """Both spellings, beside classes or beside parts, at any depth; others keep their classes and parts."""
    shades = shaded(tmp_path, dict.fromkeys([*classes, *blank], 4))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        parts, _ = parts_of(_of("Folder", path=str(tmp_path), memory=2.0 * (len(classes) == 2)))
    said = [str(one.message) for one in told]
    folder = min(blank).split("/")[-1 if min(blank).startswith("t") else 0]
    assert said[0].startswith(f"{4 * len(blank):,} images in {folder} of {tmp_path} are samples without a class; ")
    lost = [one for one in said if "left out" in one]
    assert [one.split()[2] for one in lost] == [str(left_out)] * (left_out > 0)
    expected = [path for path in shades if any(path.startswith(f"{one}/") for one in blank) and "test" not in path]
    assert sorted(parts.unlabelled.ids) == sorted(expected)
    read = parts.unlabelled.inputs[torch.arange(len(expected))][:, 0, 0, 0].tolist()
    assert read == [shades[name] for name in parts.unlabelled.ids]
    for of in (parts.train, parts.validation, parts.test):
        assert of.names == ("ash", "elm")
        assert [of.names[label] for label in of.labels] == [name.split("/")[-2] for name in of.ids]
    if len(classes) == 4:
        assert {name.split("/")[0] for name in parts.test.ids} == {"test"}


def test_who_asks_for_no_part_of_them_has_the_folder_as_a_class(tmp_path):
    shaded(tmp_path, {"ash": 4, "unlabelled": 4})
    assert Folder(str(tmp_path)).load().names == ("ash", "unlabelled")
    with pytest.raises(ValueError, match="expected at least 2 folders of images"):
        parts_of(_of("Folder", path=str(tmp_path)))
    parts, _ = parts_of(_of("Folder", path=str(tmp_path), label="none"))
    assert parts.unlabelled is None


@pytest.mark.parametrize("blank", [["unlabelled"], ["Unlabeled/2023"], ["train/unlabelled", "test/unlabelled"]])
def test_a_folder_with_no_image_of_a_class_is_refused_in_one_line(blank, tmp_path):
    shaded(tmp_path, dict.fromkeys(blank, 10))
    with pytest.raises(ValueError, match=r"expected images of classes in .*, got \d0 in (?i:unlabell?ed), .*none$"):
        parts_of(_of("Folder", path=str(tmp_path)))
    parts, _ = parts_of(_of("Folder", path=str(tmp_path), label="none"))
    assert sum(map(len, (parts.train, parts.validation, parts.test))) == 10 * len(blank)


@pytest.mark.slow
def test_a_recipe_trains_on_stl10(tmp_path, monkeypatch):
    """On images in memory and on mapped ones alike, with loader processes."""
    write_stl10(tmp_path)
    monkeypatch.setattr(WHOLE, lambda _: True)
    few = {"trainer.max_epochs": 1, "trainer.limit_train_batches": 2, "encoder": "ResNet", "encoder.depth": 8}
    few |= {"encoder.width": 4, "batch_size": 16, "report": False, "evaluations": "KNN", "data.root": str(tmp_path)}
    weights = []
    for memory in (2.0, 0.0):
        options = few | {"data.memory": memory, "runs": tmp_path / f"{memory}"}
        run = lw.train(options, recipe="simclr-stl10", progress=Silent())
        weights.append(run.encoder().state_dict())
        assert run.metadata["samples"]["train"] == 50 + len(parts_of_run(run)[0].train)
    assert all(torch.equal(of, weights[1][name]) for name, of in weights[0].items())
