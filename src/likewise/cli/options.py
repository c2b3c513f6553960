"""The options of `likewise train`: every part a class, set by its own parameters, read from their type hints."""

import argparse
import inspect
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import Path

import lightning
import torch
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, get_loader

from likewise.data import LabelledData
from likewise.losses import ContrastiveLoss
from likewise.models import Encoder, Head
from likewise.training import OptimizerCallable

PARTS: dict[str, tuple[type, str]] = {
    "loss": (ContrastiveLoss, "The loss."),
    "data": (LabelledData, "The labelled samples, how they are split, and the views made of them."),
    "encoder": (Encoder, "The network that is kept."),
    "head": (Head, "The network between encoder and loss, left off after training."),
}
DEFAULTS = {
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
# what jsonargparse says of every type that an option might have had
NOISE = re.compile(
    r"Does not validate against any of the Union subtypes|Subtypes: \[.*\]|Errors:|- Expected a <class 'NoneType'>"
)
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
    parser = ArgumentParser(
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
    parser.link_arguments("data.input_shape", "encoder.init_args.input_shape", apply_on="instantiate")
    parser.link_arguments("encoder.feature_dim", "head.init_args.feature_dim", apply_on="instantiate")
    parser.set_defaults({key: value for key, value in DEFAULTS.items() if key not in {*PARTS, *chosen}})
    return parser


def parse(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """Parse the arguments.

    Raises:
        ValueError: An argument or a file of them is not understood; the message is one line and names the remedy.
    """
    try:
        return parser.parse_args(list(arguments))
    except argparse.ArgumentError as error:
        raise ValueError(_explanation(parser, str(error))) from error


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


class _Help(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """jsonargparse's help, with the description's lines as they stand."""


def _explanation(parser: ArgumentParser, message: str) -> str:
    """Say in one line what the parser says in several, with the nearest names where a name is unknown."""
    part = re.match(r'Parser key "(\w+)"', message)
    name = re.search(r"import path string: *(\S+)", message)
    if part and name:
        names = sorted(_class_names(part[1]))
        return f"expected {part[1]} to be one of {', '.join(names)}, got {name[1]}{_nearest(name[1], names)}"
    option = re.match(r"unrecognized arguments: *(--[\w.]+)", message)
    if option:
        known = [f"--{key}" for key in parser.get_defaults().keys()]  # noqa: SIM118 - a namespace iterates otherwise
        return f"unknown option {option[1]}{_nearest(option[1], known)}: see likewise train --help"
    chosen = part[1] if part and part[1] in {*PARTS, "optimizer"} else None
    words = " ".join(NOISE.sub(" ", message).split())
    return f"{words}: see likewise train --{f'{chosen}.help' if chosen else 'help'}"


def _class_names(part: str) -> Iterator[str]:
    base = PARTS[part][0] if part in PARTS else torch.optim.Optimizer
    waiting = [base]
    while waiting:
        children = waiting.pop().__subclasses__()
        waiting += children
        yield from (child.__name__ for child in children if not inspect.isabstract(child) and child.__name__[0] != "_")


def _nearest(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, n=2, cutoff=0.6)
    return f", did you mean {' or '.join(near)}?" if near else ""
