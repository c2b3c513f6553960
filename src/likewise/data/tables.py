"""Tables of the `datasets` library, opened from a path without output and without files left in the user's folder."""

import glob
import os
import re
import shutil
import socket
import tempfile
import warnings
import weakref
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from likewise.data.image_files import image_suffixes
from likewise.data.samples import PART_NAMES, PARTS
from likewise.pickled import pickled

_BUILDERS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
LOCK = f"lock-{socket.gethostname()}"  # processes of one machine see each other's locks
NO_DATA = "corresponds to no data"  # what the library says of a table without rows
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


@final
class TemporaryFolder:
    """A temporary folder, removed when the process that made it no longer references it.

    A process that is killed leaves its folder; the next one on the machine removes it, since nobody holds its lock.
    """

    def __init__(self) -> None:
        for left in Path(tempfile.gettempdir()).glob("likewise-*"):
            _remove_left(left)
        self.path = tempfile.mkdtemp(prefix="likewise-")
        weakref.finalize(self, _remove, self.path, os.getpid(), _locked(Path(self.path)))


@final
@dataclass(frozen=True)
class Tables:
    """The tables of a data set, by the names of its splits.

    Args:
        splits: Each split's table.
        folder: What paths in a column are relative to; None if there is no such folder.
        cache: The folder that must exist while the tables are read.
    """

    splits: Mapping[str, Any]
    folder: Path | None
    cache: TemporaryFolder | None


