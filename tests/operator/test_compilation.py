"""The kernels compiled for GPUs that need not be here: tensor cores, no spilled registers, room in shared memory."""

import json
import os
import subprocess
import sys

import pytest
from operator_checks import ROOT, run_python

pytestmark = [pytest.mark.process, pytest.mark.triton, pytest.mark.slow]

pytest.importorskip("triton", reason="Triton is not installed: it has no wheel for this platform")


def launched(capability, *rows):
    """Compile every launch of some steps, and return what each needs."""
    printed = run_python(ROOT / "tests" / "processes" / "compiled_launches.py", capability, *rows)
    return [json.loads(line) for line in printed.splitlines()]


@pytest.mark.parametrize(("capability", "rows"), [(80, "bfloat16,128"), (86, "float32,256"), (100, "float32,256")])
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


def test_what_sup_con_needs(tmp_path):
    """Forward and backward, in bfloat16 and in two halves, with class labels and label sets, at D = 128."""
    run_python("-m", "benchmarks", "compiled-kernels", "--out", tmp_path, "--few", "--capability", 90)
    (results,) = tmp_path.glob("*.json")
    found = json.loads(results.read_text(encoding="utf-8"))["results"]
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
        assert row["shared"] <= 227 << 10, row
        assert row["programs"] >= 1, row
        # The label sets of the own rows are loaded anew for each tile.
        assert set(row["flaws"]) <= ({"loads that are waited for"} if "shared label" in each["contender"] else set()), (
            row
        )


def test_the_interpreter_is_refused():
    """It compiles nothing: one line says so."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "benchmarks", "compiled-kernels"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.startswith("error: expected Triton to compile, got TRITON_INTERPRET")
    assert done.stderr.count("\n") == 1
