"""Guesses at a word's meaning: a name elsewhere, a method, a network with its depth, data by its files, a typo."""

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from likewise.configuration import recipes
from likewise.configuration.classes import Class, kinds
from likewise.configuration.options import HIDDEN_OPTIONS
from likewise.configuration.values import Option, flat, folded, parse
from likewise.files.detection import (
    ARRAYS,
    MAX_LISTED_ENTRIES,
    TORCHVISION,
    exists,
    first_rows,
    inputs_at,
    kind_of,
    source_for,
)
from likewise.files.formats import image_suffixes
from likewise.instantiate import is_spec

ALIASES = {
    "epochs": "trainer.max_epochs",
    "steps": "trainer.max_steps",
    "device": "trainer.accelerator",
    "devices": "trainer.devices",
    "precision": "trainer.precision",
    "batch_size": "batches.batch_size",
    "views": "batches.views",
    "augmentation": "batches.augmentation",
    "sampler": "batches.sampler",
    "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "temperature": "loss.temperature",
}

OPTIONS_ELSEWHERE = {
    **dict.fromkeys(("learning_rate", "learningrate"), "lr"),
    **dict.fromkeys(("model", "network", "backbone", "arch", "trunk"), "encoder"),
    **dict.fromkeys(("dataset", "data_dir"), "data"),
    **dict.fromkeys(("output", "output_dir", "out"), "runs"),
    **dict.fromkeys(("gpu", "gpus"), "device"),
    **dict.fromkeys(("batch", "bs"), "batch_size"),
    **dict.fromkeys(("num_epochs", "max_epochs"), "epochs"),
    **dict.fromkeys(("checkpoint", "resume_from"), "resume"),
    **dict.fromkeys(("aug", "transform"), "augmentation"),
    **dict.fromkeys(("eval", "evaluation"), "evaluations"),
    "wd": "weight_decay",
    "tau": "temperature",
    "amp": "precision",
    "criterion": "loss",
    "projector": "head",
    "num_workers": "workers",
    "encoder_lr": "encoder_rate_factor",
}
"""Options by their names in other libraries: an error gives the name here."""

LOSSES_ELSEWHERE = {"ce": "CrossEntropyLoss", "protonet": "PrototypicalLoss", "asl": "AsymmetricLoss"}
"""Losses by their names in other libraries."""
OF_CLASS = {
    "Digits": "digits",
    "Arrays": "vectors",
    "Text": "texts",
    **dict.fromkeys(("Folder", "Shards", "Table", "Hub"), "image-folder"),
    "Pairs": "pairs",
}
OF_INPUTS = {"images": "image-folder", "texts": "texts", "numbers": "vectors", "ids": "vectors"}
WITHOUT_COUNTERPART = {"base_temperature"}  # from SupContrast: it multiplies a loss, as a learning rate does
SURE_SIMILARITY = 0.9
"""The similarity of spelling above which only the most similar name is suggested."""

MAX_LISTED_CLASSES = 40
"""With more subclasses, as in torch.nn, an error lists none."""


def class_named(name: str, base: Class) -> str | None:
    """Return the import path of the subclass named by a word, ignoring case and hyphens."""
    if not re.fullmatch(r"[\w -]*", name):
        return None
    several, wanted = kinds(base), folded(name)
    names = (known for known in several if wanted in {folded(known), folded(known).removesuffix(folded(base.name))})
    return several.get(name) or next((several[known] for known in names), None)


def expanded(option: str, value: str, base: Class, options: Mapping[str, Any]) -> list[Option] | None:
    """Return the options that a word for a part stands for, given the others; None: it is a class, or unknown."""
    sized = re.fullmatch(r"([A-Za-z_-]+?)[-_]?(\d+)", value)
    named = class_named(value, base)
    if option == "loss" and (known := recipes.method_named(value)):
        method = recipes.load_fragment("methods", known)
        if method["loss"]["class_path"] != named:
            parts = ("loss",) if recipes.FOR in method else ("loss", "inputs")
            return list(flat({part: method[part] for part in parts if part in method}))
    if option == "encoder" and sized and folded(sized[1]) == "resnet" and named is None:
        return [Option(option, "likewise.models.ResNet"), Option("encoder.depth", int(sized[2]))]
    return _data(value, data_arguments(options)) if option == "data" and named is None else None


def _data(value: str, source_options: Mapping[str, Any]) -> list[Option] | None:
    """Return the options of the source for the data named by a word; None: it may be a class."""
    is_class = value.replace(".", "_").isidentifier() and not exists(Path(value))
    module, _, last = value.rpartition(".")
    try:
        name, arguments = source_for(value, source_options)
    except ValueError:
        if is_class and (not module or last[:1].isupper() or _exists(module)):
            return None
        raise
    return list(flat({"data": {"class_path": f"likewise.data.{name}", "init_args": arguments}}))


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def kind_of_data(options: Mapping[str, Any]) -> str | None:
    """Return the recipes' name for the data in options, by looking at it; None: it can't be told."""
    name = str(options.get("data") or "").rpartition(".")[2]
    if name == "Torchvision":
        wanted = folded(str(options.get("data.name") or ""))
        return next((data for data in recipes.file_names("data") if folded(data) == wanted), recipes.OTHER_IMAGES)
    path = Path(str(options.get("data.path") or ""))
    if name == "Arrays" and "images" in _arrays(path):
        return recipes.OTHER_IMAGES
    files = islice(path.rglob("*"), MAX_LISTED_ENTRIES) if name == "Table" and path.is_dir() else ()
    if name == "Table" and not any(file.suffix.lower() in image_suffixes() for file in files):
        args = data_arguments(options)
        return OF_INPUTS["images" if first_rows(path, args.get("encoding")) is None else inputs_at(path, args)[0]]
    return OF_CLASS.get(name)


