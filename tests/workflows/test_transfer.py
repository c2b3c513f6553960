"""`likewise transfer`: its table against scikit-learn, what is drawn and shared, and what it refuses."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from in_use import Listener, rows_of
from PIL import Image
from safetensors.torch import load_file
from scipy.stats import t
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

import likewise as lw
from likewise.cli import main
from likewise.configuration import read
from likewise.data import parts_of
from likewise.models import ConvNet
from likewise.runs import Run
from likewise.workflows import Silent, scoring, training
from likewise.workflows.plan import options_of
from likewise.workflows.transfers import TransferRequest, plan_transfer

pytestmark = pytest.mark.slow
QUIET = {"trainer.accelerator": "cpu", "progress": Silent()}
PIXELS, DIGITS = load_digits(return_X_y=True)
IMAGES = PIXELS.reshape(-1, 8, 8) / 16
NEW = DIGITS >= 5


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with digits from 5 on in a file, and a run trained on those below."""
    folder = tmp_path_factory.mktemp("transfer")
    np.savez(folder / "old.npz", images=IMAGES[~NEW], labels=DIGITS[~NEW])
    np.savez(folder / "new.npz", images=IMAGES[NEW], labels=DIGITS[NEW] - 5, names=list("56789"))
    lw.train(data=str(folder / "old.npz"), **{"encoder.width": 8}, epochs=8, evaluations=[], report=False,
             runs=folder / "runs", name="old", **QUIET)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def old(place):
    return next((place / "runs").iterdir())


@pytest.fixture(scope="module")
def encoded():
    """What frozen encoders were given, part by part, in the transfer that tests look at."""
    return []


@pytest.fixture(scope="module")
def found(place, old, encoded):
    """The folder of a transfer with 4 and 12 labels of each class, and two seeds."""
    features_of = scoring.features_of

    def counted(samples, encoder, part, *others, **options):
        if not any(parameter.requires_grad for parameter in encoder.parameters()):
            encoded.append((part, len(samples)))
        return features_of(samples, encoder, part, *others, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "features_of", counted)
        transferred(place, old, place / "found", per_class=[12, 4])
    return place / "found"


def transferred(place, source, output, **options):
    given = {"per_class": [4], "seeds": 2, "steps": 3, **options}
    return lw.transfer(source, data=str(place / "new.npz"), output=output, **given, **QUIET)


def table(folder):
    return rows_of(folder / "transfer.csv")


def runs_in(folder, kind, labels):
    """Return the runs of a setting, by their seeds."""
    home = next(path for path in folder.iterdir() if path.name.partition("-")[2] == f"{kind}-{labels}-a-class")
    runs = [Run(path) for path in home.glob("*/*")]
    return {run.metadata["seed"]: run for run in runs}


def saved(run):
    """Return the features of a run's parts: those with labels, and the test part's; vectors, labels, rows."""
    with np.load(run.embeddings) as file:
        parts = {part: {key: file[f"{part}_{key}"] for key in ("features", "labels", "rows")}
                 for part in ("train", "validation", "test")}  # fmt: skip
    known = {key: np.concatenate([parts["train"][key], parts["validation"][key]]) for key in parts["test"]}
    return known, parts["test"]


@pytest.mark.parametrize("labels", [4, 12])
def test_the_frozen_scores_are_those_of_the_encoder_on_the_rows_that_are_kept(place, old, found, labels):
    """Of kNN by scikit-learn; the probe, which each run has kept, is held against it in tests of evaluation."""
    images = np.load(place / "new.npz")
    inputs, classes = torch.tensor(images["images"], dtype=torch.float32).unsqueeze(1), images["labels"]
    with torch.no_grad():
        features = {"encoder": lw.load_encoder(old)(inputs).numpy(), "raw inputs": inputs.flatten(1).numpy()}
    suffix = {"encoder": "", "raw inputs": ", raw inputs"}
    expected = {f"{name}{suffix[kind]}": [] for name in ("kNN", "linear probe") for kind in features}
    for run in runs_in(found, "frozen", labels).values():
        known, test = (part["rows"] for part in saved(run))
        assert np.bincount(classes[known]).tolist() == [labels] * 5
        assert not set(known) & set(test)
        assert len(test) == 224
        for kind, x in features.items():
            chosen = run.scores["kNN", "accuracy", kind].settings
            vote = {"uniform": lambda d: 1 + 1e-6 * (1 - d), "similarity": lambda d: np.exp((1 - d) / 0.07)}
            near = KNeighborsClassifier(chosen["k"], metric="cosine", weights=vote[chosen["weights"]])
            right = near.fit(x[known].astype(float), classes[known]).score(x[test].astype(float), classes[test])
            expected[f"kNN{suffix[kind]}"].append(right)
            expected[f"linear probe{suffix[kind]}"].append(run.scores["linear probe", "accuracy", kind].value)
    rows = {row["method"]: row for row in table(found) if row["labels"] == f"{labels} a class"}
    assert {name: float(rows[name]["value"]) for name in expected} == pytest.approx(
        {name: np.mean(of) for name, of in expected.items()}, abs=1e-12
    )
    half = t.ppf(0.975, 1) * np.std(expected["kNN"], ddof=1) / np.sqrt(2)
    assert float(rows["kNN"]["high"]) == pytest.approx(min(1, np.mean(expected["kNN"]) + half))


