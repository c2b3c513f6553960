"""The options of `likewise train`: every part a class, set by its own parameters, read from their type hints."""

import argparse
import inspect
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import lightning
import torch
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, get_loader

from likewise.data import LabelledData
from likewise.losses import ContrastiveLoss
from likewise.models import Encoder, Head
from likewise.training import OptimizerCallable, check_loss

PARTS: dict[str, tuple[type, str]] = {
    "loss": (ContrastiveLoss, "The loss."),
    "data": (LabelledData, "The labelled samples, how they are split, and the views made of them."),
    "encoder": (Encoder, "The network that is kept."),
    "head": (Head, "The network between encoder and loss, left off after training."),
}
DEFAULTS: dict[str, Any] = {
    "loss": {"class_path": "likewise.losses.SupConLoss"},
    "data": {"class_path": "likewise.data.Digits"},
    "encoder": {"class_path": "likewise.models.ConvNet"},
    "head": {"class_path": "likewise.models.ProjectionHead"},
    "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 2e-3}},
    "trainer.max_epochs": 30,
    "trainer.devices": 1,
    "trainer.log_every_n_steps": 1,
    "trainer.enable_model_summary": False,
}
# each from a part before, when all are made, whatever the arguments say
FILLED = {
    "encoder.input_shape": "data.input_shape",
    "head.feature_dim": "encoder.feature_dim",
    "loss.num_samples": "data.num_train_samples",
    "loss.feature_dim": "head.embedding_dim",
}
VALUES = {"temperature": "a positive number", "path": "FILE.npz"}
KINDS = {"int": "an integer", "float": "a number", "bool": "true or false"}
# what jsonargparse says of every type that an option might have had
NOISE = re.compile(
    r"Does not validate against any of the Union subtypes|Subtypes: \[.*\]|Errors:|- Expected a <class 'NoneType'>"
)
# a value that only Python can give, and its many subclasses
TENSORS = re.compile(r"\s+\|\s+Tensor\b|,\s+known\s+subclasses:\s+torch\.Tensor,[^)]*")
DESCRIPTION = """Pretrain an encoder by contrast, evaluate it frozen, and write the run's folder and its report.

Without an option: SupConLoss and a small ConvNet on the handwritten digits that scikit-learn ships.
Every part is a class, chosen by name and set by its own parameters:

    likewise train --loss NTXentLoss --loss.temperature 0.5 --trainer.max_epochs 100
    likewise train --data Arrays --data.path flowers.npz --encoder MLP --encoder.width 512
    likewise train --loss.help NTXentLoss                 what a class can be told
    likewise train --config runs/RUN/config.yaml          a run again
"""


def options(arguments: Sequence[str]) -> ArgumentParser:
    """Make the parser of `likewise train` for these arguments.

    A part whose class they name starts from that class's own defaults, and not from those of the class it replaces.
    """
    chosen = set(_chosen(arguments))
    parser = _Parser(
        prog="likewise train",
        description=DESCRIPTION,
        formatter_class=_Help,
        exit_on_error=False,
        allow_abbrev=False,
        usage="likewise train [OPTIONS]",
    )
    parser.add_argument("--config", action="config", help="A YAML file of options; those after it win.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of everything random but the split.")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="The folder that receives the run's folder.")
    for part, (base, help_) in PARTS.items():
        if part in chosen:
            parser.add_subclass_arguments(base, part, required=True, help=help_)
        else:
            parser.add_subclass_arguments(base, part, required=False, help=help_, default=DEFAULTS[part])
    parser.add_argument("--optimizer", type=OptimizerCallable, help="Updates the parameters; cosine schedule to 0.")
    parser.add_class_arguments(lightning.Trainer, "trainer", instantiate=False, skip={"default_root_dir"})
    for name, group in (parser.groups or {}).items():
        group.title = name
    for target, source in FILLED.items():
        parser.link_arguments(source, target.replace(".", ".init_args."), apply_on="instantiate")
    parser.set_defaults({key: value for key, value in DEFAULTS.items() if key not in {*PARTS, *chosen}})
    return parser


