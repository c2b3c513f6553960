"""What sections are made of: tables, lists and sentences as HTML in which whatever is given stands as text."""

import base64
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from likewise.diagnostics import plots
from likewise.report.formatting import as_csv

MOST_ROWS = 40  # of a table; more hide what matters
LONG = 40  # characters of a cell that is broken into lines
NUMBER = re.compile(r"[-+±<>=]?\s*[.\d]")  # how a cell of a number begins; others are words


@cache
def templates() -> Environment:
    """Return the templates of pages; they escape all that they are given, but what is HTML already."""
    found = Environment(
        loader=PackageLoader("likewise.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    found.filters["thousands"] = "{:,}".format
    found.filters["middle"] = middle
    return found


def element(macro: str, *values: Any) -> Markup:
    """Return what a macro of elements.html makes of values."""
    return getattr(templates().get_template("elements.html").module, macro)(*values)


def middle(words: str, most: int = LONG) -> str:
    """Shorten words in their middle, as of a path: what is at its end says most.

    Example:
        >>> middle("photos/2024/IMG_0274.jpg", 16)
        'photos/…0274.jpg'
    """
    return words if len(words) <= most else f"{words[: most // 2 - 1]}…{words[-(most // 2) :]}"


def sentence(macro: str, **values: Any) -> Markup:
    """Return what a section says above what it shows: a macro of sentences.html, in one line."""
    said: Markup = getattr(templates().get_template("sentences.html").module, macro)(**values)
    return Markup(" ").join(said.split())


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], most: int = MOST_ROWS, file: str = "scores.csv"
) -> Markup:
    """Return an HTML table of text.

    Args:
        head: The names of the columns.
        rows: The cells of each row.
        most: How many rows are shown.
        file: Which file has all rows, if there are more.

    Example:
        >>> table(["", "value"], [["<a>", "1"], ["b", "2"]], most=1).count("<tr>")
        2
        >>> '<th scope="col" class="words">class</th>' in table(["", "class"], [["a", ""], ["b", "oak"]])
        True
    """
    first = [next((row[place] for row in rows if row[place]), "") for place in range(len(head))]
    heads = [
        (name, "words" if _kind(cell, place) else "")
        for place, (name, cell) in enumerate(zip(head, first, strict=True))
    ]
    cells = [[(cell, _kind(cell, place)) for place, cell in enumerate(row)] for row in rows]
    return element("table", heads, cells, most, file)


def list_file(name: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """Return what downloads and copies a list as CSV, all of it; nothing for an empty one.

    Example:
        >>> address = str(list_file("a.csv", ["id"], [["a, b"]])).partition("base64,")[2].partition('"')[0]
        >>> base64.b64decode(address).decode().splitlines()
        ['id', '"a, b"']
    """
    if not rows:
        return Markup()
    content = base64.b64encode(as_csv(head, rows).encode(errors="backslashreplace")).decode()
    return element("list_file", name, content, len(rows))


def drawn_by_script(kind: str, data: Any, name: str | None = None) -> Markup:
    """Return the place of a kind that page.js draws, "map" or "anchors", and the data for it; a second has a name."""
    return element("drawn_by_script", kind, name or kind, plots.as_data(data, f"{name or kind}-data"))


def heading(words: str) -> Markup:
    """Return a heading within a section."""
    return element("heading", words)


def folded(summary: str, body: str) -> Markup:
    r"""Return an element that is shown when a reader opens it.

    Example:
        >>> folded("All <values>", Markup("<p>…</p>"))
        Markup('<details><summary>All &lt;values&gt;</summary><p>…</p></details>\n')
    """
    return element("folded", summary, body)


def definitions(pairs: Iterable[tuple[str, str]]) -> Markup:
    r"""Return names with their values as a list.

    Example:
        >>> definitions([("seed", "<3")])
        Markup('<dl><dt>seed</dt><dd>&lt;3</dd></dl>\n')
    """
    return element("definitions", pairs)


def paragraphs(sentences: Iterable[str], kind: str = "") -> Markup:
    r"""Return sentences as paragraphs.

    Example:
        >>> paragraphs(["a < b"], "lead")
        Markup('<p class="lead">a &lt; b</p>\n')
    """
    return element("paragraphs", sentences, kind)


def _kind(cell: str, place: int) -> str:
    """Return the class of a cell: a long one is broken into lines, words in later columns stand on the left."""
    if len(cell) > LONG:
        return "long"
    return "words" if place and cell and NUMBER.match(cell) is None else ""
