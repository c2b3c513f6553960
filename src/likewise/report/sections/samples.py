"""Single samples of one run: the hardest pairs and what kNN gets wrong, also as files; the texts nearest to others."""

from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from likewise.data import Texts
from likewise.diagnostics import HardPairs, hardest_pairs
from likewise.evaluation import FeatureParts, Features
from likewise.evaluation.features import id_words, label_words
from likewise.evaluation.nearest import nearest
from likewise.report.elements import element, heading, list_file, sentence, table
from likewise.report.run_view import RunView
from likewise.report.sections.section import Content, Section

MAX_PAIRS = 12  # of each kind
MAX_LISTED_PAIRS = 2000  # of each kind in a file: all would be as many as samples
MAX_SAMPLES = {"classes": 60_000, "label sets": 10_000}  # samples among which the pairs are found
MAX_LETTERS = 160  # characters of a text of a pair
MAX_MISTAKES = 8
MISTAKE_COLUMNS = ("id", "class", "predicted")
NEIGHBORS = 6  # training images next to a mistake
MAX_TEXTS = 6
NEAREST_TEXTS = 3  # training texts under each test text
PAIR_COLUMNS = ("cosine", "id", "labels", "other id", "other labels")
PARTNERS = {
    "classes": ("with the same class", "of another class"),
    "label sets": ("with a common label", "without a common label"),
}


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
    """The mistakes of kNN, of images with the training images that led to them."""

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
            shown = element("mistakes", _mistakes(view, view.features, some, taken))
        else:
            called = zip(id_words(some), rows, view.lines_of(some), strict=False)
            shown = table(["", "class", "predicted", ""], [[name, *cells, text] for name, (_, *cells), text in called])
        channels = shape[0] if len(shape) == 3 else 0
        introduction = sentence("mistakes", shown=len(some), wrong=len(wrong), channels=channels)
        return Content("What kNN gets wrong", introduction, shown + list_file("mistakes.csv", MISTAKE_COLUMNS, rows))


def _mistakes(
    view: RunView, features: FeatureParts, shown: Features, predicted: Sequence[str]
) -> list[tuple[Any, ...]]:
    tiles = nearest(shown.vectors, features.train.vectors, min(NEIGHBORS, len(features.train)))
    near = [view.thumbnails_of(features.train[indices]) for *_, neighbors in tiles for indices in neighbors]
    return list(zip(view.thumbnails_of(shown), predicted, near, strict=False))


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
