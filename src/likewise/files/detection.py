"""Which source reads what is at a path, told from names and first lines alone: nothing here loads torch."""

import re
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from likewise.files import formats
from likewise.files.folders import walked

ARRAYS = (".npz", ".npy")
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".xz", ".bz2", ".7z")
TAR = ".tar"
SAVED = ("dataset_dict.json", "state.json")
"""What marks a folder that the `datasets` library has saved."""
# the data sets of torchvision that are for classification
TORCHVISION = (
    "CIFAR10", "CIFAR100", "Caltech101", "Caltech256", "CelebA", "Country211", "DTD", "EMNIST", "EuroSAT",
    "FGVCAircraft", "FashionMNIST", "Flowers102", "Food101", "GTSRB", "INaturalist", "ImageNet", "Imagenette",
    "KMNIST", "LFWPeople", "MNIST", "Omniglot", "OxfordIIITPet", "PCAM", "QMNIST", "RenderedSST2", "SEMEION",
    "STL10", "SUN397", "SVHN", "StanfordCars", "USPS",
)  # fmt: skip
_NAMED = {re.sub("[-_ ]", "", name).lower(): ("Torchvision", {"name": name}) for name in TORCHVISION} | {
    "digits": ("Digits", {})
}


def source_for(place: str | Path) -> tuple[str, dict[str, Any]]:
    """Choose the class of `likewise.data` that reads what is at a path or has a name, with its arguments."""
    where = expanded(place)
    if exists(where):
        return _of_folder(where) if where.is_dir() else _of_file(where)
    if re.search(r"[*?[{]", str(place)) and Path(place).suffix.lower() == TAR:
        return "Shards", {"path": str(place)}
    name = re.sub("[-_ ]", "", str(place)).lower()
    if name in _NAMED:
        return _NAMED[name]
    if "/" in str(place) and may_be_on_the_hub(str(place)):
        return "Hub", {"path": str(place)}
    known = {name.lower(): options.get("name", kind) for name, (kind, options) in _NAMED.items()}
    similar = get_close_matches(name, known, 2, cutoff=0.75)
    remedy = f"did you mean {' or '.join(known[one] for one in similar)}?" if similar else f"check it{near(where)}"
    raise ValueError(
        f"expected a file, a folder, or the name of a data set, got {place}, which does not exist: {remedy}"
    )


def expanded(place: str | Path) -> Path:
    """Return a path with the home folder in place of ~."""
    with suppress(RuntimeError):  # nobody of that name has a home folder
        return Path(place).expanduser()
    return Path(place)


def exists(where: Path) -> bool:
    """Tell whether something is at a path."""
    try:
        return where.exists()
    except OSError:  # too long a name, or a folder that may not be opened
        return False


def file_at(given: str | Path, *, paired: bool) -> Path:
    """Return a path, which must be a file's."""
    path = Path(given).expanduser()
    if not path.is_file():
        what = "is a folder: likewise embed encodes all of it" if path.is_dir() else "does not exist: check the path"
        side = ', or give what is of the other side with side="second"' * paired
        raise ValueError(f"expected an image file, got {given}, which {what}{side}")
    return path


def may_be_on_the_hub(path: str) -> bool:
    """Tell whether what does not exist here may be a name on the Hub: user/name, or name."""
    files = {*formats.TABLES, *formats.image_suffixes(), *formats.UNREAD, *ARRAYS, *ARCHIVES, ".txt"}
    name = re.fullmatch(r"(?=.{,96}$)(\w[\w.-]*/)?\w[\w.-]*", path, re.ASCII)
    return name is not None and Path(path).suffix.lower() not in files and not (name[1] and exists(Path(name[1])))


