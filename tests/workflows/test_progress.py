"""Progress: bars with rates and time left for what takes long, on a terminal alone."""

import errno
import io
import sys

import pytest
import torch

from likewise.cli import _plain_output
from likewise.data import Parts, Samples
from likewise.evaluation import FeatureParts, Features, save_features
from likewise.report import SECTIONS, RunView, write_page
from likewise.runs import Run
from likewise.workflows import progress, sweeps
from likewise.workflows.plan import PlannedRun
from meters import Bars

pytestmark = pytest.mark.slow


class Terminal(io.StringIO):
    """What looks like a terminal."""

    def isatty(self):
        return True


def test_a_bar_is_drawn_on_a_terminal_for_what_takes_long(monkeypatch):
    for stream, seconds in ((Terminal, 0.0), (Terminal, 60.0), (io.StringIO, 0.0)):
        said = stream()
        monkeypatch.setattr(sys, "stderr", said)
        monkeypatch.setattr(progress, "MIN_BAR_SECONDS", seconds)
        assert list(progress.TERMINAL.bar(range(5), "counting")) == [0, 1, 2, 3, 4]
        drawn = said.getvalue()
        assert bool(drawn) == (stream is Terminal and seconds == 0)
        assert not drawn or all(part in drawn for part in ("counting", "it/s", "<"))  # rate, and time that is left


def test_what_a_console_cannot_show_is_escaped(monkeypatch):
    """Its code page lacks letters of a class's name, the name is no text, or it would move the cursor."""
    for stream, told in (("stdout", progress.PRINTED.log), ("stderr", progress.TERMINAL.log)):
        console = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
        monkeypatch.setattr(sys, stream, console)
        told("\u732b: 9 %")
        told("\udce9\x1b[31m")
        assert console.buffer.getvalue().split() == [rb"\u732b:", b"9", b"%", rb"\udce9\x1b[31m"]
    console = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(sys, "stdout", console)
    with _plain_output():
        print("--help of \u732b", flush=True)
    assert console.buffer.getvalue().decode("cp1252").strip() == r"--help of \u732b"


def test_a_stream_that_nobody_reads_ends_nothing(tmp_path, monkeypatch):
    """As a pipe whose reader has gone."""

    class Gone(io.StringIO):
        def flush(self):
            raise OSError(errno.EPIPE, "gone")

        def fileno(self):
            return file.fileno()

    with (tmp_path / "out").open("wb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdout", Gone())
        progress.TERMINAL.result("accuracy 98 %")
        progress.PRINTED.result("accuracy 98 %")
        file.write(b"what is written from now on")
        monkeypatch.undo()
    assert (tmp_path / "out").read_bytes() == b""


def test_a_page_tells_what_it_takes_long_over(tmp_path):
    run, record = Run.create(tmp_path, "run"), Bars()
    run.describe({})
    inputs, sets = torch.randn(40, 5), torch.eye(4).bool()[torch.arange(40) % 4]
    features = Features(inputs, sets, tuple("abcd"))
    with run.writing(run.embeddings.name) as path:
        save_features(path, FeatureParts(features, features, features))
    parts = Parts(*(Samples(inputs, sets, tuple("abcd")) for _ in range(3)))
    write_page(run.report, [RunView(run, parts, progress=record)])
    assert set(record.steps) == {"report", "maps", "hardest pairs"}
    assert record.steps["report"] == sum(kind().runs != "several" for kind in SECTIONS) >= 20
    assert record.steps["maps"] >= 4  # two layouts of features and of raw inputs


def test_a_sweep_says_how_long_it_still_takes(tmp_path, monkeypatch, capsys):
    clock = iter([0.0, 100.0, 100.0, 300.0, 300.0, 300.0, 310.0, 310.0])
    monkeypatch.setattr(sweeps.time, "monotonic", lambda: next(clock))

    def train(config, **_):
        if config == {"run": "2"}:
            raise ValueError("it diverged")
        return Run(tmp_path)

    monkeypatch.setattr(sweeps.training, "train", train)
    monkeypatch.setattr(sweeps, "read", lambda words: {"run": words[0]})
    work = sweeps._Work(4, progress.TERMINAL)  # noqa: SLF001 - without training anything
    list(work.train_each([PlannedRun("a", f"run {n}", tmp_path / str(n), [str(n)], []) for n in range(4)]))
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("run ")]
    assert said == [
        "run 1 of 4: run 0",
        "run 2 of 4: run 1, about 05:00 left",
        "run 3 of 4: run 2, about 05:00 left",  # two of 150 seconds
        "run 4 of 4: run 3, about 02:30 left",
    ]
