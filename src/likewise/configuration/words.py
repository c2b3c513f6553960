"""The words of a command line as options with their values."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from likewise.configuration.draft import ConfigBuilder, Option
from likewise.configuration.options import RECORDS
from likewise.configuration.resolution import canonical, in_files, resolved
from likewise.configuration.values import FLAG


def read(args: Sequence[str], *, verb: str = "train") -> Any:
    """Return a verb's options as one record, from the words of a command line and its files of options.

    Args:
        args: What follows the verb.
        verb: One of `RECORDS`.

    Returns:
        The verb's record; see `resolve`.

    Raises:
        ValueError: There is no such option, class, file or recipe, or a value is not as expected.

    Example:
        >>> read(["--loss", "supcon", "--loss.temperature=0.2"]).loss["init_args"]["temperature"]
        0.2
    """
    return resolved(classes_first(options_in(args, verb)), verb)


def options_in(args: Sequence[str], verb: str = "train") -> list[Option]:
    """Return the options of a command line in their order."""
    options: list[Option] = []
    named, several = positional(verb), RECORDS[verb][1].rstrip("]").endswith("...")
    following = iter(range(len(args)))
    for index in following:
        word = args[index]
        if not is_option(word):
            values = {option.name: option.value for option in options}
            name = next((name for name in named if name not in values), named[-1])
            many = several and name == named[-1]
            if name in values and not many:
                raise ValueError(
                    f"expected one {name.upper()}, got {values[name]} and {word}: leave one out, or name its option"
                )
            options.append(Option(name, [word] if many else word, many))
            continue
        name, equal, value = word.lstrip("-").partition("=")
        chosen: Any = value if equal else FLAG
        if not equal and index + 1 < len(args) and not is_option(args[index + 1]):
            chosen = args[next(following)]
        options.append(Option(name.removesuffix("+").replace("-", "_"), chosen, name.endswith("+")))
    if several or not RECORDS[verb][1].startswith("[") or named[-1] in {option.name for option in options}:
        return options
    left_out = named[0]  # the optional one: a word that names no run is meant for the last
    return [
        option._replace(name=named[-1]) if option.name == left_out and not _is_trained(option.value) else option
        for option in options
    ]


def _is_trained(word: Any) -> bool:
    return isinstance(word, str) and (word.endswith(".onnx") or (Path(word) / "run.json").is_file())


def canonical_options(args: Sequence[str], verb: str = "train") -> list[Option]:
    """Return the options of a command line in their order, each under its full name."""
    root = ConfigBuilder(verb).root
    return [canonical(option, root) for option in options_in(args, verb)]


def named_in(args: Sequence[str], verb: str = "train") -> frozenset[str]:
    """Return the names of all options on a command line, and of those in its files of options."""
    options = canonical_options(args, verb)
    return frozenset(option.name for option in (*options, *in_files(options, ConfigBuilder(verb).root)))


def as_words(options: Iterable[Option]) -> list[str]:
    """Write options as the words of a command line."""
    return [
        word
        for name, value, adds in options
        for word in (f"--{name}{'+' if adds else ''}", *([] if value is FLAG else [str(value)]))
    ]


def positional(verb: str) -> list[str]:
    """Return the names of the positional options, in their order."""
    return [word.strip("[]").lower() for word in RECORDS[verb][1].split() if word.strip("[]") != "..."]


def is_option(word: str) -> bool:
    """Tell whether a word names an option."""
    return re.match(r"--?[A-Za-z][\w.+-]*(=|$)", word) is not None


def classes_first(options: Sequence[Option]) -> list[Option]:
    """Put the class of a part before its arguments, where those come first."""
    ordered: list[Option] = []
    for option in options:
        first = next((at for at, before in enumerate(ordered) if before.name.startswith(f"{option.name}.")), None)
        named = any(before.name == option.name for before in ordered)
        ordered.insert(len(ordered) if first is None or named or option.adds else first, option)
    return ordered