def test_the_other_rows_are_the_classifiers_own_with_differences_paired_by_seed(found):
    values = {
        kind: {seed: run.scores["own classifier", "accuracy"].value for seed, run in runs_in(found, kind, 4).items()}
        for kind in ("fine-tuned", "scratch")
    }
    rows = {row["method"]: row for row in table(found) if row["labels"] == "4 a class"}
    assert {kind: float(rows[kind]["value"]) for kind in values} == pytest.approx(
        {kind: np.mean(list(of.values())) for kind, of in values.items()}
    )
    apart = [values["fine-tuned"][seed] - values["scratch"][seed] for seed in (0, 1)]
    assert float(rows["fine-tuned"]["difference"]) == pytest.approx(np.mean(apart))
    half = t.ppf(0.975, 1) * np.std(apart, ddof=1) / np.sqrt(2)
    assert float(rows["fine-tuned"]["difference_low"]) == pytest.approx(np.mean(apart) - half)
    assert rows["scratch"]["difference"] == ""
    assert float(rows["scratch"]["labelled"]) == 20


def test_few_shot_episodes_are_of_the_most_labels_alone(found):
    rows = [row for row in table(found) if row["method"].startswith("few-shot")]
    assert [(row["method"], row["labels"]) for row in rows] == [
        (of, shots) for of in ("few-shot", "few-shot, raw inputs") for shots in ("5-way 1-shot", "5-way 5-shot")
    ]
    assert all(row["interval"] == "5 classes" for row in rows)


def test_fewer_labels_are_among_more_and_the_seed_chooses_them(found):
    rows = {
        (kind, labels, seed): set(saved(run)[0]["rows"].tolist())
        for kind in ("frozen", "fine-tuned", "scratch")
        for labels in (4, 12)
        for seed, run in runs_in(found, kind, labels).items()
    }
    for seed in (0, 1):
        assert rows["frozen", 4, seed] < rows["frozen", 12, seed]
        for labels in (4, 12):
            assert rows["frozen", labels, seed] == rows["fine-tuned", labels, seed] == rows["scratch", labels, seed]
    assert rows["frozen", 4, 0] != rows["frozen", 4, 1]
    tests = {tuple(saved(run)[1]["rows"]) for of in ("frozen", "scratch") for run in runs_in(found, of, 4).values()}
    assert len(tests) == 1


def test_frozen_weights_stay_fine_tuned_ones_move_a_little_and_scratch_shares_none(old, found):
    before = load_file(old / "encoder.safetensors")
    matrices = [name for name, tensor in before.items() if tensor.ndim > 1 and name not in {"mean", "std"}]
    after = {
        (kind, seed): load_file(run.folder / "encoder.safetensors")
        for kind in ("frozen", "fine-tuned", "scratch")
        for seed, run in runs_in(found, kind, 4).items()
    }
    assert all(torch.equal(before[name], after["frozen", 0][name]) for name in before)
    for name in matrices:
        moved = float((after["fine-tuned", 0][name] - before[name]).abs().max())
        assert 0 < moved < 3.1 * 2e-4  # three steps of AdamW at a tenth of the rate
        assert float((after["scratch", 1][name] - before[name]).abs().mean()) > 0.02
        for seed in (0, 1):
            torch.manual_seed(seed)
            drawn = ConvNet((1, 8, 8), width=8).state_dict()[name]
            assert float((after["scratch", seed][name] - drawn).abs().max()) < 3.1 * 2e-3
    assert all(after["scratch", 0][name].shape == before[name].shape for name in before)


