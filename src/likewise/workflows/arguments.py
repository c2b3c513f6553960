"""Options of the workflows from Python: their types by name, for editors and type checkers, and objects among them."""

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypedDict

from torch import nn

from likewise.configuration.options import FILLED_OPTIONS, PARTS, SOURCES, TrainOptions
from likewise.data import Augmentation, Batches, Sampler, Source, Split, Subset
from likewise.data.given import write_data
from likewise.evaluation import Evaluation
from likewise.instantiate import Described, Spec, path_of, plain_value, recorded_spec
from likewise.losses import Loss, Matryoshka
from likewise.models import Encoder, Head
from likewise.runs import Run, Side
from likewise.training.inputs import LossInput
from likewise.training.schedule import Schedule

LIST_OPTIONS = ("inputs", "evaluations", "subset")
OBJECT_OPTIONS = (*PARTS, *LIST_OPTIONS)
BASES = {"loss": Loss, "augmentation": Augmentation, "sampler": Sampler, "batches": Batches}
REMEDIES = {
    "loss": "call each in the forward of a class that inherits from lw.losses.Loss",
    "augmentation": "lw.data.Chain([...]) is one",
}
GIVEN_NETWORK = Spec(
    class_path="likewise.models.Wrapped", init_args={"module": {"class_path": "likewise.models.Given"}}
)
PLAIN_TYPES = (str, bool, int, float, Path, Mapping, type(None))
Part = str | type | Mapping[str, Any]
"""A class, its name, or a mapping of it with its arguments."""
# explained by the records of configuration.options; of `likewise train` with the short names, too
# fmt: off
EvaluateArguments = TypedDict("EvaluateArguments", {  # noqa: UP013 - a line for each were three pages
    "runs": Path | str, "evaluations": Part | Sequence[Part] | None, "evaluation_samples": int | None,
    "sections": Part | Sequence[Part] | None, "report": bool, "workers": int | None, "device": str,
}, total=False)
EmbedArguments = TypedDict("EmbedArguments", {  # noqa: UP013 - as above
    "output": Path | str, "side": Side, "encoder": Part, "weights": Path | str | None, "shard_size": int,
    "dtype": Literal["float32", "float16"], "batch_size": int | None, "workers": int | None, "force": bool,
    "device": str,
}, total=False)
TrainArguments = TypedDict("TrainArguments", {  # noqa: UP013 - as above
    "runs": Path | str, "evaluations": Part | Evaluation | Sequence[Part | Evaluation] | None, "report": bool,
    "evaluation_samples": int | None, "sections": Part | Sequence[Part] | None, "recipe": str,
    "config": Path | str | Sequence[Path | str], "resume": Run | Path | str | None, "seed": int, "name": str | None,
    "checkpoint_minutes": float, "keep_checkpoints": bool, "timeout_minutes": float, "minutes": float | None,
    "chunk_size": int | None, "widths": Sequence[int] | None, "temperature_rate_factor": float,
    "unlabelled": Literal["left-out", "own-class"], "weights": Path | str | None, "freeze": str | None,
    "unfreeze_epoch": int | None, "encoder_rate_factor": float,
    "layer_decay": float, "workers": int | None, "compile": bool, "validation_epochs": int, "patience": int | None,
    "keep": Literal["last", "best"] | None, "log": str | Sequence[str] | None, "data": Any, "min_per_class": int,
    "subset": Part | Subset | Sequence[Part | Subset] | None, "split": Part | Split, "batches": Part | Batches,
    "encoder": Part | nn.Module, "head": Part | Head, "loss": Part | Loss, "optimizer": Any,
    "inputs": Part | LossInput | Sequence[Part | LossInput] | None, "schedule": Part | Schedule,
    "trainer": Mapping[str, Any], "epochs": int, "steps": int, "batch_size": int, "views": int, "lr": float,
    "weight_decay": float, "temperature": float | Literal["learned"], "augmentation": Part | Augmentation | None,
    "sampler": Part | Sampler | None, "device": str, "devices": int | str | Sequence[int], "precision": int | str,
}, total=False)
# fmt: on


def given_options(record: type, first: Any, options: Mapping[str, Any], name: str) -> Any:
    """Return a workflow's options: its record alone, or a mapping; any other `first` is the option called `name`."""
    if isinstance(first, record):
        if not options:
            return first
        first = {option: value for option, value in vars(first).items() if option not in SOURCES}
    first = first if isinstance(first, Mapping) else {} if first is None else {name: first}
    return {option: _as_word(value) for option, value in {**first, **options}.items()}


