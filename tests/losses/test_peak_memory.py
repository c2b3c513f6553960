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


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak size is read from Linux's /proc")
def test_memory_is_linear():
    """Twice the rows need about twice the memory, and a part of one N x N matrix; freed memory goes back at once."""
    command = [sys.executable, str(WORKER), str(ROWS), str(2 * ROWS)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    lines = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()
    growth = dict(map(json.loads, lines))
    assert list(growth) == list(steps())
    matrix = (2 * ROWS) ** 2 * 4
    assert {
        case: (once, twice)
        for case, (once, twice) in growth.items()
        if twice >= 2.6 * once + 4 * 2**20 or twice >= matrix / 4
    } == {}
