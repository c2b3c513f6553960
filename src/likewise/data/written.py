"""Tables that are written as text, CSV, TSV and JSON: cells are what stands there, and only an empty one is missing."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from likewise.data.columns import warn_of_same
from likewise.files import folders
from likewise.files.formats import SEPARATED, Lines

CHUNK = 16384  # rows that are Python's objects at a time
WHOLE = "^(0|-?[1-9][0-9]{0,17})$"  # numbers of which each is written in one way


def read(parts: Mapping[str, Sequence[Path]], encoding: str | None = None) -> tuple[dict[str, Any], frozenset[str]]:
    """Read the files of each part.

    Cells of CSV and TSV are strings. Where all of a column are whole numbers, written in the only way that they are, it
    has these. Those of JSON are of JSON's kinds; where a column has several, they are strings too.

    Returns:
        The tables, and the columns of strings that may be meant as numbers, since the files don't say.

    Raises:
        ValueError: A row has more or fewer cells than the header, a line is no JSON, a part has no rows, or a
            file is in another encoding.

    Memory:
        The strings.
    """
    import datasets  # noqa: PLC0415 - only tables need it
    import pyarrow as pa  # noqa: PLC0415 - comes with it

    tables, texts = dict[str, Any](), set[str]()
    for part, files in parts.items():
        tables[part], mixed = _part(files, encoding)
        if not len(tables[part]):
            raise folders.empty(part, files[0])
        texts |= mixed
    if any(file.suffix.lower() in SEPARATED for files in parts.values() for file in files):
        texts |= {name for table in tables.values() for name in table.column_names}
        whole = {name for name in texts if all(_are_whole(table, name) for table in tables.values())}
        for part, table in tables.items():
            kinds = {name: pa.int64() if name in whole else pa.string() for name in table.column_names}
            tables[part] = table.cast(pa.schema(kinds))
        texts -= whole
    return {part: datasets.Dataset(table, fingerprint=part) for part, table in tables.items()}, frozenset(texts)


def _part(files: Sequence[Path], encoding: str | None) -> tuple[Any, set[str]]:
    """Read the files of a part as one table; return it, and the columns of strings whose cells are of several kinds."""
    import pyarrow as pa  # noqa: PLC0415 - comes with `datasets`

    kinds, mixed = dict[str, set[type]](), set[str]()
    while True:
        as_text = mixed.copy()
        pieces = [piece for file in files for piece in _pieces(Lines(file, encoding), kinds, mixed, as_text)]
        each = dict[str, set[Any]]()
        for field in (field for piece in pieces for field in piece.schema):
            each.setdefault(field.name, set()).add(field.type)
        mixed |= {name for name, of in each.items() if not _unify(of)}
        if mixed == as_text:
            _check_alike(files, pieces)
            made = pa.concat_tables(pieces, promote_options="permissive") if pieces else pa.table({})
            return made, {name for name in mixed if pa.types.is_string(made.schema.field(name).type)}


def _pieces(lines: Lines, kinds: dict[str, set[type]], mixed: set[str], as_text: set[str]) -> Iterator[Any]:
    """Yield some rows at a time; note kinds of values, and columns that have several."""
    import pyarrow as pa  # noqa: PLC0415 - comes with `datasets`

    separated = lines.file.suffix.lower() in SEPARATED
    rows = iter(lines)
    while some := [row for _, row in islice(rows, CHUNK)]:
        if lines.lost:
            break
        made = dict[str, Any]()
        for name in dict.fromkeys(name for row in some for name in row):
            values = [row.get(name) for row in some]
            if separated:
                made[name] = pa.array([value or None for value in values], pa.string())
                continue
            of = kinds.setdefault(name, set())
            of |= set(map(type, values)) - {type(None)}
            try:
                made[name] = pa.array(_as_text(values, of, name, lines.file) if name in as_text else values)
            except (ValueError, TypeError, OverflowError):
                mixed.add(name)
        yield pa.table(made)
    if lines.lost:
        raise _refusal(lines)


def _check_alike(files: Sequence[Path], pieces: Sequence[Any]) -> None:
    """Raise unless files with a header have the same columns."""
    for piece in pieces if files[0].suffix.lower() in SEPARATED else ():
        if set(piece.column_names) != set(pieces[0].column_names):
            one, other = (", ".join(of.column_names) for of in (pieces[0], piece))
            raise folders.RefusedError(
                f"expected the same columns in all files of a part, {files[0].name} and others, got {one} and {other}"
            )


def _unify(kinds: set[Any]) -> bool:
    import pyarrow as pa  # noqa: PLC0415 - comes with `datasets`

    try:
        pa.unify_schemas([pa.schema([("", of)]) for of in kinds], promote_options="permissive")
    except pa.ArrowException:
        return False
    return True


def _as_text(values: Sequence[Any], kinds: set[type], name: str, file: Path) -> list[Any]:
    """Return values of several kinds as strings; where some are lists or objects, as JSON, which nothing reads."""
    if kinds == {list}:
        return [None if of is None else [_word(one) for one in of] for of in values]
    if kinds & {list, dict}:
        return [None if of is None else {"json": json.dumps(of)} for of in values]
    words = [_word(value) for value in values]
    warn_of_same(values, words, f"column {name!r} of {file} has")
    return words


def _word(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _are_whole(table: Any, name: str) -> bool:
    """Tell whether a column's strings are whole numbers, each as it would be written."""
    from pyarrow import compute as typed  # noqa: PLC0415 - comes with `datasets`

    compute: Any = typed  # its functions are made at import
    if name not in table.column_names:
        return True
    of = table.column(name)
    return of.null_count < len(of) and compute.all(compute.match_substring_regex(of, WHOLE)).as_py()


def _refusal(lines: Lines) -> folders.RefusedError:
    line, why = min(lines.lost)
    cells = re.fullmatch(r"(\d+) cells instead of (\d+)", why)
    if cells is None:
        return folders.RefusedError(
            f"expected an object in each line of {lines.file}, got {why} in line {line}: mend it"
        )
    more = int(cells[1]) > int(cells[2])
    remedy = "quote cells that have a separator in them" if more else "write the empty cells of shorter rows too"
    told = f"expected {cells[2]} cells in each row of {lines.file}, as in its header, got {cells[1]}"
    return folders.RefusedError(f"{told}: {remedy} (line {line})")
