"""A run that fails: removed if it did no work yet, else said how to resume."""

import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from likewise.runs import Run

LOGS = {"tensorboard", "wandb", "csv"}  # folders of the tools that log a training
# what stands there before any work is done
CONFIGURATION = {"config.yaml", "run.json", "similarity.safetensors", *LOGS}


@contextmanager
def cared_for(run: Run, told: Callable[[Path], str], *, new: bool = True) -> Generator[Run]:
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
        ...     with cared_for(Run.create(Path(root.name), "idle"), str) as run:
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
