"""What measures on a machine with torch, Triton and NumPy alone."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: it has no wheel for this platform")

from benchmarks import first_gpu, recipes, reports, smoke, targets, tiles
from benchmarks.reports import Report
from likewise.operator.triton import tuning

ROOT = Path(__file__).parents[2]
ALONE = """
import importlib.util, sys
from importlib import metadata
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in LACKING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

LACKING = (
    "tqdm plotly jsonargparse beartype docstring_parser lightning torchvision sklearn scipy pandas pyarrow yaml "
    "jinja2 PIL timm safetensors"
).split()
sys.meta_path.insert(0, Missing())
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *package: None if name in LACKING else find_spec(name, *package)

def version(name):
    raise metadata.PackageNotFoundError(name)

metadata.version = version
import benchmarks.compiled, benchmarks.targets, benchmarks.command, likewise.operator.backends
assert likewise.operator.backends.triton_is_missing() is None
print(sys.modules["jaxtyping"].__file__)
from benchmarks.__main__ import main
sys.exit(main("losses --losses TripletLoss --sizes 32 --device cpu --budget 1".split()))
"""


@pytest.mark.process
@pytest.mark.triton
def test_measurements_need_torch_triton_and_numpy_alone(tmp_path):
    """Nor is anything asked that only an installed package knows; annotations of shapes go by a stand-in."""
    path = os.pathsep.join(map(str, (ROOT / "benchmarks" / "stand_ins", ROOT / "src", ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{ROOT / 'benchmarks' / 'stand_ins' / 'jaxtyping.py'}\n")
    assert "no plot, as plotly is not installed: pip install 'likewise[train]'" in done.stdout
    (results,) = (tmp_path / "bench").iterdir()
    assert read(results)["results"][0]["milliseconds"] > 0


FACTS = {"at", "device", "torch", "triton", "numpy", "python", "commit", "tiles"}


@pytest.mark.process
@pytest.mark.triton
@pytest.mark.slow
def test_a_rehearsal_goes_through_all_kernels(tmp_path):
    """On a CPU, in Triton's interpreter: every step writes what it found, and the winners are launched."""
    command = [sys.executable, str(ROOT / "benchmarks" / "first_gpu.py"), "--out", str(tmp_path), "--dry-run"]
    command += ["--only", "smoke", "targets", "tuning", "winners"]  # the others are no kernels
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")}
    assert files == {
        *("smoke/SupCon-NWS.json", "smoke/queue.json", "targets/ours.json", "tuning/timed.json", "tuning/tiles.json"),
        *("winners/smoke.json", "summary.json"),
    }
    found = {name: read(tmp_path / name) for name in files - {"tuning/tiles.json"}}
    told = found.pop("summary.json")
    assert told["dry_run"]
    assert told["facts"].keys() >= FACTS
    assert told["smoke_test"] == {"passed": True, "wrong": [], "missing": [], "accessed_memory_wrongly": False}
    assert set(told["steps"]) == set(first_gpu.STEPS)
    for name, part in found.items():
        assert part["state"] == "done", name
        assert part["facts"].keys() >= FACTS, name
        assert part["results"], name
    assert len(found["smoke/SupCon-NWS.json"]["results"]) == 12
    assert all(each["milliseconds"] > 0 for each in found["targets/ours.json"]["results"])
    winners = tuning.read(tmp_path / "tuning" / "tiles.json")
    assert [(key[1], tuple(size)[:4]) for key, size in winners.items()] == [
        ("sums", (64, 64, 4, 1)),
        ("backward", (64, 64, 4, 1)),
    ]
    assert found["winners/smoke.json"]["facts"]["tiles"] == str(tmp_path / "tuning" / "tiles.json")
    assert found["smoke/queue.json"]["facts"]["tiles"] is None
    assert "| SupCon, the whole loss | 65,536 | bfloat16 |" in done.stdout


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def part(name, code, module="targets", **more):
    """Return a part that runs some Python in its own way, with the path of its file in `out`."""
    begin = "import json, os, signal, sys, time\nout = sys.argv[sys.argv.index('--out') + 1]\n"
    write = "def write(*results, **more): json.dump({'results': results, **more}, open(out, 'w'))\n"
    return first_gpu.Part(name, module, prefix=(sys.executable, "-c", begin + write + code), **more)


