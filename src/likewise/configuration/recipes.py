"""Recipes: the configurations that come with likewise, named METHOD-DATA, and the studies that sweep over them.

A recipe is two files, one on top of the other: that of the data set (data, split, batches, encoder, head, optimizer,
epochs), and that of the method (loss and inputs). A third file, named after both, is for what belongs to the pair. A
data set whose file says "like: NAME" has what the other one has, and what belongs to its pairs, unless it says
otherwise.

Files: likewise/training/recipes/{data,methods,both,studies}/NAME.yaml; for a new method, add methods/NAME.yaml.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

import yaml

from likewise.configuration.values import folded
from likewise.files.detection import suggest

ROOT = files("likewise") / "training" / "recipes"
FOR = "for"
"""The key that limits a method or study to some data sets, or a data set to some methods."""
OTHER_IMAGES = ""
"""The name of images that no file of a data set is about."""

FITTED_PARTS = ("data", "batches", "encoder")


def names() -> list[str]:
    """List the recipes."""
    return [f"{method}-{data}" for method, data in _pairs("methods")]


def studies() -> list[str]:
    """List the studies, STUDY-DATA."""
    return [f"{prefix}-{data}" for prefix, data in _pairs("studies")]


def recipe(name: str) -> dict[str, Any]:
    """Return a recipe's options."""
    method, data = _pair(name, "methods", names())
    chain = [data]
    while "like" in (fragment := load_fragment("data", chain[-1])):
        chain.append(fragment["like"])
    options: dict[str, Any] = {}
    for data_name in reversed(chain):
        options = _merged(options, load_fragment("data", data_name))
    options = _merged(options, load_fragment("methods", method))
    pair = next((f"{method}-{data_name}" for data_name in chain if f"{method}-{data_name}" in file_names("both")), None)
    options = options if pair is None else _merged(options, load_fragment("both", pair))
    return {"keep": "last"} | {part: value for part, value in options.items() if part not in {"like", FOR}}


def study(name: str) -> dict[str, str]:
    """Return the command-line options of each setting of a study, such as "--recipe nws-vectors --loss.alpha 1"."""
    what, data = _pair(name, "studies", studies())
    return {
        setting: template.format(data=data)
        for setting, template in load_fragment("studies", what).items()
        if setting != FOR
    }


def complete_name(name: str, data: str | None = None) -> str:
    """Complete the name of a method to that of a recipe: for the data, or else for digits, or the first it is for."""
    folded_name = folded(name)
    for known in file_names("methods"):
        if folded(known) == folded_name:
            data_sets = load_fragment("methods", known).get(FOR, ["digits"])
            data_names = {None: data_sets[0], OTHER_IMAGES: "digits" if "digits" in data_sets else "image-folder"}
            return f"{known}-{data_names.get(data, data)}"
    return next((known for known in names() if folded(known) == folded_name), name)


def method_options(name: str) -> dict[str, Any] | None:
    """Return the options of a method, whatever the case and hyphens of its name; None: there is none."""
    return next(
        (load_fragment("methods", known) for known in file_names("methods") if folded(known) == folded(name)), None
    )


def input_options(data: str) -> dict[str, Any]:
    """Return the options for a kind of data where no recipe is named: those of its inputs; for pairs, a recipe."""
    if data == "pairs":
        return recipe("clip-pairs")
    return {part: value for part, value in load_fragment("data", data).items() if part in FITTED_PARTS}


def _pair(name: str, folder: str, known: Sequence[str]) -> tuple[str, str]:
    for first, data in _pairs(folder):
        if name == f"{first}-{data}":
            return first, data
    if name in studies():
        raise ValueError(f"expected a recipe, got the study {name!r}: likewise sweep --recipe {name}")
    raise ValueError(unknown(name, known))


def unknown(name: str, known: Sequence[str]) -> str:
    """Say that a name is unknown, and which are near it; or what a method and data that don't match go with."""
    for folder in ("methods", "studies"):
        for prefix, data in product(file_names(folder), file_names("data")):
            if name == f"{prefix}-{data}":
                data_sets = ", ".join(data for first, data in _pairs(folder) if first == prefix)
                alternatives = ", ".join(first for first, for_data in _pairs(folder) if for_data == data)
                wanted = f"expected data that {prefix} is for, {data_sets}, got {data}"
                return f"{wanted}: for {data} there are {alternatives or 'none'}"
    longer = [known_name for known_name in known if name and name in known_name][:2]
    methods, data_sets = ", ".join(file_names("methods")), ", ".join(file_names("data"))
    every = f": METHOD-DATA, with a method of {methods} and data of {data_sets}"
    remedy = suggest(name, known, f", did you mean {' or '.join(longer)}?" if longer else every)
    return f"expected a recipe or a study, got {name!r}{remedy}"


def _pairs(folder: str) -> list[tuple[str, str]]:
    return [
        (first, data)
        for data, first in product(file_names("data"), file_names(folder))
        if data in load_fragment(folder, first).get(FOR, [data])
        and first in load_fragment("data", data).get(FOR, [first])
    ]


def file_names(folder: str) -> list[str]:
    """Return the names of the files in a folder of recipes."""
    return sorted(file.name.removesuffix(".yaml") for file in (ROOT / folder).iterdir() if file.name.endswith(".yaml"))


@cache
def load_fragment(folder: str, name: str) -> dict[str, Any]:
    """Return the contents of a file in a folder of recipes."""
    return yaml.safe_load((ROOT / folder / f"{name}.yaml").read_text(encoding="utf-8"))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay options over others; arguments of a class are dropped where another class takes its place."""
    merged = {**below, **above}
    for name in below.keys() & above.keys():
        old, new = below[name], above[name]
        parts = isinstance(old, Mapping) and isinstance(new, Mapping)
        if parts and new.get("class_path", old.get("class_path")) == old.get("class_path"):
            merged[name] = _merged(old, new)
    return merged
