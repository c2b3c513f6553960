"""Columns of tables: their kinds and values, and labels as classes or as label sets."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from shlex import quote
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from likewise.files import detection
from likewise.files.formats import ID_COLUMN, as_class

SEPARATORS = {";": "semicolons", "|": "bars", ",": "commas"}
Labels = tuple[Tensor, tuple[str, ...]]  # classes, (N,), or label sets, (N, L), and their names
ColumnKind = Literal["images", "numbers", "text", "classes", "other"]


def kind_of(feature: Any) -> ColumnKind:
    """Return the kind of a column, from its feature in the `datasets` library."""
    import datasets  # noqa: PLC0415 - only sets that the library reads need it

    encoded = isinstance(feature, Mapping) and set(feature) == {"bytes", "path"}
    dtype = str(getattr(feature, "dtype", ""))
    if isinstance(feature, datasets.Image) or encoded or dtype in {"binary", "large_binary"}:
        return "images"
    if isinstance(feature, datasets.ClassLabel):
        return "classes"
    if is_list(feature):
        return "numbers" if kind_of(_inner(feature)) == "numbers" else "other"
    if dtype.startswith(("int", "uint", "float", "bool", "decimal")):
        return "numbers"
    return "text" if dtype in {"string", "large_string"} else "other"


def is_list(feature: Any) -> bool:
    """Tell whether a column's values are lists."""
    return _inner(feature) is not None


def has_several(feature: Any) -> bool:
    """Tell whether a column's values are lists of whole inputs: of texts, images or vectors."""
    return is_list(feature) and (kind_of(feature) != "numbers" or is_list(_inner(feature)))


def kind_in(table: Any, column: str) -> ColumnKind:
    """Return the kind of a column of a table; paths of images count as images."""
    column_kind = kind_of(table.features[column])
    are_paths = column_kind == "text" and detection.kind_of(first_values(table, column)) == "images"
    return "images" if are_paths else column_kind


def first_values(table: Any, column: str) -> Sequence[Any]:
    """Return the first values of a column, which show its kind."""
    return values_of(table.select_columns([column]).select(range(min(len(table), detection.JUDGED_ROWS))), column)


def values_of(table: Any, column: str) -> Sequence[Any]:
    """Return the values of a column."""
    return table.select_columns([column])[:][column]


def arrow_of(table: Any, column: str) -> Any:
    """Return the values of a column as an Arrow array."""
    return table.select_columns([column]).with_format("arrow")[:][column]


def strings_in(tables: Iterable[Any], column: str) -> list[str]:
    """Return the values of a column of all tables as strings, empty for missing values."""
    return ["" if value is None else str(value) for table in tables for value in values_of(table, column)]


def words_in(table: Any, column: str) -> Sequence[Any]:
    """Return the values of a column of strings, or the names in a column of classes; nothing for other columns."""
    column_kind = kind_of(table.features[column])
    if column_kind not in {"text", "classes"}:
        return ()
    return _in_words(values_of(table, column), _names(table.features[column]))


def labels_in(tables: Sequence[Any], column: str, separator: str | None, *, in_part: bool = False) -> Labels:
    """Return the labels of all tables, matched by name if the tables number them differently."""
    names = [_names(table.features[column]) for table in tables]
    each = [values_of(table, column) for table in tables]
    if len(set(names)) > 1:
        each = [_in_words(values, class_names) for values, class_names in zip(each, names, strict=True)]
    every, known = [value for values in each for value in values], None if len(set(names)) > 1 else names[0]
    return labels_of(every, separator, known, in_part=in_part)


def indicators_in(tables: Sequence[Any], columns: Sequence[str]) -> Labels:
    """Return label sets, (N, L), from one column of 0 and 1 per label."""
    sets: list[list[bool]] = []
    for column in columns:
        values = [value for table in tables for value in values_of(table, column)]
        for row, value in enumerate(values):
            if value not in (0, 1):  # not a set: a list has no hash
                raise ValueError(f"expected 0 or 1 in column {column!r} of data.label, got {value!r} in row {row}")
        sets.append([value == 1 for value in values])
    return torch.tensor(sets).T.contiguous(), tuple(columns)