def near(where: Path) -> str:
    """Return what is near a path that does not exist, to be added to a remedy."""
    try:
        if where.is_symlink():
            return f"; it is a link to {where.readlink()}"
        missing = where.resolve()
        while not exists(missing.parent):
            missing = missing.parent
        names = {place.name.lower(): place for place in sorted(missing.parent.iterdir())}
    except (OSError, RuntimeError):  # a folder that may not be opened, or links in a circle
        return ""
    similar = get_close_matches(missing.name.lower(), names, 1)
    return f"; did you mean {names[similar[0]]}?" if similar else f"; the nearest folder is {missing.parent}"


def _of_folder(where: Path) -> tuple[str, dict[str, Any]]:
    if any((where / name).is_file() for name in SAVED):
        return "Table", {"path": str(where)}
    images, tables, other = {*formats.image_suffixes(), *formats.UNREAD}, list[Path](), list[Path]()
    for file in (where / place for place in walked(where, {})):
        if file.suffix.lower() in images:
            return "Folder", {"path": str(where)}
        (tables if file.suffix.lower() in formats.TABLES else other).append(file)
    train = [table for table in tables if table.parent == where and formats.PART_NAMES.get(table.stem.lower()) == 0]
    if train:
        kind, options = _of_table(train[0])
        return kind, {**options, "path": str(where)}
    if tables:
        return "Table", {"path": str(where)}
    if any(file.suffix.lower() == TAR and file.parent == where for file in other):
        return "Shards", {"path": str(where)}
    arrays = [file for file in other if file.suffix.lower() in ARRAYS]
    got = f"only files such as {other[0].name}" if other else "an empty folder"
    raise ValueError(
        f"expected images or tables in {where}, got {got}: "
        + (f"give the file itself, {arrays[0]}" if arrays else "check the path, or unpack and convert what is there")
    )


def _of_file(where: Path) -> tuple[str, dict[str, Any]]:
    suffix = where.suffix.lower()
    if suffix in ARRAYS:
        return "Arrays", {"path": str(where)}
    if suffix == TAR:
        return "Shards", {"path": str(where)}
    if suffix in formats.TABLES:
        return _of_table(where)
    if suffix in {*formats.image_suffixes(), *formats.UNREAD}:
        raise ValueError(f"expected a folder of images, got {where}, which is one: give the folder")
    if formats.has_lines(where):
        return "Text", {"path": str(where), "text": formats.TEXT_COLUMNS[0], "label": "none"}
    remedy = "unpack it, and give the folder" if suffix in ARCHIVES else "convert it, or save it with numpy.savez"
    kinds = ", ".join((*ARRAYS, *formats.TABLES))
    raise ValueError(f"expected a file ({kinds}) or a folder of images or tables, got {where}: {remedy}")


def _of_table(where: Path) -> tuple[str, dict[str, Any]]:
    """Choose between texts, which are read line by line, and what the `datasets` library reads."""
    row = first_row(where)
    images = {*formats.image_suffixes(), *formats.UNREAD}
    others = {name: value for name, value in row.items() if name not in formats.LABEL_COLUMNS and name}
    others = {name: value for name, value in others.items() if not name.startswith(formats.ROW_NUMBERS)}
    strings = [name for name, value in others.items() if isinstance(value, str) and not is_number(value)]
    if any(name in formats.IMAGE_COLUMNS or Path(row[name][:255]).suffix.lower() in images for name in strings):
        return "Table", {"path": str(where)}
    if any(name in formats.TEXT_COLUMNS for name in strings):
        return "Text", {"path": str(where)}
    if len(strings) == 1 == len(others):
        return "Text", {"path": str(where), "text": strings[0]}
    return "Table", {"path": str(where)}


def first_row(where: Path) -> dict[str, Any]:
    """Return the first row of a file that is read line by line; nothing of other files."""
    if where.suffix in {*formats.SEPARATED, *formats.JSON_LINES}:
        with suppress(OSError):
            return next((row for _, row in formats.Lines(where)), {})
    return {}


def is_number(value: str) -> bool:
    """Tell whether a cell of a table is a number, or empty."""
    try:
        float(value or "nan")
    except ValueError:
        return False
    return True
