"""By `--precision auto` a training is in bfloat16 where the device multiplies it and the network gains by it."""

import pytest
import torch
import yaml
from in_use import Listener
from torch import nn

from likewise.report.run_summary import summary_table
from likewise.runs import machine
from likewise.training import callbacks
from likewise.training.processes import precision_of
from likewise.workflows import train

SHORT = {"subset": "Fraction", "subset.fraction": 0.1, "encoder": "ConvNet", "encoder.width": 4, "steps": 20}
QUIET = {"evaluations": [], "report": False, "validation_epochs": 0}
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("multiplies", "chosen", "precision", "advised"),
    [(1, "auto", "bf16-mixed", 0), (0, "auto", "32-true", 0), (1, None, None, 1), (0, None, None, 0)],
)
def test_the_choice_is_in_the_run_and_who_did_not_choose_is_told(
    monkeypatch, tmp_path, multiplies, chosen, precision, advised
):
    """Where no precision was chosen and the machine multiplies bfloat16, with the line on the pace."""
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda _: bool(multiplies))
    monkeypatch.setattr(callbacks, "PACE_SECONDS", 0)
    monkeypatch.setattr(callbacks, "MIN_REPORTED_SECONDS", 0)
    listener, choice = Listener(), {} if chosen is None else {"precision": chosen}
    run = train({**SHORT, **QUIET, **choice, "runs": str(tmp_path)}, progress=listener)
    assert yaml.safe_load(run.configuration.read_text())["trainer"].get("precision") == precision
    assert dict(summary_table(run.metadata)).get("precision") == (precision if multiplies else None)
    (pace,) = [line for line in listener.said if "done at about" in line]
    assert ("--precision auto" in pace) == bool(advised)


def test_a_processor_trains_depthwise_convolutions_in_float32(monkeypatch):
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda _: True)
    whole, depthwise = (nn.Sequential(nn.Conv2d(1, 8, 1), nn.Conv2d(8, 8, 3, groups=groups)) for groups in (1, 8))
    assert precision_of(whole, CPU) == precision_of(depthwise, GPU) == "bf16-mixed"
    assert precision_of(depthwise, CPU) == "32-true"


def test_a_machine_says_what_it_multiplies(monkeypatch):
    """A processor as far as it is limited, a GPU from Ampere."""
    for has, limit, expected in (
        ({"avx512_bf16": True}, "", True),
        ({"amx_bf16": True}, "avx512_core_amx", True),
        ({"avx512_bf16": True}, "AVX512_CORE_VNNI", False),
        ({"avx512_bf16": False, "avx2": True}, "ALL", False),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda has=has: has, raising=False)
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
        assert machine.multiplies_bfloat16(CPU) is expected
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for capability, expected in (((9, 0), True), ((8, 0), True), ((7, 5), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, which=capability: which)
        assert machine.multiplies_bfloat16(GPU) is expected
