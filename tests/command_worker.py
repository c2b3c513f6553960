"""A run of the command in a process of its own: one of several, or killed at a moment of its own choosing."""

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

MODULES = ["likewise.cli.training", "likewise.cli.options", "lightning", "sklearn.linear_model", "plotly.graph_objects"]


def start(arguments, folder, kill=None, said=(), **environment):
    """Start `likewise` in a folder, in a process that has imported everything already; said is where its words go."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    process = context.Process(target=run, args=(arguments, str(folder), kill, list(map(str, said)), environment))
    process.start()
    return process


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def command(*arguments, folder):
    """Run `likewise` in a folder until it ends, in a process that has imported everything already."""
    said = [Path(folder) / name for name in (".stdout", ".stderr")]
    status = end_of(start(arguments, folder, said=said))
    ended = Ended(status, *(path.read_text(encoding="utf-8") for path in said))
    for path in said:
        path.unlink()
    return ended


def end_of(process):
    """Wait for the exit status."""
    process.join(300)
    return process.exitcode


def run(arguments, folder, kill, said, environment):
    """Run `likewise` in a folder; kill is where it dies, as ("batch", 5) or ("file", "scores.csv")."""
    for stream, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ.update({"OMP_NUM_THREADS": "1", **environment})
    if kill is not None:
        {"batch": _at_batch, "loss": _at_batch, "checkpoint": _at_checkpoint, "file": _at_file}[kill[0]](kill[1])
    from likewise.cli import main  # noqa: PLC0415 - with Lightning, in the process that runs it alone

    raise SystemExit(main(arguments))


def end():
    os.kill(os.getpid(), signal.SIGKILL)


def _at_batch(number):
    """Die when a batch is over, before anything is noted or saved of it."""
    from likewise.training.checkpoints import Checkpoints  # noqa: PLC0415 - likewise

    after = Checkpoints.on_train_batch_end

    def patched(self, trainer, *of):
        if trainer.fit_loop.epoch_loop.total_batch_idx == number:
            end()
        after(self, trainer, *of)

    Checkpoints.on_train_batch_end = patched


def _at_checkpoint(number):
    """Die within the writing of the given checkpoint: half of the file is there."""
    from likewise import runs  # noqa: PLC0415 - likewise

    adopt, count = runs.Run.adopt_checkpoint, iter(range(1000))

    def patched(self, beside):
        if next(count) == number:
            with beside.open("r+b") as file:
                file.truncate(beside.stat().st_size // 2)
            end()
        adopt(self, beside)

    runs.Run.adopt_checkpoint = patched


def _at_file(name):
    """Die when a file is written, and not yet under its name."""
    from likewise import runs  # noqa: PLC0415 - likewise

    synced = runs.synced

    def patched(path):
        if path.name == f"{name}.new":
            end()
        synced(path)

    runs.synced = patched
