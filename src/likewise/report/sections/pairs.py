"""Pairs of two kinds: what the encoders put nearest to queries of either side, first to those that fail worst."""

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
from likewise.scores import ENCODER, places_of

WORST = 4
MIDDLE = 2
NEAREST = 3
LETTERS = 160  # of a text


class PairsSection(Section):
    """The nearest of the other side of some test queries, in both directions, first of those that fail worst."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        view = views[0]
        if view.features is None or view.features.test.counterparts is None:
            return None
        first, second, pairs = sides_of(view.features.test)
        second = replace(second, part=f"{second.part}{OTHER_SIDE}")
        given = zip(DIRECTIONS, ((first, second, pairs), (second, first, pairs.flip(1))), strict=True)
        body = Markup().join(found for direction, sides in given for found in _queries(view, direction, *sides))
        return Content("Pairs", sentence("pairs", worst=WORST, middle=MIDDLE), body) if body else None


def _queries(
    view: RunView, direction: str, queries: Features, gallery: Features, pairs: Int[Tensor, "p 2"]
) -> Iterator[Markup]:
    """Yield a heading, and of each query a line: itself, its first right answer, and the nearest."""
    found = view.outcomes.get((CrossModalRetrieval.name, f"MRR, {direction}", ENCODER, "test"))
    if found is None:
        return
    yield heading(direction.capitalize())
    places = places_of(found.rows, queries.numbers)
    order = found.values.argsort(stable=True)
    chosen = list(dict.fromkeys([*order[:WORST].tolist(), *order[len(order) // 2 :][:MIDDLE].tolist()]))
    some = places[chosen]
    near = torch.cat([of for *_, of in nearest(queries.vectors[some], gallery.vectors, NEAREST)])
    for query, rank, found_near in zip(some.tolist(), (1 / found.values[chosen]).round().tolist(), near, strict=True):
        right = pairs[pairs[:, 0] == query, 1].unique()
        alike = functional.cosine_similarity(queries.vectors[query : query + 1], gallery.vectors[right])
        shown = torch.cat([right[alike.argmax().view(1)], found_near])
        cosines = functional.cosine_similarity(queries.vectors[query : query + 1], gallery.vectors[shown]).tolist()
        words = ["belongs to it", *("right" if bool((right == of).any()) else "nearest" for of in found_near)]
        said = [f"{word}, cosine {cosine:.2f}" for word, cosine in zip(words, cosines, strict=True)]
        one = view.thumbnails_of(queries[torch.tensor([query])], LETTERS)
        others = zip(view.thumbnails_of(gallery[shown], LETTERS), said, strict=True)
        yield element(
            "gallery", [(one, f"rank {rank:,.0f} of {len(gallery):,}"), *(([of], said) for of, said in others)]
        )
