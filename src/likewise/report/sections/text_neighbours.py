"""Texts of the test part, with the training texts that the encoder puts nearest to each."""

from collections.abc import Sequence

import torch

from likewise.data import Texts
from likewise.evaluation import Features
from likewise.evaluation.nearest import nearest
from likewise.report.section import Section, table
from likewise.report.subject import Subject

SHOWN = 6
NEIGHBOURS = 3
LONGEST = 240  # characters of a text
SENTENCE = (
    "Test texts chosen at random, and the training texts that the encoder puts nearest to each, with their labels."
)


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show neighbours of a single run, where samples are texts."""
    if len(subjects) != 1 or subjects[0].features is None or subjects[0].parts is None:
        return None
    parts, features = subjects[0].parts, subjects[0].features
    test, train = parts.test.inputs, parts.train.inputs
    if not isinstance(test, Texts) or not isinstance(train, Texts) or not len(features.train) or not len(features.test):
        return None
    queries = features.test.fewer(SHOWN)
    found = nearest(queries.vectors, features.train.vectors, NEIGHBOURS)
    rows: list[list[str]] = []
    for part, similarities, indices in found:
        for query, near, similar in zip(range(part.start, part.stop), indices, similarities.tolist(), strict=True):
            rows.append(["test", _text(subjects[0], "test", queries, query), _labels(queries, query)])
            for row, alike in zip(near.tolist(), similar, strict=True):
                words = _text(subjects[0], "train", features.train, row)
                rows.append([f"{alike:.2f}", words, _labels(features.train, row)])
    return Section("Nearest texts", SENTENCE, table(["", "text", "labels"], rows))


def _text(subject: Subject, part: str, features: Features, row: int) -> str:
    texts = subject.texts_of(part, features.numbers[torch.tensor([row])])
    line = " ".join((texts or [""])[0].split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _labels(features: Features, row: int) -> str:
    if features.labels is None:
        return ""
    if features.label_kind == "classes":
        return features.names[int(features.classes[row])]
    return ", ".join(features.names[label] for label in features.sets[row].nonzero().flatten().tolist()) or "none"
