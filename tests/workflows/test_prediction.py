"""Predictions of a run, from files and in Python: against the run's own parts, plain loops, and what the scores say."""

import dataclasses
import io
import math
import subprocess
import sys
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch
from in_use import Listener, encoder_run, rows_of
from PIL import Image
from scipy.stats import binomtest
from sklearn.datasets import load_digits

import likewise as lw
from likewise.cli import main
from likewise.evaluation import FeatureParts, Features, LinearProbe, NoveltyScore, save_features
from likewise.evaluation.label_metrics import best_thresholds
from likewise.inference import load
from likewise.models import BagOfTokens, ConvNet
from likewise.models.encoder import Encoder
from likewise.workflows import Silent, predict

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:left out 1 of 61 images, which cannot be read")]
NAMES = tuple(f"digit {digit}" for digit in range(10))
OF_SETS = ("even", "prime")


def made(folder, encoder, arguments, inputs, labels, names):
    """Return a run with an encoder as it was made, its features, and its probe."""
    run = encoder_run(folder, encoder, arguments)
    vectors = encoder.eval().encode(inputs)
    rows = torch.arange(len(labels))
    cuts = {"train": rows % 5 < 3, "validation": rows % 5 == 3, "test": rows % 5 == 4}
    parts = FeatureParts(*(Features(vectors[of], labels[of], names, part=part) for part, of in cuts.items()))
    save_features(run.embeddings, parts)
    run.add(LinearProbe()(*parts))
    return run.finalize(), parts


@pytest.fixture(scope="module")
def digits():
    pixels, classes = load_digits(return_X_y=True)
    return (pixels.reshape(-1, 8, 8) / 16 * 255).astype(np.uint8), torch.from_numpy(classes)


def of_digits(folder, images, labels, names):
    """Return a run of the first 900 digits, and the parts of its features."""
    torch.manual_seed(0)
    arguments = {"input_shape": [1, 8, 8], "width": 8}
    return made(folder, ConvNet(**arguments), arguments, torch.from_numpy(images[:900, None]), labels[:900], names)


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    return of_digits(tmp_path_factory.mktemp("runs"), *digits, NAMES)


@pytest.fixture(scope="module")
def of_sets(digits, tmp_path_factory):
    images, classes = digits
    sets = torch.stack([classes % 2 == 0, torch.isin(classes, torch.tensor([2, 3, 5, 7]))], dim=1)
    return of_digits(tmp_path_factory.mktemp("sets"), images, sets, OF_SETS)


@pytest.fixture(scope="module")
def photos(digits, tmp_path_factory):
    """Photos of new digits in a folder a class, two of which can't be read: one in the middle, and one of noise."""
    folder = tmp_path_factory.mktemp("photos")
    images, classes = digits
    for number in range(900, 960):
        place = folder / NAMES[classes[number]]
        place.mkdir(exist_ok=True)
        Image.fromarray(images[number]).save(place / f"{number}.png")
    whole = (folder / NAMES[classes[930]] / "930.png").read_bytes()
    (folder / NAMES[classes[930]] / "930.png").write_bytes(whole[:70])
    (folder / "digit 0" / "text.png").write_text("no image")
    return folder


