"""The command, end to end and at its doors."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
import torch
from command_worker import command, end_of, start
from sklearn.datasets import load_digits

import likewise
from likewise.cli import main
from likewise.configuration import read
from likewise.runs import Run

pytestmark = pytest.mark.slow

SMALL = ("--encoder.width", "4", "--trainer.accelerator", "cpu")
TRAINED_ALONE = ("--evaluations", "[]", "--report", "false")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The run of the command without an argument, in a fresh process: where it ran, what it said, and its folder."""
    place = tmp_path_factory.mktemp("finished")
    result = command("train", folder=place)
    assert result.returncode == 0, result.stderr
    return place, result, Run(next((place / "runs").iterdir()))


def accuracies(run, evaluation):
    return [run.scores[evaluation, "accuracy", features].value for features in ("encoder", "raw inputs")]


@pytest.mark.process
def test_without_an_argument_the_digits_are_learned(finished):
    """The main job: SupCon on the digits, better on held-out ones than raw pixels are; under a name, with all files."""
    run = finished[2]
    for probe, floor in (("kNN", 0.985), ("linear probe", 0.98)):
        encoder, raw = accuracies(run, probe)
        assert encoder >= floor
        assert encoder > raw
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}-SupConLoss-Digits", run.name)
    files = "batches.npz config.yaml embeddings.npz encoder.safetensors metrics.csv outcomes.npz probe.safetensors "
    assert {path.name for path in run.folder.iterdir()} == {*files.split(), "report.html", "run.json", "scores.csv"}


@pytest.mark.process
def test_a_run_ends_with_its_accuracies_and_where_the_report_is(finished):
    place, result, run = finished
    *table, last = result.stdout.strip().splitlines()
    for probe in ("kNN", "linear probe"):
        line = next(line for line in table if line.startswith(f"{probe}, accuracy: "))
        encoder, raw = accuracies(run, probe)
        assert line.startswith(f"{probe}, accuracy: {100 * encoder:.2f} % [")
        assert f"raw inputs {100 * raw:.2f} % [" in line
        assert f", difference {100 * (encoder - raw):+.2f} [" in line
    assert (place / last.removeprefix("report: ")).samefile(run.report)


@pytest.mark.process
def test_a_run_shows_its_progress_and_says_nothing_else_beside(finished):
    lines = re.split(r"[\r\n]+", finished[1].stderr)
    table = list(takewhile(lambda line: line.startswith("  "), lines))  # what goes in
    assert [line.split()[0] for line in table[:2]] == ["samples", "inputs"]
    lines = [line for line in lines[len(table) :] if " s a step: done at about " not in line]  # on a slow machine
    steps = [line for line in lines if re.fullmatch(r"training: \d+/270 steps, epoch=\d+, loss=\d+\.\d+", line)]
    assert len(steps) == 30
    validated = [re.fullmatch(r"validation (.*): kNN, accuracy \d+\.\d+ % \[.*\]", line) for line in lines]
    epochs = [line[1] for line in validated if line]
    assert epochs == ["before training", *(f"after epoch {epoch}" for epoch in range(5, 31, 5))]
    *_, kept, evaluating, writing, end = lines
    assert re.fullmatch(r"kept epoch \d+ of 30, the best on validation: accuracy \d+\.\d+ % \[.*\]", kept)
    assert (evaluating, writing, end) == ("evaluating ...", "writing the report ...", "")
    assert len(lines) == len(steps) + len(epochs) + 4


