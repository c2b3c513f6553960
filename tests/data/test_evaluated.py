"""Samples with a second labelling: trained on by one, evaluated by the other."""

import csv
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier

import likewise as lw
from likewise.data import (
    Arrays,
    ByClass,
    Classes,
    EvalLabels,
    FewLabels,
    Fraction,
    Samples,
    Stratified,
    Table,
    Torchvision,
    fingerprint,
    parts_of,
)
from likewise.data.split import joined
from likewise.evaluation import RunPredictors, load_features
from likewise.workflows import Silent
from likewise.workflows.prediction import predict

pytestmark = pytest.mark.slow

FINE = ("oak", "ash", "rose", "lily", "iris", "moss")
WITHIN = ("tree", "tree", "flower", "flower", "flower", "moss")


def _samples(count=120, classes=6):
    fine = torch.arange(count) % classes
    names = tuple(dict.fromkeys(WITHIN))
    coarse = torch.tensor([names.index(WITHIN[label]) for label in fine.tolist()])
    made = Samples(torch.arange(count).float().reshape(-1, 1), coarse, names)
    return replace(made, evaluated=EvalLabels.finer(fine, FINE, coarse, names))


def _words(samples):
    """The two classes of each sample by their names, as an independent reading."""
    second = samples.evaluated
    coarse = [samples.names[label] for label in samples.labels.tolist()]
    fine = [second.names[label] for label in second.classes.tolist()]
    within = [second.within.names[number] for number in second.within.numbers.tolist()]
    return list(zip(coarse, fine, strict=True)), dict(zip(second.names, within, strict=True))


def _check(samples, expected=None):
    pairs, within = _words(samples)
    expected = expected or dict(zip(FINE, WITHIN, strict=True))
    assert all(within[fine] == coarse == expected[fine] for coarse, fine in pairs)
    return set(within) == {fine for _, fine in pairs}


def _vectors(path, fine=None, count=240, **more):
    """Six clusters in three coarse classes; `fine` replaces the fine labels within each coarse class."""
    rng = np.random.default_rng(0)
    classes = np.arange(count) % 6
    vectors = rng.normal(size=(count, 8)) + 4 * np.eye(6, 8)[classes]
    own = np.array(FINE)[classes] if fine is None else fine
    np.savez(path, vectors=vectors, labels=np.array(WITHIN)[classes], fine_labels=own, **more)
    return str(path)


def _table(path, rows):
    table = Dataset.from_list(rows)
    table.to_json(path) if path.suffix == ".jsonl" else table.to_csv(path, index=False)
    return str(path)


@pytest.mark.parametrize(("suffix", "numbered"), [(".csv", False), (".jsonl", True)])
def test_a_table_has_a_column_of_each(tmp_path, suffix, numbered):
    fine = list(range(6)) if numbered else FINE
    rows = [{"x": row / 2, "coarse": WITHIN[row % 6], "fine": fine[row % 6]} for row in range(24)]
    samples = Table(_table(tmp_path / f"plants{suffix}", rows), label="coarse", fine_label="fine").load()
    assert samples.input_shape == (1,)  # the fine labels are no input
    assert samples.columns == ("x",)
    assert samples.names == ("flower", "moss", "tree")
    assert _check(samples, dict(zip(map(str, fine), WITHIN, strict=True)))
    path = _table(tmp_path / f"torn{suffix}", [*rows, {"x": 9, "coarse": "moss", "fine": fine[0]}])
    with pytest.raises(ValueError, match=r"column 'fine' that each lie in one class trained on, got 1 of 6 in several"):
        Table(path, label="coarse", fine_label="fine").load()
    with pytest.raises(ValueError, match="expected a column of fine_labels \\(finest\\)"):
        Table(path, label="coarse", fine_label="finest").load()


