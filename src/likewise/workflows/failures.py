"""A run that fails or is stopped: removed if it did no work yet, else named in the error; and resuming it."""

import json
import re
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from likewise.runs import Run

_CLASS_PATH = re.compile(r'"likewise\.[\w.]*?(\w+)"')  # a class, in whichever module of likewise it was
LOGS = {"tensorboard", "wandb", "csv"}  # folders of the tools that log a training
CONFIGURATION = {"config.yaml", "run.json", "similarity.safetensors"}
BEGUN_FILES = {"scores.csv", "outcomes.npz", "best.ckpt"}  # written before the first step
IDLE_FILES = CONFIGURATION | LOGS | BEGUN_FILES


@contextmanager
def remove_if_idle(run: Run, note: Callable[[Path], str], *, new: bool = True) -> Generator[Run]:
    """Remove a new run that fails before it did any work; for any other, note in the exception where it is."""
    try:
        yield run
    except BaseException as error:
        if new and {path.name for path in run.folder.iterdir() if path.suffix != ".new"} <= IDLE_FILES:
            shutil.rmtree(run.folder, ignore_errors=True)
        else:
            error.add_note(note(run.folder))
        raise


def open_unfinished(folder: Path | str) -> Run:
    """Open a run to resume, or raise a ValueError: there is none, or it is finished."""
    run = Run.open(folder)
    if run.stage == "finished":
        remedy = f"train on from it with --encoder FromRun --encoder.run {run.folder}"
        raise ValueError(f"expected a run that is not finished, got {run.folder}: {remedy}")
    return run


def check_same(before: Run, now: Mapping[str, Any]) -> None:
    """Raise a ValueError unless data and parts, as `Assembled.metadata` has them, are those that a run began with."""
    texts = (json.dumps(facts) for facts in (now, before.metadata))
    facts, kept = (json.loads(_CLASS_PATH.sub(r'"likewise.\1"', text)) for text in texts)
    for known in (kept, facts):
        known["parts"].pop("data", None)  # it may have moved: it is recognised by its contents
    for what in ("samples", "parts"):
        if kept.get(what) != facts[what]:
            named = "data" if what == "samples" else "classes and arguments"
            remedy = f"restore them, or train anew with likewise train --config {before.configuration}"
            raise ValueError(f"expected the {named} that {before.folder} began with, got others: {remedy}")
