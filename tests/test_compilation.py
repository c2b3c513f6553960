"""The kernels compiled for GPUs that need not be here: tensor cores, no spilled registers, room in shared memory."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.process, pytest.mark.triton, pytest.mark.slow]

pytest.importorskip("triton", reason="Triton is not installed: it has no wheel for this platform")

COMMAND = [sys.executable, "-m", "likewise.cli", "bench"]


def compiled(folder, *options):
    """Run the command without the interpreter under which tests run, and return the kernels that it wrote."""
    done = subprocess.run(
        [*COMMAND, "kernels", "--out", str(folder), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"},
    )
    assert done.returncode == 0, done.stderr
    (results,) = folder.glob("*.json")
    return json.loads(results.read_text(encoding="utf-8"))["results"]


@pytest.mark.parametrize("capability", [80, 90])
def test_what_sup_con_needs(capability, tmp_path):
    """Forward and backward, in bfloat16 and in two halves, with class labels and label sets, at D = 128."""
    found = compiled(tmp_path, "--few", "--capability", str(capability))
    assert {(each["loss"], each["dtype"]) for each in found} == {
        (kernel, rows) for kernel in ("sums", "both") for rows in ("bf16", "fp32")
    }
    assert {each["contender"] for each in found} == {"SupCon, D = 128", "shared label, D = 128"}
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
    done = subprocess.run([*COMMAND, "kernels"], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith("error: expected Triton to compile, got TRITON_INTERPRET")
    assert done.stderr.count("\n") == 1
