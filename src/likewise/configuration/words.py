"""The words of a command line as options with their values."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from likewise.configuration.draft import ConfigBuilder, Option
from likewise.configuration.options import VERBS
from likewise.configuration.resolution import canonical, in_files, resolved
from likewise.configuration.values import FLAG


def read(words: Sequence[str], *, verb: str = "train") -> Any:
    """Return the record of a verb, as the words of a command line and its files of options give them.

    Args:
        words: What follows the verb.
        verb: One of `VERBS`.

    Returns:
        As `resolve`.

    Raises:
        ValueError: As `resolve`.

    Example:
        >>> read(["--loss", "supcon", "--loss.temperature=0.2"]).loss["init_args"]["temperature"]
        0.2
    """
    return resolved(classes_first(options_in(words, verb)), verb)


def options_in(words: Sequence[str], verb: str = "train") -> list[Option]:
    """Return the options of a command line in their order.

    Example:
        >>> [tuple(one) for one in options_in(["photos", "--seed", "3", "--inputs+=KeyQueue"])]
        [('data', 'photos', False), ('seed', '3', False), ('inputs', 'KeyQueue', True)]
        >>> options_in(["runs/RUN", "-k", "3"], "search")[1].name
        'k'
    """
    options: list[Option] = []
    named, several = positional(verb), VERBS[verb][1].rstrip("]").endswith("...")
    following = iter(range(len(words)))
    for place in following:
        word = words[place]
        if not is_option(word):
            given = {option.name: option.value for option in options}
            name = next((name for name in named if name not in given), named[-1])
            many = several and name == named[-1]
            if name in given and not many:
                raise ValueError(
                    f"expected one {name.upper()}, got {given[name]} and {word}: leave one out, or name its option"
                )
            options.append(Option(name, [word] if many else word, many))
            continue
        name, equal, value = word.lstrip("-").partition("=")
        chosen: Any = value if equal else FLAG
        if not equal and place + 1 < len(words) and not is_option(words[place + 1]):
            chosen = words[next(following)]
        options.append(Option(name.removesuffix("+").replace("-", "_"), chosen, name.endswith("+")))
    if several or not VERBS[verb][1].startswith("[") or named[-1] in {option.name for option in options}:
        return options
    left_out = named[0]  # unless it is the last that is
    return [
        one._replace(name=named[-1]) if one.name == left_out and not _is_trained(one.value) else one for one in options
    ]


def _is_trained(word: Any) -> bool:
    """Tell whether a word names a run, or an exported encoder, which is no data."""
    return isinstance(word, str) and (word.endswith(".onnx") or (Path(word) / "run.json").is_file())


def canonical_options(words: Sequence[str], verb: str = "train") -> list[Option]:
    """Return the options of a command line in their order, each by its own name.

    Example:
        >>> [tuple(one) for one in canonical_options(["--lr", "0.1", "--device=cpu"])]
        [('optimizer.lr', '0.1', False), ('trainer.accelerator', 'cpu', False)]
    """
    root = ConfigBuilder(verb).root
    return [canonical(option, root) for option in options_in(words, verb)]


def named_in(words: Sequence[str], verb: str = "train") -> frozenset[str]:
    """Return the names of all options that the words of a command line give, and the files of options among them.

    Example:
        >>> sorted(named_in(["--lr", "0.1", "--config", '{"trainer.max_epochs": 3}']))
        ['config', 'optimizer.lr', 'trainer.max_epochs']
    """
    options = canonical_options(words, verb)
    return frozenset(option.name for option in (*options, *in_files(options, ConfigBuilder(verb).root)))


def as_words(options: Iterable[Option]) -> list[str]:
    """Write options as the words of a command line.

    Example:
        >>> as_words([Option("seed", "3"), Option("inputs", "KeyQueue", adds=True), Option("compile", FLAG)])
        ['--seed', '3', '--inputs+', 'KeyQueue', '--compile']
    """
    return [
        word
        for name, value, adds in options
        for word in (f"--{name}{'+' if adds else ''}", *([] if value is FLAG else [str(value)]))
    ]


def positional(verb: str) -> list[str]:
    """Return the options that the words without a name are, in their order.

    Example:
        >>> positional("train"), positional("search")
        (['data'], ['run', 'query'])
    """
    return [word.strip("[]").lower() for word in VERBS[verb][1].split() if word.strip("[]") != "..."]


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
