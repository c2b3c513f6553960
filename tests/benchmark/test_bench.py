"""`python -m benchmarks losses`: what it measures, what it predicts and skips, and what it leaves behind."""

import json
import re
from dataclasses import replace
from typing import get_args

import pytest
import torch

import likewise as lw
from benchmarks.__main__ import main
from benchmarks.losses import ENTRIES, NAMES, Measure, backends, contenders
from benchmarks.measuring import prediction, rivals
from benchmarks.measuring.case import Case, Failed, Peak, Sampler, leaves, run
from benchmarks.measuring.cpu import CpuMeter
from benchmarks.measuring.cuda import CudaMeter
from benchmarks.measuring.prediction import Growth
from benchmarks.measuring.rivals import missing
from benchmarks.measuring.schedule import Timetable
from likewise.operator import Backend
from meters import Told, pretend_gpu

CASE = Case(64, 16, "float32", "cpu")
OURS = contenders(list(NAMES), ["dense", "tiled"], "cpu")
LOSSES = Measure(device="cpu", backends=("dense", "tiled"))


def test_every_public_loss_is_measured_by_every_backend_where_it_runs():
    assert set(NAMES) == {name for name in lw.__all__ if name.endswith("Loss")}
    assert {each.loss for each in OURS if each.name == "likewise"} == set(ENTRIES)
    assert backends("cuda") == [name for name in get_args(Backend) if name != "auto"]
    assert set(backends("cuda")) - set(backends("cpu")) <= {"triton"}
    assert {"dense", "tiled"} <= set(backends("cpu"))
    for device in ("cpu", "cuda"):
        keys = [each.key for each in contenders(list(NAMES), backends(device), device)]
        assert len(keys) == len(set(keys))


@pytest.mark.parametrize("contender", [each for each in OURS if each.name != "torch.compile"], ids=str)
def test_every_step_gives_a_gradient_to_all_that_is_learned(contender):
    batch = contender.batch(Sampler(CASE))
    run(contender.make(CASE), batch)
    assert leaves(batch)
    for leaf in leaves(batch):
        assert leaf.grad.isfinite().all()
        assert leaf.grad.abs().sum() > 0


def _value_and_gradients(contender, case):
    batch = contender.batch(Sampler(case))
    loss = contender.make(case)(*batch)
    loss.backward()
    return [loss.detach(), *(leaf.grad for leaf in leaves(batch))]


@pytest.mark.parametrize(
    ("name", "loss"),
    [("dense form", loss) for loss in ("SupConLoss", "NTXentLoss", "InfoNCELoss")]
    + [(rival.name, rival.loss) for rival in rivals.RIVALS if rival.library and not rival.device],
)
def test_a_rival_computes_the_same_loss_and_gradient(name, loss):
    if name in missing("cpu"):
        pytest.skip(f"{name} is not installed: {missing('cpu')[name]}")
    case = CASE._replace(rows=256)  # classes have positives: there are 100
    (rival,) = (each for each in OURS if (each.name, each.loss) == (name, loss))
    (ours,) = (each for each in OURS if each.key[:2] == (loss, "likewise") and each.backend != "tiled")
    both = (_value_and_gradients(contender, case) for contender in (rival, ours))
    torch.testing.assert_close(*both, rtol=1e-4, atol=1e-6)


def test_a_step_runs_only_where_memory_and_time_reach_as_predicted_from_the_largest_smaller_size():
    assert Growth().seconds({}, 4096) == 0
    assert Growth().seconds({2048: 1.0, 8192: 3.0}, 16384) == 12
    assert Growth(time=1).seconds({2048: 1.0, 8192: 3.0}, 4096) == 2
    dense = Growth(memory=2, matrices=8)
    assert dense.bytes({}, 65536, 128) >= 8 * 4 * 65536**2
    assert dense.bytes({4096: 1 << 30, 64: 5}, 8192, 128) == 4 << 30
    assert dense.bytes({256: 0}, 16384, 128) >= 8 * 4 * 16384**2  # what is reused hides a small one
    assert Growth().bytes({65536: 1 << 30}, 262144, 128) == 4 << 30
    assert prediction.why_not(6, 10, 1, 2) is None
    assert prediction.why_not(7 << 30, 10 << 30, 1, 2) == "would take about 7.0 GiB of 10 GiB free"
    assert prediction.why_not(0, 10, 30, 12) == "would take about 30 s, and 12 s are left for it"
    assert prediction.why_not(0, 10, 0, -1) == "no time is left for it"


