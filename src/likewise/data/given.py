"""Data given as objects (arrays, tables, map-style data sets), kept in files that sources read like any other."""

import io
import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likewise.data.tables import library
from likewise.files.formats import IMAGE_COLUMNS, LABEL_COLUMNS, PART_NAMES, PARTS

EXPECTED_DATA = 'arrays (X, y), a DataFrame, a data set, a map-style Dataset, or these as {"train": ..., "test": ...}'
TABLE = ""  # a table that is whole has no name
Columns = dict[str, Any]


def write_data(data: Any, folder: Path, label: str | None = None) -> Path:
    """Write data, as `EXPECTED_DATA` says, to files named by a digest, unless they exist; return a source's path.

    Items of a Dataset are taken once: views are drawn by an augmentation, not by what the Dataset does at random.
    `label` is the column of labels in a Dataset of dictionaries, or None for one of the usual names.
    """
    parts = data if isinstance(data, Mapping) and data and set(data) <= PART_NAMES.keys() else {"train": data}
    columns = {PARTS[PART_NAMES[name]]: _columns(part_data, label) for name, part_data in parts.items()}
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
    values = [column.to_numpy() if hasattr(column, "to_numpy") else column for column in values]  # of pandas
    inputs, labels = values[0], [_unwrap_array(label) for label in values[1]] if len(values) == 2 else None
    if isinstance(inputs[0], str):
        columns: Columns = {"text": list(map(str, inputs))}
    elif hasattr(inputs[0], "convert"):  # pictures of Pillow
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
    chosen = next((name for name in arrays if name in IMAGE_COLUMNS), arrays[0])
    named = next((name for name in (label, *LABEL_COLUMNS) if name in columns), None)
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
