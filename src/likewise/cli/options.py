"""The options of `likewise train`: every part a class, set by its own parameters, read from their type hints."""

import argparse
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace
from torch.optim import Optimizer

from likewise.cli.explanation import explained, subclasses
from likewise.cli.recipes import with_recipe
from likewise.cli.trainer_help import trainer_help
from likewise.cli.words import classes_first, current, given_in, in_files, option_of
from likewise.data import Batches, Source, Split, Subset
from likewise.evaluation import Evaluation
from likewise.losses import ContrastiveLoss, Loss
from likewise.models import Encoder, Head
from likewise.parts import class_of, is_spec
from likewise.training.inputs import LossInput
from likewise.training.inputs.resolution import batches_of
from likewise.training.schedule import Schedule

PARTS: dict[str, tuple[type, str]] = {
    "data": (Source, "Where the samples come from."),
    "split": (Split, "How samples are split into training, validation and test parts."),
    "batches": (Batches, "Which samples form a batch, and the views made of them."),
    "encoder": (Encoder, "The network that is kept."),
    "head": (Head, "The network between encoder and loss, dropped after training."),
    "loss": (Loss, "The loss."),
    "optimizer": (Optimizer, "What updates the parameters."),
    "schedule": (Schedule, "How the learning rate changes during training."),
}
DEFAULTS: dict[str, Any] = {
    "data": {"class_path": "likewise.data.Digits"},
    "split": {"class_path": "likewise.data.Stratified"},
    "batches": {"class_path": "likewise.data.Views"},
    "encoder": {"class_path": "likewise.models.ConvNet"},
    "head": {"class_path": "likewise.models.ProjectionHead"},
    "loss": {"class_path": "likewise.losses.SupConLoss"},
    "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 2e-3}},
    "schedule": {"class_path": "likewise.training.Cosine"},
    "trainer.max_epochs": 30,
    "trainer.devices": 1,
    "trainer.log_every_n_steps": 1,
    "trainer.enable_model_summary": False,
}
# what a part is told by the parts before it, whatever the arguments say
FILLED = {"input_shape", "feature_dim", "num_samples", "num_classes", "params"}
TOLD = {
    ("encoder", "input_shape"): "data",
    ("head", "feature_dim"): "encoder",
    ("loss", "num_samples"): "data",
    ("loss", "feature_dim"): "head",
    ("loss", "num_classes"): "data",
}
RECIPE = (
    "A configuration that comes with likewise, METHOD-DATA: simclr, supcon, moco, byol, rascal or cross-entropy, for "
    "digits, omniglot, cifar10, cifar100, cifar100-lt, image-folder and more. All other options win over it."
)
EVALUATIONS = (
    "How the frozen encoder is evaluated: --evaluations KNN --evaluations.k 5 --evaluations+ Retrieval; [] switches "
    "evaluation off. Default: those of KNN, LinearProbe, OwnClassifier and Retrieval that apply, and FewShot for new "
    "classes."
)
LOG = "Tools to look at the training in: tensorboard, wandb, mlflow, csv; several as --log [tensorboard,mlflow]."
CHUNKS = (
    "Views that the encoder is given at a time, on each process, so that a batch may be larger than the memory for its "
    "activations; the loss is that of the whole batch. Default: all."
)
SUBSET = "Fewer training samples: a long tail, a fraction, some classes; with --subset+ several. Default: all samples."
INPUTS = "Further inputs of the loss, such as a queue: --inputs Momentum --inputs+ KeyQueue."
LISTS: dict[str, tuple[type, str]] = {
    "subset": (Subset, SUBSET),
    "inputs": (LossInput, INPUTS),
    "evaluations": (Evaluation, EVALUATIONS),
}
# options that name a class within one of these
NESTED: dict[str, tuple[type, str]] = {"evaluations.outside": (Source, "")}
# a run without records is none, and where they go is the run's matter
WITHOUT: set[str | int] = {"default_root_dir", "barebones"}
# a value that only Python can give, with its many subclasses; inputs that are always there
UNTOLD = re.compile(
    r"\s+\|\s+Tensor\b|,\s+known\s+subclasses:\s+torch\.Tensor,[^)]*|likewise\.training\.LossInput,\s*"
    r"|likewise\.training\.inputs\.(?:BatchInputs|Pairs),\s*|,\s*likewise\.training\.inputs\.(?:BatchInputs|Pairs)"
)
DESCRIPTION = """Pretrain an encoder by contrast, evaluate it frozen, and write the run's folder and its report.

Without an option: SupConLoss and a small ConvNet on the handwritten digits that scikit-learn ships.
Every part is a class, chosen by name and configured by its own parameters:

    likewise train --loss NTXentLoss --loss.temperature 0.5 --trainer.max_epochs 100
    likewise train --data Arrays --data.path flowers.npz --encoder MLP --encoder.width 512
    likewise train --loss InfoNCELoss --inputs Momentum --inputs.momentum 0.999 --inputs+ KeyQueue   MoCo
    likewise train --loss.help NTXentLoss                 the parameters of a class
    likewise train --config runs/RUN/config.yaml          repeat a run
    likewise train --resume runs/RUN.partial              resume an interrupted run

A second --inputs without + replaces the first; --inputs [] means none. Your own classes are given by import path,
also from a file in the current folder: --loss my_losses.MyLoss. A configuration names code to run: trust it like code.
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
    parser.add_argument("--recipe", type=str | None, default=None, help=RECIPE)
    parser.add_argument("--seed", type=int, default=0, help="Seed of everything random except the split.")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="The folder to create the run's folder in.")
    parser.add_argument(
        "--checkpoint_minutes", type=float, default=10.0, help="Minutes between checkpoints within an epoch."
    )
    parser.add_argument(
        "--timeout_minutes", type=float, default=30.0, help="Minutes to wait for another process before all end."
    )
    parser.add_argument("--chunk_size", type=int | None, default=None, help=CHUNKS)
    parser.add_argument("--compile", type=bool, default=False, help="Whether to compile encoder and head.")
    parser.add_argument(
        "--validation_epochs", type=int, default=5, help="Epochs between validation scores; the last has some; 0: none."
    )
    parser.add_argument(
        "--keep",
        type=Literal["last", "best"],
        default="last",
        help="Which weights to keep: those after the last epoch, or those at the best validation score.",
    )
    parser.add_argument(
        "--report",
        type=bool,
        default=True,
        help="Whether to write the page; `likewise evaluate RUN --evaluations []` writes it later.",
    )
    parser.add_argument("--log", type=list[str] | str | None, default=None, help=LOG)
    add_evaluations(parser)
    for part, (base, help_) in PARTS.items():
        default = {} if part in chosen or part not in DEFAULTS else {"default": _default(part, arguments)}
        required = part in chosen
        parser.add_subclass_arguments(base, part, required=required, help=help_, skip=set(FILLED), **default)
        if part == "data":
            parser.add_argument("--subset", type=Subset | list[Subset] | None, default=None, help=SUBSET)
        if part == "loss":
            parser.add_argument("--inputs", type=LossInput | list[LossInput] | None, default=None, help=INPUTS)
    if not asks_for_help(arguments):
        _add_trainer(parser)
    for name, group in (parser.groups or {}).items():
        group.title = name
    return parser


def arranged(arguments: Sequence[str]) -> list[str]:
    """Arrange a command line for the parser: the recipe in front, and the class of a part before its arguments.

    Raises:
        ValueError: There is no such recipe.

    Example:
        >>> arranged(["--loss.temperature", "0.2", "--loss", "NTXentLoss"])
        ['--loss', 'NTXentLoss', '--loss.temperature', '0.2']
    """
    return classes_first(with_recipe(current(arguments)), PARTS)


def add_evaluations(parser: ArgumentParser) -> None:
    """Add what `train` and `evaluate` share: which evaluations, of how many samples."""
    parser.add_argument("--evaluations", type=Evaluation | list[Evaluation] | None, default=None, help=EVALUATIONS)
    parser.add_argument(
        "--evaluation_samples",
        type=int | None,
        default=None,
        help="The largest number of samples of each part to evaluate.",
    )


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Tell whether help is asked for, of the verb or of a class.

    Example:
        >>> asks_for_help(["--loss.help", "NTXentLoss"]), asks_for_help(["--loss", "NTXentLoss"])
        (True, False)
    """
    return any(word in {"-h", "--help"} or option_of(word).endswith(".help") for word in arguments)


