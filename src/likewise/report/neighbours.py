"""A page of search results: each query with its nearest samples, or each group of samples, in pictures or texts."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from markupsafe import Markup
from torch import Tensor

from likewise.diagnostics import plots
from likewise.report.album import NO_TILE, Album, Thumbnail
from likewise.report.elements import element, heading, paragraphs
from likewise.report.page import save_page
from likewise.report.sections.section import Content
from likewise.runs.score_format import one_line

MAX_LETTERS = 160  # of a text


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
