"""The workflows' options in Python: their types for type checkers, and objects as options, with data saved to files."""

import inspect
import io
import os
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from likewise.configuration.options import FILLED_OPTIONS, PARTS, SOURCES, TrainOptions
from likewise.data import Augmentation, Batches, Sampler, Source, Split, Subset
from likewise.data.tables import library
from likewise.evaluation import Evaluation
from likewise.files import formats
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
EXPECTED_DATA = 'arrays (X, y), a DataFrame, a data set, a map-style Dataset, or these as {"train": ..., "test": ...}'
TABLE = ""  # the name of an undivided table
Columns = dict[str, Any]
Part = str | type | Mapping[str, Any]
"""A class, its name, or a mapping with the class and its arguments."""
# documented by the records in configuration.options; those of `likewise train` include the short names
# fmt: off
EvaluateArguments = TypedDict("EvaluateArguments", {  # noqa: UP013 - one line each would fill three pages
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
    """Return a workflow's options: its record by itself, or a mapping; any other `first` is the option `name`."""
    if isinstance(first, record):
        if not options:
            return first
        first = {option: value for option, value in vars(first).items() if option not in SOURCES}
    first = first if isinstance(first, Mapping) else {} if first is None else {name: first}
    return {option: _as_word(value) for option, value in {**first, **options}.items()}


def _as_word(value: Any) -> Any:
    """Return runs and paths in their command-line form, and anything else unchanged.

    A path that doesn't exist is never read as a class name: `Path("digits")` is not the data set.
    """
    value = value.folder if isinstance(value, Run) else value
    if not isinstance(value, Path):
        return value
    return str(value) if value.parent != Path() or value.exists() else f"./{value}"


def named_objects(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], nn.Module | None]:
    """Replace the objects among a training's options by names; also return the network to train, if one is given.

    Objects are data, networks, losses, optimizers and other parts. A resumed run already has names for them, and only
    takes the network.
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
            if options[part].endswith(".npz"):  # labels have their own key
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


def write_data(data: Any, folder: Path, label: str | None = None) -> Path:
    """Write data in a form of `EXPECTED_DATA` to files named by a digest, unless they exist; return the source's path.

    Items of a Dataset are read once: the augmentation draws the views, not random transforms in the Dataset.
    `label` is the column of labels in a Dataset of dictionaries, or None for a usual name.
    """
    parts = data if isinstance(data, Mapping) and data and set(data) <= formats.PART_NAMES.keys() else {"train": data}
    columns = {formats.PARTS[formats.PART_NAMES[name]]: _columns(part_data, label) for name, part_data in parts.items()}
    first = next(iter(columns.values()))
    if odd := next((part for part, part_columns in columns.items() if part_columns.keys() != first.keys()), None):
        theirs, ours = (", ".join(names) for names in (columns[odd], first))
        raise ValueError(f"expected the columns of the first part, {ours}, in {odd}, got {theirs}")
    if "labels" in first and len({isinstance(part_columns["labels"][0], str) for part_columns in columns.values()}) > 1:
        raise ValueError("expected labels of one kind in all parts, got names and numbers")
    if any(isinstance(first.get(name), np.ndarray) for name in ("images", "vectors")):
        arrays = {name: _joined([part_columns[name] for part_columns in columns.values()], name) for name in first}
        if len(columns) > 1:
            size = next(iter(first))
            arrays["parts"] = np.repeat(list(columns), [len(part_columns[size]) for part_columns in columns.values()])
        saved = io.BytesIO()
        np.savez(saved, **arrays)  # pyright: ignore[reportArgumentType] - no array is called allow_pickle
        return _write_contents(folder, {"train.npz": saved.getvalue()})
    contents = {f"{part}.parquet": _parquet(part_columns) for part, part_columns in columns.items()}
    return _write_contents(folder, contents)


def _write_contents(folder: Path, contents: Mapping[str, bytes]) -> Path:
    digests = [(name, sha256(content).hexdigest()) for name, content in contents.items()]
    digest = sha256(repr(digests).encode()).hexdigest()[:16]
    target = folder / f"data-{digest}"
    for name, content in contents.items():
        path = target.with_suffix(Path(name).suffix) if len(contents) == 1 else target / name
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f"{path.name}.{os.getpid()}")
            beside.write_bytes(content)
            beside.replace(path)
    return target.with_suffix(Path(next(iter(contents))).suffix) if len(contents) == 1 else target


def _parquet(columns: Columns) -> bytes:
    saved = io.BytesIO()
    with library("the data", Path()) as datasets:
        dataset_class = datasets.Dataset
        table = columns.get(TABLE, columns)
        if not isinstance(table, dataset_class):
            whole = TABLE in columns
            table = dataset_class.from_pandas(table, preserve_index=False) if whole else dataset_class.from_dict(table)
        table.to_parquet(saved)
    return saved.getvalue()


def _columns(data: Any, label: str | None) -> Columns:
    """Return the data's columns by name: images and vectors as arrays; a table as a whole, under an empty name."""
    type_name = f"{type(data).__module__}.{type(data).__name__}"
    attribute = "columns" if type_name.startswith("p") else "num_rows"
    if type_name.startswith(("datasets.", "pandas.")) and hasattr(data, attribute):
        return {TABLE: data}
    if isinstance(data, np.ndarray | Tensor):
        return _of_values([data], [])
    if isinstance(data, tuple) and len(data) == 2:
        inputs, labels = (values.shape[0] if hasattr(values, "shape") else len(values or ()) for values in data)
        if inputs != labels or not inputs:
            raise ValueError(f"expected as many labels as inputs, got {labels} and {inputs}")
        return _of_values(list(data), [])
    fits = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, str | Mapping)
    if not fits or not len(data):
        got = f"a dictionary of {', '.join(map(str, data))}" if isinstance(data, Mapping) else type_name
        got = "an empty one" if fits else got
        raise ValueError(f"expected {EXPECTED_DATA}, got {got}: give one of them, or a path")
    whole: Any = data
    while not hasattr(whole, "classes") and hasattr(whole, "dataset"):  # a Subset
        whole = whole.dataset
    classes = getattr(whole, "classes", [])
    classes = classes if isinstance(classes, list | tuple) else []
    return _of_items([data[index] for index in range(len(data))], label, classes)


