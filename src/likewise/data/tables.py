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
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, final

from likewise.data.parquet import Contents, read_in_place
from likewise.files import folders
from likewise.files.detection import SAVED, exists, expanded, may_be_on_the_hub, near
from likewise.files.formats import PART_NAMES, PARTS, SEPARATED, TABLES, as_class, as_text, image_suffixes
from likewise.pickled import pickled

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
    """The tables of a data set, by the names of its splits."""

    splits: Mapping[str, Any]
    folder: Path | None
    cache: TemporaryFolder | None
    contents: Contents | None = None
    """The images' bytes, where the tables have numbers in their place."""
    odd: Mapping[str, str] = field(default_factory=dict[str, str])
    """The names of files that are no text, which the tables have escaped."""


def open_tables(path: str, config: str | None, *, labelled: bool, local: bool, in_part: bool = False) -> Tables:
    """Open the data at a path, or the data set of that name on the Hub; in part, images may be of no class."""
    where = expanded(path)
    if exists(where) != local or not (local or may_be_on_the_hub(path)):
        kind = "file or a folder" if local else "name of a data set on the Hub, such as user/name"
        got = "which is here: choose --data Folder or Table" if exists(where) else "which does not exist"
        raise ValueError(
            f"expected a {kind}, got {path}, {got}{'' if exists(where) else f': check data.path{near(where)}'}"
        )
    with _quiet():
        import datasets  # noqa: PLC0415 - only sets that the library reads need it
        from datasets.exceptions import DatasetsError  # noqa: PLC0415

        try:
            if any((where / name).is_file() for name in SAVED):
                return Tables(_splits(datasets.load_from_disk(str(where))), where, None)
            if not where.exists():
                return Tables(_splits(datasets.load_dataset(path, config)), None, None)
            opened = _local(where, labelled=labelled, in_part=in_part)
            if isinstance(opened, Tables):
                return opened
            builder, options = opened
            folder = where if where.is_dir() else where.parent
            if builder == "parquet" and (placed := read_in_place(options["data_files"])):
                return Tables(placed[0], folder, None, placed[1])
            cache = TemporaryFolder()
            read = _read(builder, options, cache.path)
        except folders.RefusedError as error:
            raise ValueError(str(error)) from error
        except (OSError, ValueError, DatasetsError) as error:
            raise ValueError(_unreadable(path, where, error)) from error
        return Tables(read, folder, cache)


