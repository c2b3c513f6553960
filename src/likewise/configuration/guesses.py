"""First guesses: methods by their usual names, networks with their depth, and data by what is there."""

import csv
import json
import re
import zipfile
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

from likewise.configuration import recipes
from likewise.configuration.classes import Class, kind_named, module_of, packages_of
from likewise.configuration.values import folded

METHODS = {
    "simclr": "NTXentLoss",
    "ntxent": "NTXentLoss",
    "clip": "InfoNCELoss",
    "moco": "InfoNCELoss",
    "protonet": "PrototypicalLoss",
    "protonets": "PrototypicalLoss",
    "prototypicalnetworks": "PrototypicalLoss",
    "proto": "PrototypicalLoss",
    "ce": "CrossEntropyLoss",
    "asl": "AsymmetricLoss",
    "npair": "NPairsLoss",
    "supervisedcontrastive": "SupConLoss",
}
"""What methods are usually called, beside the names of their losses."""
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
TABLES = {".csv": ",", ".tsv": "\t"}
LINES = (".jsonl", ".ndjson", ".json")
FILES = (".npz", ".parquet", *TABLES, *LINES)
TEXTS = {"text", "sentence", "document", "body"}
PICTURES = {"image", "img", "file_name"}
OF_CLASS = {"Digits": "digits", "Arrays": "vectors", "Text": "texts", "Hub": "image-folder"}
LOOKED_AT = 1000  # entries of a folder
WORD = {*ascii_letters, *digits, *"-_ "}


def class_named(name: str, base: Class) -> str | None:
    """Return the import path of the class of a kind that a word names, whatever its case and hyphens.

    Example:
        >>> from likewise.configuration.classes import find
        >>> class_named("supcon", find("likewise.losses.Loss")), class_named("dance", find("likewise.losses.Loss"))
        ('likewise.losses.SupConLoss', None)
    """
    if not name.isidentifier() and not set(name) <= WORD:
        return None
    if exact := kind_named(name, base):
        return exact
    wanted, kind = folded(name), folded(base.name)
    for one in sorted({name for package in packages_of(base) for name in package.names}):
        if wanted in {folded(one), folded(one).removesuffix(kind)} and (path := kind_named(one, base)):
            return path
    return kind_named(METHODS.get(wanted, ""), base) if kind == "loss" else None


def expanded(option: str, value: str, base: Class) -> list[tuple[str, Any]] | None:
    """Return the options that a word for a part stands for, where it says more than a class.

    Args:
        option: The part.
        value: The word.
        base: The kind of the part.

    Returns:
        Options with their values; None where the word is a class, or none that is known.

    Raises:
        ValueError: It names data that are not there.
    """
    sized = re.fullmatch(r"([A-Za-z_-]+?)[-_]?(\d+)", value)
    if option == "loss" and folded(value) == "clip":
        return [(option, "likewise.losses.InfoNCELoss"), ("loss.symmetric", True)]
    if option == "loss" and folded(value) == "moco":
        method = recipes.of_method("moco")
        return [*flat({"loss": method["loss"]}), ("offers", method["offers"])]
    if option == "encoder" and sized and folded(sized[1]) == "resnet" and class_named(value, base) is None:
        return [(option, "likewise.models.ResNet"), ("encoder.depth", int(sized[2]))]
    if option == "data" and class_named(value, base) is None:
        return _data(value)
    return None


