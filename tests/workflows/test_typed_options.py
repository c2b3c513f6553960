"""A type checker knows the options of Python's functions, and so an editor completes them: misspelt ones are errors."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyright", reason="pyright is not installed")
pytestmark = pytest.mark.slow

SCRIPT = """
import likewise as lw
from likewise.configuration.options import TrainOptions

lw.train("photos/", loss="simclr", epochs=5)
lw.train("photos/", loss="simclr", epoch=5)
lw.train(TrainOptions(seed=1))
lw.train(TrainOptions(sed=1))
lw.embed("runs/RUN", "photos/", dtype="float16")
lw.embed("runs/RUN", "photos/", dtype="float8")
lw.evaluate("runs/RUN", worker=2)
"""


def test_pyright_reports_misspelt_options_and_no_others(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(script)]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    told = json.loads(printed)["generalDiagnostics"]
    messages = {one["range"]["start"]["line"] + 1: one["message"] for one in told if one["severity"] == "error"}
    misspelt = {6: "epoch", 8: "sed", 10: "float8", 11: "worker"}
    assert messages.keys() == misspelt.keys()
    assert all(word in messages[line] for line, word in misspelt.items())