def parse(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """Parse the arguments.

    Raises:
        ValueError: An argument or a file of them is not understood, an argument is one that the command fills in, or
            the loss needs what the command does not have; the message is one line and names the remedy.
    """
    _check_not_filled(arguments)
    try:
        config = parser.parse_args(list(arguments))
    except argparse.ArgumentError as error:
        raise ValueError(_explanation(parser, str(error))) from error
    kind = resolve_name(config.loss.class_path)
    if isinstance(kind, type):  # a function that makes one is asked in training
        check_loss(kind)
    return config


def _check_not_filled(arguments: Sequence[str]) -> None:
    for word in arguments:
        option = word.partition("=")[0].replace(".init_args.", ".")
        source = FILLED.get(option.removeprefix("--")) if option.startswith("--") else None
        if source:
            raise ValueError(f"{option} is filled in from the {source.partition('.')[0]}; leave it out")


def _chosen(arguments: Sequence[str]) -> Iterator[str]:
    """Find the parts whose class the arguments name, themselves or in a file of options."""
    for word, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        option, _, value = word.removeprefix("--").partition("=")
        if option == "config":
            yield from _chosen_in(Path(value or following))
        elif word.startswith("--") and option.removesuffix(".class_path") in {*PARTS, "optimizer"}:
            yield option.removesuffix(".class_path")


def _chosen_in(path: Path) -> Iterator[str]:
    try:
        named = get_loader("yaml")(path.read_text(encoding="utf-8"))
    except Exception:  # noqa: BLE001 - whatever is wrong with the file, the parser will say it
        return
    for part in {*PARTS, "optimizer"} & set(named if isinstance(named, dict) else ()):
        if isinstance(named[part], str) or "class_path" in named[part]:
            yield part


class _Parser(ArgumentParser):
    """jsonargparse's parser, whose help leaves out what no command line can give."""

    def format_help(self, *args: Any, **kwargs: Any) -> str:
        """Format the help without the parameters that the command fills in, and without tensors as values."""
        for action in self._actions:
            if action.dest in FILLED or action.dest.endswith((".temperature.help", ".lr.help")):
                action.help = argparse.SUPPRESS
        return TENSORS.sub("", super().format_help(*args, **kwargs))


class _Help(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """jsonargparse's help, with the description's lines as they stand."""


def _explanation(parser: ArgumentParser, message: str) -> str:
    """Say in one line what the parser says in several, with the nearest names where a name is unknown."""
    part = re.match(r'(?:Parser key "|--)(\w+)', message)
    chosen = part[1] if part and part[1] in {*PARTS, "optimizer"} else None
    told = _of_a_part(chosen, message) if chosen else None
    option = re.match(r"unrecognized arguments: *(--[\w.]+)", message)
    if option:
        told = f"unknown option {option[1]}{_nearest_option(option[1], _known_options(parser))}"
    if told and told.endswith("?"):
        return told
    words = told or " ".join(NOISE.sub(" ", message).split())
    return f"{words}: see likewise train --{f'{chosen}.help' if chosen else 'help'}"


def _of_a_part(part: str, message: str) -> str | None:
    """Explain an error within a part: of a parameter's value, of its name, of one that is missing, of the class."""
    classes = dict(_classes(part))
    of = re.search(r"class_path[ =]'(?:[\w.]*\.)?(\w+)'", message)
    name = of[1] if of else ""
    if part == "loss" and name in classes:
        check_loss(classes[name])
    if value := re.search(rf'Parser key "(?!{part}")(\w+)":(.*)', message, re.DOTALL):
        return _of_a_value(part, value[1], value[2])
    if unknown := re.search(r"Option '(\w+)' is not accepted", message):
        others = [other for other, class_ in classes.items() if unknown[1] in _parameters(class_)]
        near = f": choose --{part} {' or '.join(others)}" if others else ""
        if name in classes and not near:
            near = _nearest(unknown[1], [of for of in _parameters(classes[name]) if f"{part}.{of}" not in FILLED])
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


def _classes(part: str) -> Iterator[tuple[str, type]]:
    base = PARTS[part][0] if part in PARTS else torch.optim.Optimizer
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


def _known_options(parser: ArgumentParser) -> list[str]:
    keys = [key for key in parser.get_defaults().keys() if ".init_args." not in key]  # noqa: SIM118 - as above
    for part in (*PARTS, "optimizer"):
        default = DEFAULTS[part]["class_path"].rpartition(".")[2]
        keys += [f"{part}.{name}" for kind, class_ in _classes(part) if kind == default for name in _parameters(class_)]
    return [f"--{key}" for key in dict.fromkeys(keys) if key not in FILLED]


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
