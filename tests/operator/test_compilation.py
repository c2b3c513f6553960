"""The kernels compiled for GPUs that need not be here: tensor cores, no spilled registers, room in shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.triton, pytest.mark.slow]

pytest.importorskip("triton", reason="Triton is not installed: it has no wheel for this platform")

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "benchmarks"]


def compiled(folder, *options):
    """Run the command without the interpreter under which tests run, and return the kernels that it wrote."""
    done = subprocess.run(
        [*COMMAND, "compiled-kernels", "--out", str(folder), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"},
    )
    assert done.returncode == 0, done.stderr
    (results,) = folder.glob("*.json")
    return json.loads(results.read_text(encoding="utf-8"))["results"]


def launched(capability, *rows):
    """Compile every launch of some steps, in a process without the interpreter; return what each needs."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "processes" / "compiled_launches.py"), str(capability), *rows],
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
        env={key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("capability", "rows"), [(86, "float32,256"), (90, "bfloat16,128"), (100, "float32,256"), (120, "bfloat16,128")]
)
def test_every_launch_fits(capability, rows):
    """With any Triton: τ learned on the device, label sets, a queue; and no GPU is asked for more than it has."""
    found = launched(capability, rows)
    for offset in ("fixed", "running"):  # of a τ that is a number, and of one on the device
        assert {"forward_kernel", "backward_kernel"} <= {x["kernel"] for x in found if x["offset"] == offset}
    assert {"unit_kernel", "merge_kernel", "shares_kernel", "project_kernel"} <= {x["kernel"] for x in found}
    assert all(each["fits"] for each in found), found


@pytest.mark.skipif("LIKEWISE_COMPILE" not in os.environ, reason="an hour: every form, width, dtype and capability")
@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
@pytest.mark.parametrize("d", [20, 64, 96, 128, 256, 300])
def test_every_form_fits(capability, d):
    """All forms of weights in every precision; set LIKEWISE_COMPILE=1 to run it."""
    found = launched(capability, *(f"{dtype},{d}" for dtype in ("bfloat16", "float16", "float32")), "fully")
    assert all(each["fits"] for each in found), [each for each in found if not each["fits"]]


@pytest.mark.parametrize("capability", [80, 90])
def test_what_sup_con_needs(capability, tmp_path):
    """Forward and backward, in bfloat16 and in two halves, with class labels and label sets, at D = 128."""
    found = compiled(tmp_path, "--few", "--capability", str(capability))
    assert {(each["loss"], each["dtype"]) for each in found} == {
        (kernel, rows) for kernel in ("sums", "both") for rows in ("bf16", "fp32")
    }
    assert {each["contender"] for each in found} == {
        "SupCon, D = 128",
        "SupCon, sorted, D = 128",
        "shared label, D = 128",
    }
    for each in found:
        row = each["figures"]
        assert row["products"] > 0, row
        assert row["exponentials"] > 0, row
        assert row["spills"] == 0, row
        assert 0 < row["registers"] <= 255, row
        assert row["shared"] <= {80: 163, 90: 227}[capability] << 10, row
        assert row["programs"] >= 1, row
        # The label sets of the own rows are loaded anew for each tile.
        assert set(row["flaws"]) <= ({"loads that are waited for"} if "shared label" in each["contender"] else set()), (
            row
        )


def test_the_interpreter_is_refused():
    """It compiles nothing: one line says so."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [*COMMAND, "compiled-kernels"], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: expected Triton to compile, got TRITON_INTERPRET")
    assert done.stderr.count("\n") == 1
