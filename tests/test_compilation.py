"""The kernels compiled for GPUs that need not be here: tensor cores, no spilled registers, room in shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.triton, pytest.mark.slow]

pytest.importorskip("triton", reason="Triton is not installed: it has no wheel for this platform")

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "kernels.py"


def compiled(results, *options):
    """Run the script without the interpreter under which tests run, and return what it wrote and its exit status."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--results", str(results), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"},
    )
    assert results.exists(), done.stderr
    return json.loads(results.read_text(encoding="utf-8"))["kernels"], done


@pytest.mark.parametrize("capability", [80, 90])
def test_what_sup_con_needs(capability, tmp_path):
    """Forward and backward, in bfloat16 and in two halves, with class labels and label sets, at D = 128."""
    found, done = compiled(tmp_path / "kernels.json", "--few", "--capability", str(capability))
    assert {(row["kernel"], row["precision"]) for row in found} == {
        (kernel, rows) for kernel in ("sums", "both") for rows in ("bf16", "fp32")
    }
    assert {row["weight"] for row in found} == {"SupCon", "shared label"}
    for row in found:
        assert row["products"] > 0, row
        assert row["exponentials"] > 0, row
        assert row["spills"] == 0, row
        assert 0 < row["registers"] <= 255, row
        assert row["shared"] <= {80: 163, 90: 227}[capability] << 10, row
        assert row["programs"] >= 1, row
        # The label sets of the own rows are loaded anew for each tile.
        assert set(row["flaws"]) <= ({"loads that are waited for"} if row["weight"] == "shared label" else set()), row
    assert done.returncode in {0, 1}, done.stdout


def test_what_is_refused():
    """The interpreter compiles nothing, and tiles are timed on a GPU alone: one line each."""
    for option, interpret in ((), "1"), (("--tune",), "0"):
        environment = {**os.environ, "TRITON_INTERPRET": interpret, "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *option], capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
