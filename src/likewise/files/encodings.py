"""Text in files and in bytes: read as UTF-8, or as the encoding that is named, and refused where it is in another."""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

OPTION = "data.encoding"
BEGINNING = 4096  # bytes among which NUL tells that a text is in UTF-16
MARK = "\ufeff"  # of the order of bytes
_MARKS = {  # one of UTF-32 begins with one of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}

_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")  # which texts have not


@contextmanager
def opened(file: Path, encoding: str | None = None, *, option: str = OPTION, newline: str = "") -> Generator[IO[str]]:
    """Open a file of text, also with .gz; a mark of the order of bytes is left out.

    Args:
        file: The file.
        encoding: What it is in. None: UTF-8.
        option: The option that names it, for errors.
        newline: As of `open`.

    Raises:
        ValueError: There is no such encoding, or the file is in another: its line is named, and what was found.
    """
    kind = _kind(file)
    _check_known(encoding, option)
    with kind.open(file, "rt", encoding=encoding or "utf-8", newline=newline) as text:
        try:
            beginning = text.read(BEGINNING)
            text.seek(0)
            if beginning.startswith(MARK):
                text.read(1)
            if encoding is None and "\0" in beginning:
                raise _refusal(beginning.encode(), 0, file, None, option)
            yield text
        except UnicodeDecodeError:
            with kind.open(file, "rb") as content:
                decoded(content.read(), file, encoding, option=option)
            raise


def decoded(content: bytes, where: object, encoding: str | None = None, *, option: str = OPTION) -> str:
    r"""Return text, without a mark of the order of bytes; for arguments and errors see `opened`.

    Example:
        >>> decoded(b"lily\nros\xe9\n", "names.txt", "latin-1").split()
        ['lily', 'rosé']
        >>> decoded(b"lily\nros\xe9\n", "names.txt")
        Traceback (most recent call last):
        ...
        ValueError: expected utf-8 in names.txt, got the byte 0xE9, é in latin-1, in line 2: ...
    """
    _check_known(encoding, option)
    try:
        text = content.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        raise _refusal(content, error.start, where, encoding, option) from error
    if encoding is None and "\0" in text[:BEGINNING]:
        raise _refusal(content, 0, where, encoding, option)
    return text.removeprefix(MARK)


def begins_as_text(file: Path, encoding: str | None = None) -> bool:
    """Tell whether a file, also with .gz, begins with text, perhaps in another encoding, which `opened` refuses."""
    with _kind(file).open(file, "rb") as content:
        beginning: bytes = content.read(BEGINNING)
    if encoding is None and not beginning.startswith(tuple(_MARKS)) and _CONTROL.search(beginning):
        return False
    with opened(file, encoding) as text:
        return bool(text.read(BEGINNING).strip())


def is_utf_8(file: Path) -> bool:
    """Tell whether there is a file of text that needs no encoding named."""
    try:
        with opened(file) as text:
            return not any("" for _ in text)
    except (OSError, EOFError, zlib.error, ValueError):
        return False


def _check_known(encoding: str | None, option: str) -> None:
    try:
        "any".encode(encoding or "utf-8")
    except LookupError as error:
        some = "latin-1, cp1252, utf-16, shift_jis and gb18030 are some"
        raise ValueError(f"expected an encoding as --{option}, got {encoding!r}: {some}") from error


def _kind(file: Path) -> Any:
    return gzip if file.suffix.lower() == ".gz" else io


def _refusal(content: bytes, start: int, where: object, encoding: str | None, option: str) -> ValueError:
    """Return the error that a text is in another encoding, as a byte tells, with the one that it may be in."""
    line = content[:start].decode(encoding or "utf-8", "ignore").count("\n") + 1
    name = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    if name is None and b"\0" in content[:BEGINNING]:
        name = "utf-16-le" if content.find(b"\0") % 2 else "utf-16-be"
    got, remedy = f"what looks like {name}", f"give --{option} {name}"
    if name is None:
        got, remedy = f"the byte 0x{content[start]:02X}", f"name its encoding, as in --{option} shift_jis"
        with suppress(UnicodeDecodeError):
            content.decode("cp1252")
            name = "cp1252" if any(0x80 <= byte < 0xA0 for byte in content) else "latin-1"
            got = f"{got}, {content[start : start + 1].decode(name)} in {name},"
            remedy = f"give --{option} {name} if it is that"
    return ValueError(
        f"expected {encoding or 'utf-8'} in {where}, got {got} in line {line}: {remedy}, or save the text as UTF-8"
    )
