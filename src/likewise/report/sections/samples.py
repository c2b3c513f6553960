"""Single samples of one run: the hardest pairs, what kNN gets wrong, and the texts nearest to others."""

from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup
from torch import Tensor

from likewise.data import Texts
from likewise.diagnostics import HardPairs, hardest_pairs
from likewise.evaluation import FeatureParts, Features
from likewise.evaluation.nearest import nearest
from likewise.report.elements import element, heading, sentence, table
from likewise.report.sections.section import Content, Section
from likewise.report.subject import Subject

PAIRS = 12  # of each kind
MOST = {"classes": 60_000, "label sets": 10_000}  # samples among which the pairs are found
LONGEST = 160  # characters of a text of a pair
MISTAKES = 8
NEIGHBORS = 6  # training images next to a mistake
TEXTS = 6
NEAREST = 3  # training texts under each test text
PARTNERS = {
    "classes": ("with the same class", "of another class"),
    "label sets": ("with a common label", "without a common label"),
}


class HardestPairsSection(Section):
    """The hardest pairs of the test part: one class and far apart, or different classes and close together."""

    def content(self, subjects: Sequence[Subject]) -> Content | None:
        features = subjects[0].features
        if features is None or features.test.label_kind is None:
            return None
        kind = str(features.test.label_kind)
        test = features.test.fewer(MOST[kind])
        labels = test.classes if kind == "classes" else test.sets
        found = hardest_pairs(test.vectors, labels, progress=subjects[0].progress)
        body = Markup().join(_galleries(subjects[0], test, found))
        if not body:
            return None
        same, other = PARTNERS[kind]
        said = sentence("hardest_pairs", samples=len(test), same=same, other=other)
        return Content("Hardest pairs", said, body)


def _galleries(subject: Subject, test: Features, found: HardPairs) -> Iterator[Markup]:
    for words, pairs, similarities in (
        ("Hard positives", found.positive_pairs(PAIRS), found.positive_similarities),
        ("Hard negatives", found.negative_pairs(PAIRS), found.negative_similarities),
    ):
        if len(pairs):
            shown = [
                (subject.thumbnails_of(test[pair], LONGEST), f"cosine {float(similarities[pair[0]]):.3f}")
                for pair in pairs
            ]
            yield heading(words) + element("gallery", shown)


class MistakesSection(Section):
    """Pictures of what kNN gets wrong, with the training images that led to it."""

    def content(self, subjects: Sequence[Subject]) -> Content | None:
        subject = subjects[0]
        if subject.features is None or subject.features.test.label_kind != "classes":
            return None
        test = subject.features.test
        predicted = subject.predicted(test)
        if predicted is None or subject.parts is None or len(subject.parts.test.input_shape) != 3:
            return None
        wrong = ((predicted >= 0) & (predicted != test.classes)).nonzero().flatten()
        if len(wrong) == 0:
            return None
        rows = _mistakes(subject, subject.features, wrong[:MISTAKES], predicted)
        channels = subject.parts.test.input_shape[0]
        said = sentence("mistakes", shown=len(rows), wrong=len(wrong), channels=channels)
        return Content("What kNN gets wrong", said, element("mistakes", rows))


def _mistakes(subject: Subject, features: FeatureParts, wrong: Tensor, predicted: Tensor) -> list[tuple[Any, ...]]:
    """Return of each test image its thumbnail, what is predicted, and the thumbnails of its nearest training images."""
    shown = features.test[wrong]
    found = nearest(shown.vectors, features.train.vectors, min(NEIGHBORS, len(features.train)))
    near = [subject.thumbnails_of(features.train[indices]) for *_, of in found for indices in of]
    names = [shown.names[label] for label in predicted[wrong].tolist()]
    return list(zip(subject.thumbnails_of(shown), names, near, strict=True))


class NearestTextsSection(Section):
    """Texts of the test part, with the training texts that the encoder puts nearest to each."""

    def content(self, subjects: Sequence[Subject]) -> Content | None:
        parts, features = subjects[0].parts, subjects[0].features
        if parts is None or features is None or not len(features.train) or not len(features.test):
            return None
        if not isinstance(parts.test.inputs, Texts) or not isinstance(parts.train.inputs, Texts):
            return None
        queries = features.test.fewer(TEXTS)
        lines = list(zip(subjects[0].lines_of(queries), _labels(queries), strict=True))
        rows: list[list[str]] = []
        for part, similarities, indices in nearest(queries.vectors, features.train.vectors, NEAREST):
            for query, near, alike in zip(lines[part], indices, similarities.tolist(), strict=True):
                others = features.train[near]
                rows.append(["test", *query])
                found = zip(alike, subjects[0].lines_of(others), _labels(others), strict=True)
                rows += [[f"{cosine:.2f}", text, labels] for cosine, text, labels in found]
        return Content("Nearest texts", sentence("nearest_texts"), table(["", "text", "labels"], rows))


def _labels(features: Features) -> list[str]:
    """Return the labels of samples, all of them."""
    if features.labels is None:
        return [""] * len(features)
    if features.label_kind == "classes":
        return [features.names[label] for label in features.classes.tolist()]
    return [
        ", ".join(features.names[label] for label in labels.nonzero().flatten().tolist()) or "none"
        for labels in features.sets
    ]