def test_every_photo_that_can_be_read_has_a_row(run, photos, digits, tmp_path):
    run, parts = run
    progress = Listener()
    path = predict(run, photos, tmp_path / "photos.csv", progress=progress)
    rows = {row["id"]: row for row in rows_of(path)}
    images, classes = digits
    numbers = [number for number in range(900, 960) if number != 930]
    assert sorted(rows) == sorted(f"{NAMES[classes[number]]}/{number}.png" for number in numbers)
    vectors = run.encoder().encode(torch.from_numpy(images[numbers][:, None]))
    probe = LinearProbe()(*parts).predictor
    scores, shares = probe.scores(vectors), NoveltyScore(parts)(vectors)
    for number, score, share in zip(numbers, scores, shares.tolist(), strict=True):
        row = rows[f"{NAMES[classes[number]]}/{number}.png"]
        first, second = sorted(range(10), key=lambda of: -float(score[of]))[:2]
        assert (row["class"], row["second"], row["label"]) == (NAMES[first], NAMES[second], NAMES[classes[number]])
        assert float(row["probability"]) == pytest.approx(float(score[first]), rel=1e-3)
        assert float(row["second_probability"]) == pytest.approx(float(score[second]), rel=1e-3, abs=1e-9)
        assert float(row["unlike"]) == pytest.approx(share, abs=0.02)
        assert row["unlike_training"] == str(float(row["unlike"]) > 0.95).lower()
    right = sum(row["class"] == row["label"] for row in rows.values())
    assert progress.said == ["predicting by linear probe ..."]
    low, high = (100 * end for end in binomtest(right, 59).proportion_ci(0.95, "wilson"))
    assert progress.told[0] == f"right: {100 * right / 59:.2f} % [{low:.1f}, {high:.1f}] of 59 labelled samples"
    wrong = Counter((row["label"], row["class"]) for row in rows.values() if row["label"] != row["class"])
    counted = [tuple(line.rsplit(maxsplit=1)) for line in progress.told[2 : 2 + len(wrong)]]
    assert sorted(int(count) for _, count in counted) == sorted(wrong.values())
    assert [int(count) for _, count in counted] == sorted(wrong.values(), reverse=True)
    assert any("cannot be read" in line and "930.png" in line for line in progress.told)
    assert progress.told[-1] == f"predictions: {path}"


def test_the_table_is_the_same_in_every_format_and_in_python(run, photos, tmp_path):
    run, _ = run
    tables = [predict(run, photos, tmp_path / f"photos.{of}", progress=Silent()) for of in ("csv", "jsonl", "parquet")]
    rows, listed, columns = map(rows_of, tables)
    assert columns == listed
    assert [row["id"] for row in rows] == [row["id"] for row in listed]
    for row, other in zip(rows, listed, strict=True):
        assert row["class"] == other["class"]
        assert float(row["probability"]) == pytest.approx(other["probability"], rel=1e-5)
    files = [str(photos / row["id"]) for row in listed]
    model = lw.load(run)
    found = model.predict(files)
    assert list(found.ids) == files
    assert found.labels == [row["class"] for row in listed]
    assert found.unlike.tolist() == pytest.approx([row["unlike"] for row in listed])
    assert model.predict(files[0]).labels == found.labels[:1]
    assert model.predict(Image.open(files[0])).labels == found.labels[:1]
    assert repr(model.predict(files[0])) == f"Predictions(1: {files[0]}: {found.labels[0]})"


def test_a_single_photo_and_one_that_is_none(run, photos, tmp_path, capsys):
    run, _ = run
    photo = next((photos / "digit 4").iterdir())
    assert main(["predict", str(run.folder), str(photo)]) == 0
    head, row, unlike = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["id", "class"]
    assert row.startswith(photo.name)
    assert unlike.startswith("unlike the training data: ")
    others = [str(file) for file in sorted((photos / "digit 5").iterdir())[:2]]
    assert main(["predict", str(run.folder), *others]) == 0
    rows = capsys.readouterr().out.splitlines()[1:3]
    assert all(row.startswith(file) for row, file in zip(rows, others, strict=True))
    for words, told in (
        ([str(tmp_path)], "an empty folder"),
        ([str(photos / "nothing.png")], "does not exist"),
        ([*others, str(photos)], f"expected one folder, file or name, or images, got {photos} among 3: check"),
        ([str(photos), "--by", "own"], "trained a classifier or label prototypes"),
    ):
        assert main(["predict", str(run.folder), *words]) == 2
        assert told in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"images that can be read, got others: left out 1 image.*930\.png"):
        lw.load(run).predict([photo, next(photos.rglob("930.png"))])