def test_an_array_file_has_a_key_of_each(tmp_path):
    samples = Arrays(_vectors(tmp_path / "plants.npz")).load()
    _check(samples)
    numbers = np.arange(24) % 6
    named = {"labels": numbers // 2, "names": ["a", "b", "c"], "fine_labels": numbers, "fine_names": list("uvwxyz")}
    np.savez(tmp_path / "named.npz", images=np.zeros((24, 4, 4), dtype=np.uint8), **named)
    _check(Arrays(tmp_path / "named.npz").load(), dict(zip("uvwxyz", "aabbcc", strict=True)))


def _cifar100(folder, monkeypatch):
    """Files as those of CIFAR-100, of 40 and 20 images; and the two classes of each."""
    root = folder / "cifar-100-python"
    root.mkdir(parents=True)
    fine_names, coarse_names = [f"fine {n}" for n in range(100)], [f"coarse {n}" for n in range(20)]
    both = []
    for name, count in (("train", 40), ("test", 20)):
        fine = [(7 * row) % 100 for row in range(count)]
        entry = {"data": np.zeros((count, 3072), dtype=np.uint8), "fine_labels": fine}
        entry["coarse_labels"] = [label % 20 for label in fine]
        both += [(coarse_names[label % 20], fine_names[label]) for label in fine]
        (root / name).write_bytes(pickle.dumps(entry))
    (root / "meta").write_bytes(pickle.dumps({"fine_label_names": fine_names, "coarse_label_names": coarse_names}))
    monkeypatch.setattr("torchvision.datasets.CIFAR100._check_integrity", lambda _: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    return both


def test_cifar100_has_20_coarse_classes(tmp_path, monkeypatch):
    both = _cifar100(tmp_path, monkeypatch)
    samples = Torchvision("CIFAR100", root=tmp_path, label="coarse", fine_label="fine").load()
    assert _words(samples)[0] == both
    assert (len(samples.names), samples.parts.tolist()) == (20, [0] * 40 + [2] * 20)
    _check(samples, {fine: coarse for coarse, fine in both})
    alone = Torchvision("CIFAR100", root=tmp_path, label="coarse").load()
    assert torch.equal(alone.labels, samples.labels)
    assert alone.evaluated is None
    usual, fine = (Torchvision("CIFAR100", root=tmp_path, label=label).load() for label in (None, "fine"))
    assert torch.equal(usual.labels, fine.labels)
    assert usual.names == fine.names
    assert [usual.names[label] for label in usual.labels.tolist()] == [name for _, name in both]


def _aircraft(folder):
    data = folder / "fgvc-aircraft-2013b" / "data"
    (data / "images").mkdir(parents=True)
    tree = {"A300B4": ("A300", "Airbus"), "A310": ("A310", "Airbus"), "737-200": ("Boeing 737", "Boeing")}
    tree["737-300"] = ("Boeing 737", "Boeing")
    levels = {"variant": list(tree), "family": [own[0] for own in tree.values()]}
    levels["manufacturer"] = [own[1] for own in tree.values()]
    files = {"variant": "variants.txt", "family": "families.txt", "manufacturer": "manufacturers.txt"}
    for level, own in levels.items():
        (data / files[level]).write_text("\n".join(sorted(set(own))) + "\n")
        for part, name in enumerate(("train", "val", "test")):
            lines = [f"{part}{number} {of}\n" for number, of in enumerate(own)]
            (data / f"images_{level}_{name}.txt").write_text("".join(lines))
    for name in (f"{part}{number}" for part in range(3) for number in range(4)):
        Image.new("RGB", (8, 8)).save(data / "images" / f"{name}.jpg")
    return {variant: own[1] for variant, own in tree.items()}, {own[0]: own[1] for own in tree.values()}


def test_aircraft_has_three_levels(tmp_path):
    variants, families = _aircraft(tmp_path)
    for level, expected in (("variant", variants), ("family", families)):
        samples = Torchvision("FGVCAircraft", root=tmp_path, label="manufacturer", fine_label=level).load()
        assert samples.parts.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        _check(samples, expected)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (lambda: Torchvision("CIFAR100", label="course"), "CIFAR100 as data.label, got 'course': choose one of coarse"),
        (lambda: Torchvision("CIFAR10", fine_label="fine"), "of CIFAR10 as data.fine_label, got 'fine': it has one"),
    ],
)
def test_unknown_labellings_are_refused(source, words):
    with pytest.raises(ValueError, match=words):
        source()


