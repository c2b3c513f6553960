"""Types of the workflows' options by name, for editors and type checkers, and of the objects that some may be."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from torch import nn

from likewise.configuration.options import SOURCES
from likewise.data import Augmentation, Batches, Sampler, Split, Subset
from likewise.evaluation import Evaluation
from likewise.losses import Loss
from likewise.models import Head
from likewise.runs import Run, Side
from likewise.training.inputs import LossInput
from likewise.training.schedule import Schedule

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