def _results(meter, *sizes):
    chosen = [each for each in contenders(["SupConLoss"], ["dense", "tiled"], "cpu") if each.name == "likewise"]
    return list(Timetable(chosen, meter, lambda _: None, sizes, 128, "float32", 100.0).results())


def test_what_is_too_large_or_too_slow_is_a_row_that_says_so():
    meter = Told(lambda each, n: Peak(int(8 * 4 * n**2 if each.backend == "dense" else 1000 * n), n**2 / 2**22))
    found = {(each.backend, each.rows): each for each in _results(meter, 4096, 65536, 1048576)}
    assert len(found) == 6
    assert "free" in found["dense", 65536].skipped
    assert found["tiled", 4096].milliseconds == 4000
    assert found["tiled", 4096].skipped is None
    assert "would take about 2,048 s" in found["tiled", 65536].skipped
    assert ("SupConLoss likewise dense", 65536) not in meter.peaks


def test_a_large_size_alone_is_preceded_by_a_small_one(monkeypatch):
    monkeypatch.setattr(prediction, "free_bytes", lambda _: 500 << 30)
    meter = Told(lambda _, n: Peak(1000 * n, n**2 / 2**20))
    (_, tiled) = sorted(_results(meter, 1048576), key=lambda each: each.backend)
    assert meter.peaks.count(("SupConLoss likewise tiled", 1024)) == 1
    assert ("SupConLoss likewise tiled", 1048576) not in meter.peaks
    assert "would take about 2,097,152 s" in tiled.skipped


def test_a_contender_that_fails_once_is_named_and_left_alone():
    def fail(each, _):
        if each.backend == "dense":
            raise Failed("failed: RuntimeError: no luck")
        return Peak(None, 1e-6)

    meter = Told(fail)
    found = _results(meter, 256, 1024)
    assert [each.skipped for each in found if each.backend == "dense"] == ["failed: RuntimeError: no luck"] * 2
    assert all(each.milliseconds for each in found if each.backend == "tiled")
    assert meter.peaks.count(("SupConLoss likewise dense", 256)) == 1
    assert ("SupConLoss likewise dense", 1024) not in meter.peaks