def flat(options: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested options one by one: each class before its arguments.

    Example:
        >>> list(flat({"loss": {"class_path": "A", "init_args": {"x": 1}}, "seed": 3}))
        [('loss', 'A'), ('loss.x', 1), ('seed', 3)]
    """
    for name, value in options.items():
        option = f"{above}{name}"
        part = isinstance(value, dict) and (value.keys() & {"class_path", "init_args"} or not above)
        if not part:
            yield option, value
            continue
        if value.get("class_path") is not None:
            yield option, value["class_path"]
        more = value.get("init_args") or {}
        others = {key: of for key, of in value.items() if key not in {"class_path", "init_args"}}
        yield from flat({**others, **more}, f"{option}.")


def _data(value: str) -> list[tuple[str, Any]] | None:
    path = Path(value).expanduser()
    if path.exists():
        return [("data", f"likewise.data.{_source(path)[0]}"), ("data.path", str(path))]
    sets = _of_torchvision()
    if folded(value) in sets:
        return [("data", "likewise.data.Torchvision"), ("data.name", sets[folded(value)])]
    if "/" in value or path.suffix.lower() in FILES:
        raise ValueError(f"expected data in {value}, which does not exist: correct the path")
    return None


def near_data(value: str) -> list[str]:
    """Return the names of data sets that are near a word."""
    sets = _of_torchvision()
    return [sets[one] for one in get_close_matches(folded(value), sets, cutoff=0.75)]


def _of_torchvision() -> dict[str, str]:
    """Return the data sets of torchvision by their folded names; none where it is not installed."""
    module = module_of("torchvision.datasets")
    return {folded(name): name for name in module.names if name[0].isupper()} if module else {}


def kind_of_data(options: dict[str, Any]) -> str | None:
    """Return the name that recipes have for the data that options name, by what is there; None: there is none."""
    name = str(options.get("data") or "").rpartition(".")[2]
    if name == "Torchvision":
        wanted = folded(str(options.get("data.name") or ""))
        return next((one for one in recipes.data_names() if folded(one) == wanted), None)
    path = Path(str(options.get("data.path") or ""))
    if "data.path" in options and path.exists() and name in {"Hub", "Text", "Arrays"}:
        return _source(path)[1]
    return OF_CLASS.get(name)


def _source(path: Path) -> tuple[str, str | None]:
    """Return the source that reads what is at a path, and the name that recipes have for such data."""
    if path.is_dir():
        return _of_folder(path)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return "Arrays", None if "images" in _arrays(path) else "vectors"
    if suffix not in {*TABLES, *LINES, ".parquet"}:
        raise ValueError(
            f"expected data in a folder of images or in a file of {', '.join(FILES)}, got {path}: name a class, as in "
            "--data Arrays --data.path FILE"
        )
    columns = _columns(path)
    if columns & TEXTS and suffix not in {".parquet", ".json"}:
        return "Text", "texts"
    return "Hub", "image-folder" if columns & PICTURES else "vectors" if columns else None


def _of_folder(path: Path) -> tuple[str, str | None]:
    if (path / "run.json").is_file():
        raise ValueError(
            f"expected data, got the run {path}: start from its encoder with --encoder FromRun --encoder.run {path}"
        )
    files = [file for _, file in zip(range(LOOKED_AT), path.rglob("*"), strict=False)]
    if any(file.suffix.lower() in IMAGES for file in files):
        return "Hub", "image-folder"
    table = next((file for file in sorted(files) if file.suffix.lower() in FILES[1:] and file.is_file()), None)
    if table is None and not any(file.suffix == ".arrow" for file in files):
        raise ValueError(f"expected images or tables in the folder {path}, got neither: correct the path")
    return ("Hub", None) if table is None or (path / "dataset_info.json").is_file() else _source(table)


def _arrays(path: Path) -> set[str]:
    try:
        with zipfile.ZipFile(path) as file:
            return {name.removesuffix(".npy") for name in file.namelist()}
    except (OSError, zipfile.BadZipFile):
        return set()  # which the source will say


def _columns(path: Path) -> set[str]:
    """Return the columns of a table, in lower case; of one that cannot be looked at, none."""
    if path.suffix.lower() == ".parquet":
        return set()
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            line = file.readline()
        if path.suffix.lower() in TABLES:
            return {name.strip().lower() for name in next(csv.reader([line], delimiter=TABLES[path.suffix.lower()]))}
        row = json.loads(line)
        return {str(name).lower() for name in row} if isinstance(row, dict) else set()
    except (OSError, ValueError, StopIteration):
        return set()
