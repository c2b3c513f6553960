"""Objects instead of names in `likewise.train`: data, networks, losses, optimizers and other parts."""

import inspect
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from likewise.configuration.options import FILLED_OPTIONS, PARTS, TrainOptions
from likewise.data import Augmentation, Batches, Sampler, Source
from likewise.data.given import write_data
from likewise.instantiate import Described, Spec, description, path_of, plain_value
from likewise.losses import Loss, Matryoshka
from likewise.models import Encoder

LIST_OPTIONS = ("inputs", "evaluations", "subset")
OBJECT_OPTIONS = (*PARTS, *LIST_OPTIONS)
BASES = {"loss": Loss, "augmentation": Augmentation, "sampler": Sampler, "batches": Batches}
DEFAULT_RUNS = "runs"
REMEDIES = {
    "loss": "call each in the forward of a class that inherits from lw.losses.Loss",
    "augmentation": "lw.data.Chain([...]) is one",
}
GIVEN_NETWORK = Spec(
    class_path="likewise.models.Wrapped", init_args={"module": {"class_path": "likewise.models.Given"}}
)
PLAIN_TYPES = (str, bool, int, float, Path, Mapping, type(None))


class Objects(NamedTuple):
    """A training's options, with names in place of objects, and the network that is trained."""

    options: TrainOptions | dict[str, Any]
    network: nn.Module | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "Objects":
        """Replace objects by names; a run that is resumed has them already, and only takes the network."""
        options, network = dict(arguments), None
        nested = [name for name in arguments if name not in OBJECT_OPTIONS and name.rpartition(".")[2] in BASES]
        for part in (name for name in (*OBJECT_OPTIONS, *nested) if not _is_plain(name, arguments.get(name))):
            value = options[part]
            if arguments.get("resume") is not None and part != "encoder":
                raise ValueError(f"expected no {part} for a run that goes on, got an object: it has its own")
            if part == "encoder":
                network = _network(value)
                ours = isinstance(value, Encoder) and type(value).__module__.startswith("likewise.")
                options[part] = _describe_object(part, value) if ours and description(value)[1] else GIVEN_NETWORK
            elif part == "data" and not isinstance(value, Source):
                runs, label = options.get("runs", DEFAULT_RUNS), options.get("data.label")
                options[part] = str(write_data(value, Path(runs), label if isinstance(label, str) else None))
                if options[part].endswith(".npz"):  # where labels have their own key
                    options.pop("data.label", None)
            elif part == "optimizer":
                options[part] = _optimizer(value)
            elif isinstance(value, list) and part in LIST_OPTIONS:
                options[part] = [_describe_object(part, element) for element in value]
            else:
                options[part] = _describe_object(part, value)
        if arguments.get("resume") is not None and network is not None:
            del options["encoder"]
        return cls(options, network)


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
    spec, again = description(value)
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