@pytest.mark.process
def test_memory_on_the_cpu_is_that_of_the_step(monkeypatch):
    """And a step that raises in its process says why."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    meter = CpuMeter(LOSSES.contenders)
    (byol,) = (each for each in OURS if each.loss == "BYOLLoss")
    with pytest.raises(Failed, match=r"^failed: \w*Error: "):
        meter.peak(byol, CASE._replace(dtype="int8"))
    dense, *_ = (each for each in OURS if each.name == "dense form")
    case = CASE._replace(rows=2048)
    peak = meter.peak(dense, case)
    if peak.bytes is None:
        pytest.skip("this system does not tell a process's peak")
    matrix = 4 * case.rows**2
    assert 3 * matrix < peak.bytes < 12 * matrix
    (tiled,) = (each for each in OURS if each.key == ("SupConLoss", "likewise", "tiled"))
    assert meter.peak(tiled, case).bytes < 2 * matrix


def test_inputs_on_a_gpu_are_rotated_past_its_cache(monkeypatch):
    pretend_gpu(monkeypatch)
    meter = CudaMeter()
    seen = []
    triplet = next(each for each in OURS if each.loss == "TripletLoss")
    case = Case(32, 4, "float32", "cpu")  # three inputs of 512 bytes: four copies fill twice the cache

    def spied(_):
        loss = triplet.make(case)
        return lambda *batch: (seen.append(batch[0]), loss(*batch))[1]

    turn = meter.turns(replace(triplet, make=spied), case, 0.0)
    seen.clear()
    assert [turn() for _ in range(8)] == [0.001] * 8
    assert len({id(rows) for rows in seen}) == 4
    assert all(first is again for first, again in zip(seen[:4], seen[4:], strict=True))
    assert meter.peak(triplet, case) == Peak(1200, 0.001)


def test_a_step_that_a_gpu_cannot_run_says_why(monkeypatch):
    pretend_gpu(monkeypatch)

    def fail(_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB\nSee the documentation")

    with pytest.raises(Failed, match=r"^failed: OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB$"):
        CudaMeter().peak(replace(OURS[0], make=fail), CASE)


@pytest.mark.slow
def test_a_run_leaves_a_table_a_file_and_a_plot(tmp_path, capsys):
    options = ("--losses", "NPairsLoss", "TripletLoss", "--sizes", "64", "32", "--features", "8", "--device", "cpu")
    assert main(["losses", *options, "--budget", "120", "--out", str(tmp_path / "o")]) == 0
    out = capsys.readouterr().out
    page, results = sorted((tmp_path / "o").iterdir(), key=lambda path: path.suffix)
    assert (page.suffix, results.suffix) == (".html", ".json")
    assert f"plot: {page}" in out
    held = json.loads(results.read_text(encoding="utf-8"))
    assert held["settings"]["sizes"] == [32, 64]
    measured = [each for each in held["results"] if each["skipped"] is None]
    expected = {("NPairsLoss", "dense"), ("NPairsLoss", "tiled"), ("TripletLoss", "")}
    assert {(each["loss"], each["backend"]) for each in measured} == expected
    assert all(each["milliseconds"] > 0 and each["repeats"] >= 1 for each in measured)
    assert sum(line.startswith("       64  ") for line in out.splitlines()) == len(held["results"]) // 2
    text = page.read_text(encoding="utf-8")
    assert "NPairsLoss" in text
    assert re.search(r'(src|href)="?https?:', text.partition("</script>")[0][:1000]) is None
    assert len(text) > 1_000_000


def test_what_is_not_installed_is_named_with_its_remedy(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rivals, "find_spec", lambda _: None)
    options = ("--losses", "BYOLLoss", "--sizes", "32", "--features", "8", "--device", "cpu", "--budget", "1")
    assert main(["losses", *options, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for name in ("pytorch-metric-learning", "lightly"):
        assert f"without {name}, which is not installed: pip install {name}\n" in out
    (results,) = tmp_path.glob("*.json")
    assert json.loads(results.read_text())["not_installed"]["lightly"] == "pip install lightly"
    assert set(missing("cuda")) - set(missing("cpu")) == {"inf-cl", "cut-cross-entropy"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--device tpu", "expected --device to be one of auto, cpu, cuda, got tpu"),
        ("--device cuda", "expected --device auto or cpu, got cuda: torch sees no GPU here"),
        ("--losses SupCon", "got SupCon, did you mean SupConLoss?"),
        ("--backends tile", "expected --backends to be among auto, "),
        ("--sizes many", "expected --sizes to be an integer, got many"),
        ("--sizes 16", "expected --sizes to be 32 or more, got 16"),
        ("--budget soon", "expected --budget to be a number, got soon"),
        (f"--out {__file__}", "expected --output to be a folder to write into, got "),
        ("--sizes", "expected at least one argument"),
    ],
)
def test_a_bad_option_ends_in_one_line(options, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["losses", *options.split()]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("error: ")
    assert message in told


def test_ctrl_c_leaves_a_valid_file_and_says_where(tmp_path, monkeypatch, capsys):
    def tell(_, rows):
        if rows > 32:
            raise KeyboardInterrupt
        return Peak(None, 1e-6)

    monkeypatch.setattr(Measure, "meter", lambda _: Told(tell))
    options = "--losses NPairsLoss --backends tiled --device cpu --budget 600 --sizes 32 64"
    assert main(["losses", *options.split(), "--out", str(tmp_path)]) == 130
    (results,) = tmp_path.iterdir()
    held = json.loads(results.read_text(encoding="utf-8"))["results"]
    assert {each["rows"] for each in held} == {32}
    assert capsys.readouterr().err.endswith(f"interrupted; {len(held)} results are in {results}\n")