def steps(monkeypatch, **parts):
    """Let these be the steps."""
    made = {name: first_gpu.Step("a step", 1, 1, lambda _, some=some: some) for name, some in parts.items()}
    monkeypatch.setattr(first_gpu, "STEPS", made)
    monkeypatch.setattr(first_gpu, "_smoke", lambda asked: made["smoke"].parts(asked) if "smoke" in made else [])
    monkeypatch.setattr(first_gpu, "_table", lambda _: [])
    monkeypatch.setattr(first_gpu, "_facts", lambda _: {"device": "a GPU"})
    monkeypatch.setattr(first_gpu, "GRACE", 1.0)
    monkeypatch.setattr(first_gpu.signal, "signal", lambda *_: None)


RIGHT = {"right": True, "same_bits": True}


@pytest.mark.process
def test_one_fault_leaves_the_rest(monkeypatch, tmp_path):
    """A crash, a hang and a lack of memory end their own process; what they had written stays.

    Where a GPU's context has become useless, a new process goes on with what the first has written.
    """
    faults = [
        part("crash", "write(1)\nos.kill(os.getpid(), signal.SIGSEGV)", share=0.2),
        part("hang", "write(2)\ntime.sleep(60)", share=0.1),
        part("error", "print('out of memory')\nsys.exit(1)", share=0.2),
        part("good", "write(3)"),
    ]
    code = "new = '--go-on' not in sys.argv\nwrite('first', *[] if new else ['then'])\nsys.exit(3 if new else 0)"
    useless = [part("timed", code, module="tiles")]
    steps(monkeypatch, smoke=[part("all", f"write({RIGHT})")], faults=faults, tuning=useless)
    assert first_gpu.main(["--out", str(tmp_path), "--minutes", "0.8"]) == 0
    held = {name: read(tmp_path / "faults" / f"{name}.json") for name in ("crash", "hang", "error", "good")}
    assert [held[name]["results"] for name in held] == [[1], [2], [], [3]]
    states = [held[name]["state"].partition(" of")[0] for name in held]
    assert states == ["signal 11", "limit", "exit status 1", "done"]
    assert held["error"]["log"] == "out of memory\n"
    assert all(each["facts"] == {"device": "a GPU"} for each in held.values())
    assert read(tmp_path / "tuning" / "timed.json")["results"] == ["first", "then"]
    assert "  hang: limit of" in (tmp_path / "summary.txt").read_text(encoding="utf-8")


@pytest.mark.process
def test_the_status_is_that_of_the_smoke_test(monkeypatch, tmp_path):
    """Wrong cases are a line each, with what they were and their errors; and where it was measured."""
    case = {"form": "NWS", "dtype": "bfloat16", "features": 128, "rows": 700, "errors": [0.25], "right": False}
    results = [case | {"same_bits": True}, case | {"same_bits": True}, case | {"same_bits": False}]
    for told, code in (
        ("missing", f"write({RIGHT}, complete=False)"),
        ("missing", f"write({RIGHT})\nsys.exit(1)"),
        ("wrong", f"write(*{results})"),
    ):
        steps(monkeypatch, smoke=[part("all", code)], more=[part("good", "write()")])
        assert first_gpu.main(["--out", str(tmp_path), "--minutes", "0.5"]) == 1
        smoke_test = read(tmp_path / "summary.json")["smoke_test"]
        assert not smoke_test["passed"]
        assert smoke_test[told]
        assert read(tmp_path / "more" / "good.json")["state"] == "done"
    said = (tmp_path / "summary.txt").read_text(encoding="utf-8").splitlines()
    line = "  wrong: form NWS, dtype bfloat16, features 128, rows 700: errors 2.5e-01"
    assert said[:4] == ["smoke test not passed", "  device a GPU", line, f"{line}, and other bits in a second run"]


