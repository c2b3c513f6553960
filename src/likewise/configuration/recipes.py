"""Recipes: the configurations that come with likewise, named METHOD-DATA, and the studies that sweep over them.

A recipe is two files, one on top of the other: that of the data set (data, split, batches, encoder, head, optimizer,
epochs), and that of the method (loss and inputs). A third file, named after both, is for what belongs to the pair. A
data set whose file says "like: NAME" has what the other one has, and what belongs to its pairs, unless it says
otherwise.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

import yaml

from likewise.configuration.values import folded
from likewise.files.suggestions import suggest

ROOT = files("likewise") / "training" / "recipes"
FOR = "for"  # in a method's or study's file: the data sets that it is for, where not for all; in a data set's, methods
IMAGES = ""
"""The name of images that no data set's file is about."""

FITTED = ("data", "batches", "encoder")


def names() -> list[str]:
    """List the recipes."""
    return [f"{method}-{data}" for method, data in _pairs("methods")]


def studies() -> list[str]:
    """List the studies, STUDY-DATA."""
    return [f"{study}-{data}" for study, data in _pairs("studies")]


def recipe(name: str) -> dict[str, Any]:
    """Return a recipe's options."""
    method, data = _pair(name, "methods", names())
    chain = [data]
    while "like" in (said := load_fragment("data", chain[-1])):
        chain.append(said["like"])
    options: dict[str, Any] = {}
    for data_name in reversed(chain):
        options = _merged(options, load_fragment("data", data_name))
    options = _merged(options, load_fragment("methods", method))
    pair = next((f"{method}-{data_name}" for data_name in chain if f"{method}-{data_name}" in listed("both")), None)
    options = options if pair is None else _merged(options, load_fragment("both", pair))
    return {"keep": "last"} | {part: value for part, value in options.items() if part not in {"like", FOR}}


def study(name: str) -> dict[str, str]:
    """Return the options of each setting of a study, by the setting's name."""
    what, data = _pair(name, "studies", studies())
    return {
        setting: template.format(data=data)
        for setting, template in load_fragment("studies", what).items()
        if setting != FOR
    }


def named(name: str, data: str | None = None) -> str:
    """Complete the name of a method to that of a recipe: for the data, or else for digits, or the first that it is for.

    Example:
        >>> named("simclr"), named("moco-cifar10"), named("nws"), named("supcon", "texts"), named("nws", IMAGES)
        ('simclr-digits', 'moco-cifar10', 'nws-vectors', 'supcon-texts', 'nws-image-folder')
    """
    method = folded(name)
    for known in listed("methods"):
        if folded(known) == method:
            fitting = load_fragment("methods", known).get(FOR, ["digits"])
            data_names = {None: fitting[0], IMAGES: "digits" if "digits" in fitting else "image-folder"}
            return f"{known}-{data_names.get(data, data)}"
    return next((known for known in names() if folded(known) == method), name)


def method(name: str) -> dict[str, Any] | None:
    """Return the options of a method, whatever the case and hyphens of its name; None: there is none."""
    return next((load_fragment("methods", known) for known in listed("methods") if folded(known) == folded(name)), None)


def fitting(data: str) -> dict[str, Any]:
    """Return the options that fit a kind of data where no recipe is named: those of its inputs; for pairs, a recipe."""
    if data == "pairs":
        return recipe("clip-pairs")
    return {part: value for part, value in load_fragment("data", data).items() if part in FITTED}


def _pair(name: str, room: str, known: Sequence[str]) -> tuple[str, str]:
    for first, data in _pairs(room):
        if name == f"{first}-{data}":
            return first, data
    if name in studies():
        raise ValueError(f"expected a recipe, got the study {name!r}: likewise sweep --recipe {name}")
    raise ValueError(unknown(name, known))


def unknown(name: str, known: Sequence[str]) -> str:
    """Say that a name is unknown, and which are near it; or what a method and data that don't match go with."""
    for room in ("methods", "studies"):
        for prefix, data in product(listed(room), listed("data")):
            if name == f"{prefix}-{data}":
                fitting = ", ".join(data for first, data in _pairs(room) if first == prefix)
                alternatives = ", ".join(first for first, for_data in _pairs(room) if for_data == data)
                wanted = f"expected data that {prefix} is for, {fitting}, got {data}"
                return f"{wanted}: for {data} there are {alternatives or 'none'}"
    longer = [recipe for recipe in known if name and name in recipe][:2]
    every = f": METHOD-DATA, with a method of {', '.join(listed('methods'))} and data of {', '.join(listed('data'))}"
    remedy = suggest(name, known, f", did you mean {' or '.join(longer)}?" if longer else every)
    return f"expected a recipe or a study, got {name!r}{remedy}"


def _pairs(room: str) -> list[tuple[str, str]]:
    return [
        (first, data)
        for data, first in product(listed("data"), listed(room))
        if data in load_fragment(room, first).get(FOR, [data])
        and first in load_fragment("data", data).get(FOR, [first])
    ]


def listed(room: str) -> list[str]:
    """List the methods, the studies or the data sets that have a file."""
    return sorted(file.name.removesuffix(".yaml") for file in (ROOT / room).iterdir() if file.name.endswith(".yaml"))


@cache
def load_fragment(room: str, name: str) -> dict[str, Any]:
    """Return what the file of a data set, of a method or study, or of both says."""
    return yaml.safe_load((ROOT / room / f"{name}.yaml").read_text(encoding="utf-8"))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay options over others; arguments of a class are dropped where another class takes its place."""
    merged = {**below, **above}
    for name in below.keys() & above.keys():
        old, new = below[name], above[name]
        parts = isinstance(old, Mapping) and isinstance(new, Mapping)
        if parts and new.get("class_path", old.get("class_path")) == old.get("class_path"):
            merged[name] = _merged(old, new)
    return merged