def parse(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """Parse the arguments.

    Raises:
        ValueError: An argument or a file of them is not understood, names a class of the wrong kind, or is one that the
            command fills in; the message is one line and names the remedy.
    """
    _check_not_filled(arguments)
    chosen = _in_files(arguments)
    _check_kinds(chosen, arguments)
    told = _explicit(arguments, chosen)
    words = [*arguments, *_similarity(arguments, chosen, told)]
    try:
        config = parser.parse_args(words)
    except argparse.ArgumentError as error:
        said = [*_words(chosen), *words]
        raise ValueError(explained(parser, str(error), said, PARTS | LISTS | NESTED, FILLED, verb="train")) from error
    if _gathers(class_of(config.loss.class_path, Loss)) and "gather_distributed" not in told:
        config["loss.init_args.gather_distributed"] = True  # alone there is nothing to gather
    _spell_out(config)
    return config


def read_train(arguments: Sequence[str]) -> dict[str, Any]:
    """Read a command line of `likewise train` into a configuration: every option, as plain values.

    Raises:
        ValueError: See `arranged` and `parse`.
    """
    words = arranged(arguments)
    parser = options(words)
    return plain(parser, parse(parser, words))


def _gathers(loss: type) -> bool:
    """Tell whether a loss has the option to gather; somebody's own may have left it out."""
    taken = inspect.signature(loss).parameters
    return issubclass(loss, ContrastiveLoss) and ("gather_distributed" in taken or "options" in taken)


def plain(parser: ArgumentParser, config: Namespace) -> dict[str, Any]:
    """Return a configuration as plain values."""
    without_file = config.clone()
    without_file.pop("config", None)
    return yaml.safe_load(parser.dump(without_file))


def _spell_out(config: Namespace) -> None:
    """Put words in the place of enumerations, which some callbacks have as defaults and no file can hold."""
    for name, value in list(vars(config).items()):
        if isinstance(value, Enum):
            setattr(config, name, value.value)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Namespace):
                _spell_out(one)