@pytest.mark.process
def test_it_goes_on_in_several_commands(monkeypatch, tmp_path, capsys):
    """Steps by name, then the rest; what is done is not repeated, and too little time begins nothing.

    Steps that begin anew and are not reached have no results, and those of a dry run are no measurements.
    """
    count = (
        "path = out + '.count'\nn = len(open(path).read()) if os.path.exists(path) else 0\nopen(path, 'a').write('x')\n"
    )
    more = [part("good", count + "write(n)"), part("bad", count + "write(n)\nsys.exit(1 - n)")]
    steps(monkeypatch, smoke=[part("all", f"{count}write({RIGHT})")], more=more)
    words = ["--out", str(tmp_path), "--minutes"]
    assert first_gpu.main([*words, "0.01"]) == 1
    assert not list(tmp_path.glob("*/*.json"))
    assert first_gpu.main([*words, "0.5", "--only", "smoke"]) == 0
    assert not list(tmp_path.glob("more/*.json"))
    for _ in range(2):
        assert first_gpu.main([*words, "0.5", "--resume"]) == 0
    assert [read(tmp_path / "more" / f"{name}.json")["results"] for name in ("good", "bad")] == [[0], [1]]
    assert (tmp_path / "smoke" / "all.json.count").read_text(encoding="utf-8") == "x"
    assert first_gpu.main([*words, "0.01"]) == 1
    assert read(tmp_path / "summary.json")["smoke_test"]["missing"] == ["all"]
    steps(monkeypatch, smoke=[part("all", f"write({RIGHT}, facts={{'dry_run': True}})")])
    assert first_gpu.main([*words, "0.5", "--dry-run"]) == 0
    assert "smoke test passed, in a dry run" in (tmp_path / "summary.txt").read_text(encoding="utf-8")
    capsys.readouterr()
    assert first_gpu.main([*words, "0.5", "--resume"]) == 2
    told = f"error: expected results of a GPU in {tmp_path}, got those of a dry run: choose another folder\n"
    assert capsys.readouterr().err == told


