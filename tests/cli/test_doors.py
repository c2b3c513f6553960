"""The command around its verbs: what it prints before it does anything, to readers that have gone, and its memory."""

import os
import shlex
import subprocess
import sys

import pytest
import yaml

from likewise.cli import main


def test_a_sweep_prints_the_options_of_each_setting(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = ["--setting", "a: --loss SupConLoss", "--setting", "b: --loss NTXentLoss --lr 0.1"]
    assert main(["sweep", "--print-config", "--seeds", "4,", *settings]) == 0
    one, other = yaml.safe_load_all(capsys.readouterr().out)
    assert [of["loss"]["class_path"].rpartition(".")[2] for of in (one, other)] == ["SupConLoss", "NTXentLoss"]
    assert [of["optimizer"]["init_args"]["lr"] for of in (one, other)] == [0.002, 0.1]
    assert one["seed"] == 4
    assert not list(tmp_path.iterdir())


def test_an_option_that_a_verb_lacks_is_not_proposed_to_it(capsys):
    for verb in ("evaluate", "predict", "embed", "search", "export"):
        assert main([verb, "x", "--seed", "1"]) == 2
        assert "did you mean --seed" not in capsys.readouterr().err


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


@pytest.mark.slow
def test_a_training_that_nobody_reads_writes_its_report(digits, gone, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", gone)
    assert main(["train", *digits, "--evaluations", "KNN", "--runs", str(tmp_path)]) == 0
    assert next(tmp_path.iterdir()).joinpath("report.html").exists()


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({}, True), ({"LIKEWISE_KEEP_MEMORY": "0"}, False), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False)],
    ids=("as by default", "switched off", "set for glibc"),
)
def test_freed_memory_is_kept_unless_somebody_says_otherwise(settings, kept):
    if not sys.platform.startswith("linux") or "glibc" not in os.confstr("CS_GNU_LIBC_VERSION"):
        pytest.skip("another C library")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    told = subprocess.run(
        [sys.executable, "-c", "from likewise.cli import keep_memory; print(keep_memory())"],
        env=plain | settings, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert told.stdout.split() == [str(kept)]