def _add_trainer(parser: ArgumentParser) -> None:
    import lightning  # noqa: PLC0415 - takes seconds, which help has no need of

    parser.add_class_arguments(lightning.Trainer, "trainer", instantiate=False, skip=WITHOUT)
    parser.set_defaults({key: value for key, value in DEFAULTS.items() if key not in PARTS})


def _check_not_filled(arguments: Sequence[str]) -> None:
    for word in arguments:
        part, _, parameter = option_of(word).partition(".")
        if part in PARTS and (part, parameter) in TOLD:
            raise ValueError(f"--{part}.{parameter} is filled in from the {TOLD[part, parameter]}; leave it out")


def _check_kinds(chosen: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Raise unless every class that is named by its path is of its part's kind, before anything else looks at it."""
    named = [(part, chosen[part]["class_path"]) for part in PARTS if is_spec(chosen.get(part))]
    named += [(given.option, given.value) for given in given_in(arguments)]
    for part, path in named:
        if part in PARTS and re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", path) and not path.endswith((".yaml", ".yml")):
            class_of(path, PARTS[part][0])


def _explicit(arguments: Sequence[str], chosen: Mapping[str, Any]) -> set[str]:
    """Name the parameters of the loss that are given."""
    words = {option_of(word).removeprefix("loss.") for word in arguments if option_of(word).startswith("loss.")}
    loss = chosen.get("loss")
    return words | set((loss.get("init_args") or {}) if isinstance(loss, dict) else ())


def _similarity(arguments: Sequence[str], chosen: Mapping[str, Any], told: set[str]) -> list[str]:
    """Add how alike labels are measured, where a loss asks for it and nobody said."""
    kind = _loss(arguments, chosen)
    asks = kind is not None and "label_similarity" in inspect.signature(kind).parameters
    return ["--loss.label_similarity", "npmi"] if asks and "label_similarity" not in told else []


def _loss(arguments: Sequence[str], chosen: Mapping[str, Any]) -> type[Loss] | None:
    """Find the loss that the arguments name, themselves or in a file of options; None where they name none we know."""
    named = [given.value for given in given_in(arguments) if given.option in {"loss", "loss.class_path"}]
    loss = chosen.get("loss")
    name = named[-1] if named else loss.get("class_path", "") if isinstance(loss, dict) else str(loss or "")
    kinds = {kind.__name__: kind for kind in subclasses(Loss)}
    return kinds.get(name.rpartition(".")[2])


def _default(part: str, arguments: Sequence[str]) -> Any:
    """Return the default of a part: of batches those that the loss needs."""
    loss = _loss(arguments, _in_files(arguments)) if part == "batches" else None
    needed = Batches if loss is None else batches_of(loss)
    room = "likewise.data" if needed.__module__.startswith("likewise.") else needed.__module__
    return DEFAULTS[part] if needed is Batches else {"class_path": f"{room}.{needed.__name__}"}


def _chosen(arguments: Sequence[str]) -> set[str]:
    """Find the parts whose class the arguments name, themselves or in a file of options."""
    named = {option_of(word).removesuffix(".class_path") for word in arguments if word.startswith("--")}
    files = _in_files(arguments)
    return {part for part in PARTS if part in named or isinstance(files.get(part), str) or is_spec(files.get(part))}


def _in_files(arguments: Sequence[str]) -> dict[str, Any]:
    """Read what the files of options say, the last of them winning."""
    said: dict[str, Any] = {}
    for one in in_files(arguments):
        said |= one
    return said


def _words(chosen: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Write what a file of options says as the words of a command line."""
    for name, value in chosen.items():
        if isinstance(value, Mapping):
            yield from _words(value, f"{before}{name}.")
        else:
            yield f"--{before}{name}={value}"


class _Parser(ArgumentParser):
    """jsonargparse's parser, whose help lists what a command line can give, and the trainer's options last."""

    def format_help(self, *args: Any, **kwargs: Any) -> str:
        """Format the help without tensors as values and without losses that the command cannot feed."""
        for action in self._actions:
            if action.dest.endswith((".temperature.help", ".lr.help")):
                action.help = argparse.SUPPRESS
        told = UNTOLD.sub("", super().format_help(*args, **kwargs))
        return f"{told}\n{trainer_help(WITHOUT)}" if self.prog == "likewise train" and "--seed" in told else told


class _Help(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """jsonargparse's help, with the description's lines as they stand."""
