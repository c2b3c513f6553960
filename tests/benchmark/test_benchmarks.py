"""`python -m benchmarks`: what developers of the library measure."""

import json
from datetime import datetime

import pytest
import torch

import likewise as lw
from benchmarks import beside, command, targets, views
from benchmarks.__main__ import MEASUREMENTS, find, main
from benchmarks.graphs import IN_GRAPH, GraphMeter
from benchmarks.measuring import prediction
from benchmarks.measuring.case import Case, Failed, Peak, Sampler, run
from benchmarks.measuring.measurement import Measurement
from benchmarks.measuring.results import machine
from benchmarks.primitives import primitives
from meters import Told, pretend_gpu

TIMED = ["sup-con", "primitives", "rascal", "steps", "label-sets", "texts", "views"]


@pytest.mark.slow
def test_flex_attention_computes_sup_con():
    """Its forward at least: on the CPU it has no backward."""
    draw = Sampler(Case(256, 16, "float32", "cpu"))
    rows, labels = draw.embeddings(256).detach(), draw.classes(256)
    with pytest.warns(UserWarning, match="flex_attention called without torch.compile"):
        found = targets.flex_sup_con(rows, labels)
    torch.testing.assert_close(found, lw.SupConLoss()(rows, labels), rtol=1e-4, atol=1e-6)


def test_steps_in_a_graph_are_captured_once_and_replayed(monkeypatch):
    gpu = pretend_gpu(monkeypatch)
    captured = next(each for each in primitives("tiled", "cuda") if each.name.endswith(IN_GRAPH))
    case = Case(32, 4, "float32", "cpu")
    turn = GraphMeter().turns(captured, case, 0.0)
    assert turn() == turn() == 0.001 / 12  # twice the cache over 512 bytes: a replay is of so many steps
    assert gpu.replays == 2


@pytest.mark.slow
def test_steps_without_gradient_are_measured(tmp_path, capsys):
    assert main(["views", "--sizes", "4", "--budget", "10", "--repeats", "1", "--out", str(tmp_path)]) == 0
    (results,) = tmp_path.glob("*.json")
    held = json.loads(results.read_text(encoding="utf-8"))
    assert (held["measurement"], held["settings"]["side"]) == ("views", 32)
    measured = [each for each in held["results"] if each["skipped"] is None]
    assert measured
    assert all(each["figures"]["operations"] > 10 and each["fastest"] > 0 for each in measured)
    assert "images/s" in capsys.readouterr().out


def test_operations_that_compute_nothing_are_not_counted():
    with views.Operations() as operations:
        rows = torch.ones(3, 4)
        assert (rows.T[1:, :2] + rows.view(4, 3)[1:, :2]).shape == (3, 2)
    assert operations.counts == {"aten::ones": 1, "aten::add.Tensor": 1}


