"""What a training shows in TensorBoard, W&B, MLflow and CSV files: what the run's own files have."""

import csv
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_resume import save_few
from trainings import Kill, fitted

import likewise as lw
from likewise.cli import main
from likewise.data import Samples, Views
from likewise.models import MLP
from likewise.runs import Run
from likewise.training import Checkpoints, Pretraining, TrainingData
from likewise.training.checkpoints import logging_to

pytestmark = pytest.mark.slow
SHORT = ["--batches.batch_size", "20", "--encoder.width", "4", "--trainer.max_epochs", "2", "--evaluations", "KNN"]
SHORT += ["--trainer.accelerator", "cpu", "--validation_epochs", "1", "--report", "false"]


def events(folder):
    """Read what TensorBoard shows of a folder."""
    read = EventAccumulator(str(folder), {"scalars": 0})  # as many as there are
    read.Reload()
    return read


def curve(read, name):
    return [(one.step, one.value) for one in read.Scalars(name)]


def trained(folder, *words):
    """Train the digits for two epochs of five steps, by the command; return the run."""
    folder.mkdir()
    save_few(folder)
    arguments = ["--data", "Arrays", "--data.path", str(folder / "few.npz"), "--runs", str(folder / "runs")]
    assert main(["train", *arguments, *SHORT, *words]) == 0
    (run,) = (folder / "runs").iterdir()
    return Run.open(run)


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A run that TensorBoard and CSV files log."""
    folder = tmp_path_factory.mktemp("logged") / "with"
    return trained(folder, "--log", "tensorboard", "--log+", "csv")


def test_curves_are_those_of_the_run(logged):
    """Scalars of every step, and the validation scores at the last step of each epoch."""
    read = events(logged.folder / "tensorboard")
    for name, points in logged.metrics.items():
        assert curve(read, name) == [(step, pytest.approx(value, rel=1e-6)) for step, value in points], name
    scores = {f"validation/{score.evaluation}/{score.metric.name}" for score in logged.scores if score.epoch == 1}
    assert scores == {name for name in read.Tags()["scalars"] if name.startswith("validation/")}
    assert len(scores) == 2
    for score in (of for of in logged.scores if of.epoch is not None and str(of.group) == "all"):
        points = dict(curve(read, f"validation/{score.evaluation}/{score.metric.name}"))
        assert points[max(0, 5 * score.epoch - 1)] == pytest.approx(score.value, rel=1e-6)


def test_the_configuration_is_its_hyper_parameters_and_csv_files_have_its_losses(logged):
    for name in ("tensorboard/hparams.yaml", "csv/version_0/hparams.yaml"):
        lines = (logged.folder / name).read_text(encoding="utf-8").splitlines()
        assert {"batches.batch_size: 20", "loss: SupConLoss", "loss.temperature: 0.1"} <= set(lines)
    assert losses_of(logged.folder / "csv" / "version_0" / "metrics.csv") == logged.metrics["loss"]


def losses_of(file):
    """The losses in a CSV file of Lightning's, by step."""
    with file.open(newline="", encoding="utf-8") as opened:
        return [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(opened) if row["loss"]]


def test_the_training_is_bit_for_bit_what_it_is_without(logged, tmp_path):
    without = trained(tmp_path / "without")
    weights, others = load_file(logged.weights), load_file(without.weights)
    assert all(torch.equal(value, others[name]) for name, value in weights.items())
    for name in ("metrics_file", "scores_file", "batches"):
        assert getattr(logged, name).read_bytes() == getattr(without, name).read_bytes(), name
    assert not without.folder.joinpath("tensorboard").exists()
    assert [path.name for path in logged.folder.parent.iterdir()] == [logged.name]  # none is provisional


