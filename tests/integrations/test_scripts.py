"""The scripts of docs/integrations: each is short, stands on a page, runs, and lowers a loss."""

import ast
import logging
import os
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples" / "integrations").glob("*.py"))

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of libraries


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_runs_and_lowers_a_loss(script, tmp_path, monkeypatch, capsys):
    """It prints a loss before and after each training, and the second is less than half of the first."""
    for line in ast.parse(script.read_text(encoding="utf-8")).body:
        modules = [name.name for name in line.names] if isinstance(line, ast.Import) else [getattr(line, "module", "")]
        for module in modules if isinstance(line, ast.Import | ast.ImportFrom) else []:
            pytest.importorskip(module, reason=f"{script.name} needs {module}")
    if script.stem == "deepspeed_zero":  # which would compile its own collectives for CPUs, for a minute
        monkeypatch.setattr(import_module("deepspeed.comm.torch"), "build_shm_op", lambda: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script)])
    torch.set_deterministic_debug_mode("default")
    loggers = [logging.root, *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    for logger in loggers:  # open_clip sets the level of every one, and adds to the root's handlers
        monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers])
    with patch.dict(os.environ):  # a script may make itself the one process of a group
        runpy.run_path(str(script), run_name="__main__")
    losses = re.findall(r"loss before: ([\d.]+), after: ([\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    assert losses
    for before, after in losses:
        assert float(after) < float(before) / 2


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_short_and_says_how_it_is_run(script):
    """And a page shows all of it."""
    text = script.read_text(encoding="utf-8")
    assert text.count("\n") < 60
    assert re.search(rf"^ *(python|torchrun .*) {script.name}", text, re.MULTILINE)
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "integrations").glob("*.md")]
    assert any(f'\n--8<-- "examples/integrations/{script.name}"\n' in page for page in pages)
