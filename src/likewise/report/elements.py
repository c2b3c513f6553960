"""The elements of sections: tables, lists and sentences as HTML, in which every string passed in is escaped."""

import base64
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from likewise.diagnostics import plots
from likewise.report.formatting import as_csv

MAX_ROWS = 40  # of a table; more hide what matters
MAX_LETTERS = 40  # characters above which a cell is wrapped
NUMBER = re.compile(r"[-+±<>=]?\s*[.\d]")  # how a cell with a number begins; others are words


@cache
def templates() -> Environment:
    """Return the templates of pages; they escape everything except what is HTML already."""
    environment = Environment(
        loader=PackageLoader("likewise.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["thousands"] = "{:,}".format
    environment.filters["middle"] = middle
    return environment


def element(macro: str, *values: Any) -> Markup:
    """Render a macro of elements.html with values."""
    return getattr(templates().get_template("elements.html").module, macro)(*values)


def middle(text: str, most: int = MAX_LETTERS) -> str:
    """Shorten a text in its middle, such as a path, whose end says most."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most // 2) :]}"


def sentence(macro: str, **values: Any) -> Markup:
    """Return the introduction of a section: a macro of sentences.html, in one line."""
    text: Markup = getattr(templates().get_template("sentences.html").module, macro)(**values)
    return Markup(" ").join(text.split())


def table(head: Sequence[str], rows: Sequence[Sequence[str]], most: int = MAX_ROWS, file: str = "scores.csv") -> Markup:
    """Return an HTML table of text.

    Args:
        head: The names of the columns.
        rows: The cells of each row.
        most: How many rows are shown.
        file: Which file has all rows, if there are more.

    Example:
        >>> table(["", "value"], [["<a>", "1"], ["b", "2"]], most=1).count("<tr>")
        2
    """
    first = [next((row[column] for row in rows if row[column]), "") for column in range(len(head))]
    heads = [
        (name, "words" if _classify_cell(cell, column) else "")
        for column, (name, cell) in enumerate(zip(head, first, strict=True))
    ]
    cells = [[(cell, _classify_cell(cell, column)) for column, cell in enumerate(row)] for row in rows]
    return element("table", heads, cells, most, file)


def list_file(name: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """Return a link and a button that download and copy a whole list as CSV; nothing for an empty list."""
    if not rows:
        return Markup()
    content = base64.b64encode(as_csv(head, rows).encode(errors="backslashreplace")).decode()
    return element("list_file", name, content, len(rows))


def drawn_by_script(drawing: str, data: Any, name: str | None = None) -> Markup:
    """Return an element that page.js fills, a "map" or "anchors", and its data; a second of a kind needs a name."""
    return element("drawn_by_script", drawing, name or drawing, plots.as_data(data, f"{name or drawing}-data"))


def heading(text: str) -> Markup:
    """Return a heading within a section."""
    return element("heading", text)


def folded(summary: str, body: str) -> Markup:
    r"""Return an element whose body is shown when a reader opens it.

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


def paragraphs(sentences: Iterable[str], css_class: str = "") -> Markup:
    r"""Return sentences as paragraphs, of a CSS class if one is named.

    Example:
        >>> paragraphs(["a < b"], "lead")
        Markup('<p class="lead">a &lt; b</p>\n')
    """
    return element("paragraphs", sentences, css_class)


def _classify_cell(cell: str, column: int) -> str:
    """Return the CSS class of a cell: long cells are wrapped, words in later columns are left-aligned."""
    if len(cell) > MAX_LETTERS:
        return "long"
    return "words" if column and cell and NUMBER.match(cell) is None else ""
