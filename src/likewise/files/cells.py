"""What the columns of a table hold, as some of their cells tell; nothing here loads torch."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from likewise.files.formats import IMAGE_COLUMNS, PART_NAMES, TEXT_COLUMNS, UNREAD, image_suffixes

LOOKED_AT = 100  # rows that tell what columns hold
STRINGS = ("texts", "classes", "words")
# three words, or as much in a script without spaces
LONG = re.compile(r"\S+\s+\S+\s+\S|[\u3040-\u30ff\u4e00-\u9fff]{6}")


def is_number(cell: Any) -> bool:
    """Tell whether a cell is a number, as text too, or empty."""
    try:
        float(cell or "nan")
    except (TypeError, ValueError):
        return False
    return True


def kind_of(cells: Iterable[Any]) -> str:
    """Return what cells are, as most of them tell: images, texts, classes, words, numbers, ids or nothing.

    Strings that differ are texts if they are long; those that occur again are classes. Whole numbers that all differ
    are ids.
    """
    given = [cell for cell in cells if cell is not None and cell != ""]
    if not given or isinstance(given[0], dict | bytes):
        return "images" if given else "nothing"
    words = [cell for cell in given if isinstance(cell, str) and not is_number(cell)]
    if 2 * len(words) < len(given):
        return "ids" if len({str(cell) for cell in given if str(cell).isdecimal()}) == len(given) else "numbers"
    if Path(words[0][:255]).suffix.lower() in {*image_suffixes(), *UNREAD}:
        return "images"
    if 2 * len(set(words)) <= len(words):
        return "classes"
    return "texts" if 2 * sum(LONG.search(word) is not None for word in words) >= len(words) else "words"


def inputs_among(columns: Mapping[str, Iterable[Any]]) -> tuple[str, list[str]]:
    """Return what the inputs among columns are, images, texts or numbers, and the columns, as far as that is clear.

    Texts are those of a usual name, those of one column alone, or long ones where nothing but ids is a number.
    """
    kinds = {name: kind_of(cells) for name, cells in columns.items()}
    strings = [name for name, kind in kinds.items() if kind in STRINGS]
    images = [name for name, kind in kinds.items() if kind == "images" or (kind in STRINGS and name in IMAGE_COLUMNS)]
    long = [name for name in strings if kinds[name] == "texts" and "numbers" not in kinds.values()]
    texts = [name for name in TEXT_COLUMNS if name in strings][:1] or (strings if len(kinds) == 1 else long)
    return ("images", images) if images else ("texts", texts) if texts else ("numbers", [])


def classes_among(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the columns of few strings that occur again, which may be labels; names of parts are none."""
    return [name for name, cells in columns.items() if kind_of(cells) == "classes" and not are_parts(cells)]


def are_parts(cells: Iterable[Any]) -> bool:
    """Tell whether all cells are names of parts."""
    return all(str(cell).strip().lower() in PART_NAMES for cell in cells)