def _names(feature: Any) -> tuple[str, ...] | None:
    inner = _inner(feature)
    names: Sequence[str] | None = getattr(feature if inner is None else inner, "names", None)
    return None if names is None else tuple(names)


def _in_words(values: Sequence[Any], names: Sequence[str] | None) -> Sequence[Any]:
    if names is None:
        return values
    lists = ([label for label in value if label is not None] if isinstance(value, list) else value for value in values)
    return [
        None if value is None else [names[label] for label in value] if isinstance(value, list) else names[value]
        for value in lists
    ]


def _inner(feature: Any) -> Any:
    if isinstance(feature, list):
        return feature[0]
    shape = getattr(feature, "shape", None)
    if shape is not None:  # the library's arrays of fixed shape
        import datasets  # noqa: PLC0415 - only sets that the library reads need it

        return datasets.Value(feature.dtype)
    return getattr(feature, "feature", None)


def column_of(
    known: Collection[str],
    column: str | None,
    usual: Sequence[str],
    what: str,
    where: Any,
    *,
    cells: Callable[[str], Sequence[Any]] = lambda _: (),
) -> str:
    """Return the name of a column: the given one, or the first of the usual ones; an error names likely labels."""
    match = next((name for name in ([column] if column else usual) if name in known), None)
    if match is not None:
        return match
    candidates = [name for name in known if name != ID_COLUMN] if what == "label" and column is None else []
    remedy = f"name it in data.{what}" + (", or set that to none" if what == "label" else "")
    if likely := detection.classes_among({name: cells(name) for name in candidates}):
        remedy = f"likewise train {quote(str(where))} --data.label {quote(likely[0])}"
        remedy += f" (or {', '.join([*likely[1:], 'none'])})"
    elif len(candidates) == 2:
        pairs_hint = "; of pairs give --data Pairs --data.path {} --data.first {} --data.second {}"
        remedy += pairs_hint.format(where, *candidates)
    expected = f"a column of {what}s ({column or ', '.join(usual)})"
    raise ValueError(f"expected {expected} in {where}, got {', '.join(known)}: {remedy}")


def labels_of(
    values: Sequence[Any],
    separator: str | None = None,
    names: Sequence[str] | None = None,
    *,
    in_part: bool = False,
    separable: bool = True,
) -> Labels:
    """Return classes (N,), int64, or label sets (N, L), boolean, with their names; None in `values` is no label.

    `names` belong to numbered classes or labels. With `in_part`, samples may have no class, -1. `separable` tells
    whether the source takes a separator, which a warning then suggests if names contain one.
    """
    values = [_parse_label(value) for value in values]
    if in_part and separator is None and not any(isinstance(value, list) for value in values):
        none = (None, "") if names is None else (None, "", -1)
        rows = [row for row, value in enumerate(values) if value not in none]
        if 0 < len(rows) < len(values):
            classes, known = labels_of([values[row] for row in rows], None, names, separable=separable)
            return torch.full((len(values),), -1).index_copy(0, torch.tensor(rows), classes), known
    if separator is not None:
        cells = ["" if value is None else value if isinstance(value, list) else str(value) for value in values]
        values = [
            cell if isinstance(cell, list) else [part.strip() for part in cell.split(separator) if part.strip()]
            for cell in cells
        ]
    lists = sum(isinstance(value, list) for value in values)
    if lists:
        return _label_sets(values, lists, None if separator is not None else names)
    missing = sum(value is None for value in values)
    if missing:
        raise ValueError(f"expected a label for every sample, got none for {missing} of {len(values)}")
    if names is not None:
        if without := sum(isinstance(value, int) and value < 0 for value in values):
            got = f"a negative number, for none, in {without} of {len(values)}"
            raise ValueError(f"expected a label for every sample, got {got}")
        return torch.tensor(values, dtype=torch.int64), tuple(names)
    if odd := [value for value in values if not isinstance(value, int | str)]:
        got = f"{np.asarray(odd).dtype}: name another column in data.label"
        raise ValueError(f"expected labels of integers, strings, or lists of them, got {got}")
    labels = values if all(isinstance(value, int) for value in values) else [str(value) for value in values]
    warn_of_same(values, labels, "labels have")
    places = {label: index for index, label in enumerate(_in_order(set(labels)))}
    if separable:
        check_apart(tuple(map(str, places)))
    return torch.tensor([places[label] for label in labels], dtype=torch.int64), tuple(map(str, places))


