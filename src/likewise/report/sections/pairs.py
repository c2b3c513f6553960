"""Pairs of two sides: what the encoders put nearest to queries of either side, the worst failures first."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from markupsafe import Markup
from torch import Tensor
from torch.nn import functional

from likewise.evaluation import CrossModalRetrieval, Features
from likewise.evaluation.cross_modal import DIRECTIONS, sides_of
from likewise.evaluation.feature_files import OTHER_SIDE
from likewise.evaluation.nearest import nearest
from likewise.report.elements import element, heading, sentence
from likewise.report.run_view import RunView
from likewise.report.sections.section import Content, Section
from likewise.runs.scores import ENCODER, places_of

WORST_QUERIES = 4
MEDIAN_QUERIES = 2
NEIGHBOURS = 3
MAX_LETTERS = 160  # of a text


class PairsSection(Section):
    """The nearest of the other side of some test queries, in both directions, first of those that fail worst."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        view = views[0]
        if view.features is None or view.features.test.counterparts is None:
            return None
        first, second, pairs = sides_of(view.features.test)
        second = replace(second, part=f"{second.part}{OTHER_SIDE}")
        directions = zip(DIRECTIONS, ((first, second, pairs), (second, first, pairs.flip(1))), strict=True)
        body = Markup().join(block for direction, sides in directions for block in _queries(view, direction, *sides))
        return Content("Pairs", sentence("pairs", worst=WORST_QUERIES, middle=MEDIAN_QUERIES), body) if body else None


def _queries(
    view: RunView, direction: str, queries: Features, gallery: Features, pairs: Int[Tensor, "p 2"]
) -> Iterator[Markup]:
    """Yield a heading, then a line for each query: itself, its nearest right answer, and the nearest overall."""
    outcomes = view.outcomes.get((CrossModalRetrieval.name, f"MRR, {direction}", ENCODER, "test"))
    if outcomes is None:
        return
    yield heading(direction.capitalize())
    order, places = outcomes.values.argsort(stable=True), places_of(outcomes.rows, queries.numbers)
    chosen = list(dict.fromkeys([*order[:WORST_QUERIES].tolist(), *order[len(order) // 2 :][:MEDIAN_QUERIES].tolist()]))
    near = torch.cat([indices for *_, indices in nearest(queries.vectors[places[chosen]], gallery.vectors, NEIGHBOURS)])
    ranks = (1 / outcomes.values[chosen]).round().tolist()
    for query, rank, neighbours in zip(places[chosen], ranks, near, strict=True):
        right = pairs[pairs[:, 0] == query, 1].unique()
        cosines = functional.cosine_similarity(queries.vectors[query].unsqueeze(0), gallery.vectors)
        shown = [int(right[cosines[right].argmax()]), *neighbours.tolist()]
        names = ["belongs to it", *("right" if bool((right == index).any()) else "nearest" for index in neighbours)]
        thumbnails = view.thumbnails_of(gallery[torch.tensor(shown)], MAX_LETTERS)
        (first,) = view.thumbnails_of(queries[query.view(1)], MAX_LETTERS)
        answers = zip(thumbnails, names, cosines[shown].tolist(), strict=True)
        cells = [([thumbnail], f"{name}, cosine {cosine:.2f}") for thumbnail, name, cosine in answers]
        yield element("gallery", [([first], f"rank {rank:,.0f} of {len(gallery):,}"), *cells])
