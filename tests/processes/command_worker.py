"""A run of the command, or of a worker, in a process of its own: one of several, or killed at a moment it chooses."""

import multiprocessing
import os
import resource
import runpy
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

MODULES = ["likewise.workflows.training", "likewise.configuration", "lightning", "sklearn.linear_model"]
MODULES += ["sklearn.manifold", "plotly.graph_objects"]
MODULES += ["torch.nn.parallel.distributed", "likewise.losses", "likewise.memory"]  # what workers take


def start(arguments, folder, kill=None, said=(), **environment):
    """Start `likewise` in a folder, in a process that has imported everything already; said is where its words go."""
    return _forked(run, arguments, str(folder), kill, list(map(str, said)), environment)


def start_together(arguments, folder, processes, kills=(), *, said=False, each=(), folders=None):
    """Start `likewise` as several processes of one training, and return them.

    arguments is one list, or one for each process; kills tells by rank where a process dies; said, whether what rank 1
    prints goes to `1.out` and `1.err` in the folder; each has more variables for each; folders are where each runs.
    """
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "test"}
    common |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    started = []
    for rank in range(processes):
        place = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | (each[rank] if each else {})
        place = {name: value for name, value in place.items() if value is not None}
        words = arguments[rank] if isinstance(arguments[0], list) else arguments
        files = [Path(folder) / f"{rank}.{stream}" for stream in ("out", "err")] if said else ()
        where = folders[rank] if folders else folder
        started.append(start(words, where, dict(kills).get(rank), files, **({} if processes == 1 else place)))
    return started


def killed_and_resumed(words, folder, *moments):
    """Run `likewise train` in a folder, which dies at each of some moments and is resumed; return the run's folder."""
    for moment in moments:
        assert end_of(start(["train", *words], folder, moment)) == -signal.SIGKILL, moment
        (left,) = (folder / "runs").iterdir()
        assert left.suffix == ".partial"
        words = ["--resume", str(left)]
    assert end_of(start(["train", *words], folder)) == 0
    (left,) = (folder / "runs").iterdir()
    assert left.suffix != ".partial"
    return left


def free_port():
    """Return a port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _forked(target, *arguments):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def workers(script, *commands, folder):
    """Run a script of the tests once with each list of arguments, all at the same time, until every one has ended."""
    said = [Path(folder) / f".stderr-{number}" for number in range(len(commands))]
    words = [list(map(str, command)) for command in commands]
    processes = [_forked(_work, str(script), *given) for given in zip(words, map(str, said), strict=True)]
    for process, errors in zip(processes, said, strict=True):
        assert end_of(process) == 0, errors.read_text(encoding="utf-8")


def start_script(script, *arguments, errors, **environment):
    """Run a script in a process that has imported everything already; its errors go to a file."""
    return _forked(_work, str(script), list(map(str, arguments)), str(errors), environment)


def _work(script, arguments, errors, environment=None):
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.__stderr__.fileno())
    os.environ.update({"OMP_NUM_THREADS": "1", **(environment or {})})
    tempfile.tempdir = None  # which the environment may have changed
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell inherits "ignore"
    sys.path[:0] = [str(Path(script).parent), str(Path(script).parents[1])]
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


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
    """Run `likewise` in a folder; kill is where it dies, as ("batch", 5) or ("full", 9000)."""
    for stream, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell inherits "ignore"
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ.update({"OMP_NUM_THREADS": "1", **environment})
    if kill is not None:
        ways = {"batch": _at_batch, "loss": _at_batch, "checkpoint": _at_checkpoint, "file": _at_file, "full": _full}
        ways[kill[0]](kill[1])
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


def _full(size):
    """Let the system refuse to write files beyond a size, in the middle of them, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _at_file(name):
    """Die when a file is written, and not yet under its name."""
    from likewise.runs import run  # noqa: PLC0415 - likewise

    fsync = run.fsync

    def patched(path):
        if path.name == f"{name}.new":
            end()
        fsync(path)

    run.fsync = patched