def test_labels_of_sets_are_those_above_their_thresholds(of_sets, photos, tmp_path):
    run, parts = of_sets
    progress = Listener()
    listed = rows_of(predict(run, photos, tmp_path / "photos.jsonl", progress=progress))
    probe = LinearProbe()(*parts).predictor
    for row in listed:
        image = torch.from_numpy(np.array(Image.open(photos / row["id"])))[None, None]
        scores = probe.scores(run.encoder().encode(image))[0]
        above = [of for of in range(2) if scores[of] > probe.thresholds[of]]
        above.sort(key=lambda of: -float(scores[of]))
        assert row["labels"] == [OF_SETS[of] for of in above]
        assert row["probability"] == pytest.approx([float(scores[of]) for of in above], rel=1e-4)
    assert not any(line.startswith("right") for line in progress.told)  # classes are no label sets
    rows = rows_of(predict(run, photos, tmp_path / "photos.csv", progress=Silent()))
    assert [row["labels"].split(";") for row in rows] == [row["labels"] or [""] for row in listed]
    assert rows_of(predict(run, photos, tmp_path / "photos.parquet", progress=Silent())) == listed


def test_decisions_about_labels_are_counted(of_sets, digits, tmp_path):
    run, _ = of_sets
    images, classes = digits
    sets = np.stack([classes.numpy() % 2 == 0, np.isin(classes.numpy(), [2, 3, 5, 7])], axis=1)[900:1000]
    np.savez(tmp_path / "new.npz", images=images[900:1000], labels=sets, names=np.array(OF_SETS))
    progress = Listener()
    path = predict(run, tmp_path / "new.npz", tmp_path / "new.jsonl", progress=progress)
    said = [set(row["labels"]) for row in rows_of(path)]
    truth = [{name for name, on in zip(OF_SETS, row, strict=True) if on} for row in sets]
    both = sum(len(own & other) for own, other in zip(truth, said, strict=True))
    named = sum(len(own | other) for own, other in zip(truth, said, strict=True))
    assert progress.told[0].startswith(f"right: {100 * both / named:.2f} % [")
    assert f"of {named} labels that a sample has or is predicted to have" in progress.told[0]


