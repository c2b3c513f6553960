"""Folders of images: the files in them, through links too, and the parts and classes that folders stand for."""

import os
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from likewise.files.formats import HEIC, PART_NAMES, PARTS, UNREAD_SUFFIXES, as_class, first_of
from likewise.files.waiting import track

_CONVERSIONS = {  # what must be done with files of a suffix before they can be read
    **dict.fromkeys(UNREAD_SUFFIXES, "converted to JPEG or PNG"),
    **dict.fromkeys(HEIC, "made readable by pip install 'likewise[heic]', or converted to JPEG or PNG"),
    ".zip": "unpacked",
}
UNLABELLED_NAMES = ("unlabelled", "unlabeled")  # names of a folder of images without a class
Lost = dict[tuple[str, str], list[str]]  # paths, by what they are and why they are left out


class RefusedError(ValueError):
    """A folder is refused; the message is complete."""


def empty(part: str, file: str | Path) -> RefusedError:
    """Return the error that a part has no samples."""
    return RefusedError(f"expected samples in the {part} part, got none in {file}: fill it, or remove it")


def files_in(root: Path) -> tuple[list[Path], Lost]:
    """Return the files below a folder, relative to it and in order, and what is left out; hidden ones are skipped."""
    lost: Lost = {}
    return sorted(track(walk(root, lost), "listing files"), key=str), lost


def walk(root: Path, lost: Lost) -> Iterator[Path]:
    """Yield the files below a folder, relative to it, folder by folder, and note what is left out."""
    pending: list[tuple[Path, tuple[Path, ...]]] = [(Path(), (root.resolve(),))]
    while pending:
        folder, above = pending.pop()
        try:
            entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
        except OSError:
            lost.setdefault(("folder", "that may not be opened"), []).append(str(folder))
            continue
        for entry in (entry for entry in entries if not entry.name.startswith(".")):
            path, entry_type = folder / entry.name, _classify_entry(entry)
            if entry_type == "folder" and (real := Path(entry.path).resolve()) not in above:
                pending.append((path, (*above, real)))
            elif entry_type == "folder":
                lost.setdefault(("link", "back to a folder above"), []).append(str(path))
            elif entry_type == "file":
                yield path
            elif entry.is_symlink():
                lost.setdefault(("link", "whose target does not exist"), []).append(str(path))


def _classify_entry(entry: os.DirEntry[str]) -> str:
    try:
        return "folder" if entry.is_dir() else "file" if entry.is_file() else "something else"
    except OSError:  # a link to itself
        return "something else"


def first_to_do(files: Iterable[Path]) -> Lost:
    """Return the files that could be read in another form, by what has to be done first."""
    lost: Lost = {}
    for file in files:
        if to_do := _CONVERSIONS.get(suffix := file.suffix.lower()):
            lost.setdefault(("file", f"that must be {to_do} first ({suffix})"), []).append(str(file))
    return lost


def in_words(lost: Lost, where: Path) -> list[str]:
    """Count what is left out of a folder, and name the first of each kind."""
    return [
        f"{len(places):,} {what}{'s' * (len(places) > 1)} in {where} {why}: {first_of(sorted(places))}"
        for (what, why), places in lost.items()
    ]


def warn_of(lost: Lost, where: Path) -> None:
    """Warn of what is left out of a folder."""
    for summary in in_words(lost, where):
        warnings.warn(f"left out {summary}", stacklevel=2)


def parts_of(images: Sequence[Path]) -> dict[str, str]:
    """Return which part each folder is, if all are parts, and one is for training; otherwise nothing."""
    # class folders may be named train and test too; then other folders lie next to them
    tops = sorted({image.parts[0] for image in images if len(image.parts) > 1})
    parts: dict[str, str] = {top: PARTS[PART_NAMES[top.lower()]] for top in tops if top.lower() in PART_NAMES}
    return parts if len(parts) == len(tops) and "train" in parts.values() else {}


def is_unlabelled_dir(image: Path, depth: int) -> bool:
    """Tell whether an image is in a folder for images without a class, where one of a class or a part would be."""
    return any(folder.lower() in UNLABELLED_NAMES for folder in image.parts[: min(depth + 1, len(image.parts) - 1)])


def unlabelled_folder(blank: Collection[Path]) -> str:
    """Name a folder of images without a class."""
    return next(folder for folder in min(blank).parts if folder.lower() in UNLABELLED_NAMES)


def warn_of_blank(blank: Collection[Path], where: Path) -> None:
    """Warn of images without a class, and say what to do if their folder is a class."""
    if blank:
        message = f"{len(blank):,} images in {unlabelled_folder(blank)} of {where} are samples without a class"
        warnings.warn(f"{message}; if that is a class, rename the folder", stacklevel=2)


def classes_of(where: Path, images: Sequence[Path], depth: int) -> list[str]:
    """Return the folders at a depth, in order, which are the classes whatever lies deeper."""
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
