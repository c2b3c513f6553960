"""A run that is killed at any moment can be resumed, with the results of an uninterrupted run."""

import os
import signal
import time

import numpy as np
import pytest
import torch
from command_worker import end_of, killed_and_resumed, start
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from likewise.runs import Run

pytestmark = [pytest.mark.process, pytest.mark.slow]

RUN = [
    *("--data", "Arrays", "--data.path", "few.npz", "--batches.batch_size", "20", "--encoder.width", "4"),
    *("--loss", "RASCALLoss", "--loss.temperature", "learned", "--temperature_rate_factor", "10"),
    *("--trainer.max_epochs", "3", "--trainer.accumulate_grad_batches", "2"),
    *("--trainer.accelerator", "cpu", "--checkpoint_minutes", "1e-9", "--validation_epochs", "2"),
    *("--evaluations", "KNN", "--keep_checkpoints", "true"),  # so that all that a run has learned can be compared
]
BATCHES = 5  # an epoch; with two accumulated, steps of the optimizer after the batches 1, 3, 4, 6, 8, 9, ...
MOMENTS = [  # one after another: a run is cut, goes on, and is cut again; "full": the disk has no room for larger files
    [
        *(("full", 20_000), ("batch", 0), ("batch", 4), ("checkpoint", 0), ("full", 60_000), ("batch", 9)),
        *(("batch", 14), ("file", "encoder.safetensors"), ("full", 1_000_000), ("file", "report.html")),
    ],
    [
        *(("checkpoint", 0), ("batch", 3), ("batch", 5), ("checkpoint", 1), ("truncated", 10)),
        *(("checkpoint", 1), ("file", "scores.csv"), ("file", "embeddings.npz")),
    ],
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    save_few(folder)
    return Run.open(killed_and_resumed(RUN, folder))


def save_few(folder, count=160):
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels[:count].reshape(-1, 8, 8) / 16).astype(np.float32)
    np.savez(folder / "few.npz", images=images, labels=labels[:count])


def same(one, other):
    for file in ("weights", "metrics_file", "scores_file", "histograms_file", "class_means_file", "batches"):
        files = [getattr(of, file) for of in (one, other)]
        assert files[0].is_file() == files[1].is_file(), file
        assert not files[0].is_file() or files[0].read_bytes() == files[1].read_bytes(), file
    states = [torch.load(of.checkpoint, weights_only=True)["state_dict"] for of in (one, other)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert np.array_equal(np.load(one.embeddings)["test_features"], np.load(other.embeddings)["test_features"])


@pytest.mark.parametrize("moments", MOMENTS, ids=["killed, or without room", "killed, a checkpoint truncated"])
def test_a_run_that_was_cut_at_any_moment_ends_as_if_it_had_not_been(moments, whole, tmp_path):
    """Files are the same, bit for bit; a truncated checkpoint gives way to the one before; a full disk has a remedy."""
    save_few(tmp_path)
    words = ["train", *RUN]
    for cause, moment in moments:
        kill = ("batch", moment) if cause == "truncated" else (cause, moment)
        status = end_of(start(words, tmp_path, kill, [tmp_path / "out", tmp_path / "err"]))
        (left,) = (tmp_path / "runs").iterdir()
        assert left.suffix == ".partial"
        if cause == "full":
            told = (tmp_path / "err").read_text().splitlines()[-1]
            assert told.startswith("error: expected room to write files, got the system's [Errno 27]")
            assert "make some; what the run had written is left in" in told
            assert "resume it with likewise train --resume" in told
            assert told.endswith(left.name)
        if cause == "truncated":
            with Run.open(left).checkpoint.open("r+b") as file:
                file.truncate(Run.open(left).checkpoint.stat().st_size - 1000)
        assert status == (2 if cause == "full" else -signal.SIGKILL), (cause, moment)
        words = ["train", "--resume", str(left)]
    assert end_of(start(words, tmp_path)) == 0
    (left,) = (tmp_path / "runs").iterdir()
    assert left.suffix != ".partial"
    same(Run.open(left), whole)


def test_steps_that_end_within_an_epoch_leave_their_last_state(tmp_path):
    """Its checkpoint is of the weights that are saved, and a run that is killed after it ends as if it had not been."""
    words, runs = [*RUN, "--steps", "5", "--trainer.max_epochs", "-1", "--report", "false"], []
    words += ["--checkpoint_minutes", "10"]
    for name, moments in (("whole", []), ("killed", [("file", "embeddings.npz")])):
        (tmp_path / name).mkdir()
        save_few(tmp_path / name)
        runs.append(Run.open(killed_and_resumed(words, tmp_path / name, *moments)))
    saved, weights = torch.load(runs[0].checkpoint, weights_only=True), load_file(runs[0].weights)
    assert saved["global_step"] == 5
    assert all(torch.equal(value, saved["state_dict"][f"encoder.{name}"]) for name, value in weights.items())
    same(*runs)


def test_sigterm_saves_and_ends_with_143(tmp_path):
    save_few(tmp_path)
    process = start(["train", *RUN, "--trainer.max_epochs", "100000"], tmp_path)
    while not list(tmp_path.glob("runs/*/checkpoint.ckpt")):
        time.sleep(0.05)
        assert process.is_alive()
    os.kill(process.pid, signal.SIGTERM)
    assert end_of(process) == 143
    (left,) = (tmp_path / "runs").iterdir()
    assert torch.load(Run.open(left).checkpoint, weights_only=True)["global_step"] > 0