def test_a_tool_that_is_not_there_is_an_error_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("likewise.training.checkpoints.find_spec", lambda _: None)
    for words, told in (
        ("--log tensorbord", "got tensorbord, did you mean tensorboard?"),
        ("--log [csv,comet]", "expected --log to be tensorboard, wandb, mlflow or csv, got comet"),
        ("--log csv --log+ mlflow", "expected mlflow for --log mlflow, got none installed: pip install"),
    ):
        assert main(["train", *words.split(), "--runs", str(tmp_path / "runs")]) == 2
        assert told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def fit(run, *also, loggers=None):
    """Train four epochs of three steps, from the run's checkpoint if it has one."""
    torch.manual_seed(0)
    samples = Samples(torch.rand(36, 5), torch.arange(36) % 3, tuple("abc"))
    module = Pretraining(MLP((5,), width=8), None, lw.SupConLoss(), torch.optim.AdamW, samples=samples)
    loggers = loggers or [TensorBoardLogger(run.folder, "tensorboard", "", default_hp_metric=False)]
    data, callbacks = TrainingData(samples, Views(batch_size=12), seed=0), [Checkpoints(run, 1e-9), *also]
    begun = run.checkpoint if run.checkpoint.exists() else None
    fitted(module, data, begun, max_epochs=4, logger=loggers, log_every_n_steps=1, callbacks=callbacks)


@pytest.fixture
def run(tmp_path):
    made = Run.create(tmp_path, "run")
    made.describe({})
    return made


def test_ctrl_c_loses_nothing(run):
    with pytest.raises(SystemExit):
        fit(run, Kill(7, KeyboardInterrupt))
    assert [step for step, _ in curve(events(run.folder / "tensorboard"), "loss")] == list(range(7))


class Recorder(ModuleType):
    """A stand-in for a module: whatever is not defined can be called, and does nothing."""

    def __init__(self, name, **named):
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        vars(self).update(named)


class FakeWandb:
    """W&B as far as Lightning and we know it: one run at a time, which remembers what it was told."""

    def __init__(self, patch):
        self.begun, self.ended, self.logged = [], [], []
        self.config = SimpleNamespace(update=lambda given, **_: self.options.update(given))
        self.options = {}
        self.id = "none"
        modules = {
            "wandb": {"run": None, "init": self.init, "finish": lambda **how: self.ended.append(how)},
            "wandb.sdk": {},
            "wandb.sdk.lib": {"RunDisabled": type("RunDisabled", (), {})},
            "wandb.wandb_run": {"Run": type("Run", (), {})},
        }
        for name, members in modules.items():
            patch.setitem(sys.modules, name, Recorder(name, **members))
        patch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", True)

    def init(self, **how):
        self.begun.append(how)
        self.id = how["id"]
        return self

    def log(self, metrics):
        self.logged.append(metrics)


@pytest.fixture
def wandb(monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return FakeWandb(monkeypatch)


def test_wandb_goes_on_under_its_id_and_learns_of_failure(wandb, run, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(InterruptedError), logging_to(["wandb"], run) as loggers:
        fit(run, Kill(4), loggers=loggers)
    ids = run.metadata["logged"]
    with logging_to(["wandb"], run) as loggers:
        fit(run, loggers=loggers)
    assert {one["id"] for one in wandb.begun} == {ids["wandb"]}
    assert not any("mode" in one for one in wandb.begun)  # W&B's own variables decide
    assert wandb.ended == [{"exit_code": 1}, {"exit_code": 0}]


class FakeClient:
    """MLflow's client as far as Lightning and we know it."""

    def __init__(self, uri):
        self.uri, self.params, self.metrics, self.ended = uri, {}, [], []
        CLIENTS.append(self)

    def get_experiment_by_name(self, name):
        self.experiment = name

    def create_experiment(self, name, artifact_location):
        self.place = artifact_location
        return name

    def create_run(self, experiment_id, tags):
        self.tags = tags
        return SimpleNamespace(info=SimpleNamespace(run_id="r1", experiment_id=experiment_id))

    def get_run(self, run_id):
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id, experiment_id="old"))

    def log_batch(self, run_id, metrics=(), params=()):
        del run_id
        self.params |= {one.key: one.value for one in params}
        self.metrics += [(one.key, one.step, one.value) for one in metrics]

    def set_terminated(self, run_id, status):
        self.ended.append((run_id, status))


