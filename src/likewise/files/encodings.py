"""Text in files: read as UTF-8 or in the encoding that is named, and refused if it is in another."""

import codecs
import gzip
import io
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

OPTION = "data.encoding"
BEGINNING = 4096  # characters in which a NUL shows that a text is in UTF-16
MARK = "\ufeff"  # the byte order mark
MARKS = {  # UTF-32 first, since its mark begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")  # which texts do not contain


@contextmanager
def opened(
    source: Path | bytes, encoding: str | None = None, option: str = OPTION, *, called: str = "", newline: str = ""
) -> Generator[IO[str]]:
    """Open text from a file, unzipped if it ends in .gz, or from bytes; a byte order mark is left out.

    Another encoding is a ValueError that names the line, and what is in it.
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
        except UnicodeDecodeError:
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
        whole = content.decode("utf-8", "ignore").isascii()  # else it is UTF-8, with damage
        with suppress(UnicodeDecodeError):
            content.decode("cp1252" if whole else "ascii")
            name = "cp1252" if any(0x80 <= byte < 0xA0 for byte in content) else "latin-1"
            got = f"{got}, {content[start : start + 1].decode(name)} in {name},"
            remedy = f"give --{option} {name} if it is that"
    line = content[:start].decode(expected, "ignore").count("\n") + 1
    return ValueError(f"expected {expected} in {where}, got {got} in line {line}: {remedy}, or save the text as UTF-8")