@pytest.mark.parametrize(
    ("fine", "coarse", "words"),
    [
        ([0, 1, 1, 2], [0, 0, 1, 1], "got 1 of 3 in several, such as 'b' in x and y: exchange"),
        ([0, 0, 1, 1], [0, 1, 0, 1], "got 2 of 3 in several, such as 'a' in x and y: "),
        ([0, -1, -1, 1], [0, 0, -1, 1], "expected fine labels of every sample with a class, got none for 1 of 3"),
        ([0, 1, 2, 0], None, "expected one class each beside fine labels, got no labels to train on"),
        ([0, 1, 2, 0], [[True, False]] * 4, "expected one class each beside fine labels, got label sets"),
    ],
)
def test_fine_labels_that_cannot_be_are_counted_and_refused(fine, coarse, words):
    coarse = None if coarse is None else torch.tensor(coarse)
    with pytest.raises(ValueError, match=words) as raised:
        EvalLabels.finer(torch.tensor(fine), ("a", "b", "c"), coarse, ("x", "y"))
    assert "\n" not in str(raised.value)


def test_it_goes_with_its_samples():
    samples = _samples()
    _check(samples[torch.arange(120) % 2 == 0])
    assert _check(samples[torch.tensor([5, 0, 11])].compact())
    _check(samples.fewer(20))
    for subset in (None, Fraction(0.5), Classes(names=["tree", "moss"]), Classes(count=2)):
        parts = Stratified()(samples, subset)
        for part in (parts.train, parts.validation, parts.test):
            _check(part)
        assert parts.train.evaluated.names == parts.test.evaluated.names  # numbered alike
        _check(parts.refitted().train)
        assert len(parts.refitted().train) == len(parts.train) + len(parts.validation)
    assert samples.unlabelled().evaluated is None
    assert torch.equal(samples.as_evaluated().labels, torch.arange(120) % 6)
    assert samples.as_evaluated().names == FINE


def test_new_classes_have_fine_ones_of_their_own():
    fine = torch.arange(160) % 16
    coarse = fine // 2
    names = tuple(map(str, range(8)))
    samples = Samples(torch.zeros(160, 1), coarse, names)
    fines = tuple(f"{number // 2}.{number % 2}" for number in range(16))
    samples = replace(samples, evaluated=EvalLabels.finer(fine, fines, coarse, names))
    parts = ByClass(train=4, validation=2, test=2)(samples)
    expected = {name: name[0] for name in fines}
    for part, count in ((parts.train, 8), (parts.validation, 4), (parts.test, 4)):
        _check(part, expected)
        assert len(part.evaluated.names) == count
    both = joined(parts.train, parts.validation)
    _check(both, expected)
    assert len(both.evaluated.names) == 12


def test_samples_without_a_class_have_no_fine_one(tmp_path):
    labels = np.array(WITHIN)[np.arange(60) % 6]
    fine = np.array(FINE)[np.arange(60) % 6]
    labels[40:], fine[45:] = "", ""
    np.savez(tmp_path / "some.npz", vectors=np.zeros((60, 2)), labels=labels, fine_labels=fine)
    data = {"class_path": "likewise.data.Arrays", "init_args": {"path": str(tmp_path / "some.npz")}}
    split = {"class_path": "likewise.data.Stratified", "init_args": {}}
    parts, _ = parts_of({"data": data, "split": split})
    assert (len(parts.unlabelled), parts.unlabelled.evaluated) == (20, None)
    for part in (parts.train, parts.validation, parts.test):
        _check(part)
    few = {"class_path": "likewise.data.FewLabels", "init_args": {"per_class": 4}}
    parts, _ = parts_of({"data": data, "split": split, "subset": few})
    assert parts.unlabelled.evaluated is None
    assert FewLabels(per_class=4).hides