def data_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data's arguments among options, with lists parsed."""
    arguments = {name.removeprefix("data."): value for name, value in options.items() if name.startswith("data.")}
    return {
        name: parse(value) if isinstance(value, str) and value.startswith("[") else value
        for name, value in arguments.items()
    }


def pair_options(options: Mapping[str, Any]) -> list[Option]:
    """Return the options for pairs, by the data on their sides: an encoder of the first side, and an image size."""
    first, second = (_kind_of_side(options, side) for side in ("first", "second"))
    chosen = {} if first is None else {"encoder": recipes.load_fragment("data", first)["encoder"]}
    size = {"data.size": 224} if "data.path" in options and "image-folder" in {first, second} else {}
    return list(flat({**size, **chosen}))


def are_texts(options: Mapping[str, Any]) -> bool:
    """Tell whether both sides of pairs are texts."""
    return all(_kind_of_side(options, side) == "texts" for side in ("first", "second"))


def _kind_of_side(options: Mapping[str, Any], side: str) -> str | None:
    """Return the recipes' name for the data on one side of pairs, judged by its first rows."""
    name = str(options.get(f"data.{side}") or "")
    if "data.path" not in options:
        suffix = Path(name).suffix.lower()
        images = suffix == ".npz" and "images" in _arrays(Path(name))
        return None if images else "vectors" if suffix in ARRAYS else "texts"
    rows = first_rows(options["data.path"], options.get("data.encoding"))
    if rows is None:
        return "texts"  # a folder of text files
    several = [cell if isinstance(cell, list) else [cell] for cell in (row.get(name) for row in rows)]
    cell_type = kind_of(value for cell in several for value in cell)
    return None if cell_type == "nothing" else OF_INPUTS.get(cell_type, "texts")


def _arrays(path: Path) -> set[str]:
    try:
        with zipfile.ZipFile(path) as file:
            return {name.removesuffix(".npy") for name in file.namelist()}
    except (OSError, zipfile.BadZipFile):
        return set()  # the source will report it


def near_classes(option: str, name: str, base: Class, names: Sequence[str] = ()) -> str:
    """Return the message that no subclass has the name in an option, with the nearest names."""
    known = list(names or kinds(base))
    last = name.rpartition(".")[2] if names else name
    folds = {folded(class_name).removesuffix(folded(base.name)): class_name for class_name in known}
    folds |= {folded(class_name): class_name for class_name in known}
    folds |= {other: class_name for other, class_name in LOSSES_ELSEWHERE.items() if class_name in known}
    near = [folds[close] for close in get_close_matches(folded(last), folds, n=4, cutoff=0.65)]
    near += [close for close in get_close_matches(last, known, n=3) if close not in near]
    if not near and base.name == "Source":
        sets = {folded(known_set): known_set for known_set in TORCHVISION}
        near = [sets[close] for close in get_close_matches(folded(name), sets, cutoff=0.75)]
    many = not names and len(known) > MAX_LISTED_CLASSES
    message = f"a class for --{option}" if many else f"{option} to be one of {', '.join(known)}"
    message, unique = f"expected {message}, got {name}", list(dict.fromkeys(near))[:2]
    remedy = "give its import path, module.Name" if many else "name one of them"
    return f"{message}, did you mean {' or '.join(unique)}?" if unique else f"{message}: {remedy}"


def near_options(option: str, values: Mapping[str, Any], root: Class, owner: Class | None = None) -> list[str]:
    """Return the options near an unknown one: by its name elsewhere, the last part of its name, or its spelling."""
    known = [*root.parameters, *_within(values, "")]
    part, _, last = option.rpartition(".")
    if last in WITHOUT_COUNTERPART:
        return []
    aliases = [name for name, target in ALIASES.items() if target.partition(".")[0] in root.parameters]
    if OPTIONS_ELSEWHERE.get(option) in {*aliases, *known}:
        return [_dashed(OPTIONS_ELSEWHERE[option])]
    same = [full for full in known if full.rpartition(".")[2] == last]
    siblings = {full.rpartition(".")[2]: full for full in known if full.rpartition(".")[0] == part}
    names = {**siblings, **({} if part else {name: name for name in aliases})}
    close = get_close_matches(last, names, n=3, cutoff=0.7)
    close = close[:1] if close and SequenceMatcher(None, last, close[0]).ratio() > SURE_SIMILARITY else close
    near = [names[full] for full in close]
    folds = {folded(full): full for full in siblings}
    near = [siblings[folds[folded(last)]]] if folded(last) in folds else near
    if part and not near and len(bare := last.removeprefix("n_")) > 2:  # a shorter or longer form of it
        near = [full for name, full in siblings.items() if bare in name or name in bare]
    if not near and not same and owner is not None and part:
        base = root.part(part)
        near = [
            f"{part} {name}" for name, path in (kinds(base) if base else {}).items() if last in Class(path).parameters
        ]
    return [_dashed(full) for full in dict.fromkeys([*same, *near])]


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-') if name in ALIASES else name}"


def _within(values: Mapping[str, Any], above: str) -> Iterator[str]:
    for name, value in values.items():
        spec = value[-1] if isinstance(value, list) and value else value
        if is_spec(spec):
            known = Class(spec["class_path"]).parameters
            yield from (f"{above}{name}.{argument}" for argument in known if argument not in HIDDEN_OPTIONS)
            yield from _within(spec["init_args"], f"{above}{name}.")
