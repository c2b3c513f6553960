"""The kinds of a table's columns, judged by some of their cells, without loading torch."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from likewise.files.formats import IMAGE_COLUMNS, PART_NAMES, TEXT_COLUMNS, UNREAD_SUFFIXES, image_suffixes

JUDGED_ROWS = 100  # rows by which columns are judged
STRINGS = ("texts", "classes", "words")
# three words, or as much in a script without spaces
LONG_TEXT = re.compile(r"\S+\s+\S+\s+\S|[\u3040-\u30ff\u4e00-\u9fff]{6}")


def is_number(cell: Any) -> bool:
    """Tell whether a cell is a number, as text too, or empty."""
    try:
        float(cell or "nan")
    except (TypeError, ValueError):
        return False
    return True


def kind_of(cells: Iterable[Any]) -> str:
    """Return what most cells are: images, texts, classes, words, numbers, ids or nothing.

    Different strings are texts if long, strings that repeat are classes, whole numbers that all differ are ids.
    """
    values = [cell for cell in cells if cell is not None and cell != ""]
    if not values or isinstance(values[0], dict | bytes):
        return "images" if values else "nothing"
    strings = [cell for cell in values if isinstance(cell, str) and not is_number(cell)]
    if 2 * len(strings) < len(values):
        return "ids" if len({str(cell) for cell in values if str(cell).isdecimal()}) == len(values) else "numbers"
    if Path(strings[0][:255]).suffix.lower() in {*image_suffixes(), *UNREAD_SUFFIXES}:
        return "images"
    if 2 * len(set(strings)) <= len(strings):
        return "classes"
    return "texts" if 2 * sum(LONG_TEXT.search(word) is not None for word in strings) >= len(strings) else "words"


def inputs_among(columns: Mapping[str, Iterable[Any]]) -> tuple[str, list[str]]:
    """Return whether the inputs among columns are images, texts or numbers, and their columns, where these are clear.

    Texts are in the column of a usual name, in the only column, or in those of long strings if none holds numbers.
    """
    kinds = {name: kind_of(cells) for name, cells in columns.items()}
    strings = [name for name, column_type in kinds.items() if column_type in STRINGS]
    images = [name for name in kinds if kinds[name] == "images" or (name in strings and name in IMAGE_COLUMNS)]
    long = [name for name in strings if kinds[name] == "texts" and "numbers" not in kinds.values()]
    texts = [name for name in TEXT_COLUMNS if name in strings][:1] or (strings if len(kinds) == 1 else long)
    return ("images", images) if images else ("texts", texts) if texts else ("numbers", [])


def classes_among(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the columns whose strings repeat, which may be labels; columns of part names are left out."""
    return [name for name, cells in columns.items() if kind_of(cells) == "classes" and not are_parts(cells)]


def are_parts(cells: Iterable[Any]) -> bool:
    """Tell whether all cells are names of parts."""
    return all(str(cell).strip().lower() in PART_NAMES for cell in cells)
