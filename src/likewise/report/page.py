"""Pages, one file each: for one run or several, and for search results."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from markupsafe import Markup
from torch import Tensor

from likewise.diagnostics import plots
from likewise.report.elements import definitions, element, heading, paragraphs, templates
from likewise.report.run_summary import run_verdict, summary_table, training_warnings
from likewise.report.run_view import NO_TILE, Album, Content, RunView, Section, Thumbnail
from likewise.report.sections import SECTIONS
from likewise.report.sections.scores import lead
from likewise.runs.scores import one_line

MAX_LETTERS = 160  # of a text


def write_page(
    path: Path, views: Sequence[RunView], title: str | None = None, *, sections: Sequence[Section] | None = None
) -> None:
    """Write a page about runs; it needs no other file and no network.

    Args:
        path: The file to write; an existing one is replaced.
        views: One run, or several to compare.
        title: The page's title. None: the run's name, or "Comparison".
        sections: Its sections in order, without those for another number of runs. None: `SECTIONS`.

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
        if content is not None:
            contents.append(content)
    title = title or ("Comparison" if other_views else first.run.name)
    above = "" if other_views else _above_sections(first)
    save_page(path, title, contents, above=above, album=first.album.html, drawing=plots.script())


def _above_sections(view: RunView) -> str:
    judged, facts = run_verdict(view), view.metadata
    verdict = paragraphs(judged.lines if judged else [], "lead")
    warnings = paragraphs(training_warnings(facts, view.metrics), "lead")
    return verdict + definitions(summary_table(facts)) + warnings + lead(view)


def save_page(path: Path, title: str, contents: Sequence[Content], **elements: str) -> None:
    """Write contents as a page, with the elements `above` them, the `album` and the `drawing` scripts."""
    text = templates().get_template("page.html").render(title=title, contents=contents, **elements)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


class Shown(NamedTuple):
    """A sample on the page: the heading above it, its side and its row there, its name, and a caption."""

    below: str
    side: str
    row: int
    name: str
    words: str
    text: str = ""
    pictured: bool = False


def write_neighbours(
    path: Path,
    title: str,
    introduction: str,
    shown: Sequence[Shown],
    images_of: Mapping[str, Callable[[Int[Tensor, " n"]], Float[Tensor, "n ch h w"] | None]],
) -> None:
    """Write a page that needs no other file and no network; consecutive samples with the same heading form a group.

    `images_of` returns for each side the images, from 0 to 1, of rows of pictured samples.
    """
    album = Album(lambda side, rows: images_of[side](rows))

    def thumbnail(sample: Shown) -> Thumbnail:
        tile = int(album.tiles(sample.side, torch.tensor([sample.row]))) if sample.pictured else NO_TILE
        return Thumbnail(tile, sample.name, "", one_line(sample.text, MAX_LETTERS))

    body = Markup().join(
        heading(below) + element("gallery", [([thumbnail(sample)], sample.words) for sample in some])
        for below, some in groupby(shown, key=lambda sample: sample.below)
    )
    content, above = Content("What was found", introduction, body), paragraphs([f"{len(shown):,} samples are shown."])
    save_page(path, title, [content], above=above, album=album.html, drawing=plots.script(figures=False))
