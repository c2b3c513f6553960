"""Pictures of what kNN gets wrong, with the training images that led to it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from likewise.evaluation import KNN, FeatureParts, Features
from likewise.evaluation.label_words import label_words
from likewise.evaluation.nearest import nearest
from likewise.report.section import Section, spoken, tile
from likewise.report.subject import Subject
from likewise.scores import ENCODER

NEIGHBORS = 6  # training images next to a test image
SHOWN = 8


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show wrong predictions of a single run, where samples are images."""
    if len(subjects) != 1:
        return None
    predicted = subjects[0].outcomes.get((KNN.name, "prediction", ENCODER, "test"))
    features = subjects[0].features
    if predicted is None or features is None or features.test.label_kind != "classes":
        return None
    if subjects[0].parts is None or len(subjects[0].parts.test.input_shape) != 3:
        return None
    wrong, predictions = _wrong(features.test, predicted.rows, predicted.values.long())
    if len(wrong) == 0:
        return None
    shown = features.test[wrong[:SHOWN]]
    near = _nearest(features, shown)
    rows = "".join(
        _row(subjects[0], shown, place, features.test.names[int(predictions[place])], neighbours)
        for place, neighbours in enumerate(near)
    )
    sentence = (
        f"{len(shown)} of {len(wrong):,} test images that kNN gets wrong, on the left, and the training images that "
        "the encoder puts nearest to each, nearest first."
    )
    if subjects[0].parts.test.input_shape[0] not in {1, 3}:
        sentence += f" Of their {subjects[0].parts.test.input_shape[0]} channels the first is shown."
    return Section("What kNN gets wrong", sentence, f'<div id="wrong">{rows}</div>')


def _wrong(test: Features, rows: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor]:
    """Return which test samples are predicted wrongly, and as what."""
    known, order = rows.sort()
    place = torch.searchsorted(known, test.numbers).clamp(max=max(0, len(known) - 1))
    said = predictions[order][place]
    wrong = (known[place] == test.numbers) & (said != test.classes)
    return wrong.nonzero().flatten(), said[wrong]


def _nearest(features: FeatureParts, shown: Features) -> list[Features]:
    """Return the training samples nearest to each test sample, nearest first."""
    found = nearest(shown.vectors, features.train.vectors, min(NEIGHBORS, len(features.train)))
    return [features.train[indices] for *_, of in found for indices in of]


def _row(subject: Subject, shown: Features, place: int, said: str, neighbours: Features) -> str:
    """Return a test image, its neighbours, and the words between them."""
    own = shown[torch.tensor([place])]
    name = shown.names[int(own.classes[0])]
    tiles = [*subject.album.tiles("test", own.numbers).tolist()]
    near = subject.album.tiles("train", neighbours.numbers).tolist()
    words = [f"{of}, row {row}" for of, row in zip(label_words(neighbours), neighbours.numbers.tolist(), strict=True)]
    images = "".join(tile(number, of) for number, of in zip(near, words, strict=True))
    first = tile(tiles[0], f"{name}, row {int(own.numbers[0])}", "first")
    words = spoken(("name", name), ("place", "predicted"), ("name", said), kind="said")
    return f'<div class="row">{first}{images}{words}</div>'