def test_the_fingerprint_tells_other_fine_labels():
    samples = _samples()
    parts = Stratified()(samples)
    other = replace(samples.evaluated, classes=samples.evaluated.classes.roll(6))
    assert fingerprint(parts) == fingerprint(Stratified()(replace(samples, evaluated=other)))  # equal ones
    swapped = torch.tensor([1, 0, 3, 2, 4, 5])[samples.evaluated.classes]
    changed = Stratified()(replace(samples, evaluated=replace(samples.evaluated, classes=swapped)))
    assert fingerprint(parts) != fingerprint(changed)


def _trained(path, folder, loss, **more):
    options = {"data": path, "encoder": "MLP", "encoder.width": 16, "epochs": 3, "report": False, "runs": str(folder)}
    options |= {"trainer.enable_progress_bar": False, "validation_epochs": 1, "batch_size": 32}
    return lw.train(options | more, loss=loss, progress=Silent())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fine")
    return _trained(_vectors(folder / "plants.npz"), folder / "runs", "CrossEntropyLoss")


def test_fine_labels_never_reach_the_loss(tmp_path):
    coarse = np.array(WITHIN)[np.arange(240) % 6]
    other = np.array([f"{name} {row % 7 % 2}" for row, name in enumerate(coarse)])  # of each coarse class, at will
    first = _trained(_vectors(tmp_path / "one.npz"), tmp_path / "a", "rascal", epochs=1)
    second = _trained(_vectors(tmp_path / "two.npz", fine=other), tmp_path / "b", "rascal", epochs=1)
    weights = [run.encoder().state_dict() for run in (first, second)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    ours, theirs = (load_features(run.embeddings) for run in (first, second))
    assert torch.equal(ours.test.vectors, theirs.test.vectors)
    assert set(ours.test.names) == set(FINE)
    assert len(theirs.test.names) == 6
    assert ours.test.names != theirs.test.names


def test_everything_is_evaluated_by_the_fine_ones(run):
    train, _, test = parts = load_features(run.embeddings)
    for part in parts:
        within = [part.within.names[number] for number in part.within.numbers.tolist()]
        assert dict(zip(part.names, within, strict=True)) == dict(zip(FINE, WITHIN, strict=True))
    score = next(one for one in run.scores if one.evaluation == "kNN" and one.part == "test" and one.epoch is None)
    neighbours = KNeighborsClassifier(score.settings["k"], metric="cosine")
    if score.settings["weights"] == "uniform":
        predicted = neighbours.fit(train.vectors, train.labels).predict(test.vectors)
        assert score.value == pytest.approx((predicted == test.labels.numpy()).mean(), abs=0.02)  # ties
    assert {one.group.name for one in run.scores if one.group.kind == "class"} == set(FINE)
    assert not any(one.evaluation == "own classifier" for one in run.scores)  # its classes are others
    assert {one.evaluation for one in run.scores if one.epoch} == {"kNN", "features"}
    assert run.metadata["labels"]["names"] == ["flower", "moss", "tree"]
    raw = next(one for one in run.scores if one.features == "raw inputs" and one.evaluation == "retrieval")
    assert raw.count == len(test)
    assert RunPredictors(run).predictor("own").names == ("flower", "moss", "tree")
    assert set(RunPredictors(run).predictor().names) == set(FINE)


def test_predictions_of_finer_classes_are_compared_with_finer_labels(run, tmp_path):
    _vectors(tmp_path / "plants.npz")
    for by, names in ((None, FINE), ("own", WITHIN)):
        table = predict(run, tmp_path / "plants.npz", tmp_path / f"{by}.csv", by=by, progress=Silent())
        with table.open() as file:
            rows = list(csv.DictReader(file))
        assert [row["label"] for row in rows] == [names[row % 6] for row in range(240)]
        assert {row["class"] for row in rows} <= set(names)
        if by is None:
            assert np.mean([row["class"] == row["label"] for row in rows]) > 0.9