def test_an_output_that_exists_is_refused_before_anything_is_encoded(run, photos, tmp_path, monkeypatch):
    run, _ = run
    path = tmp_path / "photos.csv"
    path.write_text("mine")
    with monkeypatch.context() as patched:
        patched.setattr(Encoder, "encode", None)
        with pytest.raises(ValueError, match=r"output that does not exist, got .*: name another, or .*--force"):
            predict(run, photos, path, progress=Silent())
        with pytest.raises(ValueError, match=r"expected --output of \.csv or \.jsonl or \.parquet, got photos\.txt"):
            predict(run, photos, "photos.txt", progress=Silent())
        with pytest.raises(ValueError, match=r"whose folder .* does not exist"):
            predict(run, photos, tmp_path / "none" / "photos.csv", progress=Silent())
    monkeypatch.setattr(Encoder, "encode", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        predict(run, photos, path, force=True, progress=Silent())
    assert path.read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["photos.csv"]
    monkeypatch.undo()
    predict(run, photos, path, force=True, progress=Silent())
    assert len(rows_of(path)) == 59


def test_features_alone_are_predicted_by_a_run_of_features(digits, tmp_path):
    images, classes = digits
    vectors = images.reshape(len(images), -1).astype(np.float32)
    np.savez(tmp_path / "old.npz", features=vectors[:600], labels=classes[:600])
    options = {"evaluations": "LinearProbe", "runs": str(tmp_path / "runs"), "progress": Silent()}
    run = lw.evaluate(tmp_path / "old.npz", **options)
    ids = [f"scan {number}" for number in range(600, 700)]
    np.savez(tmp_path / "new.npz", features=vectors[600:700], labels=classes[600:700], ids=ids)
    rows = rows_of(predict(run, tmp_path / "new.npz", tmp_path / "new.csv", progress=Silent()))
    assert [row["id"] for row in rows] == ids
    assert sum(row["class"] == row["label"] for row in rows) > 85
    np.save(tmp_path / "narrow.npy", vectors[600:700, :5])
    with pytest.raises(ValueError, match=r"features \(M, 64\), as the linear probe learned from, got \(100, 5\)"):
        predict(run, tmp_path / "narrow.npy", tmp_path / "narrow.csv", progress=Silent())
    assert not (tmp_path / "narrow.csv").exists()
    vectors[650, 3] = np.nan
    np.save(tmp_path / "gap.npy", vectors[600:700])
    with pytest.raises(ValueError, match="finite features, got NaN or infinity of 50: check"):
        predict(run, tmp_path / "gap.npy", tmp_path / "gap.csv", progress=Silent())
    assert not (tmp_path / "gap.csv").exists()


def test_features_of_images_are_not_encoded_again(run, tmp_path):
    run, parts = run
    np.savez(tmp_path / "features.npz", features=parts.test.vectors.numpy(), labels=parts.test.labels.numpy())
    rows = rows_of(predict(run, tmp_path / "features.npz", tmp_path / "new.csv", progress=Silent()))
    expected = LinearProbe()(*parts).predictor.scores(parts.test.vectors).argmax(dim=1)
    assert [row["class"] for row in rows] == [NAMES[of] for of in expected.tolist()]


def test_texts_are_predicted(tmp_path, monkeypatch):
    torch.manual_seed(0)
    words = [f"{animal} {verb} {number % 7}" for number in range(40) for animal in ("cat", "dog", "owl")
             for verb in ("runs", "sits")]  # fmt: skip
    labels = torch.tensor([("cat", "dog", "owl").index(text[:3]) for text in words])
    texts = lw.data.Texts(words)
    encoder = BagOfTokens((), width=16, vocabulary=60)
    encoder.observe(texts)
    arguments = {"input_shape": [], "width": 16, "vocabulary": 60}
    run, _ = made(tmp_path, encoder, arguments, texts, labels, ("cat", "dog", "owl"))
    (tmp_path / "new.csv").write_text("text\nan owl sits\nthe cat runs\n")
    rows = rows_of(predict(run, tmp_path / "new.csv", tmp_path / "out.csv", progress=Silent()))
    assert [row["class"] for row in rows] == ["owl", "cat"]
    assert lw.load(run).predict(["an owl sits", "the cat runs"]).labels == ["owl", "cat"]
    monkeypatch.setattr("sys.stdin", io.StringIO("an owl sits\n\nthe cat runs\n"))
    both = {"an owl sits": "owl", "the cat runs": "cat"}
    for given, classes in (("owl", {"owl": "owl"}), (list(both), both), ("-", both)):
        rows = rows_of(predict(run, given, tmp_path / "out.csv", force=True, progress=Silent()))
        assert {row["id"]: row["class"] for row in rows} == classes
    for given, told in (
        ("nwe.csv", "expected a file, a folder .* got nwe.csv, which does not exist: check it"),
        (["an owl", "new.csv"], "expected texts, or one file of them, got new.csv among 2: give it alone"),
        (["-"], "expected a folder, a file, a text or some of these, got none: name one"),
    ):
        with pytest.raises(ValueError, match=told):
            predict(run, given, progress=Silent())


def test_new_classes_are_predicted_among_a_few_samples_of_them(run, digits, tmp_path):
    run, _ = run
    images, classes = digits
    even = classes % 2 == 0
    names = np.array(["zero", "-", "two", "-", "four", "-", "six", "-", "eight"])
    for name, rows in (("support", slice(0, 100)), ("new", slice(900, 1000))):
        chosen = even[rows].numpy()
        np.savez(tmp_path / f"{name}.npz", images=images[rows][chosen], labels=names[classes[rows].numpy()[chosen]])
    progress = Listener()
    given = {"among": tmp_path / "support.npz", "progress": progress}
    rows = rows_of(predict(run, tmp_path / "new.npz", tmp_path / "new.csv", **given))
    assert progress.said == ["predicting by the nearest 20 of 48 samples ..."]
    encode, chosen = run.encoder().encode, [even[:100].numpy(), even[900:1000].numpy()]
    support, new = (
        torch.nn.functional.normalize(encode(torch.from_numpy(images[span][some][:, None])))
        for span, some in zip((slice(100), slice(900, 1000)), chosen, strict=True)
    )
    labels = names[classes[:100].numpy()[chosen[0]]]
    for row, vector in zip(rows, new, strict=True):
        similarities, votes = support @ vector, Counter()
        for index in similarities.argsort(descending=True)[:20].tolist():
            votes[labels[index]] += math.exp(float(similarities[index]) / 0.07)
        assert row["class"] == votes.most_common(1)[0][0]
        assert float(row["probability"]) == pytest.approx(votes[row["class"]] / votes.total(), rel=1e-3)
    right = sum(row["class"] == row["label"] for row in rows) / len(rows)
    assert progress.told[0].startswith(f"right: {100 * right:.2f} %")
    with pytest.raises(ValueError, match="by='knn' with among, got 'probe'"):
        predict(run, tmp_path / "new.npz", by="probe", **given)


def test_samples_that_were_trained_on_are_told_apart(run, digits, tmp_path, monkeypatch):
    """The 900 of the run, whatever they are called, of which 540 were trained on, and 100 new ones; 7 at a time."""
    monkeypatch.setattr("likewise.workflows.prediction.CHUNK", 7)
    run, _ = run
    images, classes = digits
    order = np.random.default_rng(0).permutation(1000)
    labels = np.array(NAMES)[classes[:1000]]
    np.savez(tmp_path / "new.npz", images=images[:1000][order], labels=labels[order])
    progress = Listener()
    rows = rows_of(predict(run, tmp_path / "new.npz", tmp_path / "new.csv", progress=progress))
    right = np.array([row["class"] == row["label"] for row in rows])
    seen = (order < 900) & (order % 5 < 3)
    assert progress.told[0] == "trained on: 540 of 1,000, by their features; they say nothing of new ones"
    for line, own, which in zip(
        progress.told[1:3], (seen, ~seen), ("that it was trained on", "that are new to it"), strict=True
    ):
        assert line.startswith(f"right: {100 * right[own].mean():.2f} % [")
        assert line.endswith(f"of {own.sum()} labelled samples {which}")
    found = load(run).predict(torch.from_numpy(images[:1000][order]))
    assert found.trained_on.tolist() == seen.tolist()


def test_no_label_is_given_by_a_threshold_of_few_or_with_hardly_a_probability(digits, tmp_path):
    """A label with 2 of 180 validation samples, of which one looks like any other, has a threshold near 0."""
    images, classes = digits
    rows = torch.arange(len(classes))
    rare = (rows % 5 < 3) & (classes == 9) & (rows % 2 == 0) | torch.isin(rows, torch.tensor([3, 8]))
    sets = torch.stack([classes % 2 == 0, rare], dim=1)
    run, parts = of_digits(tmp_path, images, sets, OF_SETS)
    assert int(parts.validation.counts[1]) == 2
    probe = LinearProbe()(*parts).predictor
    own = best_thresholds(probe.scores(parts.validation.vectors), parts.validation.sets)
    assert float(own[1]) < 0.01 < float(own[0])
    assert probe.few == 1
    assert probe.thresholds[0] == own[0]
    progress = Listener()
    np.savez(tmp_path / "new.npz", images=images[900:])
    for by in ("probe", "knn"):
        table = predict(run, tmp_path / "new.npz", tmp_path / f"{by}.jsonl", by=by, progress=progress)
        assert min(chain(*(row["probability"] for row in rows_of(table)))) > 0.05
        assert "no label is given with a probability below 0.05" in progress.told
        assert any(line.startswith("1 of 2 labels have fewer than 5 validation samples each") for line in progress.told)
    old = dataclasses.replace(probe, thresholds=own, few=0)  # as runs from before keep it
    run.write(run.probe.name, old.to_bytes())
    assert float(load(run).predict(torch.from_numpy(images[900:])).scores[:, 1].min()) < 0.01
    assert min(chain(*load(run).predict(torch.from_numpy(images[900:])).probability)) > 0.05


@pytest.mark.process
def test_a_first_prediction_imports_neither_a_trainer_nor_scikit_learn(run, photos):
    run, _ = run
    script = (
        "import sys; from likewise.cli import main; "
        f"main(['predict', {str(run.folder)!r}, {str(next((photos / 'digit 4').iterdir()))!r}]); "
        "loaded = {of.partition('.')[0] for of in sys.modules}; "
        "print('loaded:', *(loaded & {'lightning', 'sklearn', 'scipy', 'datasets'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded:"
