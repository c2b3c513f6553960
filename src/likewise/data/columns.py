"""Columns of the `datasets` library's tables: what they hold, numbers as vectors, and labels with their names."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from likewise.data.labels import labels_of

NAMED = 5  # rows that a warning names

ColumnKind = Literal["images", "numbers", "text", "classes", "other"]


def kind_of(feature: Any) -> ColumnKind:
    """Return what a column holds, judged by its feature in the `datasets` library."""
    import datasets  # noqa: PLC0415 - only sets that the library reads need it

    encoded = isinstance(feature, Mapping) and set(feature) == {"bytes", "path"}
    dtype = str(getattr(feature, "dtype", ""))
    if isinstance(feature, datasets.Image) or encoded or dtype in {"binary", "large_binary"}:
        return "images"
    if isinstance(feature, datasets.ClassLabel):
        return "classes"
    if is_list(feature):
        return "numbers" if kind_of(_inner(feature)) == "numbers" else "other"
    if dtype.startswith(("int", "uint", "float", "bool")):
        return "numbers"
    return "text" if dtype in {"string", "large_string"} else "other"


def is_list(feature: Any) -> bool:
    """Tell whether a column's values are lists."""
    return _inner(feature) is not None


def values_of(table: Any, column: str) -> Sequence[Any]:
    """Return the values of a column."""
    return table.select_columns([column])[:][column]


def vectors_of(tables: Sequence[Any], columns: Sequence[str]) -> Tensor:
    """Concatenate number columns of all tables to vectors, (N, F), float32."""
    rows: list[NDArray[np.float32]] = []
    for table in tables:
        read = table.select_columns(list(columns)).with_format("numpy")[:]
        rows.append(np.concatenate([_numbers(read[name], name) for name in columns], axis=1))
    widths = {part.shape[1] for part in rows}
    if len(widths) > 1:
        raise ValueError(f"expected vectors of one length in all parts, got {sorted(widths)}: pad or cut the lists")
    return torch.from_numpy(np.concatenate(rows))


def finite_rows(vectors: Float[Tensor, "n f"], path: str) -> Int[Tensor, " m"]:
    """Return which rows have all their numbers, finite; a warning counts the others and names the first."""
    whole = torch.isfinite(vectors).all(dim=1)
    lost = (~whole).nonzero().flatten().tolist()
    if lost and len(lost) == len(vectors):
        raise ValueError(
            f"expected rows of finite numbers in {path}, got missing or infinite numbers in all {len(lost):,}: choose "
            "columns with data.inputs, or fill the numbers in"
        )
    if lost:
        some = ", ".join(map(str, lost[:NAMED])) + (", ..." if len(lost) > NAMED else "")
        warnings.warn(
            f"left out {len(lost):,} of {len(vectors):,} rows of {path}, whose numbers are missing or infinite: rows "
            f"{some}, from 0",
            stacklevel=3,
        )
    return whole.nonzero().flatten()


def labels_in(tables: Sequence[Any], column: str, separator: str | None) -> tuple[Tensor, tuple[str, ...]]:
    """Return the labels of all tables; by name, where these number them differently."""
    names = [_names(table.features[column]) for table in tables]
    each = [values_of(table, column) for table in tables]
    if len(set(names)) > 1:
        each = [_in_words(values, own) for values, own in zip(each, names, strict=True)]
    return labels_of([one for values in each for one in values], separator, None if len(set(names)) > 1 else names[0])


def _names(feature: Any) -> tuple[str, ...] | None:
    """Return the names of the classes, or of the labels in lists, that a feature numbers; None where it has none."""
    inner = _inner(feature)
    names: Sequence[str] | None = getattr(feature if inner is None else inner, "names", None)
    return None if names is None else tuple(names)


def _in_words(values: Sequence[Any], names: Sequence[str] | None) -> Sequence[Any]:
    """Put names in the place of numbers, in lists too."""
    if names is None:
        return values
    lists = ([one for one in value if one is not None] if isinstance(value, list) else value for value in values)
    return [
        None if value is None else [names[one] for one in value] if isinstance(value, list) else names[value]
        for value in lists
    ]


def _inner(feature: Any) -> Any:
    """Return the feature of a list's elements, or None if the feature is not a list."""
    if isinstance(feature, list):
        return feature[0]
    shape = getattr(feature, "shape", None)
    if shape is not None:  # the library's arrays of fixed shape
        import datasets  # noqa: PLC0415 - only sets that the library reads need it

        return datasets.Value(feature.dtype)
    return getattr(feature, "feature", None)


def _numbers(column: Any, name: str) -> NDArray[np.float32]:
    try:
        numbers = np.asarray(column, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"expected numbers, or lists of one length, in every row of column {name!r}: fill in or cut the other rows"
        ) from error
    return numbers.reshape(len(numbers), -1)
