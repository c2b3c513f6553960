"""A reader that has gone, as of `likewise train --help | head`, is no error: what is printed to it leads nowhere."""

import os
import shlex
import sys

import pytest

from likewise.cli import main


@pytest.fixture
def gone(monkeypatch):
    """A stream into a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        yield stream
        monkeypatch.undo()


@pytest.mark.parametrize("command", ["train --help", "train --loss.help", "train --print-config", "complete"])
def test_what_a_verb_prints_to_a_closed_pipe_is_no_error(command, gone, monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", "likewise train --lo")
    monkeypatch.setenv("COMP_POINT", "19")
    monkeypatch.setattr(sys, "stdout", gone)
    words = shlex.split(command)
    if {"--help", "--loss.help"} & {*words}:
        with pytest.raises(SystemExit, match=r"^0$"):
            main(words)
    else:
        assert main(words) == 0
    assert capsys.readouterr().err == ""


def test_an_error_that_nobody_reads_still_has_its_status(gone, monkeypatch):
    monkeypatch.setattr(sys, "stderr", gone)
    assert main(["train", "--los", "x"]) == 2
