"""The words of a command line as options with their values."""

import re
from collections.abc import Sequence
from typing import Any

from likewise.configuration.draft import Option
from likewise.configuration.options import VERBS
from likewise.configuration.resolution import resolved
from likewise.configuration.values import FLAG


def read(words: Sequence[str], *, verb: str = "train") -> dict[str, Any]:
    """Return every option of a verb, as the words of a command line and its files of options give them.

    Args:
        words: What follows the verb.
        verb: "train", "evaluate", "compare" or "export".

    Returns:
        As `resolve`.

    Raises:
        ValueError: As `resolve`.

    Example:
        >>> read(["--loss", "supcon", "--loss.temperature=0.2"])["loss"]["init_args"]["temperature"]
        0.2
    """
    return resolved(classes_first(options_in(words, verb)), verb)


def options_in(words: Sequence[str], verb: str = "train") -> list[Option]:
    """Return the options of a command line in their order.

    Example:
        >>> [tuple(one) for one in options_in(["photos", "--seed", "3", "--inputs+=KeyQueue"])]
        [('data', 'photos', False), ('seed', '3', False), ('inputs', 'KeyQueue', True)]
    """
    options: list[Option] = []
    usage = VERBS[verb][1]
    positional, several = usage.strip("[] .").lower(), usage.endswith("...")
    following = iter(range(len(words)))
    for place in following:
        word = words[place]
        if not is_option(word):
            before = next((option.value for option in options if option.name == positional and not several), None)
            if before is not None:
                raise ValueError(
                    f"expected one {positional.upper()}, got {before} and {word}: leave one out, or name its option"
                )
            options.append(Option(positional, [word] if several else word, several))
            continue
        name, equal, value = word.removeprefix("--").partition("=")
        given: Any = value if equal else FLAG
        if not equal and place + 1 < len(words) and not is_option(words[place + 1]):
            given = words[next(following)]
        options.append(Option(name.removesuffix("+").replace("-", "_"), given, name.endswith("+")))
    return options


def is_option(word: str) -> bool:
    """Tell whether a word names an option.

    Example:
        >>> is_option("--batch-size"), is_option("-1"), is_option("--loss NTXentLoss")
        (True, False, False)
    """
    return re.match(r"--?[A-Za-z][\w.+-]*(=|$)", word) is not None


def classes_first(options: Sequence[Option]) -> list[Option]:
    """Put the class of a part before its arguments, where those come first.

    Example:
        >>> found = classes_first([Option("loss.temperature", "1"), Option("seed", "3"), Option("loss", "NTXentLoss")])
        >>> [one.name for one in found]
        ['loss', 'loss.temperature', 'seed']
    """
    ordered: list[Option] = []
    for option in options:
        first = next((at for at, before in enumerate(ordered) if before.name.startswith(f"{option.name}.")), None)
        named = any(before.name == option.name for before in ordered)
        ordered.insert(len(ordered) if first is None or named or option.adds else first, option)
    return ordered