@pytest.mark.process
def test_the_embeddings_are_those_that_were_evaluated_and_metrics_have_a_row_for_every_step(finished):
    run = finished[2]
    saved = np.load(run.embeddings)
    assert [saved[f"{part}_features"].shape for part in ("train", "test")] == [(1213, 128), (449, 128)]
    assert run.scores["kNN", "accuracy"].count == len(saved["test_labels"]) == 449
    assert saved["test_names"].tolist() == [str(digit) for digit in range(10)]
    rows = np.concatenate([saved[f"{part}_rows"] for part in ("train", "validation", "test")])
    assert sorted(rows) == list(range(1797))
    digits = load_digits().target
    assert all(np.array_equal(digits[saved[f"{part}_rows"]], saved[f"{part}_labels"]) for part in ("train", "test"))
    with (run.folder / "metrics.csv").open(newline="") as file:
        metrics = list(csv.DictReader(file))
    assert [int(row["step"]) for row in metrics] == list(range(270))
    assert [int(row["epoch"]) for row in metrics] == [1 + step // 9 for step in range(270)]  # as in scores.csv
    assert all(float(row["loss"]) > 0 and float(row["positives_per_anchor"]) > 1 for row in metrics)


@pytest.mark.parametrize(
    ("option", "value"), [("max_epochs", "0"), ("fast_dev_run", "true"), ("precision", "bf16-true")]
)
def test_a_run_that_logs_nothing_or_computes_otherwise_is_whole_too(option, value, few, tmp_path):
    words = [f"--trainer.{option}", value, "--evaluations", "KNN", "--runs", str(tmp_path)]
    assert main(["train", *few["classes"], *words]) == 0
    (run,) = tmp_path.iterdir()
    assert (run / "report.html").stat().st_size > 1_000_000
    assert run.suffix != ".partial"


TRAINED = {
    name: max(getattr(likewise, name).label_kinds, default=None)  # label sets rather than classes
    for name in likewise.__all__
    if name.endswith("Loss") and name != "ClipLoss"  # which is given its scale by one's own loop
}


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Options of a very short run on a few digits, by the kind of their labels."""
    pixels, labels = load_digits(return_X_y=True)
    folder = tmp_path_factory.mktemp("few")
    images, labels = pixels[:160].reshape(-1, 8, 8) / 16, labels[:160]
    kinds = {
        "classes": {"labels": labels},
        "label sets": {"labels": np.stack([labels % 2 == 0, labels < 5, labels % 3 == 0, labels > 7], axis=1)},
        None: {},
    }
    for kind, arrays in kinds.items():
        np.savez(folder / f"{kind}.npz", images=images, **arrays)
    short = ("--batches.batch_size", "36", "--trainer.max_epochs", "1", *SMALL)
    return {kind: ["--data", "Arrays", "--data.path", str(folder / f"{kind}.npz"), *short] for kind in kinds}


@pytest.mark.parametrize(("loss", "kind"), sorted(TRAINED.items()))
def test_a_loss_trains_without_further_options_on_its_kind_of_labels(loss, kind, few, tmp_path):
    words = few[kind]
    if read(["--loss", loss]).batches["class_path"] == "likewise.data.Episodes":
        place = words.index("--batches.batch_size")
        words = [*words[:place], "--batches.queries", "5", "--batches.episodes", "1", *words[place + 2 :]]
    assert main(["train", "--loss", loss, *words, *TRAINED_ALONE, "--runs", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    assert all(np.isfinite(float(row[name])) for row in rows for name in row)
    images = torch.rand(3, 1, 8, 8)
    assert likewise.load_encoder(run)(images).shape == (3, 16)


def test_moco_is_a_loss_and_two_inputs_on_the_command_line(few, tmp_path, capsys):
    """Its labels no evaluation fits, which is said; its checkpoint has the last step's weights, and no optimizer."""
    moco = ["--loss", "InfoNCELoss", "--inputs", "Momentum", "--inputs.momentum", "0.9"]
    moco += ["--inputs+", "KeyQueue", "--inputs.size", "60"]
    assert main(["train", *moco, *few[None], "--keep_checkpoints", "true", "--runs", str(tmp_path)]) == 0
    assert "no evaluation applies to samples without labels" in capsys.readouterr().err
    (run,) = tmp_path.iterdir()
    checkpoint = torch.load(run / "checkpoint.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 3
    assert "optimizer_states" not in checkpoint  # a finished run does not go on
    assert any(name.startswith("encoder.") for name in checkpoint["state_dict"])
    assert checkpoint["state_dict"]["inputs.by_class.KeyQueue.ring.enqueued"] == 3 * 36
    assert checkpoint["state_dict"]["inputs.by_class.Momentum.slow.step"] == 3
    assert (run / "config.yaml").read_text().count("likewise.training.") == 3  # two inputs and the schedule


@pytest.mark.process
def test_source_encoder_input_and_loss_of_a_users_own_train_from_this_folder(tmp_path):
    """The source and the encoder of the page on the command, the loss and the input of that on methods."""
    docs = Path(__file__).parents[2] / "docs"
    block = r'```python\n("""Parts of your own.*?)```\n\n    likewise (train .*?)\n\n'
    own, words = re.search(block, (docs / "command.md").read_text(encoding="utf-8"), re.DOTALL).groups()
    (tmp_path / "mine.py").write_text(own)
    block = r'```python title="nnclr.py"\n(.*?)```\n\n.*?    likewise train (.*? --inputs.size) 1024\n'
    own, more = re.search(block, (docs / "how-to" / "your-method.md").read_text(encoding="utf-8"), re.DOTALL).groups()
    (tmp_path / "nnclr.py").write_text(own)
    words = f"{words} {more.rpartition('likewise train ')[2]} 64 --trainer.max_epochs 2 --trainer.accelerator cpu"
    result = command(*words.split(), *TRAINED_ALONE, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    parts = json.loads((run / "run.json").read_text())["parts"]
    assert parts["encoder"] == {"class_path": "mine.Small", "init_args": {"width": 32, "input_shape": [2]}}
    classes = [spec["class_path"] for spec in (parts["loss"], *parts["inputs"])]
    assert classes == ["nnclr.NNCLRLoss", "nnclr.Neighbours"]


def test_training_goes_on_from_another_runs_encoder(few, tmp_path, capsys):
    def train(name, *words):
        return main(["train", *words, *TRAINED_ALONE, "--runs", str(tmp_path / name)])

    assert train("first", *few["classes"]) == 0
    (first,) = (tmp_path / "first").iterdir()
    again = ["--encoder", "FromRun", "--encoder.run", str(first), "--loss", "CrossEntropyLoss"]
    again += [word for word in few["classes"] if word not in {"--encoder.width", "4"}]
    again += ["--trainer.max_steps", "0"]
    assert train("second", *again) == 0
    (second,) = (tmp_path / "second").iterdir()
    assert (first / "encoder.safetensors").read_bytes() == (second / "encoder.safetensors").read_bytes()
    spec = json.loads((second / "run.json").read_text())["parts"]["encoder"]
    assert spec["class_path"] == "likewise.models.ConvNet"
    assert train("third", *again, "--split.seed", "1") == 2
    assert f"samples that {first} was not trained on, got " in capsys.readouterr().err
    assert train("fourth", *again, "--subset", "Fraction", "--subset.fraction", "0.5") == 0
    assert f"{first} was trained on " in capsys.readouterr().err  # validation samples, since the subset has its own


def test_rascal_is_told_how_many_samples_and_features_there_are_again_too(few, tmp_path):
    words = ["--loss", "RASCALLoss", "--keep_checkpoints", "true", *few["classes"], *TRAINED_ALONE]
    assert main(["train", *words, "--runs", str(tmp_path / "first")]) == 0
    (first,) = (tmp_path / "first").iterdir()
    assert main(["train", "--config", str(first / "config.yaml"), "--runs", str(tmp_path / "again")]) == 0
    (second,) = (tmp_path / "again").iterdir()
    states = [torch.load(run / "checkpoint.ckpt", weights_only=True)["state_dict"] for run in (first, second)]
    assert states[0]["loss.cache.features"].shape == (108, 64)
    assert states[0]["loss.cache.valid"].all()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def _npz(path, **arrays):
    np.savez(path, **arrays)
    return ["--data", "Arrays", "--data.path", str(path)]


LABELS = np.arange(40) % 2
BAD = {
    "temperature": (["--loss.temperature", "0"], "expected temperature to be a positive number"),
    "views": (["--loss", "NTXentLoss", "--batches.views", "1"], "two or more views"),
    "diverged": (["--optimizer", "SGD", "--optimizer.lr", "1e30"], ".partial"),
    "last part": (["--betas", "0.1"], "did you mean --optimizer.betas?"),
    "help": (["--loss.help", "Foo"], "expected loss to be one of ArcFaceLoss, AsymmetricLoss, "),
    "seed": (["--seed", "-1"], "expected --seed between 0 and 4294967295, got -1"),
    "strategy": (["--trainer.strategy", "ddp_spawn"], "expected --trainer.strategy to be one of auto, ddp,"),
    "validation epochs": (["--validation_epochs", "-1"], "expected --validation_epochs of at least 0, got -1"),
    "reduction": (["--loss.reduction", "none"], "reduction mean or sum"),
    "two views": (["--loss", "InfoNCELoss", "--batches.views", "3"], "got 3: set batches.views to 2"),
    "similarity": (["--loss", "NWSLoss", "--loss.label_similarity", "x.pt"], "--loss.label_similarity"),
    "other labels": (["--loss", "MSCLoss"], "expected label sets as labels for MSCLoss, got classes: choose one of"),
    "episodes": (
        ["--loss", "PatchLoss", "--batches", "Views"],
        "expected Episodes as batches for PatchLoss, got Views",
    ),
    "needless input": (["--loss", "KCLLoss", "--inputs", "KeyQueue"], "KCLLoss takes, got KeyQueue"),
    "balance": (["--batches.sampler", "Balanced", "--batches.sampler.samples_per_class", "4"], "classes"),
    "lbfgs": (["--optimizer", "LBFGS"], "got LBFGS: choose SGD or AdamW"),
    "tail": (["--subset", "LongTail", "--subset.imbalance", "1000"], "an imbalance that leaves every class a sample"),
    "device": (["--trainer.accelerator", "quantum"], "quantum"),
    "filled in": (
        ["--loss", "RASCALLoss", "--loss.num_samples=5"],
        "error: --loss.num_samples is filled in from the data; leave it out",
    ),
    "filled in from another part": (["--head.feature_dim", "3"], "--head.feature_dim is filled in from the encoder; "),
    "never suggested": (
        ["--loss", "RASCALLoss", "--loss.num_sample", "5"],
        "error: unknown option --loss.num_sample of RASCALLoss: see likewise",
    ),
}
BAD_ARRAYS = {
    "expected one of the keys 'images', 'vectors'": {"x": LABELS},
    "got NaN or infinity in 40 of 40": {"vectors": np.full((40, 3), np.nan), "labels": LABELS},
    "choose the encoder MLP for vectors": {"vectors": np.ones((40, 3)), "labels": LABELS},
    "expected label sets as labels for BCELoss, got classes such as 'a;b0': set --data.separator ';' if a cell": {
        "vectors": np.ones((40, 3)),
        "labels": [f"a;b{row % 30}" for row in range(40)],  # told before a split finds them rare
    },
}
OF_ARRAYS = {"choose": ["--encoder", "ConvNet"], "expected label sets": ["--loss", "BCELoss"]}


def _refused(arguments, words, tmp_path, capsys):
    status = main(["train", *arguments, "--runs", str(tmp_path / "runs")])
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert status == 2
    assert len(error) == 1
    assert words in error[0]
    assert not [run for run in tmp_path.glob("runs/*") if run.suffix != ".partial"]


@pytest.mark.parametrize("case", BAD)
def test_bad_options_are_refused_in_one_line_and_leave_no_run(case, tmp_path, capsys):
    _refused(*BAD[case], tmp_path, capsys)


@pytest.mark.filterwarnings("ignore:left out 2 of 4 classes, with 3 of 43")
def test_an_option_of_the_data_leaves_out_classes_of_few_samples(tmp_path, capsys):
    labels = [*np.array(["ash", "elm"])[LABELS].tolist(), "fir", "oak", "oak"]
    data = _npz(tmp_path / "tail.npz", vectors=np.random.default_rng(0).normal(size=(43, 3)), labels=labels)
    words = ["--encoder", "MLP", "--encoder.width", "4", "--epochs", "1", "--evaluations", "[]", "--report", "false"]
    _refused(
        [*data, *words], "got 1 of 'fir'; 2 of 4 classes have fewer: add samples, or --min_per_clas", tmp_path, capsys
    )
    for runs, more in ((tmp_path / "a", ["--min-per-class", "3"]), (tmp_path / "b", [])):
        given = [*data, *words, *more] if more else ["--config", str(next(tmp_path.glob("a/*/config.yaml")))]
        assert main(["train", *given, "--runs", str(runs)]) == 0
        (run,) = runs.iterdir()
        assert json.loads((run / "run.json").read_text())["labels"]["names"] == ["ash", "elm"]
        small = "batches have 27 samples instead of 128 (--batch-size), as there are 27 training samples\n"
        assert small in capsys.readouterr().err


@pytest.mark.parametrize("told", BAD_ARRAYS)
def test_bad_arrays_are_refused_in_one_line_and_leave_no_run(told, tmp_path, capsys):
    options = next((of for start, of in OF_ARRAYS.items() if told.startswith(start)), [])
    _refused([*_npz(tmp_path / "bad.npz", **BAD_ARRAYS[told]), *options], told, tmp_path, capsys)


CODE = {
    "optimizer": "optimizer:\n  class_path: os.system\n  init_args: {command: touch ran}\n",
    "sampler": "batches:\n  class_path: likewise.data.Views\n  init_args:\n    sampler:\n"
    "      class_path: os.system\n      init_args: {command: touch ran}\n",
    "callback": "trainer:\n  callbacks:\n  - class_path: os.system\n    init_args: {command: touch ran}\n",
    "function": "loss:\n  class_path: factory.make\n",
}


@pytest.mark.parametrize("case", CODE)
def test_a_file_of_options_runs_nothing_but_classes_of_the_parts_kind(case, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "factory.py").write_text(
        "from likewise.losses import Loss\ndef make() -> Loss:\n    open('ran', 'w').close()\n"
    )
    (tmp_path / "mine.yaml").write_text(CODE[case])
    status = main(["train", "--config", "mine.yaml", "--trainer.max_epochs", "0"])
    assert status == 2
    assert not (tmp_path / "ran").exists()
    assert len([line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]) == 1


def test_a_users_own_checkpoints_and_timer_stand_beside_ours(few, tmp_path):
    theirs = ["--trainer.callbacks", "ModelCheckpoint", "--trainer.callbacks.dirpath", str(tmp_path / "mine")]
    theirs += ["--trainer.callbacks+", "Timer", "--trainer.callbacks.duration", "00:00:10:00"]
    words = ["--loss", "NTXentLoss", *theirs, *TRAINED_ALONE]
    assert main(["train", *few[None], *words, "--runs", str(tmp_path / "runs")]) == 0
    assert list((tmp_path / "mine").iterdir())
    assert not list((tmp_path / "runs").glob("*/*.ckpt"))


@pytest.mark.parametrize("kind", ["EarlyStopping", "ModelCheckpoint"])
def test_a_callback_that_monitors_what_is_not_logged_is_refused_after_a_step(kind, few, tmp_path, capsys):
    words = [*few[None], *TRAINED_ALONE, "--loss", "NTXentLoss"]
    words += ["--trainer.callbacks", kind, "--trainer.callbacks.monitor"]
    told = (
        f"expected {kind} to monitor one of loss, learning_rate, active_anchors, positives_per_anchor, which are logged"
    )
    _refused([*words, "val_loss"], f"{told}, got val_loss: name one of them; ", tmp_path, capsys)
    assert not list((tmp_path / "runs").iterdir())
    assert main(["train", *words, "loss", "--runs", str(tmp_path / "runs")]) == 0


def test_a_validation_score_can_be_monitored(few, tmp_path, capsys):
    """A wrong name is refused once an epoch was validated, with the names there are; a right one works."""
    words = [*few[None], "--report", "false", "--loss", "NTXentLoss", "--trainer.callbacks", "EarlyStopping"]
    words += ["--trainer.callbacks.mode", "max", "--trainer.callbacks.monitor"]
    told = "expected validation scores after every epoch, which EarlyStopping looks at, got them after every 5"
    _refused([*words, "validation/features/effective rank"], told, tmp_path, capsys)
    words = [*words[:-1], "--validation_epochs", "1", words[-1]]
    told = "expected EarlyStopping to monitor one of validation/features/effective rank, got validation/knn accuracy"
    _refused([*words, "validation/knn accuracy"], told, tmp_path, capsys)
    assert main(["train", *words, "validation/features/effective rank", "--runs", str(tmp_path / "runs")]) == 0


LOGS = """
import lightning
class Logs(lightning.Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.log("{}", 1.0)
"""


@pytest.mark.parametrize(("logged", "status"), [("mine", 0), ("other", 2)])
def test_a_callback_may_monitor_what_another_logs_later(logged, status, few, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"logging_{logged}.py").write_text(LOGS.format(logged))
    words = ["--trainer.callbacks", f"logging_{logged}.Logs", "--trainer.callbacks+", "EarlyStopping"]
    words += ["--trainer.callbacks.monitor", "mine", *TRAINED_ALONE, "--runs", str(tmp_path / "runs")]
    assert main(["train", *few[None], "--loss", "NTXentLoss", *words]) == status
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(error) == (status > 0)
    assert all("conditioned on metric `mine`" in line and "--resume" in line for line in error)


IMPORTS = {
    "missing": ("import no_such_thing.deep", "the module no_such_thing for {}, which is not installed: install it"),
    "indirect": ("import first_missing", "the module no_such_thing for {}, which is not installed: install it"),
    "prefix": ("import imports", "the module imports for {}, which is not installed: install it"),
    "likewise": ("import likewise.lossez", "what {} imports, got No module named 'likewise.lossez': correct"),
    "name": ("from likewise.losses import NoLoss", "what {} imports, got cannot import name 'NoLoss' from "),
}


@pytest.mark.parametrize("case", IMPORTS)
def test_a_users_file_that_cannot_import_is_named_with_what_it_imports(case, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    line, words = IMPORTS[case]
    file = tmp_path / f"imports_{case}.py"
    file.write_text(f"{line}\nfrom likewise.losses import NTXentLoss\nclass Mine(NTXentLoss): ...\n")
    (tmp_path / "first_missing.py").write_text("import no_such_thing\n")
    named = tmp_path / "first_missing.py" if case == "indirect" else file
    _refused(["--loss", f"{file.stem}.Mine"], f"error: expected {words.format(named)}", tmp_path, capsys)


def test_a_run_that_is_resumed_takes_no_other_options_and_no_other_data(few, tmp_path, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("likewise.runs.Run.save_encoder")
        with pytest.raises(AttributeError):
            main(["train", *few["classes"], *TRAINED_ALONE, "--runs", str(tmp_path / "runs")])
    (left,) = (tmp_path / "runs").iterdir()
    assert main(["train", "--resume", str(tmp_path)]) == 2
    assert "has no run.json" in capsys.readouterr().err
    arrays = dict(np.load(few["classes"][3]))
    np.savez(few["classes"][3], **arrays | {"images": arrays["images"][::-1]})
    assert main(["train", "--resume", str(left)]) == 2
    assert "expected the data that" in capsys.readouterr().err
    np.savez(few["classes"][3], **arrays)
    assert main(["train", "--resume", str(left)]) == 0
    assert main(["train", "--resume", str(left)]) == 2
    assert "expected a run that is not finished" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [
        ("--help", ["train", "--version"], []),
        ("--version", ["likewise 0.", "Python 3.", "torch 2.", "GPU: "], []),
        ("train --help", ["--loss CLASS", "NTXentLoss", "--trainer.max_epochs", "--seed", "ConvNet"], ["Abstract: a"]),
        ("train --loss.help SupConLoss", ["--loss.temperature", "--loss.form", "recommends"], ["Tensor"]),
        ("train --loss.help RASCALLoss", ["--loss.ranking"], ["--loss.num_samples", "--loss.feature_dim"]),
        ("train --data.help Folder", ["The column of metadata.csv", "stretches", "GiB", "hold several"], []),
    ],
)
def test_help_lists_options_with_their_docstrings_but_what_no_command_line_can_give(words, shown, hidden, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        main(words.split())
    told = capsys.readouterr().out
    assert [word for word in shown if word not in told] == []
    assert [word for word in hidden if word in told] == []


def test_what_has_no_name_is_asked_for_as_the_help_calls_it(capsys):
    assert main(["dance"]) == 2
    verbs = "train, evaluate, sweep, transfer, compare, embed, search, predict, export"
    assert capsys.readouterr().err == f"error: expected a verb, one of {verbs}, got dance: see likewise --help\n"
    for verb, word in (("export", "RUN"), ("evaluate", "SOURCE")):
        assert main([verb]) == 2
        assert capsys.readouterr().err == f"error: expected {word}, got none: see likewise {verb} --help\n"
        assert main([verb, "nowhere"]) == 2
        assert f"for {word}, got nowhere, which does not exist" in capsys.readouterr().err


@pytest.mark.process
def test_a_missing_extra_is_named_with_its_remedy_in_one_line_without_a_traceback(tmp_path):
    script = "import sys; sys.modules['lightning'] = None; from likewise.cli import main; sys.exit(main(['train']))"
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert re.fullmatch(r"error: .*lightning.*pip install 'likewise\[train\]'\n", result.stderr)


@pytest.mark.process
def test_ctrl_c_ends_a_run_with_130_and_without_its_name(few, tmp_path):
    said = [tmp_path / "out", tmp_path / "err"]
    process = start(["train", *few["classes"], "--trainer.max_epochs", "10000"], tmp_path, said=said)
    while "loss=" not in (said[1].read_text() if said[1].exists() else ""):
        assert process.exitcode is None, said[1].read_text()
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    assert end_of(process) == 130
    (left,) = (tmp_path / "runs").iterdir()
    assert left.suffix == ".partial"
    told, again = "what the run had written is left in", "resume it with likewise train --resume"
    rest = said[1].read_text()
    assert rest.endswith(f"interrupted; {told} runs/{left.name}; {again} runs/{left.name}\n")
    assert "Traceback" not in rest


def test_a_warning_is_a_line_without_the_place_in_the_code(tmp_path):
    lines = [f'{{"text": "a story {row}", "labels": ["{row % 3}"]}}' for row in range(60)]
    (tmp_path / "stories.jsonl").write_text("\n".join([*lines, "no JSON"]))
    words = ["train", "--recipe", "supcon-texts", "--data.path", "stories.jsonl", "--encoder", "BagOfTokens"]
    ended = command(*words, "--trainer.max_epochs", "1", "--evaluations", "[]", "--report", "false", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    (told,) = (line for line in ended.stderr.splitlines() if "left out" in line)
    assert told.startswith("warning: left out 1 of 61 lines of ")
    assert "UserWarning" not in ended.stderr
