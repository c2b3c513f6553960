"""Detection of the data at a path by names and first bytes: its source, its input columns, the contents of pickles.

Torch is loaded only for pickles.
"""

import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from likewise.files import formats

ARRAYS = (".npz", ".npy")
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".xz", ".bz2", ".7z")
TAR = ".tar"
MAX_LISTED_ENTRIES = 1000  # entries of a folder searched for a table
SAVED_FILES = ("dataset_dict.json", "state.json")
"""Files that mark a folder saved by the `datasets` library."""
# torchvision's classification data sets
TORCHVISION = (
    "CIFAR10", "CIFAR100", "Caltech101", "Caltech256", "CelebA", "Country211", "DTD", "EMNIST", "EuroSAT",
    "FGVCAircraft", "FashionMNIST", "Flowers102", "Food101", "GTSRB", "INaturalist", "ImageNet", "Imagenette",
    "KMNIST", "LFWPeople", "MNIST", "Omniglot", "OxfordIIITPet", "PCAM", "QMNIST", "RenderedSST2", "SEMEION",
    "STL10", "SUN397", "SVHN", "StanfordCars", "USPS",
)  # fmt: skip
_SOURCES_BY_NAME = {re.sub("[-_ ]", "", name).lower(): ("Torchvision", {"name": name}) for name in TORCHVISION}
_SOURCES_BY_NAME["digits"] = ("Digits", {})
Lost = dict[tuple[str, str], list[str]]  # omitted paths, by kind and reason
JUDGED_ROWS = 100  # rows read to infer the kind of a column
_STRINGS = ("texts", "classes", "words")
# three words, or six characters of a script without spaces
_LONG_TEXT = re.compile(r"\S+\s+\S+\s+\S|[\u3040-\u30ff\u4e00-\u9fff]{6}")
_TOLERATED = {"argparse.Namespace"}  # found in timm's own checkpoints
_REFUSAL = (
    "which nothing here loads, since that runs code: where you trust it, save its weights alone, "
    "torch.save(module.state_dict(), path)"
)
MAX_NEARBY = 5  # runs named in an error


