"""Memory grows with the number of rows, not with its square: peak resident memory of a process at N and 2N."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from memory_worker import steps

pytestmark = [pytest.mark.process, pytest.mark.slow]

WORKER = Path(__file__).parents[1] / "processes" / "memory_worker.py"
ROWS = 3072


@pytest.fixture(scope="module")
def growth():
    """Return each case's bytes at N and at 2N; what is freed goes back to the system, so only what is held counts."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak resident size is read from Linux's /proc")
    command = [sys.executable, str(WORKER), str(ROWS), str(2 * ROWS)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    lines = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()
    return dict(map(json.loads, lines))


@pytest.mark.parametrize("case", steps())
def test_memory_is_linear(case, growth):
    """Twice the rows need about twice the memory, and a part of one N x N matrix."""
    once, twice = growth[case]
    matrix = (2 * ROWS) ** 2 * 4
    assert twice < 2.6 * once + 4 * 2**20
    assert twice < matrix / 4
