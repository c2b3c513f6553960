"""A page: one file with the sections of one run or several, the numbers behind them and the scripts to draw them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from likewise.diagnostics import plots
from likewise.report.elements import definitions, paragraphs, templates
from likewise.report.run_summary import summary_table, training_warnings
from likewise.report.run_verdict import run_verdict
from likewise.report.run_view import RunView
from likewise.report.sections import SECTIONS
from likewise.report.sections.scores import lead
from likewise.report.sections.section import Content, Section


def write_page(
    path: Path, views: Sequence[RunView], title: str | None = None, *, sections: Sequence[Section] | None = None
) -> None:
    """Write a page about runs; it needs no other file and no network.

    Args:
        path: Where the page goes; a file there is replaced.
        views: One run, or several to compare.
        title: The page's title. None: the run's name, or "Comparison".
        sections: Its sections in their order; those meant for another number of runs are left out. None: those that
            come with likewise, `[section_class() for section_class in SECTIONS]`.

    Raises:
        OSError: The page can't be written.
        ValueError: A file of a run is damaged, or a section returns something other than a `Content`.

    Memory:
        The features of a run, and one tile of similarities.

    Example:
        >>> from likewise.runs import Run
        >>> run = Run.create(Path("runs"), "mine")
        >>> run.describe({"seed": 3})
        >>> write_page(run.report, [RunView(run)])
        >>> run.name in run.report.read_text(encoding="utf-8")
        True
    """
    first, *other_views = views
    candidates = [section_class() for section_class in SECTIONS] if sections is None else sections
    chosen = [section for section in candidates if section.fits(len(views))]
    contents: list[Content] = []
    for section in first.progress(chosen, "report"):
        content: Any = section.content(views)
        if content is not None and not isinstance(content, Content):
            raise ValueError(
                f"expected a Content or None from {type(section).__name__}.content, got {type(content).__name__}: "
                'return Content("A heading", "a sentence", body)'
            )
        contents += [] if content is None else [content]
    page = templates().get_template("page.html")
    text = page.render(
        title=title or ("Comparison" if other_views else first.run.name),
        contents=contents,
        verdict=paragraphs(judged.lines, "lead") if not other_views and (judged := run_verdict(first)) else "",
        summary=definitions(summary_table(first.metadata)) if not other_views else "",
        warnings=paragraphs(training_warnings(first.metadata, first.metrics), "lead") if not other_views else "",
        lead=lead(views),
        album=first.album.html,
        drawing=plots.script(),
    )
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
