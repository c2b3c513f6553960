"""A run that fails or is ended: removed if it did no work yet, else said where it stands; and resumed."""

import json
import re
import shutil
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from likewise.runs import Run

_IN_ROOM = re.compile(r'"likewise\.[\w.]*?(\w+)"')  # a class, wherever its version of likewise kept it
LOGS = {"tensorboard", "wandb", "csv"}  # folders of the tools that log a training
# what stands there before any work is done
CONFIGURATION = {"config.yaml", "run.json", "similarity.safetensors", *LOGS}


@contextmanager
def removed_if_idle(run: Run, told: Callable[[Path], str], *, new: bool = True) -> Generator[Run]:
    """Remove a run that fails before it did any work, and say of any other where it stands.

    Args:
        run: The run that the block does.
        told: What to add to an exception, of the folder that stays.
        new: Whether nobody else has done any work for it.

    Yields:
        The run.

    Example:
        >>> import tempfile
        >>> root = tempfile.TemporaryDirectory()
        >>> try:
        ...     with removed_if_idle(Run.create(Path(root.name), "idle"), str) as run:
        ...         raise RuntimeError
        ... except RuntimeError:
        ...     run.folder.exists()
        False
        >>> root.cleanup()
    """
    try:
        yield run
    except BaseException as error:
        if new and {path.name for path in run.folder.iterdir() if path.suffix != ".new"} <= CONFIGURATION:
            shutil.rmtree(run.folder, ignore_errors=True)
        else:
            error.add_note(told(run.folder))
        raise


def unfinished(folder: Path | str) -> Run:
    """Open a run to resume.

    Raises:
        ValueError: There is no such run, or it is finished.
    """
    run = Run.open(folder)
    if run.stage == "finished":
        raise ValueError(
            f"expected a run that is not finished, got {run.folder}: train on from it with "
            f"--encoder FromRun --encoder.run {run.folder}"
        )
    return run


def check_same(before: Run, now: Mapping[str, Any]) -> None:
    """Raise unless data and parts are those that a run began with.

    Args:
        before: The run.
        now: What `Assembled.facts` says of the data and parts that it would go on with.

    Raises:
        ValueError: They differ.
    """
    facts, kept = (json.loads(_IN_ROOM.sub(r'"likewise.\1"', json.dumps(one))) for one in (now, before.facts))
    for known in (kept, facts):
        known["parts"].pop("data", None)  # wherever it lies now, it is recognised by what it holds
    for what in ("samples", "parts"):
        if kept.get(what) != facts[what]:
            raise ValueError(
                f"expected the {'data' if what == 'samples' else 'classes and arguments'} that {before.folder} began "
                f"with, got others: restore them, or train anew with likewise train --config {before.configuration}"
            )


@contextmanager
def terminable(end: Callable[[], None]) -> Generator[None]:
    """Answer SIGTERM, where signals may be handled: in the main thread.

    Args:
        end: Ends the block, at once by raising, or later.
    """
    try:
        before = signal.signal(signal.SIGTERM, lambda *_: end())
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
