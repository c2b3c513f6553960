"""Memory grows with the number of rows, not with its square: peak resident memory of a process at N and 2N."""

import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "memory_worker.py"
ROWS = 6144


def growth(case, rows):
    command = [sys.executable, str(WORKER), case, str(rows)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak resident size is read from Linux's /proc"
)
@pytest.mark.parametrize(
    "case",
    ["nt_xent", "sup_con out", "sup_con in", "sup_con at a low temperature", "label sets", "references"],
)
def test_memory_is_linear(case):
    """Twice the rows need about twice the memory, and a small part of one N x N matrix."""
    once, twice = growth(case, ROWS), growth(case, 2 * ROWS)
    matrix = (2 * ROWS) ** 2 * 4
    assert twice < 2.6 * once + 4 * 2**20
    assert twice < matrix / 8
