"""What is wrong with an argument, in one line: what the parser says in several, with the nearest names."""

import inspect
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches

from jsonargparse import ArgumentParser

Parts = Mapping[str, tuple[type, str]]
VALUES = {"temperature": "a positive number", "path": "a file or folder", "run": "runs/RUN"}
KINDS = {"int": "an integer", "float": "a number", "bool": "true or false"}
# what jsonargparse says of every type that an option might have had
NOISE = re.compile(
    r"Does not validate against any of the Union subtypes|Subtypes: \[.*\]|Errors:|- Expected a <class 'NoneType'>"
)


def option_of(word: str) -> str:
    """Return an option's name without dashes and value, and without the middle name that a file gives arguments.

    Example:
        >>> option_of("--loss.init_args.temperature=0.1"), option_of("--offers+"), option_of("0.1")
        ('loss.temperature', 'offers', '')
    """
    if not word.startswith("--"):
        return ""
    return word.removeprefix("--").partition("=")[0].replace(".init_args.", ".").removesuffix("+")


def explained(parser: ArgumentParser, message: str, parts: Parts, filled: Collection[str]) -> str:
    """Say in one line what the parser says in several, with the nearest names where a name is unknown.

    Args:
        parser: Whose message it is.
        message: The message.
        parts: For each part its base class and its help.
        filled: Parameters that no argument can give.
    """
    part = re.match(r'(?:Parser key "|--)(\w+)', message)
    chosen = part[1] if part and part[1] in parts else None
    told = _of_a_part(chosen, message, parts, filled) if chosen else None
    option = re.match(r"unrecognized arguments: *(--[\w.]+)", message)
    if option:
        told = f"unknown option {option[1]}{_nearest_option(option[1], _known_options(parser, parts, filled))}"
    if told and told.endswith("?"):
        return told
    words = told or " ".join(NOISE.sub(" ", message).split())
    return f"{words}: see likewise train --{f'{chosen}.help' if chosen else 'help'}"


def _of_a_part(part: str, message: str, parts: Parts, filled: Collection[str]) -> str | None:
    """Explain an error within a part: of a parameter's value, of its name, of one that is missing, of the class."""
    classes = dict(_classes(parts[part][0]))
    of = re.search(r"class_path[ =]'(?:[\w.]*\.)?(\w+)'", message)
    name = of[1] if of else ""
    if value := re.search(rf'Parser key "(?!{part}")(\w+)":(.*)', message, re.DOTALL):
        return _of_a_value(part, value[1], value[2])
    if unknown := re.search(r"Option '(\w+)' is not accepted", message):
        elsewhere = [
            f"--{other} {kind}" if other == part else f"--{other}.{unknown[1]}"
            for other, (base, _) in parts.items()
            for kind, class_ in _classes(base)
            if unknown[1] in _parameters(class_)
        ]
        near = f": choose {' or '.join(list(dict.fromkeys(elsewhere))[:3])}" if elsewhere else ""
        if name in classes and not near:
            near = _nearest(unknown[1], [of for of in _parameters(classes[name]) if of not in filled])
        return f"{name} has no parameter {unknown[1]}{near}"
    if missing := re.search(r"arguments are required: (\w+)", message):
        return f"{name} needs --{part}.{missing[1]} {VALUES.get(missing[1], missing[1].upper())}"
    if word := re.search(r"import path string: *(\S+)", message):
        names = sorted(classes)
        return f"expected {part} to be one of {', '.join(names)}, got {word[1]}{_nearest(word[1], names)}"
    return None


def _of_a_value(part: str, parameter: str, message: str) -> str | None:
    """Explain an error in the value of a part's parameter, from what the parser expected there and was given."""
    given = re.search(r"(?:Given|Got) value: *(.+?)(?:\. Got value: Namespace|\n|$)", message)
    choices = re.search(r"typing\.Literal\[(.*?)\]", message)
    if given is None:
        return None
    if choices:
        names = [choice.strip("' ") for choice in choices[1].split(",")]
        return (
            f"expected --{part}.{parameter} to be one of {', '.join(names)}, got {given[1]}{_nearest(given[1], names)}"
        )
    kinds = re.findall(r"Expected an? <class '(\w+)'>", message)
    kind = VALUES.get(parameter) or next((KINDS[kind] for kind in kinds if kind in KINDS), None)
    return f"expected --{part}.{parameter} to be {kind}, got {given[1]}" if kind else None


def _classes(base: type) -> Iterator[tuple[str, type]]:
    waiting = [base]
    while waiting:
        children = waiting.pop().__subclasses__()
        waiting += children
        yield from (
            (kind.__name__, kind) for kind in children if not inspect.isabstract(kind) and kind.__name__[0] != "_"
        )


def _parameters(kind: type) -> list[str]:
    """Name what a class can be told, what it passes on to its parents among it."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, "of", fail_untyped=False)
    names = parser.get_defaults().keys()  # a namespace iterates otherwise
    return [name.split(".")[1] for name in names if name.startswith("of.") and name.count(".") == 1]


def _known_options(parser: ArgumentParser, parts: Parts, filled: Collection[str]) -> list[str]:
    defaults = parser.get_defaults()
    keys = [key for key in defaults.keys() if ".init_args." not in key]  # noqa: SIM118 - as above
    for part, (base, _) in parts.items():
        default = defaults.get(part)
        name = default.class_path.rpartition(".")[2] if default else None
        keys += [f"{part}.{of}" for kind, class_ in _classes(base) if kind == name for of in _parameters(class_)]
    return [f"--{key}" for key in dict.fromkeys(keys) if key.rpartition(".")[2] not in filled]


def _nearest_option(option: str, known: Sequence[str]) -> str:
    """Suggest the options that end in the same name, or in one close to it, before those that look alike."""
    last = option.removeprefix("--").rpartition(".")[2]
    if "." not in option:
        same = [name for name in known if name.rpartition(".")[2] == last]
        if same:
            return f", did you mean {' or '.join(same)}?"
    return _nearest(option, known)


def _nearest(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, n=2, cutoff=0.6)
    return f", did you mean {' or '.join(near)}?" if near else ""
