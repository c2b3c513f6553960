"""The command line: its words as options with their values, the requested help, and completions."""

import builtins
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from likewise.configuration.classes import MISSING, Class, Parameter, kinds, type_words
from likewise.configuration.draft import ConfigBuilder, parameters_of
from likewise.configuration.guesses import ALIASES, OF_CLASS, near_options
from likewise.configuration.options import DEFAULTS, OF_LOSSES, PARTS, RECORDS, TRAINER
from likewise.configuration.recipes import STARTS, default_options
from likewise.configuration.resolution import canonical, in_files, resolved
from likewise.configuration.values import FLAG, Option
from likewise.instantiate import is_spec

WIDTH = 100  # columns of the help


def read(args: Sequence[str], *, verb: str = "train") -> Any:
    """Return a verb's options as one record, from the words of a command line and its option files.

    Args:
        args: The words after the verb.
        verb: One of `RECORDS`.

    Returns:
        The verb's record; see `resolve`.

    Raises:
        ValueError: An option, class, file or recipe doesn't exist, or a value is not as expected.

    Example:
        >>> read(["--loss", "supcon", "--loss.temperature=0.2"]).loss["init_args"]["temperature"]
        0.2
    """
    return resolved(classes_first(options_in(args, verb)), verb)


def options_in(args: Sequence[str], verb: str = "train") -> list[Option]:
    """Return the options of a command line in order."""
    options, waiting, usage = list[Option](), list(args), RECORDS[verb][1]
    named = [word.strip("[]").lower() for word in usage.split() if word.strip("[]") != "..."]  # positional arguments
    several = usage.rstrip("]").endswith("...")
    while waiting:
        word = waiting.pop(0)
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
        if not equal and waiting and not is_option(waiting[0]):
            chosen = waiting.pop(0)
        options.append(Option(name.removesuffix("+").replace("-", "_"), chosen, name.endswith("+")))
    if several or not usage.startswith("[") or named[-1] in {option.name for option in options}:
        return options
    left_out = named[0]  # the optional one: a word that names no run is meant for the last
    return [
        option._replace(name=named[-1]) if option.name == left_out and not _is_trained(option.value) else option
        for option in options
    ]


def _is_trained(word: Any) -> bool:
    return isinstance(word, str) and (word.endswith(".onnx") or (Path(word) / "run.json").is_file())


def canonical_options(args: Sequence[str]) -> list[Option]:
    """Return the training options on a command line in order, each under its full name."""
    root = ConfigBuilder("train").root
    return [canonical(option, root) for option in options_in(args)]


def named_in(args: Sequence[str]) -> frozenset[str]:
    """Return the names of all training options on a command line and in its option files."""
    options = canonical_options(args)
    return frozenset(option.name for option in (*options, *in_files(options, ConfigBuilder("train").root)))


def as_words(options: Iterable[Option]) -> list[str]:
    """Return options as command-line words."""
    return [
        word
        for name, value, adds in options
        for word in (f"--{name}{'+' if adds else ''}", *([] if value is FLAG else [str(value)]))
    ]


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


def requested_help(args: Sequence[str], verb: str) -> str | None:
    """Return the help requested by the words of a command line; None: they request none."""
    if {"--help", "-h"} & set(args):
        return _of_verb(verb)
    for option in options_in(args, verb):
        if option.name.endswith(".help"):
            return _of_part(option, verb)
    return None


def _of_verb(verb: str) -> str:
    root = ConfigBuilder(verb).root
    parameters = root.parameters
    bases = {name: root.part(name) for name in parameters if name != "trainer"}
    usage, introduction = RECORDS[verb][1], inspect.cleandoc(RECORDS[verb][0].__doc__ or "").partition("\n\nArgs:")[0]
    lines = [f"usage: likewise {verb} {usage} [OPTIONS]", "", introduction, "", "options:"]
    for name in (name for name, base in bases.items() if base is None):
        lines += _lines(f"--{name}", parameters[name], root, verb)
    if any(bases.values()):
        lines += ["", "parts; --PART.help lists the classes of one, --PART.help CLASS the options of a class:"]
    for name, base in ((name, base) for name, base in bases.items() if base is not None):
        has_usual = not parameters[name].required and parameters[name].default is not None
        default = DEFAULTS.get(name) if has_usual else None  # the defaults of training
        case = "For digits" if "default" in parameters[name].description else "Default"
        named = f" {case}: {default.rpartition('.')[2]}." if default else ""
        named += _for_data(name, root, default, verb)
        text = f"{parameters[name].description}{named} One of {', '.join(kinds(base))}."
        lines += [f"  --{name} CLASS", *_wrapped(text)]
    if verb == "train":
        short_names = ", ".join(f"--{name.replace('_', '-')} for --{option}" for name, option in ALIASES.items())
        lines += ["", *textwrap.wrap(f"Short names: {short_names}.", WIDTH)]
        lines += ["", "trainer, Lightning's:", *_parameters(Class(TRAINER), "trainer", verb)]
    return "\n".join(lines)


