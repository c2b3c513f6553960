"""Recipes: the configurations that come with likewise, named METHOD-DATA, and the studies that sweep over them.

A recipe is two files, one on top of the other: that of the data set (data, split, batches, encoder, head, optimizer,
epochs), and that of the method (loss and inputs). A third file, named after both, is for what belongs to the pair. A
data set whose file says "like: NAME" has what the other one has, and what belongs to its pairs, unless it says
otherwise.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

import yaml

from likewise.cli.words import given_in, in_files

ROOT = files("likewise") / "training" / "recipes"
FOR = "for"  # in a method's or study's file: the data sets that it is for, where it isn't for all


def names() -> list[str]:
    """List the recipes.

    Example:
        >>> "supcon-cifar10" in names()
        True
    """
    return _pairs("methods")


def studies() -> list[str]:
    """List the studies, STUDY-DATA.

    Example:
        >>> "rascal-ablation-digits" in studies()
        True
    """
    return _pairs("studies")


def recipe(name: str) -> dict[str, Any]:
    """Return a recipe's options.

    Raises:
        ValueError: There is no such recipe; the message names the nearest.

    Example:
        >>> recipe("supcon-digits")["loss"]["class_path"]
        'likewise.losses.SupConLoss'
    """
    method, data = _pair(name, "methods", names())
    chain = [data]
    while "like" in (said := _read("data", chain[-1])):
        chain.append(said["like"])
    options: dict[str, Any] = {}
    for of in reversed(chain):
        options = _merged(options, _read("data", of))
    options = _merged(options, _read("methods", method))
    pair = next((f"{method}-{of}" for of in chain if f"{method}-{of}" in _listed("both")), None)
    options = options if pair is None else _merged(options, _read("both", pair))
    return {part: value for part, value in options.items() if part not in {"like", FOR}}


def study(name: str) -> dict[str, str]:
    """Return the options of each setting of a study, by the setting's name.

    Raises:
        ValueError: There is no such study; the message names the nearest.

    Example:
        >>> study("methods-digits")["SimCLR"]
        '--recipe simclr-digits'
    """
    what, data = _pair(name, "studies", studies())
    return {setting: of.format(data=data) for setting, of in _read("studies", what).items() if setting != FOR}


def with_recipe(words: Sequence[str]) -> list[str]:
    """Put the recipe that a command line or its file of options names in front, as a configuration.

    All other options then win over it, wherever they stand. Where they name another class for a part, the recipe says
    nothing about that part. Of several recipes the last counts.

    Raises:
        ValueError: There is no such recipe, or no name is given.

    Example:
        >>> with_recipe(["--seed", "3"])
        ['--seed', '3']
        >>> before, *after = with_recipe(["--seed", "3", "--recipe", "supcon-digits"])
        >>> before[:9], after
        ('--config=', ['--seed', '3', '--recipe', 'supcon-digits', '--recipe=supcon-digits'])
    """
    named = [said["recipe"] for said in in_files(words) if said.get("recipe") is not None]
    named += [given.value for given in given_in(words) if given.option == "recipe"]
    if not named:
        return list(words)
    if not isinstance(named[-1], str):
        raise ValueError(  # noqa: TRY004 - a mistake in a file
            f"expected the name of a recipe, got {named[-1]!r}: {names()[0]} is one"
        )
    options = recipe(named[-1])
    for path, name in _classes_in(words):
        options = _without_other(options, path.split("."), name)
    return [f"--config={json.dumps(options)}", *words, f"--recipe={named[-1]}"]


def _classes_in(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield every option of a command line, and every class in its files, with its value.

    What "+" adds to a list is left out: it replaces nothing.
    """
    for said in in_files(words):
        yield from _classes(said)
    for option, value, adds in given_in(words):
        if not adds:
            yield option.removesuffix(".class_path"), value


def _classes(said: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in said.items():
        if isinstance(value, Mapping):
            if isinstance(value.get("class_path"), str):
                yield f"{before}{name}", value["class_path"]
            yield from _classes(value.get("init_args") or {}, f"{before}{name}.")
        elif isinstance(value, str):
            yield f"{before}{name}", value


def _without_other(options: Mapping[str, Any], path: Sequence[str], name: str) -> dict[str, Any]:
    """Leave out the part at a path if it is of another class.

    Example:
        >>> options = {"loss": {"class_path": "losses.A", "init_args": {"x": 1}}}
        >>> _without_other(options, ["loss"], "B"), _without_other(options, ["loss"], "A") == options
        ({}, True)
    """
    first, *rest = path
    part = options.get(first)
    if not isinstance(part, Mapping) or "class_path" not in part:
        return dict(options)
    if rest:
        inner = _without_other(part.get("init_args") or {}, rest, name)
        return {**options, first: {**part, "init_args": inner}}
    own = name.startswith("likewise.") or "." not in name
    if part["class_path"] == name or (own and part["class_path"].rpartition(".")[2] == name.rpartition(".")[2]):
        return dict(options)
    return {of: value for of, value in options.items() if of != first}


def _pair(name: str, room: str, known: Sequence[str]) -> tuple[str, str]:
    """Part a name into that of a method or study, and that of the data."""
    for first, data in _fitting(room):
        if name == f"{first}-{data}":
            return first, data
    if name in studies():
        raise ValueError(f"expected a recipe, got the study {name!r}: likewise sweep --recipe {name}")
    raise ValueError(unknown(name, known))


def unknown(name: str, known: Sequence[str]) -> str:
    """Say that a name is unknown, and which are near it.

    Example:
        >>> unknown("supcn-digits", names())
        "expected a recipe or a study, got 'supcn-digits': did you mean supcon-digits?"
    """
    near = get_close_matches(name, known, n=1) or [one for one in known if name and name in one][:2]
    every = f"METHOD-DATA, with a method of {', '.join(_listed('methods'))} and data of {', '.join(_listed('data'))}"
    return f"expected a recipe or a study, got {name!r}: " + (f"did you mean {' or '.join(near)}?" if near else every)


def _pairs(room: str) -> list[str]:
    """Name every pair of a method or study and a data set that it is for."""
    return [f"{first}-{data}" for first, data in _fitting(room)]


def _fitting(room: str) -> list[tuple[str, str]]:
    pairs = product(_listed("data"), _listed(room))
    return [(first, data) for data, first in pairs if data in _read(room, first).get(FOR, [data])]


def _listed(room: str) -> list[str]:
    return sorted(file.name.removesuffix(".yaml") for file in (ROOT / room).iterdir() if file.name.endswith(".yaml"))


@cache
def _read(room: str, name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / room / f"{name}.yaml").read_text(encoding="utf-8"))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay options over others; arguments of a class are dropped where another class takes its place.

    Example:
        >>> _merged({"a": {"class_path": "A", "init_args": {"x": 1}}}, {"a": {"init_args": {"y": 2}}})
        {'a': {'class_path': 'A', 'init_args': {'x': 1, 'y': 2}}}
        >>> _merged({"a": {"class_path": "A", "init_args": {"x": 1}}}, {"a": {"class_path": "B"}})
        {'a': {'class_path': 'B'}}
    """
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping) and _same_class(value, old):
            merged[name] = _merged(old, value)
        else:
            merged[name] = value
    return merged


def _same_class(value: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    return value.get("class_path", old.get("class_path")) == old.get("class_path")