def source_for(source: str | Path, data_options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    """Choose the class of `likewise.data` for a path or the name of a data set, and its arguments."""
    where = expanded(source)
    if exists(where):
        return (_of_folder if where.is_dir() else _choose_file_source)(where, data_options or {})
    if re.search(r"[*?[{]", str(source)) and Path(source).suffix.lower() == TAR:
        return "Shards", {"path": str(source)}
    name = re.sub("[-_ ]", "", str(source)).lower()
    if name in _SOURCES_BY_NAME:
        return _SOURCES_BY_NAME[name]
    if "/" in str(source) and may_be_on_the_hub(str(source)):
        return "Hub", {"path": str(source)}
    known = {name.lower(): options.get("name", class_name) for name, (class_name, options) in _SOURCES_BY_NAME.items()}
    remedy = suggest(name, known, f": check it{near(where)}", names=known, most=2, cutoff=0.75)
    raise ValueError(f"expected a file, a folder or name of a data set, got {source}, which does not exist{remedy}")


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder in place of ~."""
    with suppress(RuntimeError):  # no user of that name has a home folder
        return Path(path).expanduser()
    return Path(path)


def exists(where: Path) -> bool:
    """Tell whether something is at a path."""
    try:
        return where.exists()
    except OSError:  # the name is too long, or a folder may not be opened
        return False


def file_at(file: str | Path, *, paired: bool) -> Path:
    """Return the path of a file; raise a ValueError if there is none."""
    path = Path(file).expanduser()
    if not path.is_file():
        what = "is a folder: likewise embed encodes all of it" if path.is_dir() else "does not exist: check the path"
        side = ', or give what is of the other side with side="second"' * paired
        raise ValueError(f"expected an image file, got {file}, which {what}{side}")
    return path


def may_be_on_the_hub(path: str) -> bool:
    """Tell whether a path missing here may be a name on the Hub: user/name, or name."""
    name = re.fullmatch(r"(?=.{,96}$)(\w[\w.-]*/)?\w[\w.-]*", path, re.ASCII)
    return name is not None and not is_file_name(path) and not (name[1] and exists(Path(name[1])))


def is_file_name(word: str) -> bool:
    """Tell whether a word ends in a known file suffix, and so is unlikely to be a text."""
    suffixes = {*formats.TABLES, *formats.image_suffixes(), *formats.UNREAD_SUFFIXES, *ARRAYS, *ARCHIVES, ".txt"}
    return len(word.split()) == 1 and Path(word).suffix.lower() in suffixes


def near(where: Path) -> str:
    """Return the end of a remedy for a missing path: the target of a link, or similar names in the nearest folder."""
    try:
        if where.is_symlink():
            return f"; it is a link to {where.readlink()}"
        missing = where.resolve()
        while not exists(missing.parent):
            missing = missing.parent
        names = {path.name.lower(): path for path in sorted(missing.parent.iterdir())}
    except (OSError, RuntimeError):  # a folder may not be opened, or links form a circle
        return ""
    return suggest(missing.name.lower(), names, f"; the nearest folder is {missing.parent}", names=names)


def runs_near(folder: Path) -> str:
    """Return a hint at the runs beside a missing folder, or in "runs" there, newest first."""
    patterns = () if folder.exists() else ("*/run.json", "runs/*/run.json")
    try:
        files = [file for pattern in patterns for file in folder.parent.glob(pattern)]
        newest = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)
    except OSError:  # a run has just finished and been renamed
        return ""
    return f"; nearby: {', '.join(str(file.parent) for file in newest[:MAX_NEARBY])}" if newest else ""


def _of_folder(where: Path, data_options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if any((where / name).is_file() for name in SAVED_FILES):
        return "Table", {"path": str(where)}
    if "first" in data_options and "second" in data_options:  # tables of pairs, or files of lines for each side
        return "Pairs", {"path": str(where)}
    images, tables, other = {*formats.image_suffixes(), *formats.UNREAD_SUFFIXES}, list[Path](), list[Path]()
    for file in (where / path for path in walk(where, {})):
        if file.suffix.lower() in images:
            return "Folder", {"path": str(where)}
        (tables if file.suffix.lower() in formats.TABLES else other).append(file)
    train = [table for table in tables if table.parent == where and formats.PART_NAMES.get(table.stem.lower()) == 0]
    if train:
        class_name, options = _of_table(train[0], data_options)
        return class_name, {**options, "path": str(where)}
    if tables:
        return "Table", {"path": str(where)}
    if any(file.suffix.lower() == TAR and file.parent == where for file in other):
        return "Shards", {"path": str(where)}
    arrays = [file for file in other if file.suffix.lower() in ARRAYS]
    got = f"only files such as {other[0].name}" if other else "an empty folder"
    remedy = f"give the file itself, {arrays[0]}" if arrays else "check the path, or unpack and convert what is there"
    raise ValueError(f"expected images or tables in {where}, got {got}: {remedy}")


def _choose_file_source(where: Path, data_options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    suffix = where.suffix.lower()
    if suffix in ARRAYS:
        return "Arrays", {"path": str(where)}
    if suffix == TAR:
        return "Shards", {"path": str(where)}
    if suffix in formats.TABLES:
        return _of_table(where, data_options)
    if suffix in {*formats.image_suffixes(), *formats.UNREAD_SUFFIXES}:
        raise ValueError(f"expected a folder of images, got {where}, which is one: give the folder")
    if formats.has_lines(where, data_options.get("encoding")):
        return "Text", {"path": str(where), "text": formats.TEXT_COLUMNS[0], "label": "none"}
    remedy = "unpack it, and give the folder" if suffix in ARCHIVES else "convert it, or save it with numpy.savez"
    kinds = ", ".join((*ARRAYS, *formats.TABLES))
    raise ValueError(f"expected a file ({kinds}) or a folder of images or tables, got {where}: {remedy}")


def _of_table(where: Path, data_options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if "first" in data_options and "second" in data_options:
        return "Pairs", {"path": str(where)}
    input_type, names = inputs_at(where, data_options)
    by_line = where.suffix in {*formats.CELL_SEPARATORS, *formats.JSON_LINES}
    if input_type != "texts" or len(names) > 1 or "inputs" in data_options or not by_line:
        return "Table", {"path": str(where)}
    usual = names[0] in formats.TEXT_COLUMNS or "text" in data_options
    return "Text", {"path": str(where), **({} if usual else {"text": names[0]})}


def inputs_at(path: str | Path, data_options: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the kind and the columns of the inputs in a table or a folder of tables; the data's options decide."""
    rows = first_rows(path, data_options.get("encoding")) or []
    known = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    named = [name for option in ("inputs", "text") for name in _make_list(data_options.get(option)) if name in known]
    labels = [name for name in _make_list(data_options.get("label")) if name in known] or formats.LABEL_COLUMNS
    parts = [name for name in known if name.lower() in formats.PART_COLUMNS and _are_parts(known[name])]
    beside = {"", data_options.get("fine_label"), data_options.get("part"), *labels, *parts}
    remaining_columns = [name for name in known if name not in beside and not name.startswith(formats.ROW_NUMBERS)]
    remaining_columns = [name for name in remaining_columns if not formats.NAMED_ID.search(name)]
    return _inputs_among({name: known[name] for name in named or remaining_columns})


def first_rows(table: str | Path, encoding: str | None = None) -> list[dict[str, Any]] | None:
    """Return the first rows of a table, or of a folder's first table; None for a folder without tables."""
    path = expanded(table)
    files = sorted(islice(path.rglob("*"), MAX_LISTED_ENTRIES)) if path.is_dir() else [path]
    file = next((file for file in files if file.suffix.lower() in formats.TABLES), None)
    if file is None:
        return None if path.is_dir() else []
    with suppress(OSError):  # the source will report it
        if formats.TABLES[file.suffix.lower()] != "parquet":
            return [row for _, row in islice(formats.Lines(file, encoding), JUDGED_ROWS)]
        from pyarrow import ArrowInvalid, parquet  # noqa: PLC0415 - only Parquet files need it

        with suppress(ArrowInvalid):
            return next((rows.to_pylist() for rows in parquet.ParquetFile(file).iter_batches(JUDGED_ROWS)), [])
    return []


def _make_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def walk(root: Path, lost: Lost) -> Iterator[Path]:
    """Yield the relative paths of the files below a folder, except hidden ones; follow links, and note omissions."""
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


def _is_number(cell: Any) -> bool:
    """Tell whether a cell is a number, a number written as text, or empty."""
    try:
        float(cell or "nan")
    except (TypeError, ValueError):
        return False
    return True


def kind_of(cells: Iterable[Any]) -> str:
    """Return the kind of most cells: images, texts, classes, words, numbers, ids or nothing.

    Long distinct strings are texts, repeated strings are classes, distinct whole numbers are ids.
    """
    values = [cell for cell in cells if cell is not None and cell != ""]
    if not values or isinstance(values[0], dict | bytes):
        return "images" if values else "nothing"
    strings = [cell for cell in values if isinstance(cell, str) and not _is_number(cell)]
    if 2 * len(strings) < len(values):
        return "ids" if len({str(cell) for cell in values if str(cell).isdecimal()}) == len(values) else "numbers"
    if Path(strings[0][:255]).suffix.lower() in {*formats.image_suffixes(), *formats.UNREAD_SUFFIXES}:
        return "images"
    if 2 * len(set(strings)) <= len(strings):
        return "classes"
    return "texts" if 2 * sum(_LONG_TEXT.search(word) is not None for word in strings) >= len(strings) else "words"


def _inputs_among(columns: Mapping[str, Iterable[Any]]) -> tuple[str, list[str]]:
    """Return the kind of the inputs among columns, images, texts or numbers, and their columns, where these are clear.

    Texts are the column with a usual name, the only column, or, if no column holds numbers, those of long strings.
    """
    kinds = {name: kind_of(cells) for name, cells in columns.items()}
    strings = [name for name, column_type in kinds.items() if column_type in _STRINGS]
    images = [name for name in kinds if kinds[name] == "images" or (name in strings and name in formats.IMAGE_COLUMNS)]
    long = [name for name in strings if kinds[name] == "texts" and "numbers" not in kinds.values()]
    texts = [name for name in formats.TEXT_COLUMNS if name in strings][:1] or (strings if len(kinds) == 1 else long)
    return ("images", images) if images else ("texts", texts) if texts else ("numbers", [])


def classes_among(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the columns of repeated strings, which may be labels, except columns of part names."""
    return [name for name, cells in columns.items() if kind_of(cells) == "classes" and not _are_parts(cells)]


def _are_parts(cells: Iterable[Any]) -> bool:
    return all(str(cell).strip().lower() in formats.PART_NAMES for cell in cells)


def describe_pickle(path: Path | str) -> str:
    """Describe the objects in a file of `torch.save` or `pickle`, and the remedy; return "" for any other file."""
    import torch  # noqa: PLC0415 - not needed to choose a source

    try:
        with Path(path).open("rb") as file:
            start = file.read(2)
        if start == b"PK":
            unsafe_globals = set(torch.serialization.get_unsafe_globals_in_checkpoint(str(path))) - _TOLERATED
            names = sorted(unsafe_globals, key=lambda name: (name.startswith("torch."), name))
            listed = ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")
            return f"pickled objects ({listed}), {_REFUSAL}" if names else ""
        if start in {b"\x80\x03", b"\x80\x04", b"\x80\x05"}:
            return f"pickled objects, {_REFUSAL}"
        if start == b"\x80\x02":  # written by torch before 1.6
            torch.load(path, map_location="meta", weights_only=True)
    except pickle.UnpicklingError:
        return f"pickled objects, {_REFUSAL}"
    except (OSError, ValueError, RuntimeError, EOFError) as error:
        return f"a TorchScript module, {_REFUSAL}" if "torchscript" in str(error) else ""
    return ""


def suggest(
    word: str,
    known: Iterable[str],
    otherwise: str = "",
    *,
    names: Mapping[str, object] | None = None,
    most: int = 1,
    cutoff: float = 0.6,
) -> str:
    """Return the end of an error: the nearest known words, by their `names`, or else `otherwise`."""
    near = get_close_matches(word, list(known), most, cutoff)
    shown = [str((names or {}).get(close, close)) for close in near]
    return f", did you mean {' or '.join(shown)}?" if near else otherwise
