"""A page: one file that holds the sections of one run or several, the numbers behind them and what draws them."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from likewise.diagnostics import plots
from likewise.report.sections import SECTIONS, scores
from likewise.report.subject import Subject


def write_page(path: Path, subjects: Sequence[Subject], title: str | None = None) -> None:
    """Write a page about runs; it needs no other file and no network.

    Args:
        path: Where the page goes; a file there is replaced.
        subjects: One run, or several to compare.
        title: The page's title. None: the run's name, or "Comparison".

    Raises:
        OSError: The page can't be written.
        ValueError: A file of a run is damaged.

    Memory:
        The features of a run, and one tile of similarities.

    Example:
        >>> import tempfile
        >>> from likewise.runs import Run
        >>> root = tempfile.TemporaryDirectory()
        >>> run = Run.create(Path(root.name), "mine")
        >>> run.describe({"seed": 3})
        >>> write_page(run.report, [Subject(run)])
        >>> run.name in run.report.read_text(encoding="utf-8")
        True
        >>> root.cleanup()
    """
    title = title or (subjects[0].run.name if len(subjects) == 1 else "Comparison")
    found = [section(subjects) for section in subjects[0].progress(SECTIONS, "report")]
    sections = [section for section in found if section is not None]
    page = Template(_file("page.html")).substitute(
        title=escape(title),
        style=_file("page.css").strip(),
        contents="\n".join(section.link for section in sections),
        lead=scores.lead(subjects),
        sections="\n".join(section.html for section in sections),
        album="".join(subject.album.html for subject in subjects[:1]),
        script=f"{plots.script()}\n<script>\n{_file('page.js')}</script>",
    )
    path.write_text(page, encoding="utf-8")


def _file(name: str) -> str:
    return files("likewise.report").joinpath(name).read_text(encoding="utf-8")
