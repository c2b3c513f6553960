"""Tables of the `datasets` library, opened from a path without output and without a file."""

import os
import re
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from likewise.files import folders
from likewise.files.detection import SAVED_FILES, exists, expanded, may_be_on_the_hub, near
from likewise.files.formats import PART_NAMES, PARTS, TABLES, as_class, as_text, image_suffixes
from likewise.files.pickles import describe_pickle

if TYPE_CHECKING:
    from likewise.data.parquet import Contents

_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


@final
@dataclass(frozen=True)
class Tables:
    """The tables of a data set, by the names of its splits."""

    splits: Mapping[str, Any]
    folder: Path | None
    contents: "Contents | None" = None  # the images' bytes, where the tables have numbers in their place
    odd: Mapping[str, str] = field(default_factory=dict[str, str])  # names of files, which the tables have escaped
    untyped: frozenset[str] = frozenset()  # columns of strings that may be meant as numbers: the file doesn't say


def open_tables(
    path: str, config: str | None, *, labelled: bool, local: bool, in_part: bool = False, encoding: str | None = None
) -> Tables:
    """Open the data at a path, or the data set of that name on the Hub; in part, images may be of no class."""
    where = expanded(path)
    if exists(where) != local or not (local or may_be_on_the_hub(path)):
        path_kind = "file or a folder" if local else "name of a data set on the Hub, such as user/name"
        got = "which is here: choose --data Folder or Table" if exists(where) else "which does not exist"
        remedy = "" if exists(where) else f": check data.path{near(where)}"
        raise ValueError(f"expected a {path_kind}, got {path}, {got}{remedy}")
    try:
        saved = any((where / name).is_file() for name in SAVED_FILES)
        if saved or not where.exists():
            with library(path, where) as datasets:
                read = datasets.load_from_disk(str(where)) if saved else datasets.load_dataset(path, config)
            return Tables(dict(read) if isinstance(read, dict) else {"train": read}, where if saved else None)
        parts = _local(where, encoding, labelled=labelled, in_part=in_part)
        if isinstance(parts, Tables):
            return parts
        if lacking := next(((part, files[0]) for part, files in parts.items() if files[0].stat().st_size == 0), None):
            raise folders.empty(*lacking)
        folder = where if where.is_dir() else where.parent
        if TABLES[parts["train"][0].suffix.lower()] != "parquet":
            from likewise.data import written  # noqa: PLC0415 - paths are checked before the extra

            read, texts = written.read(parts, encoding)
            return Tables(read, folder, untyped=texts)
        with library(path, where):
            from likewise.data import parquet  # noqa: PLC0415 - as above

            if placed := parquet.read_in_place(parts):
                return Tables(placed[0], folder, placed[1])
            return Tables({part: parquet.open_columns(part, files) for part, files in parts.items()}, folder)
    except OSError as error:
        raise ValueError(_unreadable(path, where, error)) from error


def _local(where: Path, encoding: str | None, *, labelled: bool, in_part: bool) -> Tables | dict[str, list[Path]]:
    if where.is_file():
        if where.suffix.lower() not in TABLES:
            problem = describe_pickle(where) or "which is none: convert it"
            raise folders.RefusedError(f"expected one of {', '.join(TABLES)} or a folder, got {where}, {problem}")
        return {"train": [where]}
    files, lost = folders.files_in(where)
    suffixes = image_suffixes()
    images = [file for file in files if file.suffix.lower() in suffixes]
    tables = [file for file in files if file.suffix.lower() in TABLES]
    if images and (beside := [file for file in tables if file.name in _METADATA]):
        return _read_metadata(where, beside, encoding, folders.parts_of(images), images)
    if images or not tables:
        lost |= folders.first_to_do(file for file in files if file.suffix.lower() not in suffixes)
    kinds = {TABLES[file.suffix.lower()] for file in tables}
    if not images and len(kinds) != 1:
        got = ", ".join(sorted({file.suffix for file in tables or files})) or "an empty folder"
        got = got if tables or not lost else f"only {'; '.join(folders.in_words(lost, where))}"
        remedy = "keep only one kind in the folder" if tables else "mend these" if lost else "check data.path"
        known = ", ".join(TABLES)
        raise folders.RefusedError(f"expected images, or tables of one kind ({known}), in {where}, got {got}: {remedy}")
    folders.warn_of(lost, where)
    if images:
        read = _image_tables(where, images, lost, labelled=labelled, in_part=in_part)
        odd = {as_text(name): name for name in map(str, images) if as_text(name) != name}
        return Tables(read, where.absolute(), odd=odd)
    return _table_parts(where, tables)


