"""A page of what a search found: each query with its nearest, or each group, with pictures or texts."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from markupsafe import Markup
from torch import Tensor

from likewise.diagnostics import plots
from likewise.report.album import NONE, Album, Thumbnail
from likewise.report.elements import element, heading, paragraphs, templates
from likewise.report.sections.section import Content
from likewise.score_words import one_line

LETTERS = 160  # of a text


class Shown(NamedTuple):
    """A sample on the page: below which heading, of which side, its row there, what it is called, and more words."""

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
    said: str,
    shown: Sequence[Shown],
    images_of: Mapping[str, Callable[[Int[Tensor, " n"]], Float[Tensor, "n ch h w"] | None]],
) -> None:
    """Write a page that needs no other file and no network.

    Args:
        path: Where it goes.
        title: Its title.
        said: What it shows, in a sentence.
        shown: The samples in their order; those in a row with one heading stand together.
        images_of: Returns the images of rows of a side, from 0 to 1, of pictured samples.

    Example:
        >>> page = Path("page.html")
        >>> write_neighbours(page, "Nearest", "By cosine.", [Shown("a", "others", 0, "<b>", "0.98")], {})
        >>> "&lt;b&gt;" in page.read_text(encoding="utf-8")
        True
    """
    album = Album(lambda side, rows: images_of[side](rows))

    def thumbnail(one: Shown) -> Thumbnail:
        tile = int(album.tiles(one.side, torch.tensor([one.row]))) if one.pictured else NONE
        return Thumbnail(tile, one.name, "", one_line(one.text, LETTERS))

    body = Markup().join(
        heading(below) + element("gallery", [([thumbnail(one)], one.words) for one in some])
        for below, some in groupby(shown, key=lambda one: one.below)
    )
    page = templates().get_template("page.html")
    content = Content("What was found", said, body)
    lead = paragraphs([f"{len(shown):,} samples are shown."])
    script = plots.script(figures=False)
    text = page.render(
        title=title,
        contents=[content],
        lead=lead,
        verdict="",
        summary="",
        warnings="",
        album=album.html,
        drawing=script,
    )
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