def _of_items(items: Sequence[Any], label: str | None, classes: Sequence[Any]) -> Columns:
    first = items[0]
    if isinstance(first, Mapping):
        return _of_dictionaries(items, label)
    if isinstance(first, tuple | list) and len(first) == 2:
        return _of_values([list(values) for values in zip(*items, strict=True)], classes)
    if isinstance(first, tuple | list) and len(first) == 1:
        return _of_values([[value for (value,) in items]], [])
    if isinstance(first, Tensor | np.ndarray | str) or hasattr(first, "convert"):
        return _of_values([items], [])
    got = f"items such as {type(first).__name__}"
    raise ValueError(f"expected a Dataset of (input, label) or of dictionaries, got {got}")


def _of_values(values: Sequence[Any], classes: Sequence[Any]) -> Columns:
    values = [column.to_numpy() if hasattr(column, "to_numpy") else column for column in values]  # from pandas
    inputs, labels = values[0], [_unwrap_array(label) for label in values[1]] if len(values) == 2 else None
    if isinstance(inputs[0], str):
        columns: Columns = {"text": list(map(str, inputs))}
    elif hasattr(inputs[0], "convert"):  # Pillow images
        columns = {"image": list(inputs)}
    else:
        array = _array(inputs)
        columns = {"vectors" if array.ndim == 2 else "images": array}
    if labels is None:
        return columns
    whole = bool(classes) and all(isinstance(label, int) for label in labels)
    if whole and not all(0 <= label < len(classes) for label in labels):
        raise ValueError(f"expected labels from 0 to {len(classes) - 1}, the places in classes, got others")
    named = [str(classes[label]) for label in labels] if whole else labels
    arrays = "images" in columns or "vectors" in columns
    return columns | ({"labels": np.asarray(named)} if arrays else {"label": named})


def _of_dictionaries(items: Sequence[Mapping[str, Any]], label: str | None) -> Columns:
    if odd := next((index for index, item in enumerate(items) if item.keys() != items[0].keys()), None):
        raise ValueError(f"expected the keys {', '.join(items[0])} in all items, got others in item {odd}")
    columns = {name: [item[name] for item in items] for name in items[0]}
    arrays = [name for name, values in columns.items() if getattr(values[0], "ndim", 0) > 0]
    if not arrays or any(hasattr(values[0], "convert") for values in columns.values()):
        return {name: [_unwrap_array(value) for value in values] for name, values in columns.items()}
    chosen = next((name for name in arrays if name in formats.IMAGE_COLUMNS), arrays[0])
    named = next((name for name in (label, *formats.LABEL_COLUMNS) if name in columns), None)
    return _of_values([columns[chosen], *([] if named is None else [columns[named]])], [])


def _array(values: Any) -> NDArray[Any]:
    try:
        if isinstance(values, list):
            return np.stack([_array(value) if isinstance(value, Tensor) else np.asarray(value) for value in values])
        if isinstance(values, Tensor):
            values = values.detach().cpu()
            values = values.float() if values.dtype is torch.bfloat16 else values
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise ValueError("expected inputs of one shape, got others: resize them, or give Pillow's images") from error


def _unwrap_array(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value


def _joined(arrays: Sequence[NDArray[Any]], name: str) -> NDArray[Any]:
    try:
        return np.concatenate(arrays)
    except ValueError as error:
        raise ValueError(f"expected {name} of one shape in all parts, got others: {error}") from error
