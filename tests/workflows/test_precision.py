"""The precision of a training is chosen before its first step, where bfloat16 is multiplied, and written down."""

import pytest
import torch
import yaml
from safetensors.torch import load_file

from likewise import machine
from likewise.report.run_summary import summary_table
from likewise.workflows import Silent, pilot, train

pytestmark = pytest.mark.slow
SHORT = {"subset": "Fraction", "subset.fraction": 0.1, "encoder": "ConvNet", "encoder.width": 4, "steps": 2}
QUIET = {"evaluations": [], "report": False, "validation_epochs": 0}
CPU = torch.device("cpu")


def chosen(run):
    return yaml.safe_load(run.configuration.read_text())["trainer"]["precision"]


@pytest.mark.parametrize(("seconds", "precision"), [((1.0, 0.5), "bf16-mixed"), ((1.0, 0.95), "32-true")])
def test_the_faster_is_taken_and_taken_again(monkeypatch, tmp_path, seconds, precision):
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda _: True)
    took = dict(zip((pilot.FULL, pilot.HALF), seconds, strict=True))
    monkeypatch.setattr(pilot, "_timed", lambda _, trainer: (took[trainer["precision"]], 1.0))
    run = train({**SHORT, **QUIET, "runs": str(tmp_path / "runs")}, progress=Silent())
    assert chosen(run) == precision
    assert dict(summary_table(run.facts)).get("precision") == (precision if precision == "bf16-mixed" else None)
    monkeypatch.setattr(pilot, "_timed", lambda *_: pytest.fail("it was chosen"))
    again = train({"config": str(run.configuration), "runs": str(tmp_path / "again")}, progress=Silent())
    for name, tensor in load_file(run.weights).items():
        assert torch.equal(tensor, load_file(again.weights)[name]), name


def test_trying_both_changes_nothing(monkeypatch, tmp_path):
    asked = {**SHORT, **QUIET, "trainer.precision": "32-true", "runs": str(tmp_path / "asked")}
    expected = load_file(train(asked, progress=Silent()).weights)
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda _: True)
    monkeypatch.setattr(pilot, "FASTER", 0.0)  # both are timed, and bfloat16 is never fast enough
    run = train({**SHORT, **QUIET, "runs": str(tmp_path / "auto")}, progress=Silent())
    assert chosen(run) == "32-true"
    for name, tensor in load_file(run.weights).items():
        assert torch.equal(tensor, expected[name]), name


def test_without_bfloat16_nothing_is_timed(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda _: False)
    monkeypatch.setattr(pilot, "_timed", lambda *_: pytest.fail("nothing is to be timed"))
    assert chosen(train({**SHORT, **QUIET, "runs": str(tmp_path)}, progress=Silent())) == "32-true"


@pytest.mark.parametrize(
    ("has", "limit", "expected"),
    [
        ({"avx512_bf16": True}, None, True),
        ({"amx_bf16": True}, "AVX512_CORE_AMX", True),
        ({"avx512_bf16": True}, "AVX512_CORE_VNNI", False),
        ({"avx512_bf16": False, "avx2": True}, None, False),
    ],
)
def test_a_processor_says_what_it_multiplies(monkeypatch, has, limit, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has, raising=False)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    if limit:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert machine.multiplies_bfloat16(CPU) is expected


@pytest.mark.parametrize(("capability", "expected"), [((9, 0), True), ((8, 0), True), ((7, 5), False)])
def test_a_gpu_multiplies_it_from_ampere(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert machine.multiplies_bfloat16(torch.device("cuda")) is expected
