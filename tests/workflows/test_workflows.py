"""The work from Python: the same scores as the command's, the same words, and none if nobody wants any."""

import os
import random
import re
from datetime import datetime

import numpy as np
import pytest
import torch
import yaml
from in_use import Listener
from sklearn.datasets import load_digits

import likewise as lw
from likewise.cli import main
from likewise.configuration.recipes import study
from likewise.report import RunView, write_page
from likewise.report.run_summary import summary_lines
from likewise.runs import Run
from likewise.workflows import Printed, Silent, plan, sweeps

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Options of a very short training on a few digits, for Python."""
    pixels, labels = load_digits(return_X_y=True)
    file = tmp_path_factory.mktemp("few") / "few.npz"
    np.savez(file, images=pixels[:160].reshape(-1, 8, 8) / 16, labels=labels[:160])
    return {"data": str(file), "encoder": {"class_path": "ConvNet", "init_args": {"width": 4}}, "batch_size": 36,
            "epochs": 1, "trainer.accelerator": "cpu", "report": False}  # fmt: skip


@pytest.fixture(scope="module")
def words(few):
    """The same for the command."""
    return ["--data", few["data"], "--encoder", "ConvNet", "--encoder.width", "4", "--batch-size", "36",
            "--epochs", "1", "--trainer.accelerator", "cpu", "--report", "false"]  # fmt: skip


def same(one, other):
    """Tell whether two runs have the same scores, configuration and weights."""
    files = ("scores.csv", "encoder.safetensors", "metrics.csv")
    own = {"runs": None, "report": None, "checkpoint_minutes": None}
    options = [yaml.safe_load(run.configuration.read_text()) | own for run in (one, other)]
    return options[0] == options[1] and all(
        (one.folder / of).read_bytes() == (other.folder / of).read_bytes() for of in files
    )


@pytest.fixture(scope="module")
def trained(few, tmp_path_factory):
    record = Listener()
    return lw.train(few, loss="supcon", runs=str(tmp_path_factory.mktemp("python")), progress=record), record


def test_python_and_the_command_train_alike_and_say_the_same(trained, words, tmp_path, capsys):
    run, record = trained
    capsys.readouterr()
    assert main(["train", *words, "--loss", "supcon", "--runs", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    assert same(run, Run(folder))
    written = capsys.readouterr()
    *told, _, last = "\n".join(record.told).splitlines()
    uses = [line.removeprefix("next:").split()[:3] for line in told[-3:]]
    assert uses == [["likewise", verb, str(run.folder)] for verb in ("embed", "search", "predict")]
    here = [line.replace(str(folder), "RUN") for line in written.out.splitlines()]  # also in what is to be tried
    assert here[: len(told)] == [line.replace(str(run.folder), "RUN") for line in told]
    assert last == f"run: {run.folder}"
    said = [line for line in record.said if not line.startswith("warning")]
    assert [line for line in written.err.splitlines() if not line.startswith("warning")] == said
    assert run.stage == "finished"


def test_python_and_the_command_evaluate_alike(trained, tmp_path, capsys):
    file, options = trained[0].embeddings, {"evaluations": "KNN", "evaluations.k": 3}
    found = lw.evaluate({"source": file, **options}, runs=str(tmp_path / "a"), progress=Silent())
    assert capsys.readouterr() == ("", "")
    words = ["--evaluations", "KNN", "--evaluations.k", "3", "--runs", str(tmp_path / "b")]
    assert main(["evaluate", str(file), *words]) == 0
    (folder,) = (tmp_path / "b").iterdir()
    assert found.scores == Run(folder).scores
    assert {score.evaluation for score in found.scores} == {"kNN"}


def test_a_run_is_resumed_from_python_bit_for_bit(trained, few, tmp_path, monkeypatch):
    """With what goes into it said again; neither another option nor a finished run goes on."""
    from likewise.training.checkpoints import Checkpoints  # noqa: PLC0415 - imports Lightning

    after = Checkpoints.on_train_batch_end

    def interrupted(self, trainer, *of):
        after(self, trainer, *of)
        if trainer.global_step == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "on_train_batch_end", interrupted)
        with pytest.raises(KeyboardInterrupt) as ended:
            lw.train(few, loss="supcon", runs=str(tmp_path), checkpoint_minutes=1e-9, progress=Silent())
    (folder,) = tmp_path.iterdir()
    assert f"likewise train --resume {folder}" in ended.value.__notes__[-1]
    with pytest.raises(ValueError, match="no option but --report, --sections"):
        lw.train(resume=folder, seed=1)
    record = Listener()
    resumed = lw.train(resume=folder, log="csv", workers=0, progress=record)
    assert (resumed.folder / "csv" / "version_0" / "metrics.csv").is_file()
    assert same(resumed, trained[0])
    assert resumed.metadata["run_summary"] == trained[0].metadata["run_summary"]
    assert set(summary_lines(resumed.metadata)) <= set(record.said)
    assert [line for line in record.said if line.startswith("going on")] == ["going on after 2 steps"]
    with pytest.raises(ValueError, match="expected a run that is not finished"):
        lw.train(resume=resumed)


def test_python_and_the_command_sweep_and_tune_alike(few, words, tmp_path):
    settings = {"SupCon": {"loss": "supcon", "tune": {"lr": [0.001, 0.01]}}, "SimCLR": {"loss": "NTXentLoss"}}
    seeds = {"seeds": 1, "tune_by": "kNN"}
    common = few | {"validation_epochs": 0}
    found = lw.sweep(settings, **seeds, output=tmp_path / "python", progress=Silent(), **common)
    given = ["--setting", "SupCon: --loss supcon --tune lr=0.001,0.01", "--setting", "SimCLR: --loss NTXentLoss"]
    others = ["--seeds", "1", "--tune_by", "kNN", "--output", str(tmp_path / "command"), "--validation_epochs", "0"]
    assert main(["sweep", *given, *others, *words]) == 0
    for name in ("compare.csv", "compare.md", "tuning.csv"):  # whose last column has seconds, or the run's folder
        last = r"\d+ s \|$" if name.endswith(".md") else ",[^,]*$"
        python, command = ((tmp_path / way / name).read_text() for way in ("python", "command"))
        assert re.sub(last, "", python, flags=re.MULTILINE) == re.sub(last, "", command, flags=re.MULTILINE)
    assert found.page == tmp_path / "python" / "compare.html"
    assert {row.setting for row in found.rows} == {"SupCon", "SimCLR"}


def test_a_sweep_takes_no_objects():
    with pytest.raises(ValueError, match="expected options as plain values or classes, got SupConLoss"):
        lw.sweep(loss=lw.SupConLoss())


def test_what_python_shows_goes_to_its_own_output(capsys):
    progress = Printed()
    progress.log("encoding ...")
    progress.result("accuracy 98 %")
    assert progress.steps(3, "training") is None  # neither a notebook nor a terminal
    assert capsys.readouterr().out == "encoding ...\naccuracy 98 %\n"


def test_settings_meet_a_grid_and_studies_are_settings(monkeypatch):
    plans = []
    monkeypatch.setattr(sweeps, "run_sweep", lambda plan, *_: plans.append(plan))
    settings = {"A": {"loss": "supcon", "tune": {"lr": [1, 2]}}, "B": {}}
    lw.sweep(settings, seeds=[3], grid={"temperature": [0.1, 0.2]}, tune={"epochs": [5, 6]}, output="new", width=3)
    lw.sweep(recipe="methods-digits", seeds=2, output="new")
    grid, studied = plans
    names = ["A, temperature=0.1", "A, temperature=0.2", "B, temperature=0.1", "B, temperature=0.2"]
    assert list(grid.settings) == list(grid.trials) == names
    assert grid.settings[names[0]] == ["--loss", "supcon", "--temperature", "0.1"]
    assert grid.trials[names[0]] == [["--epochs", e, "--lr", lr] for e in "56" for lr in "12"]
    assert grid.trials[names[2]] == [["--epochs", "5"], ["--epochs", "6"]]
    assert (grid.common, grid.seeds) == (["--width", "3"], [3])
    assert studied.settings == {name: words.split() for name, words in study("methods-digits").items()}
    assert (studied.common, studied.seeds) == ([], [0, 1])


def state():
    """What the whole process computes by, and what it draws next."""
    flags = torch.backends.mkldnn.enabled, torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    kinds = torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.get_deterministic_debug_mode()
    tiny = float(torch.tensor(1e-40) * 0.5), np.geterr()  # flushed to 0 where somebody asked the processor to
    threads = torch.get_num_threads(), torch.get_num_interop_threads()
    drawn = torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()  # noqa: NPY002, S311 - the global ones
    return threads, flags, kinds, tiny, dict(os.environ), drawn


def test_a_run_after_a_page_is_the_run_alone_to_the_bit(tmp_path):
    """Its page leaves the process as it was, and is that which is made later from the run's files alone."""
    options = {"subset": "Fraction", "subset.fraction": 0.2, "encoder.width": 4, "epochs": 1}
    runs, states = [], []
    for report in (False, True, False):
        runs.append(lw.train(options, report=report, runs=tmp_path / str(len(runs)), progress=Silent()))
        states.append(state())
    alone, page, after = runs
    assert same(alone, page)
    assert same(alone, after)
    assert states[0] == states[1] == states[2]
    assert os.environ["MKL_CBWR"]
    write_page(tmp_path / "later.html", [RunView(Run(page.folder))])
    assert (tmp_path / "later.html").read_text(encoding="utf-8") == page.report.read_text(encoding="utf-8")


class Stopped(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 27, 10, 15, tzinfo=tz)


def test_sweeps_begun_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    """Also where all have chosen a name before one of them writes."""
    monkeypatch.setattr(plan, "datetime", Stopped)
    sweep = plan.plan_sweep([], [], [0])
    chosen = [plan.folder_of(sweep, None, str(tmp_path)) for _ in range(2)]
    folders = [plan.write(sweep, folder) for folder in chosen]
    folders.append(plan.write(sweep, plan.folder_of(sweep, None, str(tmp_path))))
    assert [folder.name for folder in folders] == [f"2026-11-27-101500{more}" for more in ("", "-2", "-3")]
    assert all(plan.read(folder) == sweep for folder in folders)
    assert plan.folder_of(sweep, folders[0]) == folders[0]  # which goes on
