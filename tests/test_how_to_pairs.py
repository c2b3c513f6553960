"""The pages on pairs do what they say: programs and commands are run on the small data that they make."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from likewise.cli import main

HOW_TO = Path(__file__).parent.parent / "docs" / "how-to"
QUICK = "--steps 3 --schedule.warmup_epochs 0 --evaluations [] --report false --trainer.accelerator cpu"
NAMES = {"RUN": "", "FIRST": "first", "SECOND": "second"}  # of the folders on the pages: how those of their runs end

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of libraries, and of few steps


def with_runs(text):
    """Put the newest runs in the place of their names."""
    for name, end in NAMES.items():
        folders = sorted(Path("runs").glob(f"*{end}")) if f"runs/{name}" in text else []
        text = text.replace(f"runs/{name}", folders[-1].as_posix()) if folders else text
    return text


@pytest.mark.parametrize("name", ["captions", "passages", "recommender"])
def test_a_page_runs_as_it_stands(name, tmp_path, monkeypatch, capsys):
    """All but commands with dots, which leave something to the reader; trainings are cut short."""
    monkeypatch.chdir(tmp_path)
    page = (HOW_TO / f"{name}.md").read_text(encoding="utf-8")
    programs = re.findall(r'^```python title="(\w+\.py)"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)
    (make, makes), (use, uses) = programs
    Path(make).write_text(makes.replace("k=60", "k=20"), encoding="utf-8")  # of towns, each with four questions
    runpy.run_path(make, run_name="__main__")
    lines = re.findall(r"^    likewise (.*)$", re.sub(r"\\\n +", "", page), re.MULTILINE)
    commands = [line for line in lines if "..." not in line]
    assert len(commands) >= 4
    for command in commands:
        words = shlex.split(with_runs(command), comments=True)
        assert main([*words, *QUICK.split()] if words[0] == "train" else words) == 0, command
        for option in ("--output", "--html"):
            assert option not in words or Path(words[words.index(option) + 1]).stat().st_size > 0
    capsys.readouterr()
    Path(use).write_text(with_runs(uses), encoding="utf-8")
    runpy.run_path(use, run_name="__main__")
    assert capsys.readouterr().out.startswith("[[")
