"""Names of files, parts and columns known to sources, and text in files, by lines and rows, without torch."""

import codecs
import csv
import gzip
import io
import json
import re
import unicodedata
import zlib
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import IO, Any, Literal, final

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
# the names of parts in data sets, and our number for each
PART_NAMES: Mapping[str, int] = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("validation", "valid", "val", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}
PART_COLUMNS = ("split", "part", "set", "fold", "subset")  # used if each value names a part
CELL_SEPARATORS: Mapping[str, str] = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
# the loader of the `datasets` library for each kind of table
TABLES: Mapping[str, str] = {
    **dict.fromkeys(CELL_SEPARATORS, "csv"),
    **dict.fromkeys((*JSON_LINES, ".json"), "json"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
}
IMAGE_COLUMNS = ("image", "img")
TEXT_COLUMNS = ("text", "sentence", "document", "body")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "class")
ID_COLUMN = "id"  # not an input if all of its values differ
NAMED_ID = re.compile(r"(?i:(?:^|[^a-z])(?:id|uuid|guid)(?:$|[^a-z]))|[a-z](?:Id|ID)$")
UNNAMED_PREFIX = "Unnamed: "  # with its index, the name of an unnamed column
# the names of such columns start with these; most are row numbers added by pandas
ROW_NUMBERS = (UNNAMED_PREFIX, "__index_level_")
# images that Pillow cannot read, or only in a newer version or with an extension
HEIC = (".heic", ".heif", ".hif")
UNREAD_SUFFIXES = (*HEIC, ".avif", ".jxl", ".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw")
_NO_IMAGES = {"BUFR", "GRIB", "HDF5"}  # other kinds of data; Pillow reads only the header
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
"""The text printed for each character that moves the cursor or changes a terminal; line ends and tabs stay."""
MAX_LISTED = 3  # items listed in a message before "..."
PARTIAL_SUFFIX = ".partial"  # the suffix of a file still being written
MAX_CELL_LENGTH = 2**31 - 1
MAX_ROW_LINES = 200  # lines of a quoted cell; more mean an unclosed quotation mark
OPTION = "data.encoding"
BEGINNING = 4096  # characters searched for a NUL, the sign of UTF-16
MARK = "\ufeff"  # the byte order mark
MARKS = {  # UTF-32 first, since its mark begins with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")  # absent from texts


def first_of(names: Sequence[str], most: int = MAX_LISTED, separator: str = ", ") -> str:
    """List the first names; three dots stand for the others."""
    return separator.join(names[:most]) + (f"{separator}..." if len(names) > most else "")


def as_text(name: str) -> str:
    """Return a name that can be written and shown, with bytes outside UTF-8, as in file names, escaped."""
    return name if name.isascii() else name.encode(errors="backslashreplace").decode()


def as_class(name: str) -> str:
    """Return the name of a class as text, composed (NFC): the decomposed form, as macOS writes it, looks the same."""
    return unicodedata.normalize("NFC", as_text(name))


def check_text(path: Path) -> None:
    """Raise a ValueError for a path that is not UTF-8, to which libraries can't write files."""
    if as_text(str(path)) != str(path):
        raise ValueError(f"expected a path in UTF-8 to write to, got {path}")


def with_test_part(numbers: Sequence[int]) -> list[int]:
    """Return the numbers of parts; without a test part, the validation part is used for testing."""
    return [2 if number == 1 and 2 not in numbers else number for number in numbers]


def part_column(
    column: str | None, names: Collection[str], values_of: Callable[[str], Sequence[Any]], source: object
) -> tuple[str, list[int]] | None:
    """Return the column that names the part of each row, and the parts as numbers; None if there is none.

    It is the first of `PART_COLUMNS` whose values all name parts, unless `column` names one, or is "none". A named
    column that does not exist, has a value other than a part, or has no training part raises a ValueError.
    """
    usual = [name for name in names if name.lower() in PART_COLUMNS]
    for name in usual if column is None else [] if column == "none" else [column]:
        cells = [str(value).strip().lower() for value in values_of(name)] if name in names else []
        parts = {cell: PART_NAMES.get(cell) for cell in dict.fromkeys(cells)}
        numbers = [number for number in parts.values() if number is not None]
        if len(numbers) == len(parts) and 0 in numbers:
            known = dict(zip(parts, with_test_part(numbers), strict=True))
            return name, [known[cell] for cell in cells]
        if column is not None:
            odd = [f"{cell!r} in row {row} (counted from 0)" for row, cell in enumerate(cells) if parts[cell] is None]
            got = odd[0] if odd else "no train" if cells else f"columns {', '.join(names)}"
            raise ValueError(f"expected train, and validation or test, in column {name!r} of {source}, got {got}")
    return None


def numbered(path: Path) -> Iterator[Path]:
    """Yield a path, then the same path with -2, -3 and so on, to try until one can be created."""
    yield path
    for number in count(2):
        yield path.with_name(f"{path.name}-{number}")


@cache
def image_suffixes() -> frozenset[str]:
    """Return the suffixes of readable image files, with their dots; HEIC is one if `pillow-heif` is installed."""
    from PIL import Image  # noqa: PLC0415 - only images in files need it

    with suppress(ImportError):
        import pillow_heif  # noqa: PLC0415 - an extra of its own

        pillow_heif.register_heif_opener()

    suffixes = Image.registered_extensions().items()  # this call also completes Image.OPEN
    return frozenset(suffix for suffix, form in suffixes if form in Image.OPEN and form not in _NO_IMAGES)


@contextmanager
def opened(
    source: Path | bytes, encoding: str | None = None, option: str = OPTION, *, called: str = "", newline: str = ""
) -> Generator[IO[str]]:
    """Open text from a file, unzipped if it ends in .gz, or from bytes; a byte order mark is skipped.

    Text in another encoding raises a ValueError that names the line and the byte or encoding found.
    """
    with binary(source) if isinstance(source, Path) else io.BytesIO(source) as content:
        try:
            text = io.TextIOWrapper(content, encoding or "utf-8", newline=newline)
        except LookupError as error:
            some = "latin-1, cp1252, utf-16, shift_jis and gb18030 are some"
            raise ValueError(f"expected an encoding as --{option}, got {encoding!r}: {some}") from error
        try:
            utf_16 = encoding is None and "\0" in text.read(BEGINNING)
            text.seek(0)
            if text.read(1) != MARK:
                text.seek(0)
            if not utf_16:
                yield text
                return
        except UnicodeError:
            pass
        content.seek(0)
        raise _refusal(content.read(), called or source, encoding, option)


def binary(file: Path) -> Any:
    """Open a file as bytes, unzipped if it ends in .gz."""
    return (gzip if file.suffix.lower() == ".gz" else io).open(file, "rb")


def _refusal(content: bytes, where: object, encoding: str | None, option: str) -> ValueError:
    start, expected = 0, encoding or "utf-8"
    try:
        content.decode(expected)
    except UnicodeDecodeError as error:
        start = error.start
    name = next((name for mark, name in MARKS.items() if content.startswith(mark)), None)
    if name is None and b"\0" in content[:BEGINNING]:
        name = "utf-16-le" if content.find(b"\0") % 2 else "utf-16-be"
    got, remedy = f"what looks like {name}", f"give --{option} {name}"
    if name is None:
        got, remedy = f"the byte 0x{content[start]:02X}", f"name its encoding, as in --{option} shift_jis"
        whole = content.decode("utf-8", "ignore").isascii()  # otherwise it is damaged UTF-8
        with suppress(UnicodeDecodeError):
            content.decode("cp1252" if whole else "ascii")
            name = "cp1252" if any(0x80 <= byte < 0xA0 for byte in content) else "latin-1"
            got = f"{got}, {content[start : start + 1].decode(name)} in {name},"
            remedy = f"give --{option} {name} if it is that"
    line = content[:start].decode(expected, "ignore").count("\n") + 1
    return ValueError(f"expected {expected} in {where}, got {got} in line {line}: {remedy}, or save the text as UTF-8")


def lines_in(file: Path, encoding: str | None = None, option: str = OPTION) -> list[str]:
    """Return the lines of a file with one text per line, unzipped if it ends in .gz; see `opened`."""
    try:
        with opened(file, encoding, option, newline="\n") as lines:
            return [line.rstrip("\r\n") for line in lines]
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"expected lines in {file}, got {error}") from error


