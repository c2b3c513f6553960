"""The words of a command line before the parser has seen them: which options they name, with which values."""

import json
import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from likewise.parts import renamed


class Given(NamedTuple):
    """An option of a command line.

    Attributes:
        option: Its name, as `option_of` gives it.
        value: What follows "=", or else the next word, which of an option without a value is another option.
        adds: Whether it adds to a list, by a "+" behind the name.
    """

    option: str
    value: str
    adds: bool


def given_in(words: Sequence[str]) -> list[Given]:
    """Return the options of a command line.

    Example:
        >>> [tuple(given) for given in given_in(["--seed", "3", "--inputs+=KeyQueue"])]
        [('seed', '3', False), ('inputs', 'KeyQueue', True)]
        >>> given_in(["train"])
        []
    """
    return [
        Given(option_of(word), value if equal else following, name.endswith("+"))
        for word, following in zip_longest(words, words[1:], fillvalue="")
        for name, equal, value in [word.partition("=")]
        if word.startswith("--")
    ]


def current(words: Sequence[str]) -> list[str]:
    """Put today's names in place of those of earlier releases, in the words of a command line and in its files.

    Example:
        >>> current(["--offers", "likewise.training.offers.Momentum", "--offers+=KeyQueue"])
        ['--inputs', 'likewise.training.inputs.Momentum', '--inputs+=KeyQueue']
    """
    words = [re.sub(r"^--offers(?=[.+=]|$)", "--inputs", renamed(word)) for word in words]
    for given in given_in(words):
        if given.option == "config" and not given.value.startswith("{") and Path(given.value).is_file():
            text = Path(given.value).read_text(encoding="utf-8", errors="replace")
            if renamed(text) != text:
                inline = json.dumps(yaml.safe_load(renamed(text)))
                words = [word.replace(given.value, inline) if given.value in word else word for word in words]
    return words


def option_of(word: str) -> str:
    """Return an option's name without dashes and value, and without the middle name that a file gives arguments.

    Example:
        >>> option_of("--loss.init_args.temperature=0.1"), option_of("--inputs+"), option_of("0.1")
        ('loss.temperature', 'inputs', '')
    """
    if not word.startswith("--"):
        return ""
    return word.removeprefix("--").partition("=")[0].replace(".init_args.", ".").removesuffix("+")


def classes_first(words: Sequence[str], parts: Iterable[str]) -> list[str]:
    """Put the class of a part before its arguments, where those come first, as the parser needs it.

    Args:
        words: The words of a command line.
        parts: The options that name a class.

    Example:
        >>> classes_first(["--loss.temperature", "1", "--seed", "3", "--loss", "NTXentLoss"], ["loss"])
        ['--loss', 'NTXentLoss', '--loss.temperature', '1', '--seed', '3']
        >>> classes_first(["--loss", "NTXentLoss", "--loss.temperature=1"], ["loss"])
        ['--loss', 'NTXentLoss', '--loss.temperature=1']
    """
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(word)
    for part in parts:
        options = [option_of(group[0]) for group in groups]
        named = next((place for place, option in enumerate(options) if option in {part, f"{part}.class_path"}), 0)
        argument = next((place for place, option in enumerate(options) if option.startswith(f"{part}.")), named)
        if argument < named:
            groups.insert(argument, groups.pop(named))
    return [word for group in groups for word in group]


def in_files(words: Sequence[str]) -> list[dict[str, Any]]:
    """Read what the `--config` options of a command line say; what is wrong with a file, the parser will say.

    Example:
        >>> in_files(["--seed", "3", "--config", '{"seed": 4}'])
        [{'seed': 4}]
    """
    said: list[dict[str, Any]] = []
    for text in [given.value for given in given_in(words) if given.option == "config"]:
        try:
            read = yaml.safe_load(text if text.startswith("{") else Path(text).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            continue
        said += [read] if isinstance(read, dict) else []
    return said