CLIENTS = []


@pytest.fixture
def mlflow(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "")  # so that what is set in its place is taken back
        monkeypatch.delenv(name)
    CLIENTS.clear()
    modules = {
        "mlflow": {"set_tracking_uri": lambda _: None},
        "mlflow.tracking": {"MlflowClient": FakeClient, "context": SimpleNamespace()},
        "mlflow.entities": {"Param": SimpleNamespace, "Metric": SimpleNamespace},
        "mlflow.utils": {},
        "mlflow.utils.mlflow_tags": {"MLFLOW_RUN_NAME": "mlflow.runName"},
    }
    for name, members in modules.items():
        monkeypatch.setitem(sys.modules, name, Recorder(name, **members))
    monkeypatch.setattr("lightning.pytorch.loggers.mlflow._MLFLOW_AVAILABLE", True)
    return CLIENTS


def test_every_tool_is_told_everything_wandb_offline_and_a_logger_of_the_trainers_goes_on_beside(
    wandb, mlflow, tmp_path
):
    theirs = ["--trainer.logger", "lightning.pytorch.loggers.CSVLogger"]
    theirs += ["--trainer.logger.save_dir", str(tmp_path / "theirs")]
    run = trained(tmp_path / "both", "--log", "wandb", "--log+", "mlflow", *theirs)
    (begun,), (client,) = wandb.begun, mlflow
    assert (begun["name"], begun["project"], begun["mode"]) == (run.name, "likewise", "offline")
    assert Path(begun["dir"]).name == f"{run.name}.partial"
    assert wandb.ended == [{"exit_code": 0}]
    assert wandb.options["loss.temperature"] == pytest.approx(0.1)
    losses = [(one["trainer/global_step"], one["loss"]) for one in wandb.logged if "loss" in one]
    assert losses == run.metrics["loss"]
    assert (client.uri, client.place) == ("sqlite:///mlflow.db", None)
    assert (client.experiment, client.tags) == ("likewise", {"mlflow.runName": run.name})
    assert client.params["loss.temperature"] == "0.1"
    assert [(step, value) for name, step, value in client.metrics if name == "loss"] == run.metrics["loss"]
    assert client.ended == [("r1", "FINISHED")]
    assert run.metadata["logged"] == {"wandb": begun["id"], "mlflow": "r1"}
    (file,) = (tmp_path / "theirs").rglob("metrics.csv")
    assert losses_of(file) == run.metrics["loss"]


def test_mlflow_uses_its_own_server_and_an_earlier_run(mlflow, run, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    for _ in range(2):
        with logging_to(["mlflow"], run) as (logger,):
            assert logger.run_id == "r1"
    first, again = mlflow
    assert (first.uri, first.experiment, first.place) == ("http://localhost:5000", "mine", None)
    assert not hasattr(again, "tags")  # no second run is made


def test_a_server_that_cannot_be_reached_is_an_error_in_one_line(mlflow, run, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    monkeypatch.setattr(FakeClient, "create_run", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("refused")))
    with pytest.raises(ValueError, match="expected MLflow to begin a run at http://localhost:1, got refused"):
        logging_to(["mlflow"], run).__enter__()
    assert len(mlflow) == 1


def test_a_run_that_fails_before_any_work_is_removed_with_its_logs(tmp_path, capsys):
    with (tmp_path / "blank.npz").open("wb") as file:
        np.savez(file, vectors=np.ones((60, 4), np.float32), labels=np.arange(60) % 3)
    words = ["--data", "Arrays", "--data.path", str(tmp_path / "blank.npz"), "--encoder", "MLP", "--log", "tensorboard"]
    words += ["--trainer.max_epochs", "-1", "--runs", str(tmp_path / "runs")]  # a training without end
    assert main(["train", *words]) == 2
    assert "finite length" in capsys.readouterr().err
    assert list((tmp_path / "runs").iterdir()) == []
