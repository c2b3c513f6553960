"""Tables of the `datasets` library, opened from a path without output; folders of images are tables, too."""

import os
import re
import warnings
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from likewise.data.lazy_inputs import track
from likewise.files import detection, formats
from likewise.files.detection import Lost, exists, near, walk
from likewise.files.formats import PART_NAMES, PARTS, TABLES, as_class, as_text, first_of, image_suffixes

if TYPE_CHECKING:
    from likewise.data.table_files import Contents

_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_CONVERSIONS = {  # the conversion needed to read files of a suffix
    **dict.fromkeys(formats.UNREAD_SUFFIXES, "converted to JPEG or PNG"),
    **dict.fromkeys(formats.HEIC, "made readable by pip install 'likewise[heic]', or converted to JPEG or PNG"),
    ".zip": "unpacked",
}
_UNLABELLED = ("unlabelled", "unlabeled")  # names of a folder of images without a class


@final
@dataclass(frozen=True)
class Tables:
    """The tables of a data set, by the names of its splits."""

    splits: Mapping[str, Any]
    folder: Path | None
    contents: "Contents | None" = None  # the images' bytes, if the tables have numbers in their place
    odd: Mapping[str, str] = field(default_factory=dict[str, str])  # names of files that are escaped in the tables
    untyped: frozenset[str] = frozenset()  # string columns that may stand for numbers: the file has no types


class RefusedError(ValueError):
    """The refusal of a folder, with a complete message."""


def empty(part: str, file: str | Path) -> RefusedError:
    """Return the error for a part without samples."""
    return RefusedError(f"expected samples in the {part} part, got none in {file}: fill it, or remove it")


def open_tables(
    path: str, config: str | None, *, labelled: bool, local: bool, in_part: bool = False, encoding: str | None = None
) -> Tables:
    """Open the data at a path, or the data set of that name on the Hub; with `in_part`, images may have no class."""
    where = detection.expanded(path)
    if exists(where) != local or not (local or detection.may_be_on_the_hub(path)):
        path_kind = "file or a folder" if local else "name of a data set on the Hub, such as user/name"
        got = "which is here: choose --data Folder or Table" if exists(where) else "which does not exist"
        remedy = "" if exists(where) else f": check data.path{near(where)}"
        raise ValueError(f"expected a {path_kind}, got {path}, {got}{remedy}")
    try:
        saved = any((where / name).is_file() for name in detection.SAVED_FILES)
        if saved or not where.exists():
            with library(path, where) as datasets:
                read = datasets.load_from_disk(str(where)) if saved else datasets.load_dataset(path, config)
            return Tables(dict(read) if isinstance(read, dict) else {"train": read}, where if saved else None)
        parts = _local(where, encoding, labelled=labelled, in_part=in_part)
        if isinstance(parts, Tables):
            return parts
        if lacking := next(((part, files[0]) for part, files in parts.items() if files[0].stat().st_size == 0), None):
            raise empty(*lacking)
        from likewise.data import table_files  # noqa: PLC0415 - paths are checked before the extra

        folder = where if where.is_dir() else where.parent
        if TABLES[parts["train"][0].suffix.lower()] != "parquet":
            read, texts = table_files.read_written(parts, encoding)
            return Tables(read, folder, untyped=texts)
        with library(path, where):
            if placed := table_files.read_in_place(parts):
                return Tables(placed[0], folder, placed[1])
            return Tables({part: table_files.open_columns(part, files) for part, files in parts.items()}, folder)
    except OSError as error:
        raise ValueError(_unreadable(path, where, error)) from error


