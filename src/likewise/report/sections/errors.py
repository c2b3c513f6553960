"""Pictures of what kNN gets wrong, with the training images that led to it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from likewise.diagnostics import plots
from likewise.evaluation import KNN, FeatureParts, Features
from likewise.evaluation.nearest import nearest
from likewise.report.section import Section
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
    images = _images(subjects[0], features, wrong[:SHOWN])
    if images is None:
        return None
    names, labels = features.test.names, features.test.classes[wrong].tolist()
    captions = [
        f"{names[label]}, predicted {names[said]}" for label, said in zip(labels, predictions.tolist(), strict=True)
    ]
    sentence = (
        f"{min(SHOWN, len(wrong))} of {len(wrong):,} test images that kNN gets wrong, on the left, and the training "
        "images that the encoder puts nearest to each, nearest first."
    )
    if images.shape[2] not in {1, 3}:
        sentence += f" Of their {images.shape[2]} channels the first is shown."
    return Section("What kNN gets wrong", sentence, plots.as_html(plots.image_rows(images, captions[:SHOWN]), "wrong"))


def _wrong(test: Features, rows: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor]:
    """Return which test samples are predicted wrongly, and as what."""
    known, order = rows.sort()
    place = torch.searchsorted(known, test.numbers).clamp(max=max(0, len(known) - 1))
    said = predictions[order][place]
    wrong = (known[place] == test.numbers) & (said != test.classes)
    return wrong.nonzero().flatten(), said[wrong]


def _images(subject: Subject, features: FeatureParts, wrong: Tensor) -> Tensor | None:
    """Return test images, each followed by its nearest training images, (R, K, channels, height, width)."""
    train = features.train
    found = nearest(features.test.vectors[wrong], train.vectors, min(NEIGHBORS, len(train)))
    neighbours = torch.cat([indices for _, _, indices in found])
    left = subject.inputs_of("test", features.test.numbers[wrong])
    right = subject.inputs_of("train", train.numbers[neighbours.flatten()])
    if left is None or right is None:
        return None
    return torch.cat([left.unsqueeze(1), right.unflatten(0, neighbours.shape)], dim=1)