def _image_tables(
    where: Path, images: Sequence[Path], lost: folders.Lost, *, labelled: bool, in_part: bool
) -> dict[str, Any]:
    import datasets  # noqa: PLC0415 - only sets that the library reads need it

    beside = in_part and labelled
    parts = folders.parts_of([image for image in images if not (beside and folders.is_unlabelled_dir(image, 0))])
    depth = 1 if parts else 0
    blank = {image for image in images if beside and folders.is_unlabelled_dir(image, depth)}
    within: dict[str, list[Path]] = {}
    for image in images:
        unknown = "train" if image in blank else ""
        within.setdefault(parts.get(image.parts[0], unknown) if parts else "train", []).append(image)
    if outside := within.pop("", []):
        folders.warn_of({("image", f"outside of {' and '.join(parts)}"): list(map(str, outside))}, where)
    for top in sorted({Path(path).parts[0] for places in lost.values() for path in places}) if parts else ():
        part = PART_NAMES.get(top.lower())
        if part is not None and PARTS[part] not in within:
            raise folders.empty(PARTS[part], where / top)
    features: dict[str, Any] = {"image": datasets.Image()}
    columns: dict[str, dict[str, Any]] = {
        part: {"image": [as_text(str(image)) for image in paths]} for part, paths in within.items()
    }
    if labelled:
        own_class = [image for image in chain(*within.values()) if image not in blank]
        if not own_class:
            got = f"{len(blank):,} in {folders.unlabelled_folder(blank)}, none of a class: set data.label to none"
            raise folders.RefusedError(f"expected images of classes in {where}, got {got}")
        features["label"] = datasets.ClassLabel(names=folders.classes_of(where, own_class, depth))
        for part, paths in within.items():
            columns[part]["label"] = [None if image in blank else as_class(image.parts[depth]) for image in paths]
        folders.warn_of_blank(blank, where)
    kinds = datasets.Features(features)
    return {part: datasets.Dataset.from_dict(table, features=kinds) for part, table in columns.items()}


def _read_metadata(
    where: Path, files: Sequence[Path], encoding: str | None, parts: Mapping[str, str], images: Iterable[Path]
) -> Tables:
    import datasets  # noqa: PLC0415 - only sets that the library reads need it
    import pyarrow as pa  # noqa: PLC0415 - comes with it
    from pyarrow import parquet  # noqa: PLC0415 - likewise

    from likewise.data import written  # noqa: PLC0415 - which needs it too

    of_text = [file for file in files if TABLES[file.suffix.lower()] != "parquet"]
    read, texts = written.read({str(file): [where / file] for file in of_text}, encoding)
    grouped, named = dict[str, list[Any]](), set[str]()
    for file in files:
        table = read[str(file)].with_format("arrow")[:] if file in of_text else parquet.read_table(where / file)
        columns = dict[str, Any]()
        for name in table.column_names:
            match = re.fullmatch("(?:(.+)_)?file_name(s?)", name)
            if match is None:
                columns[name] = table.column(name)
                continue
            places = [_placed(cell, file.parent, named) for cell in table.column(name).to_pylist()]
            columns[match[1] or f"image{match[2]}"] = pa.array(places)
        grouped.setdefault(parts.get(file.parts[0], "train"), []).append(pa.table(columns))
    without = [str(image) for image in images if str(image) not in named]
    folders.warn_of({("image", f"that {files[0].name} does not name"): without} if without else {}, where)
    joined = {part: pa.concat_tables(each, promote_options="permissive") for part, each in grouped.items()}
    splits = {part: datasets.Dataset(table, fingerprint=part) for part, table in joined.items()}
    return Tables(splits, where.absolute(), untyped=texts)


def _placed(name: Any, folder: Path, named: set[str]) -> Any:
    if not isinstance(name, str):
        return [_placed(file_name, folder, named) for file_name in name] if isinstance(name, list) else name
    named.add(path := os.path.normpath(folder / name))
    return path


def _table_parts(where: Path, tables: Sequence[Path]) -> dict[str, list[Path]]:
    files: dict[str | None, list[Path]] = {}
    for table in tables:
        part_numbers = [PART_NAMES[word] for word in re.split("[^a-z]+", str(table).lower()) if word in PART_NAMES]
        part = PARTS[part_numbers[-1]] if part_numbers else None
        files.setdefault(part, []).append(where / table)
    if set(files) == {None}:
        return {"train": files[None]}
    if None in files or "train" not in files:
        odd = files.get(None, next(iter(files.values())))[0]
        got = f"{odd.name}: rename it, or give one file as data.path"
        raise folders.RefusedError(f"expected tables named after their parts, train and test, in {where}, got {got}")
    return {part: files[part] for part in PARTS if part in files}


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
def library(path: str, where: Path) -> Generator[Any]:
    """Give the library, silent meanwhile, and say in a line why it refuses what is at a path."""
    import datasets  # noqa: PLC0415 - only sets that the library reads need it
    from datasets import logging, utils  # noqa: PLC0415 - likewise
    from datasets.exceptions import DatasetsError  # noqa: PLC0415 - likewise

    verbosity, silent = logging.get_verbosity(), utils.are_progress_bars_disabled()
    logging.set_verbosity(logging.CRITICAL)
    if not silent:
        with warnings.catch_warnings(action="ignore"):  # an environment variable can force progress bars on
            utils.disable_progress_bars()
    try:
        yield datasets
    except folders.RefusedError:
        raise
    except (OSError, ValueError, DatasetsError) as error:
        raise ValueError(_unreadable(path, where, error)) from error
    finally:
        logging.set_verbosity(verbosity)
        if not silent:
            with warnings.catch_warnings(action="ignore"):
                utils.enable_progress_bars()
