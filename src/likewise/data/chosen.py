"""Which columns of a table are inputs, and why the others are none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from likewise.data import columns
from likewise.data.numbers import Numbers, whole_numbers, with_numbers
from likewise.data.tables import Tables
from likewise.files.cells import kind_of
from likewise.files.formats import ID_COLUMN, IMAGE_COLUMNS, NAMED_ID, ROW_NUMBERS, TEXT_COLUMNS, first_of

LEAST_ROWS = 20  # from which on numbers tell that they identify rows
SHARE_OF_ODD = 0.1  # of cells that are no numbers, up to which a column is meant to be of numbers
TOLD = 8  # columns that a line names


@final
@dataclass(frozen=True)
class Chosen:
    """The input columns of a table, what they hold, and why each of the others is no input."""

    inputs: list[str]
    kind: columns.ColumnKind
    others: Mapping[str, str]
    tables: Tables
    """The tables, in which columns of numbers hold these."""

    def __str__(self) -> str:
        """Say which columns are inputs, and which are not, and why."""
        left = [f"{name} ({why})" for name, why in self.others.items()]
        words = (
            f"{first_of(self.inputs, TOLD)} ({self.kind}{f', {len(self.inputs)} columns' * (len(self.inputs) > TOLD)})"
        )
        return f"columns: inputs are {words}" + (f"; left out are {first_of(left, TOLD)}" if left else "")


def chosen(path: str, tables: Tables, given: Sequence[str] | None, beside: Sequence[str]) -> Chosen:
    """Choose one column of images or texts, or several of numbers: those that are given, or else by what they hold.

    A column whose values identify rows is an input only where it is given: one that is named id, *_id or the like, and
    one of whole numbers that hardly repeat and are in order, packed closely, or written with leading zeros.

    Args:
        path: What is read.
        tables: Its tables.
        given: The names of columns.
        beside: Columns that are no inputs: those of labels and parts.

    Raises:
        ValueError: A column does not exist, none fits, several do of which one is wanted, or a column of numbers has
            something else in a row.
    """
    features = next(iter(tables.splits.values())).features
    if unknown := next((name for name in given or () if name not in features), None):
        raise ValueError(
            f"expected columns of {path} in data.inputs, got {unknown!r}: choose from {', '.join(features)}"
        )
    others = {} if given else _unfit(tables, [name for name in features if name not in beside])
    kinds = {
        name: _kind(tables, name) for name in given or features if name not in {*others, *([] if given else beside)}
    }
    if images := _images(kinds, given):
        return _made(tables, images, "images", kinds, others)
    texts = [name for name, kind in kinds.items() if kind == "text"]
    named = [name for name in texts if name in TEXT_COLUMNS] if given is None else []
    if len(named) == 1:
        return _made(tables, named, "text", kinds, others)
    numbers = {name: Numbers.of(tables.splits, name) for name in texts if name in tables.untyped}
    for name, found in numbers.items():
        found.check(path, name, SHARE_OF_ODD)
    kinds |= {name: "numbers" for name, found in numbers.items() if not found.odd and found.filled}
    texts = [name for name in texts if kinds[name] == "text"]
    odd = {name: kind for name, kind in kinds.items() if kind != "numbers"}
    used = [name for name in kinds if name not in odd]
    tables = replace(
        tables, splits=with_numbers(tables.splits, {name: numbers[name] for name in used if name in numbers})
    )
    if given is None:
        rows = {name: "identifies rows" for name in used if _number_rows(tables, name, numbers.get(name))}
        used, others = [name for name in used if name not in rows], others | rows
    alone = texts if len(kinds) == 1 else [] if given or used else _long(tables, texts)
    if len(alone) == 1:
        return _made(tables, alone, "text", kinds, others)
    if not used or (given and odd):
        raise _none_fits(path, tables, odd, others)
    return _made(tables, used, "numbers", kinds, others)


def _images(kinds: Mapping[str, str], given: Sequence[str] | None) -> list[str]:
    images = [name for name, kind in kinds.items() if kind == "images"]
    if len(images) > 1 and given is None:
        images = [name for name in images if name in IMAGE_COLUMNS] or images
    if images and max(len(images), len(given or ())) > 1:
        raise ValueError(f"expected one column of images, got {', '.join(given or images)}: name it in data.inputs")
    return images


def _none_fits(path: str, tables: Tables, odd: Mapping[str, str], others: Mapping[str, str]) -> ValueError:
    features = next(iter(tables.splits.values())).features
    lists = {name for name in odd if columns.has_several(features[name])}
    each = [f"{name} ({'lists' if name in lists else kind})" for name, kind in odd.items()]
    each += [] if odd else [f"{name} ({why})" for name, why in others.items()]
    remedy = "write a row for each of a list, or give --data Pairs" if lists else "name it in data.inputs"
    return ValueError(
        f"expected columns of numbers, or one of images or texts, in {path}, got "
        f"{', '.join(each) or 'only the labels'}: {remedy}"
    )


def _long(tables: Tables, texts: list[str]) -> list[str]:
    some = next(iter(tables.splits.values())).select_columns(texts)
    cells = some.select(range(min(len(some), columns.LOOKED_AT)))[:]
    return [name for name in texts if kind_of(cells[name]) == "texts"]


def _made(
    tables: Tables, inputs: list[str], kind: columns.ColumnKind, kinds: Mapping[str, str], others: Mapping[str, str]
) -> Chosen:
    table = next(iter(tables.splits.values()))
    every = {
        name: others.get(name) or _described(table, name, kinds[name])
        for name in table.features
        if name in {*kinds, *others}
    }
    return Chosen(inputs, kind, {name: why for name, why in every.items() if name not in inputs}, tables)


def _described(table: Any, name: str, kind: str) -> str:
    if kind == "text":
        some = next(
            filter(None, columns.values_of(table.select_columns([name]).select(range(min(len(table), 100))), name)),
            None,
        )
        return "empty" if some is None else f"text, such as {some[:20]!r}"
    feature = table.features[name]
    return (
        kind if kind != "other" else "lists" if columns.is_list(feature) else str(getattr(feature, "dtype", "objects"))
    )


def _kind(tables: Tables, name: str) -> columns.ColumnKind:
    table = next(iter(tables.splits.values()))
    kind = columns.kind_of(table.features[name])
    return "images" if kind == "text" and columns.are_paths(table, name) else kind


def _unfit(tables: Tables, names: Sequence[str]) -> dict[str, str]:
    """Return the columns whose names say that they are no inputs, and why."""
    unnamed = {name: "no name" for name in names if name.startswith(ROW_NUMBERS)}
    ids = [name for name in names if NAMED_ID.search(name)]
    ids = [name for name in ids if name.lower() == ID_COLUMN or _kind(tables, name) in {"numbers", "text"}]
    return unnamed | dict.fromkeys(ids, "identifies rows")


def _number_rows(tables: Tables, name: str, written: "Numbers | None") -> bool:
    """Tell whether whole numbers identify rows: they hardly repeat, and are in order, packed closely, or padded."""
    splits = [split for split in tables.splits.values() if name in split.features]
    if any(columns.is_list(split.features[name]) for split in splits):
        return False
    each = [some for split in splits if (some := whole_numbers(split, name)) is not None]
    if len(each) < len(splits) or (count := sum(map(len, each))) < LEAST_ROWS:
        return False
    steps, values = [np.diff(some) for some in each], np.concatenate(each)
    ordered = all((step >= 0).all() for step in steps) or all((step <= 0).all() for step in steps)
    packed = int(values.max()) - int(values.min()) < 2 * count
    padded = written is not None and written.padded
    return bool(ordered or packed or padded) and len(np.unique(values)) >= 0.99 * count
