"""Objects in the place of names in `likewise.train`: data, networks, losses, optimizers and other parts."""

import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from likewise.configuration.options import FILLED, PARTS
from likewise.data import Source
from likewise.data.given import kept
from likewise.losses import Loss
from likewise.models import Encoder
from likewise.parts import Spec, description, path_of

TAKEN = (*PARTS, "subset", "inputs", "evaluations")
DEFAULT_RUNS = "runs"
WRAPPED = "likewise.models.Wrapped"
BLANK = {"class_path": WRAPPED, "init_args": {"module": {"class_path": "torch.nn.Identity"}}}
PLAIN = (str, bool, int, float, Path, Mapping, type(None))


class Objects(NamedTuple):
    """What is given to a training as objects.

    Args:
        options: The options with names in the place of the objects.
        held: The objects that are taken as they are, by the paths of their classes.
        network: What a run records of a network of somebody's own, whose arguments are not known; None of others.
    """

    options: dict[str, Any]
    held: dict[str, Any]
    network: dict[str, Any] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Objects":
        """Put names in the place of objects; a run that goes on has them already, and only takes what they stand for.

        Raises:
            ValueError: An object is none that the option takes.
        """
        options, held = dict(given), dict[str, Any]()
        for part in (name for name in TAKEN if not _is_plain(name, given.get(name))):
            value = options[part]
            if part == "data" and not isinstance(value, Source):
                runs, label = options.get("runs", DEFAULT_RUNS), options.get("data.label")
                options[part] = str(kept(value, Path(runs), label if isinstance(label, str) else None))
                if options[part].endswith(".npz"):  # where labels have their own key
                    options.pop("data.label", None)
            elif part == "optimizer":
                options[part] = _optimizer(value)
            elif isinstance(value, list):
                options[part] = [_described(part, one, held) for one in value]
            else:
                options[part] = _described(part, value, held)
        network = options.get("encoder") if "encoder" in held and not _is_ours(held["encoder"]) else None
        encoder = held.pop("encoder", None)
        if encoder is not None:
            held[description(encoder)[0]["class_path"]] = encoder
        if network is not None:
            options["encoder"] = BLANK  # a network is not made before the data is known
        if given.get("resume") is not None:
            options = {name: value for name, value in options.items() if name not in TAKEN or value is given[name]}
        return cls(options, held, network)


def _is_plain(part: str, value: Any) -> bool:
    """Tell whether an option is given as on the command line."""
    if part == "data" and isinstance(value, Mapping):
        return "class_path" in value or "init_args" in value
    several = value if isinstance(value, list) and part != "data" else [value]
    return all(isinstance(one, PLAIN) for one in several)


def _is_ours(encoder: nn.Module) -> bool:
    return isinstance(encoder, Encoder) and type(encoder).__module__.startswith("likewise.")


def _described(part: str, value: Any, held: dict[str, Any]) -> Any:
    """Describe a part, and hold it where its description does not make it again."""
    if isinstance(value, PLAIN):
        return value
    if part == "loss" and not isinstance(value, Loss):
        got = f"the class {value.__name__}" if inspect.isclass(value) else type(value).__name__
        remedy = (
            "call it" if inspect.isclass(value) and issubclass(value, Loss) else "let it inherit from lw.losses.Loss"
        )
        raise ValueError(f"expected a loss such as SupConLoss(), got {got}: {remedy}")
    if inspect.isclass(value):
        if part == "encoder" and issubclass(value, nn.Module) and not issubclass(value, Encoder):
            raise ValueError(f"expected a network as encoder, got the class {value.__name__}: call it")
        return path_of(value)
    spec, again = description(value)
    for name in [name for of, name in FILLED if of == part]:
        spec["init_args"].pop(name, None)
    if part == "encoder":
        if not isinstance(value, nn.Module):
            raise ValueError(f"expected a torch.nn.Module as encoder, got {type(value).__name__}: give a network")
        held[part] = value  # with its weights
        return spec if isinstance(value, Encoder) else {"class_path": WRAPPED, "init_args": {"module": spec}}
    if not again:
        held[spec["class_path"]] = value
    return spec


def _optimizer(value: Any) -> Spec | str:
    """Describe a class, or a class with arguments."""
    kind, given = (value.func, value.keywords) if isinstance(value, partial) and not value.args else (value, {})
    if not inspect.isclass(kind):
        raise ValueError(
            f"expected the class of an optimizer or functools.partial of one, got {type(value).__name__}: give "
            "functools.partial(torch.optim.SGD, lr=0.1)"
        )
    return Spec(class_path=path_of(kind), init_args=dict(given))