def test_fine_tuned_and_scratch_are_trained_alike(found):
    runs = [runs_in(found, kind, 12)[1] for kind in ("fine-tuned", "scratch", "frozen")]
    tuned, scratch, _ = (yaml.safe_load(run.configuration.read_text()) for run in runs)
    assert {name for name in tuned if tuned[name] != scratch[name]} == {"encoder", "encoder_rate_factor", "runs"}
    assert (tuned["encoder_rate_factor"], scratch["encoder_rate_factor"]) == (0.1, 1.0)
    assert [run.metadata["run_summary"]["steps"] for run in runs] == [3, 3, 1]
    assert "from_run" not in runs_in(found, "scratch", 4)[0].metadata["parts"]


def test_what_a_frozen_encoder_has_encoded_is_not_encoded_again(found, encoded):
    assert found.is_dir()
    assert [size for part, size in encoded if part == "test"] == [224]
    assert sum(size for part, size in encoded if part != "test") == 2 * (5 * 4 + 5 * 12)


def test_a_transfer_that_was_interrupted_goes_on_to_the_same_table(place, old, found, tmp_path, monkeypatch):
    train, count = training.train, iter(range(100))

    def interrupted(*arguments, **named):
        if next(count) == 3:
            raise KeyboardInterrupt
        return train(*arguments, **named)

    monkeypatch.setattr(training, "train", interrupted)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt) as stopped:
        transferred(place, old, None)
    (folder,) = (tmp_path / "transfers").iterdir()
    assert str(folder.relative_to(tmp_path)) in stopped.value.__notes__[0]
    done = {path: path.stat().st_mtime_ns for path in folder.glob("*/*/*/encoder.safetensors")}
    assert len(done) == 3
    comparison = transferred(place, old, None)
    assert all(path.stat().st_mtime_ns == time for path, time in done.items())
    assert [path.name for path in (tmp_path / "transfers").iterdir()] == [folder.name]
    again, whole = ([row for row in table(of) if row["labels"] == "4 a class"] for of in (folder, found))
    assert again == whole
    assert comparison.table.resolve() == folder / "transfer.csv"
    page = (folder / "transfer.html").read_text()
    assert page.index("Scores by number of labels") < page.index('id="labels"') < page.index('id="curves"')
    assert "5-way 1-shot" in page


