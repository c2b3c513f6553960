"""The choice of a table's input columns, with the reasons against the others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from likewise.data import columns
from likewise.data.numbers import Numbers, whole_numbers, with_numbers
from likewise.data.tables import Tables
from likewise.files.cells import kind_of
from likewise.files.formats import ID_COLUMN, IMAGE_COLUMNS, NAMED_ID, ROW_NUMBERS, TEXT_COLUMNS, first_of

MIN_ROWS = 20  # fewer cannot show that their numbers identify rows
MAX_LISTED_COLUMNS = 8  # that a line names


class Chosen(NamedTuple):
    """The input columns of a table, what they hold, and why each of the others is no input."""

    inputs: list[str]
    kind: columns.ColumnKind
    others: Mapping[str, str]
    tables: Tables  # the tables, in which columns of numbers hold these

    def __str__(self) -> str:
        left = [f"{name} ({why})" for name, why in self.others.items()]
        count = f", {len(self.inputs)} columns" * (len(self.inputs) > MAX_LISTED_COLUMNS)
        summary = f"{first_of(self.inputs, MAX_LISTED_COLUMNS)} ({self.kind}{count})"
        rest = f"; left out are {first_of(left, MAX_LISTED_COLUMNS)}" if left else ""
        return f"columns: inputs are {summary}{rest}"


def choose_columns(path: str, tables: Tables, input_columns: Sequence[str] | None, beside: Sequence[str]) -> Chosen:
    """Choose one column of images or texts, or several of numbers: those given, or else as `Table` says."""
    table = next(iter(tables.splits.values()))
    if unknown := next((name for name in input_columns or () if name not in table.features), None):
        got = f"{unknown!r}: choose from {', '.join(table.features)}"
        raise ValueError(f"expected columns of {path} in data.inputs, got {got}")
    names = input_columns or [name for name in table.features if name not in beside]
    kinds = {name: columns.kind_in(table, name) for name in names}
    unfit = {} if input_columns else {name: _unfit(name, column_kind) for name, column_kind in kinds.items()}
    reasons = {name: why for name, why in unfit.items() if why}
    kinds = {name: column_kind for name, column_kind in kinds.items() if name not in reasons}

    def made(inputs: list[str], column_kind: columns.ColumnKind) -> Chosen:
        every = {
            name: reasons.get(name) or _describe_column(table, name, kinds[name])
            for name in names
            if name not in inputs
        }
        return Chosen(inputs, column_kind, every, tables)

    if images := _images(kinds, input_columns):
        return made(images, "images")
    texts = [name for name, column_kind in kinds.items() if column_kind == "text"]
    named = [name for name in texts if name in TEXT_COLUMNS] if input_columns is None else []
    if len(named) == 1:
        return made(named, "text")
    numbers = {name: Numbers.of(tables.splits, name) for name in texts if name in tables.untyped}
    for name, parsed in numbers.items():
        parsed.check(path, name)
    numbers = {name: parsed for name, parsed in numbers.items() if not parsed.odd and parsed.filled}
    kinds |= dict.fromkeys(numbers, "numbers")
    odd = {name: column_kind for name, column_kind in kinds.items() if column_kind != "numbers"}
    used = [name for name in kinds if name not in odd]
    tables = replace(tables, splits=with_numbers(tables.splits, numbers))
    if input_columns is None:
        reasons |= {name: "identifies rows" for name in used if _number_rows(tables, name, numbers.get(name))}
        used = [name for name in used if name not in reasons]
    texts = [name for name in texts if name in odd]
    if len(kinds) > 1:
        long = [name for name in texts if kind_of(columns.first_values(table, name)) == "texts"]
        texts = [] if input_columns or used else long
    if len(texts) == 1:
        return made(texts, "text")
    if not used or (input_columns and odd):
        raise _none_fits(path, table.features, odd, reasons)
    return made(used, "numbers")


def _images(kinds: Mapping[str, str], input_columns: Sequence[str] | None) -> list[str]:
    images = [name for name, column_kind in kinds.items() if column_kind == "images"]
    if len(images) > 1 and input_columns is None:
        images = [name for name in images if name in IMAGE_COLUMNS] or images
    if images and max(len(images), len(input_columns or ())) > 1:
        got = ", ".join(input_columns or images)
        raise ValueError(f"expected one column of images, got {got}: name it in data.inputs")
    return images


def _none_fits(path: str, features: Any, odd: Mapping[str, str], reasons: Mapping[str, str]) -> ValueError:
    lists = {name for name in odd if columns.has_several(features[name])}
    each = [f"{name} ({'lists' if name in lists else column_kind})" for name, column_kind in odd.items()]
    each += [] if odd else [f"{name} ({why})" for name, why in reasons.items()]
    remedy = "write a row for each of a list, or give --data Pairs" if lists else "name it in data.inputs"
    got = ", ".join(each) or "only the labels"
    return ValueError(f"expected columns of numbers, or one of images or texts, in {path}, got {got}: {remedy}")


def _describe_column(table: Any, name: str, column_kind: str) -> str:
    if column_kind == "text":
        some = next(filter(None, columns.first_values(table, name)), None)
        return "empty" if some is None else f"text, such as {some[:20]!r}"
    if column_kind != "other":
        return column_kind
    feature = table.features[name]
    return "lists" if columns.is_list(feature) else str(getattr(feature, "dtype", "objects"))


def _unfit(name: str, column_kind: str) -> str:
    if name.startswith(ROW_NUMBERS):
        return "no name"
    is_id = name.lower() == ID_COLUMN or (NAMED_ID.search(name) and column_kind in {"numbers", "text"})
    return "identifies rows" if is_id else ""


def _number_rows(tables: Tables, name: str, written: "Numbers | None") -> bool:
    """Tell whether whole numbers identify rows: they hardly repeat, and are in order, packed closely, or padded."""
    splits = [split for split in tables.splits.values() if name in split.features]
    if any(columns.is_list(split.features[name]) for split in splits):
        return False
    each = [some for split in splits if (some := whole_numbers(split, name)) is not None]
    if len(each) < len(splits) or (count := sum(map(len, each))) < MIN_ROWS:
        return False
    steps, values = [np.diff(some) for some in each], np.concatenate(each)
    ordered = all((step >= 0).all() for step in steps) or all((step <= 0).all() for step in steps)
    packed = int(values.max()) - int(values.min()) < 2 * count
    padded = written is not None and written.padded
    return bool(ordered or packed or padded) and len(np.unique(values)) >= 0.99 * count