def _read(builder: str, options: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Read the parts: those of tables on their own, since numbers may be whole in one and have fractions in another."""
    import datasets  # noqa: PLC0415 - only sets that the library reads need it

    if builder == "imagefolder":
        return _splits(datasets.load_dataset(builder, cache_dir=folder, **options))
    others = {name: value for name, value in options.items() if name != "data_files"}
    read: dict[str, Any] = {}
    for part, files in options["data_files"].items():
        try:
            named = {part: [glob.escape(file) for file in files]}
            read |= datasets.load_dataset(builder, data_files=named, cache_dir=folder, **others)
        except ValueError as error:
            if NO_DATA not in str(error):
                raise
            raise folders.empty(part, files[0]) from error
    return read


def _local(where: Path, *, labelled: bool, in_part: bool) -> Tables | tuple[str, dict[str, Any]]:
    """Choose the builder of a file or a folder, and its options; or open a folder of images."""
    if where.is_file():
        if where.suffix.lower() not in TABLES:
            told = pickled(where) or "which is none: convert it"
            raise folders.RefusedError(f"expected one of {', '.join(TABLES)} or a folder, got {where}, {told}")
        if where.stat().st_size == 0:
            raise folders.empty("train", where)
        return TABLES[where.suffix.lower()], {"data_files": {"train": [str(where)]}, **_format(where)}
    files, lost = folders.files_in(where)
    suffixes = image_suffixes()
    images = [file for file in files if file.suffix.lower() in suffixes]
    tables = [file for file in files if file.suffix.lower() in TABLES]
    if images and any(file.name in _METADATA for file in tables):
        patterns: dict[str, list[str]] = {}
        for top, part in (folders.parts_of(images) or {"": "train"}).items():
            patterns.setdefault(part, []).append(f"{glob.escape(str(where / top))}/**")
        return "imagefolder", {"data_files": patterns, "drop_labels": True}
    if images or not tables:
        lost |= folders.first_to_do(file for file in files if file.suffix.lower() not in suffixes)
    builders = {TABLES[file.suffix.lower()] for file in tables}
    if not images and len(builders) != 1:
        got = ", ".join(sorted({file.suffix for file in tables or files})) or "an empty folder"
        got = got if tables or not lost else f"only {'; '.join(folders.in_words(lost, where))}"
        remedy = "keep only one kind in the folder" if tables else "mend these" if lost else "check data.path"
        kinds = ", ".join(TABLES)
        raise folders.RefusedError(f"expected images, or tables of one kind ({kinds}), in {where}, got {got}: {remedy}")
    folders.warn_of(lost, where)
    if images:
        read = _image_tables(where, images, lost, labelled=labelled, in_part=in_part)
        odd = {as_text(name): name for name in map(str, images) if as_text(name) != name}
        return Tables(read, where.absolute(), None, odd=odd)
    return builders.pop(), {"data_files": _table_parts(where, tables), **_format(tables[0])}


def _image_tables(
    where: Path, images: Sequence[Path], lost: folders.Lost, *, labelled: bool, in_part: bool
) -> dict[str, Any]:
    """Return a table of each part: the paths of its images, and their classes."""
    import datasets  # noqa: PLC0415 - only sets that the library reads need it

    beside = in_part and labelled
    parts = folders.parts_of([image for image in images if not (beside and folders.is_blank(image, 0))])
    depth = 1 if parts else 0
    blank = {image for image in images if beside and folders.is_blank(image, depth)}
    within: dict[str, list[Path]] = {}
    for image in images:
        unknown = "train" if image in blank else ""
        within.setdefault(parts.get(image.parts[0], unknown) if parts else "train", []).append(image)
    if outside := within.pop("", []):
        folders.warn_of({("image", f"outside of {' and '.join(parts)}"): list(map(str, outside))}, where)
    for top in sorted({Path(place).parts[0] for places in lost.values() for place in places}) if parts else ():
        part = PART_NAMES.get(top.lower())
        if part is not None and PARTS[part] not in within:
            raise folders.empty(PARTS[part], where / top)
    features: dict[str, Any] = {"image": datasets.Image()}
    columns: dict[str, dict[str, Any]] = {
        part: {"image": [as_text(str(image)) for image in own]} for part, own in within.items()
    }
    if labelled:
        own_class = [image for image in chain(*within.values()) if image not in blank]
        if not own_class:
            raise folders.RefusedError(
                f"expected images of classes in {where}, got {len(blank):,} in {folders.called(blank)}, none of a "
                "class: add a folder of each class, or set data.label to none"
            )
        features["label"] = datasets.ClassLabel(names=folders.classes_of(where, own_class, depth))
        for part, own in within.items():
            columns[part]["label"] = [None if image in blank else as_class(image.parts[depth]) for image in own]
        folders.warn_of_blank(blank, where)
    kinds = datasets.Features(features)
    return {part: datasets.Dataset.from_dict(table, features=kinds) for part, table in columns.items()}


def _format(table: Path) -> dict[str, Any]:
    """Return the options of a kind of table; those with separators are read in one go, which tells a column's kind."""
    separator = SEPARATED.get(table.suffix.lower())
    if separator is None:
        return _piece_by_piece() if TABLES[table.suffix.lower()] == "parquet" else {}
    return {"sep": separator, "chunksize": None}


def _piece_by_piece() -> dict[str, Any]:
    """Return the option by which a Parquet file isn't read ahead as a whole, where the library has it."""
    from datasets.packaged_modules.parquet.parquet import ParquetConfig  # noqa: PLC0415 - comes with it
    from pyarrow.dataset import ParquetFragmentScanOptions  # noqa: PLC0415 - likewise

    scan = ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
    return {"fragment_scan_options": scan} if hasattr(ParquetConfig, "fragment_scan_options") else {}


def _table_parts(where: Path, tables: Sequence[Path]) -> dict[str, list[str]]:
    """Return each part's tables, found by a word in their paths."""
    files: dict[str | None, list[str]] = {}
    for table in tables:
        words = [PART_NAMES[word] for word in re.split("[^a-z]+", str(table).lower()) if word in PART_NAMES]
        part = PARTS[words[-1]] if words else None
        if (where / table).stat().st_size == 0:
            raise folders.empty(part or "train", where / table)
        files.setdefault(part, []).append(str(where / table))
    if set(files) == {None}:
        return {"train": files[None]}
    if None in files or "train" not in files:
        odd = files.get(None, next(iter(files.values())))[0]
        raise folders.RefusedError(
            f"expected tables named after their parts, train and test, in {where}, got {Path(odd).name}: rename it, "
            "or give one file as data.path"
        )
    return {part: files[part] for part in PARTS if part in files}


def _splits(read: Any) -> dict[str, Any]:
    return dict(read) if isinstance(read, dict) else {"train": read}


def _unreadable(path: str, where: Path, error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    what = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if where.exists():
        remedy = "rename what is not in UTF-8" if isinstance(error, UnicodeEncodeError) else "repair the file"
        return f"expected data that the datasets library can read, got {path}: {what.rstrip('.')}: {remedy}"
    similar = near(where)
    remedy = f"check data.path and data.config, or your connection{similar if similar.endswith('?') else ''}"
    return f"expected a data set on the Hub, got {path}: {what.rstrip('.')}: {remedy}"


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