def warn_of_same(values: Iterable[Any], texts: Iterable[Any], whose: str) -> None:
    """Warn if a number and a string are written the same way."""
    kinds = {(word, isinstance(value, str)) for value, word in zip(values, texts, strict=True)}
    if both := [word for word, is_string in kinds if is_string and (word, False) in kinds]:
        message = f'{whose} {min(both)} and "{min(both)}", which are the same here'
        warnings.warn(f"{message}: write all as strings, or none", stacklevel=3)


def check_separator(separator: str | None) -> None:
    """Raise a ValueError for an empty separator."""
    if separator == "":
        raise ValueError("expected a separator of at least one character, such as ;, got an empty one")


def check_apart(names: Sequence[str]) -> None:
    """Warn if classes seem to be several labels in one cell."""
    for separator, called in SEPARATORS.items():
        parts = {name: {part.strip() for part in name.split(separator)} - {""} for name in names}
        together = {name: pieces for name, pieces in parts.items() if separator in name}
        if not together:
            continue
        often = Counter(part for parts in together.values() for part in parts)
        known = {*names} - together.keys() | {part for part, count in often.items() if count > 1}
        likely = [name for name, parts in together.items() if len(parts) > 1 and parts <= known]
        if separator != "," or len(likely) * 2 >= len(together):  # a comma is common in names
            message = f"{len(together):,} of {len(names):,} classes have {called} in their names, such as"
            remedy = f"if these are several labels, set data.separator to {separator!r}"
            warnings.warn(f"{message} {min(likely or together)!r}: {remedy}", stacklevel=2)


def _parse_label(value: Any) -> Any:
    """Return a cell's label or labels, with whole numbers as integers and missing labels as None."""
    if isinstance(value, list):
        return [as_class(label) if isinstance(label, str) else label for label in value]
    if not isinstance(value, float):
        return as_class(value) if isinstance(value, str) else value
    return None if math.isnan(value) else int(value) if value.is_integer() else value


def _label_sets(values: Sequence[Any], lists: int, names: Sequence[str] | None) -> Labels:
    single = sum(value is not None for value in values) - lists
    if single:
        got = f"{lists:,} lists in {len(values):,} lines"
        raise ValueError(f"expected lists of labels in every line or in none, got {got}")
    sets: list[list[Any]] = [[label for label in value or [] if label is not None] for value in values]
    if names is None and _are_indicators(sets):
        indicators = torch.tensor(np.asarray(sets, dtype=bool))
        return indicators, tuple(str(label) for label in range(indicators.shape[1]))
    if names is None and not all(isinstance(label, int) for label_set in sets for label in label_set):
        sets = [[str(label) for label in label_set] for label_set in sets]
    classes = _in_order({label for label_set in sets for label in label_set}) if names is None else range(len(names))
    column = {label: index for index, label in enumerate(classes)}
    labels = torch.zeros(len(sets), len(column), dtype=torch.bool)
    for row, label_set in enumerate(sets):
        labels[row, [column[label] for label in label_set]] = True
    return labels, tuple(names or map(str, classes))


def _in_order(labels: Collection[Any]) -> list[Any]:
    return sorted(labels, key=None if all(isinstance(label, int) for label in labels) else str)


def _are_indicators(sets: Sequence[Sequence[Any]]) -> bool:
    # in sets of two or more, 0 and 1 are indicators: as labels, some would repeat, or every sample would have both
    same_length = len({len(label_set) for label_set in sets}) == 1 and len(sets[0]) > 0
    if not same_length or any(label not in {0, 1} for label_set in sets for label in label_set):
        return False
    return len(sets[0]) > 1 or all(isinstance(label_set[0], bool) for label_set in sets)