def _local(where: Path, encoding: str | None, *, labelled: bool, in_part: bool) -> Tables | dict[str, list[Path]]:
    if where.is_file():
        if where.suffix.lower() not in TABLES:
            problem = detection.describe_pickle(where) or "which is none: convert it"
            raise RefusedError(f"expected one of {', '.join(TABLES)} or a folder, got {where}, {problem}")
        return {"train": [where]}
    lost, suffixes = Lost(), image_suffixes()
    files = sorted(track(walk(where, lost), "listing files"), key=str)
    images = [file for file in files if file.suffix.lower() in suffixes]
    tables = [file for file in files if file.suffix.lower() in TABLES]
    if images and (beside := [file for file in tables if file.name in _METADATA]):
        from likewise.data.table_files import read_metadata  # noqa: PLC0415 - it needs the extra

        return read_metadata(where, beside, encoding, _parts_of(images), images)
    if images or not tables:
        for file in files:
            suffix = file.suffix.lower()
            if suffix not in suffixes and (to_do := _CONVERSIONS.get(suffix)):
                lost.setdefault(("file", f"that must be {to_do} first ({suffix})"), []).append(str(file))
    kinds = {TABLES[file.suffix.lower()] for file in tables}
    if not images and len(kinds) != 1:
        got = ", ".join(sorted({file.suffix for file in tables or files})) or "an empty folder"
        got = got if tables or not lost else f"only {'; '.join(_count_lost(lost, where))}"
        remedy = "keep only one kind in the folder" if tables else "mend these" if lost else "check data.path"
        known = ", ".join(TABLES)
        raise RefusedError(f"expected images, or tables of one kind ({known}), in {where}, got {got}: {remedy}")
    warn_of(lost, where)
    if images:
        read = _image_tables(where, images, lost, labelled=labelled, in_part=in_part)
        odd = {as_text(name): name for name in map(str, images) if as_text(name) != name}
        return Tables(read, where.absolute(), odd=odd)
    return _table_parts(where, tables)


def _count_lost(lost: Lost, where: Path) -> list[str]:
    """Count the omitted entries of a folder, and name the first of each kind."""
    return [
        f"{len(places):,} {what}{'s' * (len(places) > 1)} in {where} {why}: {first_of(sorted(places))}"
        for (what, why), places in lost.items()
    ]


def warn_of(lost: Lost, where: Path) -> None:
    """Warn of the omitted entries of a folder."""
    for summary in _count_lost(lost, where):
        warnings.warn(f"left out {summary}", stacklevel=2)


def _parts_of(images: Sequence[Path]) -> dict[str, str]:
    """Return the part of each folder, if all are parts and one is for training; otherwise nothing."""
    # class folders may be named train and test too; then other folders lie next to them
    tops = sorted({image.parts[0] for image in images if len(image.parts) > 1})
    parts: dict[str, str] = {top: PARTS[PART_NAMES[top.lower()]] for top in tops if top.lower() in PART_NAMES}
    return parts if len(parts) == len(tops) and "train" in parts.values() else {}


def _image_tables(where: Path, images: Sequence[Path], lost: Lost, *, labelled: bool, in_part: bool) -> dict[str, Any]:
    import datasets  # noqa: PLC0415 - only sets that the library reads need it

    beside = in_part and labelled
    parts = _parts_of([image for image in images if not (beside and _is_unlabelled_dir(image, 0))])
    depth = 1 if parts else 0
    blank = {image for image in images if beside and _is_unlabelled_dir(image, depth)}
    within: dict[str, list[Path]] = {}
    for image in images:
        unknown = "train" if image in blank else ""
        within.setdefault(parts.get(image.parts[0], unknown) if parts else "train", []).append(image)
    if outside := within.pop("", []):
        warn_of({("image", f"outside of {' and '.join(parts)}"): list(map(str, outside))}, where)
    for top in sorted({Path(path).parts[0] for places in lost.values() for path in places}) if parts else ():
        part = PART_NAMES.get(top.lower())
        if part is not None and PARTS[part] not in within:
            raise empty(PARTS[part], where / top)
    features: dict[str, Any] = {"image": datasets.Image()}
    columns: dict[str, dict[str, Any]] = {
        part: {"image": [as_text(str(image)) for image in paths]} for part, paths in within.items()
    }
    if labelled:
        own_class = [image for image in chain(*within.values()) if image not in blank]
        if not own_class:
            got = f"{len(blank):,} in {_unlabelled_folder(blank)}, none of a class: set data.label to none"
            raise RefusedError(f"expected images of classes in {where}, got {got}")
        features["label"] = datasets.ClassLabel(names=_classes_of(where, own_class, depth))
        for part, paths in within.items():
            columns[part]["label"] = [None if image in blank else as_class(image.parts[depth]) for image in paths]
        if blank:
            message = f"{len(blank):,} images in {_unlabelled_folder(blank)} of {where} are samples without a class"
            warnings.warn(f"{message}; if that is a class, rename the folder", stacklevel=2)
    features = datasets.Features(features)
    return {part: datasets.Dataset.from_dict(table, features=features) for part, table in columns.items()}


def _is_unlabelled_dir(image: Path, depth: int) -> bool:
    """Tell whether an image is in a folder for images without a class, at the level of classes or parts."""
    return any(folder.lower() in _UNLABELLED for folder in image.parts[: min(depth + 1, len(image.parts) - 1)])


