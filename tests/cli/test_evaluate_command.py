"""`likewise evaluate`, end to end and at its doors, and what training evaluates."""

import shutil

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from likewise.cli import main
from likewise.evaluation import load_features
from likewise.runs import Run

pytestmark = pytest.mark.slow
SHORT = ["--trainer.max_epochs", "1", "--encoder.width", "4", "--trainer.accelerator", "cpu"]


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """A run of two epochs, with validation scores after each."""
    root = tmp_path_factory.mktemp("trained")
    two = ["--trainer.max_epochs", "2", "--validation_epochs", "1", "--keep_checkpoints", "true"]
    assert main(["train", *digits, *two, "--report", "false", "--runs", str(root)]) == 0
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
    assert run.metadata["seconds"].keys() == {"training", "evaluation"}


def test_one_evaluation_again_replaces_its_own_scores_only_and_no_page_where_none_is_wanted(run, capsys):
    before = run.scores
    run.report.unlink(missing_ok=True)
    words = ["--evaluations", "KNN", "--evaluations.k", "7", "--report", "false", "--device", "cpu"]
    assert main(["evaluate", str(run.folder), *words]) == 0
    assert not run.report.exists()
    assert capsys.readouterr().out.strip().endswith(f"run: {run.folder}")
    after = Run(run.folder).scores
    unchanged = [[score for score in scores if score.evaluation != "kNN" or score.epoch] for scores in (before, after)]
    assert unchanged[0] == unchanged[1]
    final = [score for score in after if score.evaluation == "kNN" and score.epoch is None]
    assert all(score.settings["k"] == 7 for score in final)
    assert sum(str(score.group) == "all" and score.part == "test" for score in final) == 2


def test_a_checkpoint_is_evaluated_as_a_run_of_its_own(run, tmp_path):
    before = run.best  # as --keep best has it
    whole = torch.load(run.checkpoint, weights_only=True)["state_dict"]
    torch.save({"state_dict": {name: of * 0.9 for name, of in whole.items()}, "epoch": 0}, before)
    words = ["--evaluations", "KNN", "--report", "false", "--device", "cpu"]
    assert main(["evaluate", str(before), "--runs", str(tmp_path / "runs"), *words]) == 0
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
    again = [score for score in Run(made).scores if (score.part, str(score.group)) == ("test", "all")]
    assert again
    assert all(run.scores[score.evaluation, score.metric.name].value == score.value for score in again)
    assert "report: " in capsys.readouterr().out
    assert (made / "report.html").is_file()


def test_a_run_without_evaluations_has_no_scores_until_it_is_evaluated(digits, tmp_path):
    words = ["--evaluations", "[]", "--report", "false"]
    assert main(["train", *digits, *words, "--runs", str(tmp_path / "none")]) == 0
    (none,) = (tmp_path / "none").iterdir()
    assert Run(none).scores == ()  # nor is anything validated
    assert not Run(none).embeddings.exists()
    words = ["--evaluations", "Retrieval", "--report", "false", "--device", "cpu"]
    assert main(["evaluate", str(none), *words]) == 0
    assert kinds(Run(none).scores) == {("retrieval", "encoder"), ("retrieval", "raw inputs")}


