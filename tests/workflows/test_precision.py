"""By `--precision auto` a training is in bfloat16 where the device multiplies it and the network gains by it."""

import pytest
import torch
import yaml
from torch import nn

from likewise.report.run_summary import summary_table
from likewise.runs import machine
from likewise.training import callbacks
from likewise.training.precision import precision_of
from likewise.workflows import Silent, train

SHORT = {"subset": "Fraction", "subset.fraction": 0.1, "encoder": "ConvNet", "encoder.width": 4, "steps": 2}
QUIET = {"evaluations": [], "report": False, "validation_epochs": 0}
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.slow
@pytest.mark.parametrize(("multiplies", "precision"), [(True, "bf16-mixed"), (False, "32-true")])
def test_the_choice_is_written_into_the_run_and_shown(monkeypatch, tmp_path, multiplies, precision):
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda _: multiplies)
    run = train({**SHORT, **QUIET, "precision": "auto", "runs": str(tmp_path / "runs")}, progress=Silent())
    assert yaml.safe_load(run.configuration.read_text())["trainer"]["precision"] == precision
    assert dict(summary_table(run.metadata)).get("precision") == (precision if multiplies else None)


@pytest.mark.slow
@pytest.mark.parametrize(("multiplies", "precision", "advised"), [(1, None, 1), (0, None, 0), (1, "32-true", 0)])
def test_a_long_training_is_told_what_may_be_faster(monkeypatch, tmp_path, multiplies, precision, advised):
    """Where no precision was chosen and the machine multiplies bfloat16, with the line on the pace."""
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda _: bool(multiplies))
    monkeypatch.setattr(callbacks, "PACE_SECONDS", 0)
    monkeypatch.setattr(callbacks, "MIN_REPORTED_SECONDS", 0)
    lines, progress = [], Silent()
    progress.log = lines.append
    options = {**SHORT, **QUIET, "steps": 20, "precision": precision, "runs": str(tmp_path)}
    train({name: value for name, value in options.items() if value is not None}, progress=progress)
    pace = [line for line in lines if "done at about" in line]
    assert len(pace) == 1
    assert ("--precision auto" in pace[0]) == bool(advised)


@pytest.mark.parametrize(
    ("device", "layer", "precision"),
    [
        (CPU, nn.Conv2d(8, 8, 3), "bf16-mixed"),
        (CPU, nn.Linear(8, 8), "bf16-mixed"),
        (CPU, nn.Conv2d(8, 8, 3, groups=8), "32-true"),
        (GPU, nn.Conv2d(8, 8, 3, groups=8), "bf16-mixed"),
    ],
)
def test_a_processor_trains_depthwise_convolutions_in_float32(monkeypatch, device, layer, precision):
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda _: True)
    assert precision_of(nn.Sequential(nn.Conv2d(1, 8, 1), layer), device) == precision


@pytest.mark.parametrize(
    ("has", "limit", "expected"),
    [
        ({"avx512_bf16": True}, "", True),
        ({"amx_bf16": True}, "avx512_core_amx", True),
        ({"avx512_bf16": True}, "AVX512_CORE_VNNI", False),
        ({"avx512_bf16": False, "avx2": True}, "ALL", False),
    ],
)
def test_a_processor_says_what_it_multiplies(monkeypatch, has, limit, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has, raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert machine.multiplies_bfloat16(CPU) is expected


@pytest.mark.parametrize(("capability", "expected"), [((9, 0), True), ((8, 0), True), ((7, 5), False)])
def test_a_gpu_multiplies_it_from_ampere(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert machine.multiplies_bfloat16(GPU) is expected