@pytest.mark.process
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_bad_options_and_a_missing_gpu_are_told_before_anything_runs(tmp_path, capsys):
    for words, told in (
        (["--workers", "0"], "expected some minutes and a worker, got 30 and 0"),
        (["--data", "/nowhere/cifar10.npz"], "expected array files for --data, got /nowhere/cifar10.npz, which do not"),
        (["--out", __file__], f"expected a folder for --out, got {__file__}, which is a file"),
    ):
        with pytest.raises(SystemExit):
            first_gpu.main(["--out", str(tmp_path / "new"), *words])
        assert told in capsys.readouterr().err
    assert first_gpu.main(["--out", str(tmp_path / "new")]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("error: expected an NVIDIA GPU that torch and Triton can use, got ")
    assert told.endswith(": --dry-run needs none")
    assert not (tmp_path / "new").exists()


def tried(tiles, *ms, weight="SupCon", difference=0.0):
    """Return the result of a candidate in one loss's weights, at two sizes where the chosen tiles took 1 and 10 ms."""
    of = {"kernel": "sums", "weight": weight, "features": 128, "precision": "bf16", "tiles": tiles}
    return of | {"ms": ms, "ms_as_chosen": (1.0, 10.0), "differences": [0.0, difference]}


A, B = [64, 64, 4, 3], [128, 32, 8, 2]
FAILED = {name: value for name, value in tried(A).items() if name != "ms"} | {"failed": "no room"}


def test_a_winner_is_faster_for_all_losses_and_right():
    fast = tried(A, 0.5, 5.0, weight="BCL")
    for results, best in (
        ([tried(A, 0.8, 8.0), tried(A, 0.9, 9.0, weight="BCL")], A),
        ([tried(at, ms, 9.0, weight=of) for at, ms in ((A, 0.9), (B, 0.5)) for of in ("SupCon", "BCL")], B),
        ([tried(A, 1.1, 11.0), fast], None),  # slower for one loss
        ([fast], None),  # not tried with the other
        ([tried(A, 0.99, 9.9), tried(A, 0.99, 9.9, weight="BCL")], None),  # hardly faster
        ([tried(A, 0.5, 5.0, difference=0.1), fast], None),  # wrong
        ([tried(A, 0.5, 5.0, difference=float("nan")), fast], None),
        ([FAILED, fast], None),
    ):
        winner = tiles.winner(results, 2)
        assert (winner and winner["tiles"]) == best, results


def test_the_plan_names_all_forms_losses_and_targets():
    """In lists of its own: the process that starts the others imports none of what they do."""
    assert set(first_gpu.FORMS) == set(smoke.FORMS)
    assert {name for names in first_gpu.LOSSES for name in names} == set(smoke.LOSSES)
    assert set(first_gpu.PRECISIONS) == set(smoke.LIMITS)
    assert tuple(targets.GROUPS) == first_gpu.GROUPS
    assert {each.keys[0] for each in targets.targets()} <= {
        key for group in targets.GROUPS.values() for key in group.keys
    }
    assert first_gpu.POISONED == reports.POISONED


def test_a_wrong_result_is_not_right(monkeypatch):
    """One that is off by a ten thousandth, and one that differs when it is computed again."""
    given = smoke.Given("SupCon", 20, 70, "float32")
    assert (found := smoke.check(given, "cpu"))["right"]
    assert found["same_bits"]
    rows, calls = torch.ones(3), itertools.count()
    monkeypatch.setattr(smoke, "of_form", lambda *_: lambda **_: [rows * (1 + 1e-4 * next(calls))])
    found = smoke.check(given, "cpu")
    assert not found["right"]
    assert not found["same_bits"]


def test_training_is_as_long_as_the_time_allows(monkeypatch, tmp_path):
    """A few epochs first, whose seconds say how many fit; what fails is not told by the run of an earlier command."""
    commands, statuses = [], iter([0, 0, 1, 0, 1])

    def trained(command, **_):
        status, (name, runs) = next(statuses), (command[command.index(word) + 1] for word in ("--name", "--runs"))
        commands.append(command[command.index("--trainer.max_epochs") + 1])
        folder = Path(runs) / f"today-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        facts = {"seconds": {"training": 4.0}, "samples": {"train": 100}}
        (folder / "run.json").write_text(json.dumps(facts), encoding="utf-8")
        return subprocess.CompletedProcess(command, status, "", "no room\n")

    monkeypatch.setattr("benchmarks.reports.facts", lambda **_: {})
    monkeypatch.setattr(recipes.subprocess, "run", trained)
    report = Report(tmp_path / "cifar10.json", dry_run=False, seconds=100.0)
    said = []
    for _ in range(3):
        recipes.main(report, "cifar10", ["cifar10.npz"])
        said.append(read(report.path)["summary"])
    assert commands[:2] == ["2", "46"]  # 2 s an epoch, and what surrounds them takes nothing here but the reserve
    assert said[0] == "1150 images a second, 46 epochs"
    assert said[1] == "failed: no room"
    assert said[2].startswith("50 images a second, with compiling; failed in ")
    assert said[2].endswith(" epochs: no room")
    monkeypatch.setattr(recipes, "NEEDED", ("numpy", "no_such_module"))
    recipes.main(report, "cifar10", ["cifar10.npz"])
    assert read(report.path)["summary"] == "not run: missing no_such_module"