def open_tables(path: str, config: str | None, *, labelled: bool) -> Tables:
    """Open the data at a path, or the data set of that name on the Hub.

    Args:
        path: A file, a folder, or a name.
        config: The configuration, for a data set on the Hub with several.
        labelled: Whether the folders of images are classes.

    Raises:
        ValueError: The path does not exist, or what is there cannot be read.
    """
    where = Path(path).expanduser()
    if not where.exists() and (where.suffix in _BUILDERS or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", path)):
        raise ValueError(
            f"expected a file, a folder or a data set on the Hub, got {path}, which does not exist: check data.path"
        )
    with _quiet():
        import datasets  # noqa: PLC0415 - only sets that the library reads need it
        from datasets.exceptions import DatasetsError  # noqa: PLC0415

        try:
            if (where / "dataset_dict.json").is_file() or (where / "state.json").is_file():
                return Tables(_splits(datasets.load_from_disk(str(where))), where, None)
            if not where.exists():
                return Tables(_splits(datasets.load_dataset(path, config)), None, None)
            builder, options = _local(where, labelled=labelled)
            cache = TemporaryFolder()
            read = _read(builder, options, cache.path)
        except _RefusedError as error:
            raise ValueError(str(error)) from error
        except (OSError, ValueError, DatasetsError) as error:
            raise ValueError(_unreadable(path, where, error)) from error
        return Tables(read, where if where.is_dir() else where.parent, cache)


def _read(builder: str, options: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Read the parts: those of tables on their own, since numbers may be whole in one and have fractions in another."""
    import datasets  # noqa: PLC0415 - only sets that the library reads need it

    if builder == "imagefolder":
        return _splits(datasets.load_dataset(builder, cache_dir=folder, **options))
    others = {name: value for name, value in options.items() if name != "data_files"}
    read: dict[str, Any] = {}
    for part, files in options["data_files"].items():
        try:
            read |= datasets.load_dataset(builder, data_files={part: files}, cache_dir=folder, **others)
        except ValueError as error:
            if NO_DATA not in str(error):
                raise
            raise _empty(part, files[0]) from error
    return read


class _RefusedError(ValueError):
    """A folder is refused; the message is complete."""


def _empty(part: str, file: str | Path) -> _RefusedError:
    return _RefusedError(f"expected samples in the {part} part, got none in {file}: fill it, or remove it")


def _local(where: Path, *, labelled: bool) -> tuple[str, dict[str, Any]]:
    """Choose the builder of a file or a folder, and its options."""
    if where.is_file():
        if where.suffix.lower() not in _BUILDERS:
            told = pickled(where) or "which is none: convert it"
            raise _RefusedError(f"expected one of {', '.join(_BUILDERS)} or a folder, got {where}, {told}")
        return _builder(where.suffix), {"data_files": {"train": [glob.escape(str(where))]}, **_format(where.suffix)}
    files = sorted(
        file.relative_to(where) for file in where.rglob("*") if file.is_file() and not file.name.startswith(".")
    )
    suffixes = image_suffixes()
    images = [file for file in files if file.suffix.lower() in suffixes]
    if images:
        described = any(file.name in _METADATA for file in files)
        return "imagefolder", {
            "data_files": _image_parts(where, images, labelled=labelled and not described),
            "drop_labels": not labelled or described,
        }
    tables = [file for file in files if file.suffix.lower() in _BUILDERS]
    builders = {_builder(file.suffix) for file in tables}
    if len(builders) != 1:
        got = ", ".join(sorted({file.suffix for file in tables or files})) or "an empty folder"
        raise _RefusedError(
            f"expected images, or tables of one kind ({', '.join(_BUILDERS)}), in {where}, got {got}: "
            "keep only one kind in the folder"
        )
    return builders.pop(), {"data_files": _table_parts(where, tables), **_format(tables[0].suffix)}


def _builder(suffix: str) -> str:
    return _BUILDERS[suffix.lower()]


def _format(suffix: str) -> dict[str, Any]:
    """Return the options of a kind of table; those with separators are read in one go, which tells a column's kind."""
    if _builder(suffix) != "csv":
        return {}
    return {"sep": "\t" if suffix.lower() == ".tsv" else ",", "chunksize": None}


def _image_parts(where: Path, images: Sequence[Path], *, labelled: bool) -> dict[str, list[str]]:
    """Return glob patterns of each part's images: its folder, or everything if parts have no folders."""
    tops = {file.parts[0] for file in images if len(file.parts) > 1}
    parted = {PART_NAMES.get(top.lower()) for top in tops} >= {0} and all(top.lower() in PART_NAMES for top in tops)
    # class folders may be named train and test too; then they hold images and have others next to them
    depth = 2 if parted else 1
    classes = {file.parts[-2] for file in images if len(file.parts) > depth}
    if labelled and len(classes) < 2:
        got = f"1 ({classes.pop()!r})" if classes else "none"
        raise _RefusedError(
            f"expected at least 2 folders of images in {where}{' in each part' if parted else ''}, one per class, "
            f"got {got}: add another, or set data.label to none"
        )
    patterns: dict[str, list[str]] = {}
    for top in sorted(tops) if parted else [""]:
        part = _part(PART_NAMES[top.lower()]) if parted else "train"
        patterns.setdefault(part, []).append(f"{glob.escape(str(where / top))}/**")
    return patterns


def _table_parts(where: Path, tables: Sequence[Path]) -> dict[str, list[str]]:
    """Return each part's tables, found by a word in their paths."""
    files: dict[str | None, list[str]] = {}
    for table in tables:
        words = [PART_NAMES[word] for word in re.split("[^a-z]+", str(table).lower()) if word in PART_NAMES]
        part = _part(words[-1]) if words else None
        if (where / table).stat().st_size == 0:
            raise _empty(part or "train", where / table)
        files.setdefault(part, []).append(glob.escape(str(where / table)))
    if set(files) == {None}:
        return {"train": files[None]}
    if None in files or "train" not in files:
        odd = files.get(None, next(iter(files.values())))[0]
        raise _RefusedError(
            f"expected tables named after their parts, train and test, in {where}, got {Path(odd).name}: rename it, "
            "or give one file as data.path"
        )
    return {part: files[part] for part in PARTS if part in files}


def _part(number: int) -> str:
    return PARTS[number]


def _splits(read: Any) -> dict[str, Any]:
    return dict(read) if isinstance(read, dict) else {"train": read}


def _unreadable(path: str, where: Path, error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    what = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if where.exists():
        return f"expected data that the datasets library can read, got {path}: {what.rstrip('.')}: repair the file"
    remedy = "check data.path and data.config, or your connection"
    return f"expected a file, a folder or a data set on the Hub, got {path}: {what.rstrip('.')}: {remedy}"


@contextmanager
def _quiet() -> Generator[None]:
    """Silence the library, and restore its settings afterwards."""
    from datasets import logging, utils  # noqa: PLC0415 - only sets that the library reads need it

    verbosity, silent = logging.get_verbosity(), utils.are_progress_bars_disabled()
    logging.set_verbosity(logging.CRITICAL)
    if not silent:
        with warnings.catch_warnings(action="ignore"):  # an environment variable can force progress bars on
            utils.disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if not silent:
            with warnings.catch_warnings(action="ignore"):
                utils.enable_progress_bars()


def _remove(path: str, process: int, lock: int | None) -> None:
    """Remove a folder, but not when a forked worker exits."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """Lock a folder for this process and those it forks, and return the open file; None where there are no locks."""
    with suppress(ImportError, OSError):
        import fcntl  # noqa: PLC0415 - not on Windows

        new = folder / f"{LOCK}.new"
        file = os.open(new, os.O_RDWR | os.O_CREAT)
        fcntl.flock(file, fcntl.LOCK_EX)
        new.rename(folder / LOCK)  # nobody sees it before it is locked
        return file
    return None


def _remove_left(folder: Path) -> None:
    """Remove a folder whose process has ended."""
    with suppress(ImportError, OSError):
        import fcntl  # noqa: PLC0415 - not on Windows

        file = os.open(folder / LOCK, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(file)