@pytest.mark.filterwarnings("ignore:left out")
def test_test_samples_that_the_encoder_was_trained_on_are_refused(tmp_path, monkeypatch):
    """Other labels, another spelling, and rows that are left out when they are read, hide none of them."""
    monkeypatch.chdir(tmp_path)
    columns = [f"p{pixel}" for pixel in range(64)]
    gaps = set(np.random.default_rng(0).choice(600, 60, replace=False).tolist())
    with Path("plants.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["number", *columns, "kind", "species", "height"])
        for row, (pixels, digit) in enumerate(zip(PIXELS[:600], DIGITS[:600], strict=True)):
            species, height = ("" if row in gaps else f"s{digit}"), ("" if row % 7 == 3 else row)
            writer.writerow([row, *pixels, f"k{digit // 2}", species, height])
    inputs = {"data.inputs": [*columns, "height"]}
    run = lw.train({"data": "plants.csv", "data.label": "kind", **inputs}, steps=1, evaluations=[], report=False,
                   encoder="MLP", **QUIET)  # fmt: skip
    wide = {"data.label": "species", "data.inputs": ["number", *columns]}
    split = {"split.validation": "0.2", "split.refit": "true"}
    words = options_of({"data": str(tmp_path / "plants.csv"), **wide, **split})
    made, before = parts_of(training.chosen_parts(read(words)))[0], parts_of(run.metadata["parts"])[0]
    number = {"ours": made.test.inputs[:, 0].long().tolist(), "theirs": before.train.inputs[:, -1].long().tolist()}
    seen = len(set(number["ours"]) & set(number["theirs"]))
    assert 60 < seen < len(made.test)
    with pytest.raises(ValueError, match=rf"was not trained on, got {seen} of {len(made.test)} that it"):
        lw.transfer(run, data=str(tmp_path / "plants.csv"), **wide, per_class=[5], seeds=1, output="out", **QUIET)
    assert not (tmp_path / "out").exists()


def test_labels_that_the_encoder_was_trained_with_are_counted(tmp_path):
    """Of the same samples and classes, if its loss learned from labels."""
    run = lw.train({"data": "Digits", "subset": "Classes", "subset.count": 5}, loss="supcon", steps=1, evaluations=[],
                   report=False, runs=tmp_path, **{"encoder.width": 4}, **QUIET)  # fmt: skip

    def told(*others):
        said = Listener()
        plan_transfer(TransferRequest(str(run.folder), (0.1,)), ["--data", "Digits", *others], said)
        return [line for line in said.said if "with the labels of" in line]

    facts = run.metadata
    assert facts["samples"]["train"] == 608
    (line,) = told()
    assert "with the labels of 602 of 1,348 samples" in line  # the others are in the test part of all classes
    assert not told("--subset", "Classes", "--subset.names", '["5","6","7","8","9"]')
    simclr = {"class_path": "likewise.losses.NTXentLoss", "init_args": {}}
    run.describe(facts | {"parts": facts["parts"] | {"loss": simclr}})
    assert not told()


def planned(source, arguments, *per_class, said=None):
    """Plan a transfer, and return the words of each setting as a mapping, the last of each counting, and the plan."""
    request = TransferRequest(str(source), per_class=per_class or (4,))
    made, _ = plan_transfer(request, list(map(str, arguments)), said or Silent())
    return {name: dict(zip(of[::2], of[1::2], strict=True)) for name, of in made.settings.items()}, made


def test_the_fewer_labels_the_more_epochs_unless_they_are_named(place, old):
    data = ["--data", place / "new.npz"]
    settings, made = planned(old, [*data, "--lr", "0.01", "--epochs", "7"])
    assert made.common[-4:] == ["--optimizer.lr", "0.01", "--trainer.max_epochs", "7"]
    assert ["--trainer.max_epochs" in options for options in settings.values()] == [True, False, False]
    settings, _ = planned(old, data, 4, 100)
    epochs = {name: int(of["--trainer.max_epochs"]) for name, of in settings.items()}
    assert epochs == {"frozen, 4 a class": 1, "fine-tuned, 4 a class": 300, "scratch, 4 a class": 300,
                      "frozen, 100 a class": 1, "fine-tuned, 100 a class": 43, "scratch, 100 a class": 43}  # fmt: skip


def test_networks_are_named_or_in_files(place):
    mine = ("mine.pth", "mine.pth", "null")
    for source, options, name, values, weights in (
        ("resnet18", [], "pretrained", ("true", "true", "false"), (None, None, "null")),
        ("resnet18", ["--weights", "mine.pth"], "pretrained", ("false",) * 3, mine),
        ("mine.pth", ["--encoder", "ResNet", "--encoder.depth", "8"], "depth", ("8",) * 3, mine),
    ):
        every = planned(source, ["--data", place / "new.npz", *options])[0].values()
        assert tuple(of.get("--weights") for of in every) == weights
        assert tuple(of[f"--encoder.{name}"] for of in every) == values


def test_files_of_options_are_for_the_settings_that_options_are_for(place, old, tmp_path):
    """What a file says of fine-tuning, and the weights that it names, leave scratch as it is, and frozen frozen."""
    data = f"data: {{class_path: likewise.data.Arrays, init_args: {{path: {place / 'new.npz'}}}}}\n"
    tuning = {"freeze": "all but the last block", "unfreeze_epoch": 5, "encoder_rate_factor": 0.5, "layer_decay": 0.7}
    neutral = {"freeze": None, "unfreeze_epoch": None, "encoder_rate_factor": 1.0, "layer_decay": 1.0}
    (tmp_path / "tuning.yaml").write_text(data + yaml.safe_dump(tuning))
    (tmp_path / "weights.yaml").write_text(f"{data}weights: mine.pth\n")

    def options(source, file, *names):
        _, made = planned(source, ["--config", tmp_path / file])
        every = [read([*made.common, *words]) for words in made.settings.values()]
        return [{name: getattr(of, name) for name in names} for of in every]

    frozen, tuned, scratch = options(old, "tuning.yaml", *neutral)
    assert (frozen, tuned, scratch) == (neutral | {"freeze": "all"}, tuning, neutral)
    (tmp_path / "usual.yaml").write_text(f"{data}encoder_rate_factor: 1\ntrainer: {{max_epochs: 3}}\n")
    _, tuned, scratch = options(old, "usual.yaml", "encoder_rate_factor", "trainer")
    assert (tuned["encoder_rate_factor"], tuned["trainer"]["max_epochs"], scratch["trainer"]["max_epochs"]) == (1, 3, 3)
    weights = [of["weights"] for of in options("resnet18", "weights.yaml", "weights")]
    assert weights == ["mine.pth", "mine.pth", None]
    with pytest.raises(ValueError, match="expected no --weights beside a run"):
        options(old, "weights.yaml")


def test_a_file_of_weights_and_an_onnx_file_are_transferred(place, old, tmp_path):
    made = transferred(place, str(old / "encoder.safetensors"), tmp_path / "weights", encoder="ConvNet",
                       **{"encoder.width": 8}, seeds=1)  # fmt: skip
    assert {row.setting for row in made.rows} >= {"scratch", "fine-tuned", "kNN"}
    after = load_file(runs_in(tmp_path / "weights", "frozen", 4)[0].folder / "encoder.safetensors")
    before = load_file(old / "encoder.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    pytest.importorskip("onnxruntime")
    file = lw.export(old, output=tmp_path / "old.onnx", progress=Silent())
    made = transferred(place, str(file or tmp_path / "old.onnx"), tmp_path / "onnx", seeds=1)
    assert {row.setting for row in made.rows if row.evaluation == "4 a class"} == {
        "kNN", "linear probe", "kNN, raw inputs", "linear probe, raw inputs"}  # fmt: skip
    values = {row.setting: row.value for row in made.rows}
    frozen = runs_in(tmp_path / "weights", "frozen", 4)[0].scores["linear probe", "accuracy"].value
    assert values["linear probe"] == pytest.approx(frozen, abs=2 / 224)


def test_numbers_that_leave_a_class_too_few_are_left_out_with_a_line(place, old):
    said = Listener()
    data = ["--data", str(place / "new.npz")]
    _, columns = plan_transfer(TransferRequest(str(old), (0.001, 0.05)), data, said)
    assert {column.labels for column in columns.values()} == {"5 % of labels"}
    assert "0.1 % of labels: left out, as it keeps 1 of '5', and 2 of each class are needed" in said.said
    with pytest.raises(ValueError, match=r"keeps 2 of each class, got none: --labels 0.02 does"):
        plan_transfer(TransferRequest(str(old), (0.001,)), data, said)


REFUSED = [
    ("{old}", "expected the other data, got none"),
    ("--data {new}", "expected a run, a network's name or a file first"),
    ("{old} --data {new} --evaluations KNN", "expected no --evaluations"),
    ("{old} --data {new} --subset FewLabels", "expected no FewLabels"),
    ("{old} --data {new} --subset LabelNoise --subset.share 0.4", "expected no LabelNoise among --subset"),
    ("{old} --data {new} --loss SupConLoss", "a classifier, to be evaluated by, got SupConLoss"),
    ("{old} --data {fine}", "expected data with one class for each sample, got fine labels too"),
    ("{old} --data {new} --per-class 5 nan", "expected --per_class as finite numbers, got 5 nan"),
    ("{old} --data {new} --seed 3", "expected no --seed, which a sweep sets itself"),
    ("{old} --data {new} --encoder MLP", "expected no --encoder beside"),
    ("{old} --data {new} --labels 0.1 --per-class 5", "got both"),
    ("{old} --data {new} --labels 1.5", "expected fraction above 0 and at most 1, got 1.5"),
    ("{old} --data {new} --per-class 2.5", "expected --per_class as whole numbers"),
    ("{old} --data {new} --per-class 1", "expected per_class of 2 or more"),
    ("{old} --data {new} --labels many", "expected --labels as numbers, got many"),
    ("{old} --data {new} --seeds 0", "expected --seeds as a number above 0"),
    ("{begun} --data {new}", "finish it with likewise train --resume"),
    ("runs/none --data {new}", "expected the folder of a run"),
    ("weights.pth --data {new}", "expected the network that weights.pth is of"),
    ("{old} --data {sets}", "expected data with a class for each sample, got label sets"),
    ("{old} --data {blank}", "expected data with a class for each sample, got no labels"),
    ("{old} --data {wide} --per-class 4", "expected inputs of shape (1, 8, 8)"),
]


def test_what_cannot_be_transferred_is_refused_in_a_line(place, old, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("sets.npz", images=IMAGES[:60], labels=rng.random((60, 3)) < 0.5)
    np.savez("blank.npz", images=IMAGES[:60])
    fine = {"fine_labels": DIGITS[:60], "fine_names": list("0123456789")}
    np.savez("fine.npz", images=IMAGES[:60], labels=DIGITS[:60] // 2, names=list("abcde"), **fine)
    np.savez("wide.npz", images=np.tile(IMAGES[:60], (1, 1, 2)), labels=np.arange(60) % 3)
    begun = tmp_path / "begun.partial"
    begun.mkdir()
    (begun / "run.json").write_text(json.dumps(Run(old).metadata))
    files = {name: f"{name}.npz" for name in ("sets", "blank", "fine", "wide")}
    files |= {"old": old, "new": place / "new.npz", "begun": begun}
    for words, told in REFUSED:
        assert main(["transfer", *(word.format(**files) for word in words.split())]) == 2, words
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert told in line
    assert not (tmp_path / "transfers").exists()


def test_weights_or_data_that_changed_are_another_transfer(tmp_path, monkeypatch):
    """The same words find their folder while the files in them are the same; few-shot scores that differ are a mean."""
    monkeypatch.chdir(tmp_path)

    def save(seed, labels):
        torch.manual_seed(seed)
        weights = ConvNet((1, 8, 8), width=4).state_dict()
        torch.save({name: tensor for name, tensor in weights.items() if name not in {"mean", "std"}}, "w.pth")
        np.savez("new.npz", images=IMAGES, labels=labels, names=list("0123456789"))

    save(0, DIGITS)
    options = {"encoder": "ConvNet", "encoder.width": 4, "per_class": [2], "seeds": 2, "steps": 1}
    for _ in range(2):
        lw.transfer("w.pth", data="new.npz", **options, **QUIET)
        (folder,) = Path("transfers").iterdir()
    each = [
        [s.value for s in run.scores if (s.evaluation, s.features, s.part) == ("few-shot", "encoder", "test")]
        for run in runs_in(folder, "frozen", 2).values()
    ]
    assert each[0] != each[1]  # mean and standard deviation are of the few samples that were kept
    rows = [row for row in table(folder) if row["method"] == "few-shot"]
    assert [float(row["value"]) for row in rows] == pytest.approx(np.mean(each, axis=0))
    assert {row["interval"] for row in rows} == {"2 seeds"}
    for seed, labels, count in ((1, DIGITS, 2), (1, 9 - DIGITS, 3)):
        save(seed, labels)
        lw.transfer("w.pth", data="new.npz", **options, **QUIET)
        assert len(list(Path("transfers").iterdir())) == count
    assert not scoring._encoded_before  # noqa: SLF001


@pytest.mark.filterwarnings("ignore:an image that cannot be read")
def test_files_that_cannot_be_read_are_known_with_every_seed(tmp_path):
    """Also where a frozen encoder's features are those of an earlier run, as in a transfer."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("test", 30)):
        for name in ("a", "b"):
            (tmp_path / "img" / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "img" / part / name / f"{number}.png")
    for number in (3, 4, 11):
        file = tmp_path / f"img/test/a/{number}.png"
        file.write_bytes(file.read_bytes()[:120])
    torch.save(ConvNet((3, 8, 8), width=4).state_dict(), tmp_path / "w.pth")
    options = {"encoder": "ConvNet", "encoder.width": 4, "weights": str(tmp_path / "w.pth"), "freeze": "all"}
    options |= {"data.memory": 0, "workers": 0, "batch_size": 8, "steps": 1, "evaluations": "KNN", "report": False}
    scoring.forget()
    for seed in range(2):
        run = lw.train(str(tmp_path / "img"), seed=seed, runs=tmp_path / "runs", **options, **QUIET)
        lost = sorted(str(Path(file).relative_to(tmp_path)) for file in run.metadata["undecodable"].values())
        assert lost == [f"img/test/a/{number}.png" for number in (11, 3, 4)]
    assert len(scoring._encoded_before) == 3  # noqa: SLF001
    scoring.forget()
