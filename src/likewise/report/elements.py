"""The elements of sections: numbers and parts of a run as text, and HTML, with every string escaped."""

import base64
import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from likewise.diagnostics import plots
from likewise.diagnostics.plots import Dot
from likewise.evaluation import Difference
from likewise.evaluation.cross_modal import DIRECTIONS
from likewise.instantiate import is_spec
from likewise.runs.scores import Score, format_count, format_number, format_score, remarks

DERIVED_ARGUMENTS = {"input_shape", "feature_dim", "num_samples", "num_classes"}  # determined by other parts
OMITTED_ARGUMENTS = {  # left out of a brief line
    *DERIVED_ARGUMENTS,
    *("gather_distributed", "guide_margin"),
    *("pretrained", "digest", "config", "special", "modules", "checkpoint"),  # of published networks
}
MAX_ROWS = 40  # of a table; more would hide the important ones
MAX_LETTERS = 40  # characters above which a cell is wrapped
NUMBER = re.compile(r"[-+±<>=]?\s*[.\d]")  # the beginning of a cell with a number; other cells are words


def difference_words(difference: Difference, *, share: bool = True) -> str:
    """Write a difference with its interval, for shares in percentage points."""
    if share:  # adding 0 makes -0 a 0
        value, low, high = (
            round(100 * bound, 2) + 0.0 for bound in (difference.value, difference.low, difference.high)
        )
        return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"
    return format_number(difference.value, difference.low, difference.high, "+")


def dot_of(score: Score, *, missed: bool = False) -> Dot:
    """Return a share as a dot in percent, or its complement, such as errors instead of accuracy."""
    text = f"{format_score(score)}, 95 % interval, {format_count(score.count, score.counted)}"
    bounds = (1 - score.value, 1 - score.high, 1 - score.low) if missed else (score.value, score.low, score.high)
    value, low, high = (100 * bound for bound in bounds)
    return Dot(value, low, high, "; ".join(filter(None, [text, remarks(score)])))


def leading(scores: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the first metric of each evaluation, and for pairs the first of each direction."""
    first_metrics: dict[tuple[str, str], tuple[str, str]] = {}
    for evaluation, metric in scores:
        direction = next((name for name in DIRECTIONS if metric.endswith(f", {name}")), "")
        first_metrics.setdefault((evaluation, direction), (evaluation, metric))
    return list(first_metrics.values())


def how_many(some: int, count: int) -> str:
    """Say how many of the test samples are shown."""
    return f"{some:,} of {count:,} test samples" if some < count else f"All {count:,} test samples"


def limit_words(shown: int, count: int, what: str) -> str:
    """Say how many are shown, unless all are."""
    return f" Shown are {shown:,} of {count:,} {what}." if shown < count else ""


def part_words(spec: Any, *, brief: bool = False) -> str:
    """Write a part, several, or a plain value, with arguments except None and configurations of third-party networks.

    `brief` also leaves out arguments that are off, follow from other parts, or belong to a published network.
    """
    if isinstance(spec, list):
        return ", ".join(part_words(part, brief=brief) for part in spec) or "none"
    if not is_spec(spec):
        return str(spec)
    arguments = {
        name: part_words(value, brief=brief)
        for name, value in (spec.get("init_args") or {}).items()
        if value is not None and (is_spec(value) or not isinstance(value, Mapping))
        if not brief or not (value is False or name in OMITTED_ARGUMENTS)
    }
    shown = f"({', '.join(f'{name}={text}' for name, text in arguments.items())})" if arguments or not brief else ""
    return f"{short_name(spec)}{shown}"


def amounts(counts: Mapping[str, int]) -> str:
    """Write the count of each name."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def short_name(spec: Mapping[str, Any]) -> str:
    """Return the name of a part's class."""
    return str(spec["class_path"]).rpartition(".")[2]


def as_csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write a table as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def slug(*parts: str) -> str:
    """Join the parts of a name into an element's id."""
    return re.sub(r"\W+", "-", " ".join(parts)).strip("-")


@cache
def templates() -> Environment:
    """Return the templates of pages; they escape everything except existing HTML."""
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
    """Shorten a text in its middle, such as a path, whose end tells most."""
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
        most: The largest number of shown rows.
        file: The file with all rows, if there are more.

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
    r"""Return a folded element, whose body is shown when a reader opens it.

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