def has_lines(file: Path, encoding: str | None = None) -> bool:
    """Tell whether a file has one text per line: it is not named like a table, and begins like text."""
    if {*map(str.lower, file.suffixes[-2:])} & {*TABLES}:
        return False
    with suppress(OSError, EOFError, zlib.error), binary(file) as content:
        beginning = content.read(BEGINNING)
        text = encoding is not None or beginning.startswith(tuple(MARKS)) or not CONTROL.search(beginning)
        return text and bool(beginning.removeprefix(codecs.BOM_UTF8).strip())
    return False


@final
class Lines:
    """The rows of a table, or of a file of texts, with their line numbers, and the reasons for omitted lines.

    Quotation marks around a cell of a table are removed, and a quoted cell may span several lines; an unclosed mark, or
    one within a text, is kept.
    """

    def __init__(self, file: Path, encoding: str | None = None, option: str = OPTION) -> None:
        self.file, self.encoding, self.option = file, encoding, option
        self.lost: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        table_format = TABLES.get(suffix := self.file.suffix.lower())
        if table_format is None:
            lines = enumerate(lines_in(self.file, self.encoding, self.option), 1)
            yield from ((number, {TEXT_COLUMNS[0]: line}) for number, line in lines if line.strip())
            return
        with opened(self.file, self.encoding, self.option) as text:
            yield from self._of_table(text, CELL_SEPARATORS[suffix]) if table_format == "csv" else self._of_json(text)

    @property
    def reasons(self) -> str:
        """The reasons for the first omitted lines."""
        return first_of([f"line {line}: {why}" for line, why in sorted(self.lost)], 5, "; ")

    def _of_json(self, stream: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        first, lines = next(stream, ""), stream
        if self.file.suffix.lower() == ".json" or first.lstrip().startswith("["):
            text, first = first + stream.read(), ""
            if (rows := _rows_of_whole_file(text)) is not None:
                yield from enumerate(rows, 1)
                return
            lines = text.splitlines()
        for number, line in enumerate(chain([first] * bool(first), lines), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                self.lost.append((number, "no JSON"))
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                self.lost.append((number, "no object"))

    def _of_table(self, stream: Iterable[str], separator: str) -> Iterator[tuple[int, dict[str, Any]]]:
        rows = _read_rows(stream, separator)
        head = [name or f"{UNNAMED_PREFIX}{index}" for index, name in enumerate(next(rows, (0, list[str]()))[1])]
        if twice := next((name for name in head if head.count(name) > 1), None):
            raise ValueError(f"expected columns of different names in {self.file}, got {twice!r} twice")
        for number, cells in rows:
            if len(cells) == len(head):
                yield number, dict(zip(head, cells, strict=True))
            else:
                self.lost.append((number, f"{len(cells)} cells instead of {len(head)}"))


def _rows_of_whole_file(text: str) -> list[dict[str, Any]] | None:
    """Return the rows of one list, or of one object of columns; None if the text has one row per line."""
    try:
        read = json.loads(text)
    except ValueError:
        return None
    if isinstance(read, dict) and all(isinstance(column, list | dict) for column in read.values()):
        columns = [list(column.values()) if isinstance(column, dict) else column for column in read.values()]
        if len(set(map(len, columns))) == 1:
            read = [dict(zip(read, cells, strict=True)) for cells in zip(*columns, strict=True)]
    rows = read if isinstance(read, list) else [read]
    return [row if isinstance(row, dict) else {TEXT_COLUMNS[0]: row} for row in rows]


def _read_rows(stream: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_CELL_LENGTH)
    lines = enumerate(stream, 1)
    ahead: deque[tuple[int, str]] = deque()
    while (started := ahead.popleft() if ahead else next(lines, None)) is not None:
        number, line = started
        if not line.strip():
            continue
        cells, taken = _split_row(line, delimiter), 0
        while cells is True and taken < MAX_ROW_LINES:
            if taken == len(ahead) and (following := next(lines, None)) is not None:
                ahead.append(following)
            if taken == len(ahead):
                break
            line += ahead[taken][1]
            taken += 1
            cells = _split_row(line, delimiter)
        if isinstance(cells, bool):  # the quotation mark belongs to the text
            yield number, started[1].rstrip("\r\n").split(delimiter)
        else:
            for _ in range(taken):
                ahead.popleft()
            yield number, cells


def _split_row(row: str, delimiter: str) -> list[str] | bool:
    """Return the cells of a row, or, if it has a wrong quotation mark, whether the mark is unclosed."""
    if '"' not in row:
        return row.rstrip("\r\n").split(delimiter)
    try:
        return next(csv.reader(io.StringIO(row, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        return "end of data" in str(error)
