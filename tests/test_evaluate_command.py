"""`likewise evaluate` and `likewise sweep`, end to end and at their doors, and what training evaluates."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import likewise
from likewise.cli import main, training
from likewise.cli.sweep import Sweep
from likewise.evaluation import load_features
from likewise.runs import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*", "ignore:.*does not have many workers.*"),
]
SHORT = ["--trainer.max_epochs", "1", "--encoder.width", "4", "--trainer.accelerator", "cpu"]


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Options of a very short training on a few digits."""
    pixels, labels = load_digits(return_X_y=True)
    file = tmp_path_factory.mktemp("few") / "few.npz"
    np.savez(file, images=pixels[:160].reshape(-1, 8, 8) / 16, labels=labels[:160])
    return ["--data", "Arrays", "--data.path", str(file), "--batches.batch_size", "36", *SHORT]


@pytest.fixture(scope="module")
def trained(few, tmp_path_factory):
    """A run of two epochs, with validation scores after each."""
    root = tmp_path_factory.mktemp("trained")
    two = ["--trainer.max_epochs", "2", "--validation_epochs", "1"]
    assert main(["train", *few, *two, "--runs", str(root)]) == 0
    return next(root.iterdir())


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it."""
    return Run(shutil.copytree(trained, tmp_path / trained.name))


def kinds(scores):
    return {(score.evaluation, score.features) for score in scores if score.epoch is None}


def test_a_run_evaluates_all_that_applies_and_validates_as_it_goes(trained):
    run = Run(trained)
    both = {"encoder", "raw inputs"}
    expected = {(name, kind) for name in ("kNN", "linear probe", "retrieval") for kind in both}
    assert kinds(run.scores) == expected
    assert {(score.epoch, score.part) for score in run.scores if score.epoch} == {(1, "validation"), (2, "validation")}
    assert run.facts["seconds"].keys() == {"training", "evaluation"}


def test_one_evaluation_again_replaces_its_own_scores_only(run):
    before = run.scores
    assert main(["evaluate", str(run.folder), "--evaluations", "KNN", "--evaluations.k", "7", "--device", "cpu"]) == 0
    after = Run(run.folder).scores
    unchanged = [[score for score in scores if score.evaluation != "kNN" or score.epoch] for scores in (before, after)]
    assert unchanged[0] == unchanged[1]
    final = [score for score in after if score.evaluation == "kNN" and score.epoch is None]
    assert all(score.choices.startswith("k=7, ") for score in final)
    assert sum(score.subset == "all" and score.part == "test" for score in final) == 2


def test_a_checkpoint_is_evaluated_as_a_run_of_its_own(run, tmp_path):
    before = run.checkpoint_before
    assert main(["evaluate", str(before), "--runs", str(tmp_path / "runs"), "--device", "cpu"]) == 0
    (made,) = (tmp_path / "runs").iterdir()
    assert made.name.endswith("SupConLoss-Arrays-epoch1")
    encoder = run.encoder()
    state = torch.load(before, weights_only=True)["state_dict"]
    encoder.load_state_dict({name[8:]: value for name, value in state.items() if name.startswith("encoder.")})
    images = torch.tensor(load_digits().images[:160] / 16, dtype=torch.float32).unsqueeze(1)
    features = load_features(Run(made).embeddings).test
    torch.testing.assert_close(features.vectors, encoder.encode(images[features.rows]))
    again = load_features(run.embeddings).test
    assert torch.equal(features.rows, again.rows)
    assert not torch.allclose(features.vectors, again.vectors)


def test_embeddings_of_a_run_are_evaluated_as_the_run_was(run, tmp_path, capsys):
    assert main(["evaluate", str(run.embeddings), "--runs", str(tmp_path / "runs")]) == 0
    (made,) = (tmp_path / "runs").iterdir()
    values = [
        {(score.evaluation, score.metric): score.value for score in of.scores if score.subset == "all"
         and (score.features, score.part, score.epoch) == ("encoder", "test", None)}
        for of in (run, Run(made))
    ]  # fmt: skip
    assert values[0] == values[1]
    assert "report: " in capsys.readouterr().out
    assert (made / "report.html").is_file()


def test_fewer_samples_are_evaluated_and_none_at_all(few, tmp_path):
    assert main(["train", *few, "--evaluation_samples", "20", "--runs", str(tmp_path / "capped")]) == 0
    (capped,) = (tmp_path / "capped").iterdir()
    assert [len(part) for part in load_features(Run(capped).embeddings)] == [108, 12, 40]
    final = [score for score in Run(capped).scores if (score.subset, score.part, score.epoch) == ("all", "test", None)]
    assert {score.count for score in final if score.metric == "accuracy"} == {20}
    rows = {of.key: of.rows.tolist() for of in Run(capped).outcomes}
    both = [rows["kNN", "accuracy", kind, "test"] for kind in ("encoder", "raw inputs")]
    assert both[0] == both[1]
    assert set(both[0]) <= set(load_features(Run(capped).embeddings).test.rows.tolist())
    assert main(["train", *few, "--evaluations", "[]", "--runs", str(tmp_path / "none")]) == 0
    (none,) = (tmp_path / "none").iterdir()
    assert Run(none).scores == ()  # nor is anything validated
    assert not Run(none).embeddings.exists()
    assert main(["evaluate", str(none), "--evaluations", "Retrieval", "--device", "cpu"]) == 0
    assert kinds(Run(none).scores) == {("retrieval", "encoder"), ("retrieval", "raw inputs")}


def test_classes_that_were_not_trained_on_are_evaluated_by_retrieval(few, tmp_path):
    assert main(["train", *few, "--split", "ByClass", "--validation_epochs", "1", "--runs", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    scores = Run(run).scores
    assert {score.evaluation for score in scores} == {"retrieval"}
    assert all("interval over 2 classes" in score.choices for score in scores if score.epoch is None)
    assert {score.part for score in scores if score.epoch == 1} == {"validation"}


def test_a_long_tail_is_reported_by_the_number_of_training_samples(tmp_path):
    tail = ["--subset", "LongTail", "--subset.imbalance", "20", "--trainer.limit_train_batches", "1"]
    assert main(["train", *tail, *SHORT, "--runs", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    features = load_features(Run(run).embeddings)
    few = features.train.counts < 20
    score = next(of for of in Run(run).scores if (of.evaluation, of.features, of.subset) == ("kNN", "encoder", "few"))
    assert score.count == int(few[features.test.labels].sum())
    assert {"many", "medium"} <= {of.subset for of in Run(run).scores}


def test_a_refit_learns_from_train_and_validation_and_chooses_before(few, tmp_path):
    assert main(["train", *few, "--split.refit", "true", "--runs", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    facts, features = Run(run).facts, load_features(Run(run).embeddings)
    assert facts["samples"]["train"] == len(features.train) + len(features.validation) == 120
    assert not set(features.validation.rows.tolist()) & set(features.train.rows.tolist())


# --- bad input -------------------------------------------------------------------------------------------------------


def refused(capsys, *arguments):
    """Return the one line that says why the command refused."""
    assert main(list(map(str, arguments))) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--evaluations", "KNNN"], "did you mean KNN?"),
        (["--evaluations", "KNN", "--evaluations.neighbours", "3"], "neighbours"),
        (["--evaluations", "KNN", "--evaluations.k", "0"], "k of at least 1, got 0"),
        (["--evaluation_samples", "0"], "evaluation_samples of at least 1"),
        (["--device", "abacus"], "device"),
        (["--devices", "cpu"], "did you mean --device?"),
    ],
    ids=range(6),
)
def test_options_that_are_not_as_expected_are_refused(arguments, words, run, capsys):
    assert words in refused(capsys, "evaluate", run.folder, *arguments)


def test_sources_that_cannot_be_evaluated_are_refused(run, tmp_path, capsys):
    assert "does not exist" in refused(capsys, "evaluate", tmp_path / "nowhere")
    assert "does not exist" in refused(capsys, "evaluate", tmp_path / "nowhere.npz")
    (tmp_path / "empty").mkdir()
    assert "has no run.json" in refused(capsys, "evaluate", tmp_path / "empty")
    run.checkpoint.write_bytes(b"PK cut")
    assert "can't be read" in refused(capsys, "evaluate", run.checkpoint, "--runs", tmp_path / "runs")
    run.weights.unlink()
    run.embeddings.unlink()
    line = refused(capsys, "evaluate", run.folder)
    assert "expected a run with a trained encoder" in line
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_data_that_changed_since_is_refused_for_a_checkpoint(few, tmp_path, capsys):
    file = tmp_path / "data.npz"
    shutil.copy(few[3], file)
    assert main(["train", *few[:3], str(file), *few[4:], "--runs", str(tmp_path / "runs")]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    arrays = dict(np.load(file))
    np.savez(file, images=arrays["images"], labels=arrays["labels"][::-1])
    assert "other data" in refused(capsys, "evaluate", folder / "checkpoint.ckpt", "--runs", tmp_path / "new")
    file.unlink()
    assert main(["evaluate", str(folder)]) == 0  # features are there
    assert "raw inputs and pictures are left out" in capsys.readouterr().err


def test_evaluations_that_do_not_apply_are_refused_before_training(few, tmp_path, capsys):
    arguments = [*few, "--split", "ByClass", "--evaluations", "LinearProbe", "--runs", str(tmp_path / "runs")]
    line = refused(capsys, "train", *arguments)
    assert "LinearProbe does not apply: it needs test classes that were trained on" in line
    assert not (tmp_path / "runs").exists()


# --- sweeps ----------------------------------------------------------------------------------------------------------

SETTINGS = ["--setting", "SupCon: --loss SupConLoss", "--setting", "--loss NTXentLoss"]


def test_a_sweep_that_was_interrupted_goes_on_where_it_was(few, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "sweep"
    train, count = training.run, iter(range(100))

    def interrupted(arguments):
        if next(count) == 2:
            raise KeyboardInterrupt
        return train(arguments)

    monkeypatch.setattr(training, "run", interrupted)
    assert main(["sweep", "--seeds", "2", *SETTINGS, "--output", str(folder), *few]) == 130
    assert f"likewise sweep --resume {folder}" in capsys.readouterr().err
    done = {path: path.stat().st_mtime_ns for path in folder.glob("*/*/*/encoder.safetensors")}
    assert len(done) == 2
    assert main(["sweep", "--resume", str(folder)]) == 0
    runs = [Run(path.parent) for path in sorted(folder.glob("*/*/*/run.json"))]
    assert [run.facts["seed"] for run in runs] == [0, 1, 0, 1]
    assert [run.facts["parts"]["loss"]["class_path"].rpartition(".")[2] for run in runs] == [
        *["SupConLoss"] * 2,
        *["NTXentLoss"] * 2,
    ]
    assert all(path.stat().st_mtime_ns == time for path, time in done.items())
    with (folder / "compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    probe = [row for row in rows if row["evaluation"] == "linear probe" and row["metric"] == "accuracy"]
    values = [
        np.mean([
            next(score.value for score in run.scores if (score.evaluation, score.features, score.subset, score.part)
                 == ("linear probe", "encoder", "all", "test"))
            for run in pair
        ])
        for pair in (runs[:2], runs[2:])
    ]  # fmt: skip
    assert [row["setting"] for row in probe] == ["SupCon", "loss=NTXentLoss"]
    assert [float(row["value"]) for row in probe] == pytest.approx(values)
    assert (folder / "compare.html").is_file()


def test_a_run_that_fails_does_not_end_a_sweep(few, tmp_path, capsys):
    settings = ["--setting", "diverges: --optimizer SGD --optimizer.lr 1e30", "--setting", "trains: --seed_of_none 1"]
    line = refused(capsys, "sweep", "--seeds", "1", *settings, "--output", tmp_path / "sweep", *few)
    assert "setting 'trains'" in line
    assert "seed_of_none" in line
    assert not (tmp_path / "sweep").exists()
    settings[-1] = "trains: --loss SupConLoss"
    line = refused(capsys, "sweep", "--seeds", "1", *settings, "--output", tmp_path / "sweep", *few)
    assert "1 of 2 runs failed; diverges, seed 0: " in line
    assert len([path for path in (tmp_path / "sweep").glob("*/*/*") if path.suffix != ".partial"]) == 1


def test_a_sweep_that_trained_nothing_removes_nothing_that_is_not_its_own(few, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "sweep"
    folder.mkdir()
    monkeypatch.chdir(folder)
    words = ["--seeds", "1", *SETTINGS, "--output", ".", *few, "--batches.views", "0"]

    def noted(*_):
        (folder / "notes.txt").write_text("mine")
        raise ValueError("expected views")

    monkeypatch.setattr(training, "run", noted)
    assert "expected views" in refused(capsys, "sweep", *words)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_sweep_whose_first_run_cannot_begin_ends_and_leaves_nothing(few, tmp_path, capsys):
    words = ["--seeds", "5", *SETTINGS, "--output", tmp_path / "sweep", *few, "--batches.views", "0"]
    line = refused(capsys, "sweep", *words)
    assert "SupCon, seed 0, the first run: expected views of at least 1" in line
    assert "--resume" not in line
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "none"], "expected --seeds as a number above 0"),
        (["--seeds", "1,1"], "once"),
        (["--grid", "loss.temperature"], "NAME=VALUE"),
        (["--setting", "SupConLoss it is"], "a setting as options"),
        (["--setting", "a: --loss SupConLoss", "--setting", "a: --loss NTXentLoss"], "two called 'a'"),
        (["--seed", "3"], "--seeds"),
        (["--resume", "nowhere"], "sweep.json"),
        (["--resume", "nowhere", "--seeds", "2"], "no other option"),
        (["--los", "SupConLoss"], "unknown option --los"),
    ],
    ids=range(9),
)
def test_sweeps_that_are_not_as_expected_are_refused(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, "sweep", *arguments)
    assert not list(tmp_path.iterdir())


def test_a_grid_takes_every_combination_with_every_setting(tmp_path):
    sweep = Sweep(["--x", "1"], {"a": ["--y", "2"], "b": []}, [5])
    assert [(name, seed, words) for name, seed, _, words in sweep.runs(tmp_path)] == [
        ("a", 5, ["--x", "1", "--y", "2", "--seed", "5", "--runs", str(tmp_path / "1-a" / "seed-5")]),
        ("b", 5, ["--x", "1", "--seed", "5", "--runs", str(tmp_path / "2-b" / "seed-5")]),
    ]
    assert json.loads(json.dumps(sweep.settings)) == sweep.settings
    assert likewise.__version__