def test_every_target_is_measured_and_held_against_its_limit(tmp_path, monkeypatch, capsys):
    """With a meter in the GPU's place, that says who is faster, and fails to run FlexAttention."""

    def tell(contender, rows):
        if contender.name == "FlexAttention":
            raise Failed("failed: RuntimeError: no luck")
        dense = contender.name in {"dense form", "torch.compile"}
        return Peak(1000 * rows**2 if dense else 100 * rows, 1e-12 * rows**2 * (30 if dense else 1))

    monkeypatch.setattr("benchmarks.graphs.GraphMeter", lambda: Told(tell))
    monkeypatch.setattr("benchmarks.measuring.schedule.SECONDS", 0)
    monkeypatch.setattr("benchmarks.command.machine", lambda _: machine("cpu") | {"device": "A GPU"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(prediction, "free_bytes", lambda _: 500 << 30)
    assert main(["targets", "--out", str(tmp_path)]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    verdicts = {tuple(row[:3]): row[3:] for row in rows[1:]}
    assert len(verdicts) == len(rows) - 1 == len(list(targets.targets())) == 18
    assert {row[-1] for row in rows[1:]} == {"holds", "failed: RuntimeError: no luck"}
    assert sum(row[-1] == "holds" for row in rows[1:]) == 16
    assert verdicts["SupCon, the whole loss", "1,048,576", "bfloat16"][:2] == ["≤ 2300 ms", "1,100 ms"]
    assert verdicts["dense form / SupConLoss, time", "16,384", "float32"][:2] == ["≥ 20 ×", "30 ×"]
    assert verdicts["peak memory beyond the inputs", "1,048,576", "bfloat16"][1] == "0.105 GB"


@pytest.mark.slow
@pytest.mark.parametrize("pair", beside.PAIRS, ids=lambda each: each.name)
def test_ours_is_what_is_measured_beside_it(pair):
    """Values and gradients, in float64; for more classes than rows, too."""
    pytest.importorskip(beside.MODULES.get(pair.library, pair.library), reason="needs pip install 'likewise[bench]'")
    assert max(beside.differences(pair, Case(48, 16, "float32", "cpu"))) < 1e-13


@pytest.mark.process
def test_pairs_are_compared_in_turns_and_a_failure_is_a_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pytorch_metric_learning", reason="needs pip install 'likewise[bench]'")

    def tell(contender, rows):
        if contender.loss == "lifted structure":
            raise Failed("failed: RuntimeError: no luck")
        return Peak(10 * rows, 1e-3) if contender.name == "likewise" else Peak(25 * rows, 3e-3)

    monkeypatch.setattr(beside.Measure, "meter", lambda _: Told(tell))
    words = ["--pairs", "lifted structure", "triplets, all", "--repeats", "3", "--out", str(tmp_path)]
    assert main(["beside", *words]) == 0
    (results,) = tmp_path.glob("*.json")
    held = json.loads(results.read_text(encoding="utf-8"))["results"]
    assert [bool(each["skipped"]) for each in held] == [True, True, False, False]
    figures = held[-1]["figures"]
    assert (figures["time"], figures["quartiles"], figures["memory"]) == (3.0, [3.0, 3.0], 2.5)
    assert max(figures["loss"], figures["gradient"]) < 1e-13
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 2
    assert "| 3.00 × (3.00 to 3.00) |" in rows[1]


@pytest.mark.parametrize("name", TIMED)
def test_every_measurement_has_steps_that_run(name):
    measurement = find(name)(device="cpu")
    chosen = [each for each in measurement.contenders() if each.name != "torch.compile"]
    case = Case(64, measurement.features, "float32", "cpu")
    for contender in chosen:
        run(contender.make(case), contender.batch(Sampler(case)))
    assert len({each.key for each in chosen}) == len(chosen) > 2


def test_every_measurement_can_be_found_and_is_listed(capsys):
    assert all(issubclass(find(name), Measurement) for name in MEASUREMENTS)
    assert main([]) == 0
    assert capsys.readouterr().out.count("\n  ") == len(MEASUREMENTS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rascall"], "expected a measurement to be one of losses, sup-con, "),
        (["compiled-kernels", "--capability", "70"], "expected --capability to be one of 80, 86, "),
        (["rascal", "--speed", "high"], "unrecognized arguments: --speed high: see python -m benchmarks rascal --help"),
        (["targets"], "expected a GPU, torch sees none here: measure on a machine with one"),
    ],
)
def test_a_bad_option_ends_in_one_line(words, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert main(words) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("error: ")
    assert message in told


def test_measurements_begun_in_the_same_second_have_files_of_their_own(tmp_path, monkeypatch):
    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 27, 10, 15, tzinfo=tz)

    monkeypatch.setattr(command, "datetime", Stopped)
    names = [command._path(tmp_path, "AMD EPYC").name for _ in range(2)]  # noqa: SLF001 - the measurement behind it takes minutes
    assert names == ["2026-11-27-101500-AMD-EPYC.json", "2026-11-27-101500-AMD-EPYC-2.json"]
