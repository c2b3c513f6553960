"""Samples of one run: the hardest pairs, kNN's mistakes, the nearest texts, and pairs of two sides."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from markupsafe import Markup
from torch import Tensor
from torch.nn import functional

from likewise.data import Texts
from likewise.diagnostics import HardPairs, hardest_pairs
from likewise.evaluation import CrossModalRetrieval, Features
from likewise.evaluation.cross_modal import DIRECTIONS, sides_of
from likewise.evaluation.feature_files import OTHER_SIDE
from likewise.evaluation.features import id_words, label_words
from likewise.evaluation.nearest import nearest
from likewise.report.elements import element, heading, list_file, sentence, table
from likewise.report.run_view import Content, RunView, Section
from likewise.runs.scores import ENCODER, places_of

MAX_PAIRS = 12  # of each kind
MAX_LISTED_PAIRS = 2000  # of each kind in a file: all would be as many as samples
MAX_SAMPLES = {"classes": 60_000, "label sets": 10_000}  # samples searched for pairs
MAX_LETTERS = 160  # characters of a text of a pair
MAX_MISTAKES = 8
MISTAKE_COLUMNS = ("id", "class", "predicted")
NEAREST_IMAGES = 6  # training images next to a mistake
MAX_TEXTS = 6
NEAREST_TEXTS = 3  # training texts under each test text
PAIR_COLUMNS = ("cosine", "id", "labels", "other id", "other labels")
PARTNERS = {
    "classes": ("with the same class", "of another class"),
    "label sets": ("with a common label", "without a common label"),
}
WORST_QUERIES = 4
MEDIAN_QUERIES = 2
NEIGHBOURS = 3


class HardestPairsSection(Section):
    """The hardest pairs of the test part: one class and far apart, or different classes and close together."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        features = views[0].features
        if features is None or features.test.label_kind is None:
            return None
        label_kind = str(features.test.label_kind)
        test = features.test.unique().fewer(MAX_SAMPLES[label_kind])
        labels = test.classes if label_kind == "classes" else test.sets
        hard_pairs = hardest_pairs(test.vectors, labels, progress=views[0].progress)
        body = Markup().join(_galleries(views[0], test, hard_pairs))
        if not body:
            return None
        same, other = PARTNERS[label_kind]
        introduction = sentence("hardest_pairs", samples=len(test), same=same, other=other, listed=MAX_LISTED_PAIRS)
        return Content("Hardest pairs", introduction, body)


def _galleries(view: RunView, test: Features, hard_pairs: HardPairs) -> Iterator[Markup]:
    for pair_kind, pairs, similarities in (
        ("positives", hard_pairs.positive_pairs(MAX_LISTED_PAIRS), hard_pairs.positive_similarities),
        ("negatives", hard_pairs.negative_pairs(MAX_LISTED_PAIRS), hard_pairs.negative_similarities),
    ):
        if len(pairs):
            cosines = [f"{cosine:.3f}" for cosine in similarities[pairs[:, 0]].tolist()]
            shown = [
                (view.thumbnails_of(test[pair], MAX_LETTERS), f"cosine {cosine}")
                for pair, cosine in zip(pairs[:MAX_PAIRS], cosines, strict=False)
            ]
            columns: list[Sequence[str]] = [cosines]
            for samples in (test[pairs[:, 0]], test[pairs[:, 1]]):
                columns += [list(samples.ids), label_words(samples, len(test.names))]  # all labels of a sample
            file = list_file(f"hard-{pair_kind}.csv", PAIR_COLUMNS, list(zip(*columns, strict=True)))
            yield heading(f"Hard {pair_kind}") + element("gallery", shown) + file


class MistakesSection(Section):
    """The mistakes of kNN, for images with the training images that led to them."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        view = views[0]
        if view.features is None or view.features.test.label_kind != "classes":
            return None
        test = view.features.test
        predicted = view.predicted(test)
        if predicted is None:
            return None
        wrong = ((predicted >= 0) & (predicted != test.classes)).nonzero().flatten()
        if len(wrong) == 0:
            return None
        taken = [test.names[label] for label in predicted[wrong].tolist()]
        rows = list(zip(test[wrong].ids, label_words(test[wrong]), taken, strict=True))
        some = test[wrong[:MAX_MISTAKES]]
        shape = () if view.parts is None else view.parts.test.input_shape
        if len(shape) == 3:
            train = view.features.train
            tiles = nearest(some.vectors, train.vectors, min(NEAREST_IMAGES, len(train)))
            near = [view.thumbnails_of(train[indices]) for *_, neighbors in tiles for indices in neighbors]
            shown = element("mistakes", list(zip(view.thumbnails_of(some), taken, near, strict=False)))
        else:
            called = zip(id_words(some), rows, view.lines_of(some), strict=False)
            shown = table(["", "class", "predicted", ""], [[name, *cells, text] for name, (_, *cells), text in called])
        channels = shape[0] if len(shape) == 3 else 0
        introduction = sentence("mistakes", shown=len(some), wrong=len(wrong), channels=channels)
        return Content("What kNN gets wrong", introduction, shown + list_file("mistakes.csv", MISTAKE_COLUMNS, rows))


class NearestTextsSection(Section):
    """Texts of the test part, with the training texts that the encoder puts nearest to each."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        parts, features = views[0].parts, views[0].features
        if parts is None or features is None or not len(features.train) or not len(features.test):
            return None
        if not isinstance(parts.test.inputs, Texts) or not isinstance(parts.train.inputs, Texts):
            return None
        queries, known = features.test.unique().fewer(MAX_TEXTS), features.train.unique()
        lines = list(zip(*_described(views[0], queries), strict=True))
        rows: list[list[str]] = []
        for part, similarities, indices in nearest(queries.vectors, known.vectors, NEAREST_TEXTS):
            for query, near, alike in zip(lines[part], indices, similarities.tolist(), strict=True):
                rows.append(["test", *query])
                matches = zip(alike, *_described(views[0], known[near]), strict=True)
                rows += [[f"{cosine:.2f}", *cells] for cosine, *cells in matches]
        head = ["", "name", "text", *([] if features.test.labels is None else ["labels"])]
        introduction = sentence("nearest_texts", sides=features.test.counterparts is not None)
        return Content("Nearest texts", introduction, table(head, [row[: len(head)] for row in rows]))


def _described(view: RunView, samples: Features) -> tuple[list[str], list[str], list[str]]:
    return id_words(samples), view.lines_of(samples), label_words(samples)


class PairsSection(Section):
    """The nearest of the other side for some test queries, in both directions, the worst failures first."""

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