def _as_word(value: Any) -> Any:
    """Return runs and paths as the command line has them, and anything else as it is.

    A path to nothing is never taken for a class of its name: `Path("digits")` is not the data set.
    """
    value = value.folder if isinstance(value, Run) else value
    if not isinstance(value, Path):
        return value
    return str(value) if value.parent != Path() or value.exists() else f"./{value}"


def named_objects(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], nn.Module | None]:
    """Replace the objects among a training's options by names; return also the network that is trained, if one is.

    They are data, networks, losses, optimizers and other parts. A run that is resumed has names for them already, and
    only takes the network.
    """
    options, network, resumed = dict(arguments), None, arguments.get("resume") is not None
    nested = [name for name in arguments if name not in OBJECT_OPTIONS and name.rpartition(".")[2] in BASES]
    for part in (name for name in (*OBJECT_OPTIONS, *nested) if not _is_plain(name, arguments.get(name))):
        value = options[part]
        if resumed and part != "encoder":
            raise ValueError(f"expected no {part} for a run that goes on, got an object: it has its own")
        if part == "encoder":
            network = _network(value)
            ours = isinstance(value, Encoder) and type(value).__module__.startswith("likewise.")
            options[part] = _describe_object(part, value) if ours and recorded_spec(value)[1] else GIVEN_NETWORK
        elif part == "data" and not isinstance(value, Source):
            runs, label = options.get("runs", TrainOptions.runs), options.get("data.label")
            options[part] = str(write_data(value, Path(runs), label if isinstance(label, str) else None))
            if options[part].endswith(".npz"):  # where labels have their own key
                options.pop("data.label", None)
        elif part == "optimizer":
            options[part] = _optimizer(value)
        elif isinstance(value, list) and part in LIST_OPTIONS:
            options[part] = [_describe_object(part, element) for element in value]
        else:
            options[part] = _describe_object(part, value)
    if resumed and network is not None:
        del options["encoder"]
    return options, network


def _network(value: Any) -> nn.Module:
    if isinstance(value, nn.Module):
        return value
    got = f"the class {value.__name__}: call it" if inspect.isclass(value) else type(value).__name__
    raise ValueError(f"expected a torch.nn.Module as encoder, got {got}")


def _is_plain(part: str, value: Any) -> bool:
    """Tell whether an option is given as on the command line, or as a class."""
    if part == "data" and isinstance(value, Mapping):
        return "class_path" in value or "init_args" in value
    several = value if isinstance(value, list) and part != "data" else [value]
    network = part == "encoder" and inspect.isclass(value) and not issubclass(value, Encoder)
    return not network and all(isinstance(element, PLAIN_TYPES) or inspect.isclass(element) for element in several)


def _describe_object(part: str, value: Any) -> Any:
    if isinstance(value, PLAIN_TYPES) or inspect.isclass(value):
        return value
    name, base = type(value).__name__, BASES.get(part.rpartition(".")[2])
    if isinstance(value, list):
        remedy = REMEDIES.get(part.rpartition(".")[2], "give one")
        raise ValueError(f"expected one object as {part}, got a list of {len(value)}: {remedy}")  # noqa: TRY004
    if isinstance(value, Matryoshka):
        remedy = f"give loss={type(value.loss).__name__}(...) and widths={[*value.widths]}"
        raise ValueError(f"expected a loss by itself as {part}, got Matryoshka: {remedy}")  # noqa: TRY004 - bad input
    spec, again = recorded_spec(value)
    if not isinstance(value, base or Described):
        named = f"likewise.{base.__module__.split('.')[1]}" if base else ""
        remedy = f"take {named}.{name}" if base and hasattr(import_module(named), name) else "name a class of likewise"
        remedy += f", or let it inherit from {named}.{base.__name__}" if base else ""
        raise ValueError(f"expected {part} made by a class of likewise, got {spec['class_path']}: {remedy}")  # noqa: TRY004
    if not again:
        expected = f"expected a {name} that was made with plain values as {part}, as a run records them"
        raise ValueError(f"{expected}, got others: give numbers and strings")
    for name in [name for filled_part, name in FILLED_OPTIONS if filled_part == part]:
        spec["init_args"].pop(name, None)
    return spec


def _optimizer(value: Any) -> Spec | str:
    named = isinstance(value, partial) and not value.args
    optimizer_class, keywords = (value.func, value.keywords) if named else (value, {})
    if not inspect.isclass(optimizer_class):
        got = f"got {type(value).__name__}: give functools.partial(torch.optim.SGD, lr=0.1)"
        raise ValueError(f"expected the class of an optimizer or functools.partial of one, {got}")
    arguments = {name: plain_value(value) for name, value in keywords.items()}
    return Spec(class_path=path_of(optimizer_class), init_args=arguments)
