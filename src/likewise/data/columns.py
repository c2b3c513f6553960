"""Columns of a table as tensors: numbers as vectors, and labels of every kind."""

import math
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

NAMED = 5  # rows that a warning names
SEPARATORS = {";": "semicolons", "|": "bars", ",": "commas"}

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
    inner = _inner(feature)
    if inner is not None:
        return "numbers" if kind_of(inner) == "numbers" else "other"
    if dtype.startswith(("int", "uint", "float", "bool")):
        return "numbers"
    return "text" if dtype in {"string", "large_string"} else "other"


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
    """Return which rows have all their numbers, finite; a warning counts the others and names the first.

    Args:
        vectors: The rows.
        path: Where they are from.

    Raises:
        ValueError: No row has all its numbers.
    """
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


def labels_of(values: Sequence[Any], feature: Any, separator: str | None = None) -> tuple[Tensor, tuple[str, ...]]:
    """Return classes (N,), int64, or label sets (N, L), boolean, with their names.

    Args:
        values: Integers, strings, lists of them, or lists of only 0 and 1.
        feature: The column's feature, which may name the classes.
        separator: What separates the labels of a sample, in strings that hold several.
    """
    values = [_label(value) for value in values]
    if separator is not None:
        cells = ["" if value is None else str(value) for value in values]
        return _label_sets([[part.strip() for part in cell.split(separator) if part.strip()] for cell in cells], None)
    inner = _inner(feature)
    if inner is not None:
        return _label_sets([[one for one in value if one is not None] if value else [] for value in values], inner)
    missing = sum(value is None for value in values)
    if missing:
        raise ValueError(
            f"expected a label for every sample, got none for {missing} of {len(values)}: fill them in or drop the rows"
        )
    if hasattr(feature, "names"):
        return torch.tensor(values, dtype=torch.int64), tuple(feature.names)
    found, classes = np.unique(np.asarray(values), return_inverse=True)
    if found.dtype.kind not in "uibU":
        raise ValueError(
            f"expected labels of integers, strings, or lists of them, got {feature.dtype}: name another column in "
            "data.label"
        )
    names = tuple(str(name) for name in found)
    check_apart(names)
    return torch.from_numpy(classes.astype(np.int64)), names


def _label(value: Any) -> Any:
    """Return a cell as a label: a whole number as an integer, as which it was written, and a missing one as None."""
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else int(value) if value.is_integer() else value


def check_separator(separator: str | None) -> None:
    """Raise a ValueError unless a separator has a character."""
    if separator == "":
        raise ValueError("expected a separator of at least one character, such as ;, got an empty one: leave it out")


def check_apart(names: Sequence[str]) -> None:
    """Warn where classes seem to be several labels in one cell: their parts are in other cells too.

    A comma is common in names; so there must be parts of at least half of such classes that other cells have as well,
    alone or together. For a semicolon or a bar, a class with one is enough.

    Args:
        names: The classes.

    Example:
        >>> check_apart(["Labrador, black", "Labrador, yellow", "Pug"])
    """
    for separator, called in SEPARATORS.items():
        together = {
            name: {part.strip() for part in name.split(separator)} - {""} for name in names if separator in name
        }
        if not together:
            continue
        often = Counter(part for parts in together.values() for part in parts)
        known = {*names} - together.keys() | {part for part, count in often.items() if count > 1}
        likely = [name for name, parts in together.items() if len(parts) > 1 and parts <= known]
        if separator != "," or len(likely) * 2 >= len(together):
            warnings.warn(
                f"{len(together):,} of {len(names):,} classes have {called} in their names, such as "
                f"{min(likely or together)!r}: if these are several labels, set data.separator to {separator!r}",
                stacklevel=2,
            )


def is_list(feature: Any) -> bool:
    """Tell whether a column's values are lists."""
    return _inner(feature) is not None


def names_in(feature: Any) -> tuple[str, ...] | None:
    """Return the names of the classes, or of the labels in lists, that a feature numbers; None where it has none."""
    inner = _inner(feature)
    names: Sequence[str] | None = getattr(feature if inner is None else inner, "names", None)
    return None if names is None else tuple(names)


def in_words(values: Sequence[Any], feature: Any) -> list[Any]:
    """Put names in the place of numbers that a feature names, in lists too."""
    names = names_in(feature)
    if names is None:
        return list(values)
    if _inner(feature) is None:
        return [None if value is None else names[value] for value in values]
    return [None if value is None else [names[one] for one in value if one is not None] for value in values]


def words_like(feature: Any) -> Any:
    """Return the feature of a column with words instead of numbers."""
    import datasets  # noqa: PLC0415 - only sets that the library reads need it

    return datasets.Value("string") if _inner(feature) is None else [datasets.Value("string")]


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


def _label_sets(values: Sequence[Sequence[Any]], inner: Any) -> tuple[Tensor, tuple[str, ...]]:
    known: Sequence[str] | None = getattr(inner, "names", None)
    if known is None:
        return label_sets_of(values)
    return label_sets_of(values, range(len(known)))[0], tuple(known)


def label_sets_of(
    values: Sequence[Sequence[Any]], labels: Sequence[Any] | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """Return lists of labels as label sets, (N, L), and the labels' names.

    Args:
        values: The labels of each sample; or 0 or 1 for each label.
        labels: All labels in order. None: those that occur, sorted, numbers as numbers.

    Example:
        >>> label_sets_of([["b", "a"], []])
        (tensor([[ True,  True],
                [False, False]]), ('a', 'b'))
        >>> label_sets_of([[0, 1], [1, 0]])[0], label_sets_of([[9, 10], [2]])[1]
        (tensor([[False,  True],
                [ True, False]]), ('2', '9', '10'))
    """
    if labels is None and _are_indicators(values):
        indicators = torch.tensor(np.asarray(values, dtype=bool))
        return indicators, tuple(str(label) for label in range(indicators.shape[1]))
    found = in_order({label for value in values for label in value}) if labels is None else labels
    column = {label: place for place, label in enumerate(found)}
    sets = torch.zeros(len(values), len(column), dtype=torch.bool)
    for row, value in enumerate(values):
        sets[row, [column[label] for label in value]] = True
    return sets, tuple(str(label) for label in found)


def in_order(labels: Collection[Any]) -> list[Any]:
    """Sort labels: numbers by their size, if all are numbers, and otherwise as words.

    Example:
        >>> in_order({10, 9, 2}), in_order({"b", 10, "a"})
        ([2, 9, 10], [10, 'a', 'b'])
    """
    return sorted(labels, key=None if all(isinstance(label, int) for label in labels) else str)


def _are_indicators(values: Sequence[Sequence[Any]]) -> bool:
    """Decide whether lists hold 0 or 1 for each label, and not the labels themselves.

    Of two or more each, they do: as labels, either some would repeat, or every sample would have both.
    """
    same_length = len({len(value) for value in values}) == 1 and len(values[0]) > 0
    if not same_length or any(label not in {0, 1} for value in values for label in value):
        return False
    return len(values[0]) > 1 or all(isinstance(value[0], bool) for value in values)