def _unlabelled_folder(blank: Collection[Path]) -> str:
    return next(folder for folder in min(blank).parts if folder.lower() in _UNLABELLED)


def _classes_of(where: Path, images: Sequence[Path], depth: int) -> list[str]:
    """Return the folders at a depth, in order: the classes, whatever their subfolders."""
    loose = [image for image in images if len(image.parts) == depth + 1]
    below = [image for image in images if len(image.parts) > depth + 2]
    flat = {as_class(image.parts[depth]) for image in images if len(image.parts) == depth + 2}
    deep = {as_class(image.parts[depth]) for image in below} - flat
    classes = sorted(flat | deep)
    innermost = {image.parts[-2] for image in images if len(image.parts) > depth + 1}
    first, last = first_of(classes), first_of(sorted(innermost))
    if loose and classes:
        inside = len(images) - len(loose)
        got = f"{len(loose):,} directly in {where / loose[0].parent} and {inside:,} in folders ({first})"
        remedy = "move them into these if folders are classes, or set data.label to none"
        raise RefusedError(f"expected every image in the folder of its class, got {got}: {remedy}")
    if depth == 0 and any(name.lower() in PART_NAMES for name in deep):
        remedy = f"keep only parts, with train, if the classes are {last}, or rename parts if they are {first}"
        raise RefusedError(f"expected folders of parts (train, test) or of classes in {where}, got {first}: {remedy}")
    within = {image.parts[depth + 1].lower() for image in below} & PART_NAMES.keys()
    if depth == 0 and len({PART_NAMES[name] for name in within}) > 1:
        remedy = f"move the folders, as in {Path(below[0].parts[1], below[0].parts[0])}, or rename them"
        raise RefusedError(f"expected parts above classes in {where}, got parts within, as in {below[0]}: {remedy}")
    if len(classes) < 2:
        raise _too_few(where, images, classes, depth)
    if flat and deep:
        got = f"those of {first_of(sorted(flat))} in their folder and those of {first_of(sorted(deep))} only deeper"
        remedy = f"move these images up if the classes are {first}, or their folders if they are {last}"
        raise RefusedError(f"expected the images of every class at one depth in {where}, got {got}: {remedy}")
    if below:
        message = f"classes are the folders directly in {'the parts of ' * depth}{where} ({first})"
        deeper = f"{len(below):,} of {len(images):,} images lie deeper, such as {below[0]}"
        warnings.warn(f"{message}: {deeper}", stacklevel=2)
    return classes


def _too_few(where: Path, images: Sequence[Path], classes: Sequence[str], depth: int) -> RefusedError:
    got = f"1 ({classes[0]!r})" if classes else "none"
    common = Path(os.path.commonpath([image.parent for image in images]))
    nested = classes and depth == 0 and all(image.parent != common for image in images)
    unlabelled = f", or set data.label to none, as in likewise train {where} --data.label none --loss simclr"
    at_once = "" if classes else f"; likewise embed {where} and likewise search QUERY --among {where} need no classes"
    return RefusedError(
        f"expected at least 2 folders of images in {where}{' in each part' if depth else ''}, one per class, got "
        f"{got}: add another{f', set data.path to {where / common} if its folders are classes' if nested else ''}"
        f"{unlabelled}{at_once}"
    )


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
        raise RefusedError(f"expected tables named after their parts, train and test, in {where}, got {got}")
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
    """Yield the `datasets` library, silenced; an error gives in one line its reason to refuse a path."""
    import datasets  # noqa: PLC0415 - only sets that the library reads need it
    from datasets import logging, utils  # noqa: PLC0415 - as above
    from datasets.exceptions import DatasetsError  # noqa: PLC0415 - as above

    verbosity, silent = logging.get_verbosity(), utils.are_progress_bars_disabled()
    logging.set_verbosity(logging.CRITICAL)
    if not silent:
        with warnings.catch_warnings(action="ignore"):  # an environment variable can force progress bars on
            utils.disable_progress_bars()
    try:
        yield datasets
    except RefusedError:
        raise
    except (OSError, ValueError, DatasetsError) as error:
        raise ValueError(_unreadable(path, where, error)) from error
    finally:
        logging.set_verbosity(verbosity)
        if not silent:
            with warnings.catch_warnings(action="ignore"):
                utils.enable_progress_bars()
