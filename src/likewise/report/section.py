"""A section of a page, and the HTML that sections are made of."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import final

from likewise.report.words import slug

MOST_ROWS = 40  # of a table; more hide what matters
LONG = 40  # characters of a cell that is broken into lines
NUMBER = re.compile(r"[-+±<>=]?\s*[.\d]")  # how a cell of a number begins; others are words


@final
@dataclass(frozen=True)
class Section:
    r"""A section of a page.

    Args:
        heading: Its heading, as text.
        sentence: What it shows and how to read it, as text.
        body: Tables and figures, as HTML.

    Example:
        >>> Section("Map", "Samples laid out.", "<p>…</p>").html
        '<section id="section-map"><h2>Map</h2>\n<p>Samples laid out.</p>\n<p>…</p></section>'
    """

    heading: str
    sentence: str
    body: str

    @property
    def html(self) -> str:
        """The section as HTML."""
        said = f"<p>{escape(self.sentence)}</p>\n" if self.sentence else ""
        return f'<section id="{self._name}"><h2>{escape(self.heading)}</h2>\n{said}{self.body}</section>'

    @property
    def link(self) -> str:
        """A link to the section."""
        return f'<a href="#{self._name}">{escape(self.heading)}</a>'

    @property
    def _name(self) -> str:
        return slug("section", self.heading.lower())


def table(head: Sequence[str], rows: Sequence[Sequence[str]], most: int = MOST_ROWS, file: str = "scores.csv") -> str:
    """Return an HTML table of text; of many rows the first, and a note on which file has all.

    Example:
        >>> table(["", "value"], [["<a>", "1"], ["b", "2"]], most=1).count("<tr>")
        2
        >>> '<th scope="col" class="words">class</th>' in table(["", "class"], [["a", ""], ["b", "oak"]])
        True
    """
    lines = "".join(f"<tr>{_cells(row)}</tr>" for row in rows[:most])
    note = "" if len(rows) <= most else f"<p>{most} of {len(rows):,} rows; {file} has all.</p>"
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{_head(head, rows)}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>{note}"
    )


def folded(summary: str, body: str) -> str:
    """Return HTML that is shown when a reader opens it.

    Example:
        >>> folded("All <values>", "<p>…</p>")
        '<details><summary>All &lt;values&gt;</summary><p>…</p></details>'
    """
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names with their values as an HTML list.

    Example:
        >>> definitions([("seed", "<3")])
        '<dl><dt>seed</dt><dd>&lt;3</dd></dl>'
    """
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
    return f"<dl>{lines}</dl>"


def paragraphs(sentences: Iterable[str], kind: str = "") -> str:
    """Return sentences as HTML paragraphs.

    Example:
        >>> paragraphs(["a < b"], "lead")
        '<p class="lead">a &lt; b</p>'
    """
    opening = f'<p class="{kind}">' if kind else "<p>"
    return "\n".join(f"{opening}{escape(sentence)}</p>" for sentence in sentences)


def tile(number: int, words: str, kind: str = "") -> str:
    """Return a thumbnail of the page's album as an element; its words where it has none.

    Args:
        number: The thumbnail's number in the album; -1 for none.
        words: What it shows.
        kind: A further class of the element.

    Example:
        >>> tile(3, "cat")
        '<canvas class="tile" data-tile="3" data-words="cat" role="img" aria-label="cat"></canvas>'
        >>> tile(-1, "<cat>")
        '<span class="words">&lt;cat&gt;</span>'
    """
    if number < 0:
        return f'<span class="words">{escape(words)}</span>'
    of = f"tile {kind}".strip()
    said = escape(words)
    return f'<canvas class="{of}" data-tile="{number}" data-words="{said}" role="img" aria-label="{said}"></canvas>'


def spoken(*parts: tuple[str, str], kind: str = "") -> str:
    """Return words about a sample as an element, of which the page shortens the long ones; their title has them whole.

    Args:
        *parts: Pairs of a class and words, which may be empty. A "name" or "text" may be shortened, a "place" never is.
        kind: A further class of the element.

    Example:
        >>> spoken(("name", "cat"), ("text", ""))
        '<span class="sample"><span class="name" title="cat">cat</span></span>'
        >>> spoken(("place", "row <3"))
        '<span class="sample"><span class="place">row &lt;3</span></span>'
    """
    said = ""
    for of, words in parts:
        whole = f' title="{escape(words)}"' if of != "place" else ""
        said += f'<span class="{of}"{whole}>{escape(words)}</span>' if words else ""
    return f'<span class="{" ".join(["sample", *kind.split()])}">{said}</span>'


def _head(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the cells of the head, each on the side of the first cell under it."""
    cells: list[str] = []
    for place, name in enumerate(names):
        first = next((row[place] for row in rows if row[place]), "")
        side = ' class="words"' if _kind(first, place) else ""
        cells.append(f'<th scope="col"{side}>{escape(name)}</th>')
    return "".join(cells)


def _cells(row: Sequence[str]) -> str:
    return "".join(f"<td{_kind(cell, place)}>{escape(cell)}</td>" for place, cell in enumerate(row))


def _kind(cell: str, place: int) -> str:
    if len(cell) > LONG:
        return ' class="long"'
    return ' class="words"' if place and cell and NUMBER.match(cell) is None else ""
