"""A run's folder: under a provisional name until the run is whole."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import final

PARTIAL = ".partial"
CONFIGURATION = {"config.yaml", "hparams.yaml"}  # what stands there before any work is done


@final
@dataclass(frozen=True)
class RunFolder:
    """Where a run writes, and what the folder is called once the run is whole.

    Args:
        partial: The folder to write into.
        whole: Its name after the run.
    """

    partial: Path
    whole: Path


@contextmanager
def run_folder(root: Path, *names: str) -> Generator[RunFolder]:
    """Make `<root>/<date>-<names>.partial`, and take the `.partial` away when the block ends without an exception.

    A block that fails leaves the folder under its provisional name if it holds more than a configuration, and adds a
    note of where to the exception; else it leaves nothing. An existing folder is never written into: a run of the same
    second and names gets a number.

    Args:
        root: Where runs stand; made if missing.
        *names: What the run is, joined by hyphens.

    Yields:
        The folder's two names.

    Raises:
        ValueError: The root cannot be written.

    Example:
        >>> import tempfile
        >>> root = tempfile.TemporaryDirectory()
        >>> with run_folder(Path(root.name), "SupConLoss", "Digits") as folder:
        ...     _ = (folder.partial / "note.txt").write_text("whole")
        >>> folder.whole.joinpath("note.txt").read_text(), folder.partial.exists()
        ('whole', False)
        >>> root.cleanup()
    """
    folder = _make(root, "-".join([datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S"), *names]))
    try:
        yield folder
    except BaseException as error:
        if {path.name for path in folder.partial.iterdir()} <= CONFIGURATION:
            shutil.rmtree(folder.partial, ignore_errors=True)
        else:
            error.add_note(f"what the run had written is left in {folder.partial}")
        raise
    folder.partial.rename(folder.whole)


def _make(root: Path, name: str) -> RunFolder:
    for number in count(1):
        whole = root / (name if number == 1 else f"{name}-{number}")
        folder = RunFolder(whole.with_name(whole.name + PARTIAL), whole)
        try:
            folder.partial.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ValueError(f"expected a folder to write runs into, got {root}: {error.strerror}") from error
        if not whole.exists():
            return folder
        folder.partial.rmdir()
    raise AssertionError  # pragma: no cover - counting does not end
