"""The command keeps freed memory where its C library is glibc, unless somebody says otherwise."""

import os
import subprocess
import sys

import pytest

CODE = "from likewise.cli import keep_memory; import ctypes; print(keep_memory())"


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({}, True), ({"LIKEWISE_KEEP_MEMORY": "0"}, False), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False)],
    ids=("as by default", "switched off", "set for glibc"),
)
def test_thresholds_are_raised_unless_they_are_set(settings, kept):
    if not sys.platform.startswith("linux") or "glibc" not in os.confstr("CS_GNU_LIBC_VERSION"):
        pytest.skip("another C library")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    told = subprocess.run(
        [sys.executable, "-c", CODE], env=plain | settings, capture_output=True, text=True, check=True, timeout=300
    )
    assert told.stdout.split() == [str(kept)]