def _of_part(option: Option, verb: str) -> str:
    name = option.name.removesuffix(".help")
    name = ALIASES.get(name, name)
    root = ConfigBuilder(verb).root
    owner = part = root
    for step in name.split("."):
        base = owner.part(step)
        if base is None:
            near = near_options(name, {}, root)
            hint = f", did you mean {near[0]}.help?" if near else f": see likewise {verb} --help"
            raise ValueError(f"expected a part before .help, got --{name}{hint}")
        part, owner = base, Class(DEFAULTS[step]) if step in DEFAULTS else base  # the usual class has parts
    if name == "trainer":
        return "\n".join([part.summary, "", *_parameters(part, name, verb)])
    if isinstance(option.value, str):
        cls = Class(ConfigBuilder(verb).class_path(name, option.value, part))
        return "\n".join([f"{cls.name}: {cls.summary}", "", *_parameters(cls, name, verb)])
    lines = [f"classes for --{name}; --{name}.help CLASS lists the options of one:"]
    for class_name, path in kinds(part).items():
        lines += [f"  {class_name}", *_wrapped(Class(path).summary)]
    return "\n".join(lines)


def _parameters(owner: Class, above: str, verb: str) -> list[str]:
    shown = {name: parameter for name, parameter in parameters_of(owner).items() if type_words(parameter.hint)}
    lines = [line for name, parameter in shown.items() for line in _lines(f"--{above}.{name}", parameter, owner, verb)]
    return lines or ["  no options"]


def _lines(name: str, parameter: Parameter, owner: Class, verb: str) -> list[str]:
    option = name.removeprefix("--")
    part, _, argument = option.partition(".")
    ours = OF_LOSSES.get(argument, MISSING) if part == "loss" else DEFAULTS.get(option, MISSING)
    text = parameter.description.rstrip()
    text = text if ours is MISSING else re.sub(r"\s*Default: \S+$", "", text)
    text = text if not text or text.endswith((".", "?", "!", ":")) else f"{text}."
    default = parameter.default if ours is MISSING else ours
    has_default = default is not MISSING and default is not None and (ours is not MISSING or "efault" not in text)
    shown = f" Default: {_format_value(default)}." if has_default else ""
    if parameter.required and ours is MISSING:
        shown = " Required."
    elif has_default and argument and option in DEFAULTS and part in PARTS:  # the default holds where no class is named
        shown = f" Where --{part} is not named: {_format_value(ours)}." if DEFAULTS[part] == owner.path else ""
    whole = f"{text}{shown}{_for_data(option, owner, default, verb)}"
    return [f"  {name} {type_words(parameter.hint)}", *_wrapped(whole)]


def _for_data(option: str, owner: Class, default: Any, verb: str) -> str:
    """Return the other defaults of a class's option, and the data that each is for."""
    part, _, argument = option.partition(".")
    values: dict[str, list[str]] = {}
    for data in {*OF_CLASS.values(), *STARTS} - {"digits"} if verb == "train" and option != "data" else ():
        spec = default_options(data).get(part)
        if not is_spec(spec) or (argument and spec["class_path"] != owner.path):
            continue
        value = spec.get("init_args", {}).get(argument, default) if argument else spec["class_path"]
        if value != default:
            values.setdefault(_format_value(value), []).append(data)
    return "".join(f" For {', '.join(sorted(kinds_of))}: {value}." for value, kinds_of in sorted(values.items()))


def _format_value(value: Any) -> str:
    named = value["class_path"] if is_spec(value) else value
    word = str(named).lower() if isinstance(named, bool) else str(named)
    return word.rpartition(".")[2] if word.startswith("likewise.") else word


def _wrapped(text: str) -> list[str]:
    indent = " " * 8
    paragraph = " ".join(text.replace("``", "").split())
    return textwrap.wrap(paragraph, WIDTH, initial_indent=indent, subsequent_indent=indent)


def completions(args: Sequence[str], current: str, verb: str) -> list[str]:
    """Return the possible completions of the current word."""
    previous = args[-1] if args else ""
    if is_option(previous) and not is_option(current) and "=" not in previous:
        candidates = _values_of(previous.removeprefix("--").removesuffix("+").replace("-", "_"), verb)
    else:
        candidates = [f"--{name}" for name in _names(verb)]
    return sorted(candidate for candidate in candidates if candidate.startswith(current))


def _values_of(name: str, verb: str) -> list[str]:
    part, _, within = ALIASES.get(name, name).removesuffix(".help").partition(".")
    owner = Class(TRAINER) if part == "trainer" else ConfigBuilder(verb).root
    base = owner.part(within or part) if part == "trainer" or not within else None
    if base is not None:
        return list(kinds(base))
    parameter = owner.parameters.get(within or part)
    choices = type_words(parameter.hint).split("|") if parameter else []
    truth = ["false", "true"] if "bool" in choices else []
    return truth + [word for word in choices if word.islower() and not hasattr(builtins, word)]


def _names(verb: str) -> Iterator[str]:
    root = ConfigBuilder(verb).root
    known = root.parameters
    for alias, option in ALIASES.items():
        if option.partition(".")[0] in known and alias not in known:
            yield alias.replace("_", "-")
    yield from ("help", *known, *(f"{name}.help" for name in known if root.part(name)))
    yield from (f"trainer.{name}" for name in (Class(TRAINER).parameters if "trainer" in known else ()))
