"""Why the parser refused its arguments, in one line, with the nearest names where a name is unknown."""

import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches

from jsonargparse import ArgumentParser

from likewise.cli.words import given_in
from likewise.pickled import pickled

Parts = Mapping[str, tuple[type, str]]
Classes = Mapping[str, Mapping[str, type]]
LONGEST = 300  # characters of the parser's own message
# how the lines of that message begin that list every type it tried
NOISE = (
    "Does not validate",
    "Subtypes",
    "Errors",
    "Given value type",
    "Given value: N",
    "Expected a path but",
    "Expected a dot",
)


def subclasses(base: type) -> Iterator[type]:
    """Yield the subclasses of a class that an option can name."""
    for kind in base.__subclasses__():
        if not inspect.isabstract(kind) and not kind.__name__.startswith("_"):
            yield kind
        yield from subclasses(kind)


def explained(
    parser: ArgumentParser,
    message: str,
    words: Sequence[str],
    parts: Parts,
    filled: Collection[str],
    *,
    verb: str = "train",
) -> str:
    """Say in one line why a parser refused its arguments: a name is unknown, or its own message made short.

    Args:
        parser: The parser.
        message: Its message.
        words: Its arguments, those in a file of options included.
        parts: The options that name a class: the base class and the help of each.
        filled: Parameters that no argument can set.
        verb: The verb whose help is named.

    Example:
        >>> parser = ArgumentParser()
        >>> _ = parser.add_argument("--seed", type=int)
        >>> explained(parser, "", ["--sed", "1"], {}, (), verb="evaluate")
        'unknown option --sed, did you mean --seed?'
        >>> explained(parser, "Expected an int", [], {}, (), verb="evaluate")
        'expected a whole number: see likewise evaluate --help'
    """
    classes = {part: {kind.__name__: kind for kind in subclasses(base)} for part, (base, _) in parts.items()}
    option, told, near = next(_unknown(parser, words, classes, filled), None) or _shortened(message)
    part = option.partition(".")[0]
    help_ = f"{part}.help{_class_of(parser, words, part)}" if part in parts else "help"
    return f"{told}, did you mean {' or '.join(near[:2])}?" if near else f"{told}: see likewise {verb} --{help_}"


def _class_of(parser: ArgumentParser, words: Sequence[str], part: str) -> str:
    """Return the class that is chosen for a part, with a space before it; nothing where none is."""
    named = [given.value for given in given_in(words) if given.option.removesuffix(".class_path") == part]
    default = parser.get_defaults().get(part)
    name = named[-1] if named else getattr(default, "class_path", "")
    return f" {name.rpartition('.')[2]}" if name.rpartition(".")[2].isidentifier() else ""


def _shortened(message: str) -> tuple[str, str, list[str]]:
    """Return the option that the parser's message is about, and the message in one line."""
    _, *nested = message.split('Parser key "')
    option = ".".join(dict.fromkeys(name for text in nested for name in text.partition('"')[0].split(".")))
    missing = re.search(r"the following arguments are required: (\w+)", message)
    if missing:
        name = f"{option}.{missing[1]}" if option else missing[1]
        return option, f"expected --{name}, got none", []
    text = nested[-1].partition('":')[2] if nested else message
    lines = [
        line.strip().removeprefix("- ").rstrip(":")
        for line in text.replace("a <class '", "").replace("'>", "").splitlines()
    ]
    told = "; ".join(line for line in lines if line and not line.startswith(NOISE) and "NoneType" not in line)
    told = re.sub(r"Expected a typing\.Literal\[(.*?)\]", r"expected one of \1", told)
    told = re.sub(r"Expected (an? )?int\b", "expected a whole number", told)
    told = re.sub(r"Expected (a )?float\b", "expected a number", told).replace(". Got value: ", ", got ")
    told = told.replace("; expected ", " or ")
    told = re.sub(r"^Given value: ", "expected the name of a class, got ", told).replace("; Given value: ", ", got ")
    return option, (f"--{option}: {told}" if option else told)[:LONGEST], []


def _unknown(
    parser: ArgumentParser, words: Sequence[str], classes: Classes, filled: Collection[str]
) -> Iterator[tuple[str, str, list[str]]]:
    """Find names that do not exist: the option, what to say about it, and the nearest names."""
    given = [(option.removesuffix(".help").removesuffix(".class_path"), value) for option, value, _ in given_in(words)]
    for option, value in given:
        if objects := pickled(value):  # which the parser takes for a file of options
            yield option, f"expected a class for --{option}, got {value}, {objects}", []
    defaults = parser.get_defaults()
    named = [(part, defaults[part].class_path) for part in classes if defaults.get(part)]
    named += [(option, value) for option, value in given if option in classes]
    for part, name in named:
        names = sorted(classes[part])
        if name.isidentifier() and name not in {*names, "null"}:
            yield part, f"expected {part} to be one of {', '.join(names)}, got {name}", get_close_matches(name, names)
    known = [key for key in defaults.keys() if key.partition(".")[0] not in classes]  # noqa: SIM118 - a namespace
    chosen = [(part, classes[part].get(name.rpartition(".")[2])) for part, name in named]
    known += [f"{part}.{of}" for part, kind in chosen if kind for of in _parameters(kind).difference(filled)]
    kinds = {part: kind.__name__ for part, kind in chosen if kind}
    for option, _ in given:
        if option and option not in classes and not any(f"{option}.".startswith(f"{key}.") for key in known):
            part = option.partition(".")[0]
            of = f" of {kinds[part]}" if part in kinds else ""
            yield option, f"unknown option --{option}{of}", _nearest(option, known, classes)


def _nearest(option: str, known: Sequence[str], classes: Classes) -> list[str]:
    """Find options of the same last name, then of a similar one, then other classes that have that parameter."""
    part, _, last = option.rpartition(".")
    siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == part}
    near = [key for key in known if key.rpartition(".")[2] == last]
    near += [siblings[name] for name in get_close_matches(last, siblings)]
    near = near or [f"{part} {name}" for name, kind in classes.get(part, {}).items() if last in _parameters(kind)]
    return [f"--{key}" for key in near]


def _parameters(kind: type) -> set[str]:
    """Name the parameters of a class, those that it passes on to its parents included."""
    parser = ArgumentParser()
    parser.add_class_arguments(kind, fail_untyped=False)
    return {name.partition(".")[0] for name in parser.get_defaults().keys()}  # noqa: SIM118 - a namespace
