"""Minutes become steps before training: as many as fit, written into the run, and the same when it is repeated."""

import time

import pytest
import torch
import yaml
from safetensors.torch import load_file

from likewise.configuration import resolve
from likewise.workflows import Silent, lightning_trainer, train, training

pytestmark = pytest.mark.slow
SHORT = {"encoder": "ConvNet", "encoder.width": 4, "batch_size": 600, "report": False, "evaluations": []}


def test_the_run_is_repeated_without_a_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(lightning_trainer, "PAGE_SECONDS", 0)
    run = train({**SHORT, "minutes": 0.1, "runs": str(tmp_path / "first")}, progress=Silent())
    given = yaml.safe_load(run.configuration.read_text())
    assert "minutes" not in given
    assert len(run.metrics["loss"]) == given["trainer"]["max_steps"] > 0
    assert given["trainer"]["max_epochs"] == -1
    again = train({"config": str(run.configuration), "runs": str(tmp_path / "second")}, progress=Silent())
    for name, tensor in load_file(run.weights).items():
        assert torch.equal(tensor, load_file(again.weights)[name]), name


def test_too_few_minutes_are_refused(tmp_path):
    for minutes, said in ((0, "above 0, got 0"), (0.01, "at least one step and the evaluation")):
        with pytest.raises(ValueError, match=said):
            train({**SHORT, "minutes": minutes, "runs": str(tmp_path / "runs")}, progress=Silent())
    assert not (tmp_path / "runs").exists()


def test_epochs_of_the_whole_training_are_no_matter_to_the_few_steps_that_are_timed(recwarn):
    options = {"freeze": "all", "unfreeze_epoch": 9, "schedule": "Cosine", "schedule.warmup_epochs": 8}
    ready, _ = training._assemble(resolve({**SHORT, **options}))  # noqa: SLF001
    trainer = {"accelerator": "cpu"}
    steps, _ = lightning_trainer.steps_within(30, ready, trainer, every=0, most=0, started=time.monotonic())
    assert steps > 0
    assert not [warning for warning in recwarn if "warm-up" in str(warning.message)]
    assert ready.module.fine_tuning.unfreeze_epoch == 9