def test_a_long_tail_is_reported_by_the_number_of_training_samples(tmp_path):
    tail = ["--subset", "LongTail", "--subset.imbalance", "20", "--trainer.limit_train_batches", "1"]
    tail += ["--evaluations", "KNN", "--report", "false", "--validation_epochs", "0"]
    assert main(["train", *tail, *SHORT, "--runs", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    features = load_features(Run(run).embeddings)
    few = features.train.counts < 20
    scores = [of for of in Run(run).scores if of.part == "test"]
    score = next(of for of in scores if (of.evaluation, of.features, str(of.group)) == ("kNN", "encoder", "few"))
    assert score.count == int(few[features.test.labels].sum())
    assert {"many", "medium"} <= {str(of.group) for of in scores}


def test_a_refit_learns_from_train_and_validation_and_chooses_before(digits, tmp_path):
    words = ["--split.refit", "true", "--evaluations", "KNN", "--report", "false"]
    assert main(["train", *digits, *words, "--runs", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    facts, features = Run(run).metadata, load_features(Run(run).embeddings)
    assert facts["samples"]["train"] == len(features.train) + len(features.validation) == 120
    assert not set(features.validation.rows.tolist()) & set(features.train.rows.tolist())


# --- bad input -------------------------------------------------------------------------------------------------------


def test_options_that_are_not_as_expected_are_refused(run, refused):
    for arguments, told in (
        ("--evaluations KNN --evaluations.k 0", "k of at least 1, got 0"),
        ("--evaluation_samples 0", "evaluation_samples of at least 1"),
        ("--device abacus", "device"),
        ("--devices cpu", "did you mean --device?"),
    ):
        assert told in refused("evaluate", run.folder, *arguments.split())


def test_sources_that_cannot_be_evaluated_are_refused(run, tmp_path, refused):
    assert "does not exist" in refused("evaluate", tmp_path / "nowhere.npz")
    (tmp_path / "empty").mkdir()
    assert "has no run.json" in refused("evaluate", tmp_path / "empty")
    torch.save(torch.nn.Linear(1, 1), tmp_path / "net.pth")
    torch.save(torch.nn.Linear(1, 1).state_dict(), tmp_path / "weights.pth")
    line = refused("evaluate", tmp_path / "net.pth")
    assert "net.pth, pickled objects (torch.nn.modules.linear.Linear), which nothing here loads" in line
    assert "weights.pth, which stands in no run's folder: save" in refused("evaluate", tmp_path / "weights.pth")
    torch.save(torch.nn.Linear(1, 1), run.folder / "net.pth")
    assert "net.pth, pickled objects" in refused("evaluate", run.folder / "net.pth", "--runs", tmp_path / "runs")
    for door in (["export"], ["train", "--encoder", "FromRun", "--encoder.run"]):
        assert "the folder of a run, got" in (line := refused(*door, tmp_path / "net.pth"))
        assert "net.pth, pickled objects" in line
    line = refused("train", "--encoder", "Wrapped", "--encoder.module", tmp_path / "net.pth")
    assert "expected a class for --encoder.module, got" in line
    run.checkpoint.write_bytes(b"PK cut")
    assert "can't be read" in refused("evaluate", run.checkpoint, "--runs", tmp_path / "runs")
    run.weights.unlink()
    run.embeddings.unlink()
    line = refused("evaluate", run.folder)
    assert "expected a run with a trained encoder" in line
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_data_that_changed_since_is_refused_for_a_checkpoint(digits, tmp_path, capsys, refused):
    file = tmp_path / "data.npz"
    shutil.copy(digits[3], file)
    words = [*digits[:3], str(file), *digits[4:], "--keep_checkpoints", "true", "--evaluations", "KNN"]
    assert main(["train", *words, "--report", "false", "--runs", str(tmp_path / "runs")]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    arrays = dict(np.load(file))
    np.savez(file, images=arrays["images"], labels=arrays["labels"][::-1])
    assert "other data" in refused("evaluate", folder / "checkpoint.ckpt", "--runs", tmp_path / "new")
    file.unlink()
    assert main(["evaluate", str(folder), "--evaluations", "KNN"]) == 0  # features are there
    assert "raw inputs and pictures are left out" in capsys.readouterr().err


def test_evaluations_that_do_not_apply_are_refused_before_training(digits, tmp_path, refused):
    arguments = [*digits, "--split", "ByClass", "--evaluations", "LinearProbe", "--runs", str(tmp_path / "runs")]
    line = refused("train", *arguments)
    assert "LinearProbe does not apply: it needs test classes that were trained on" in line
    assert not (tmp_path / "runs").exists()
