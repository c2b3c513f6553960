"""An anchor to choose, and what pulls and pushes it: the gradient of SupCon and NT-Xent, reference by reference."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from likewise.diagnostics import AnchorGradients, Snapshot, anchor_gradients, plots
from likewise.evaluation import Features
from likewise.evaluation.label_words import label_words
from likewise.report.inputs import inputs_as_words
from likewise.report.section import Section
from likewise.report.sections.gradients import form_of
from likewise.report.subject import Subject
from likewise.report.words import short_name

ANCHORS = 40  # that can be chosen
REFERENCES = 8  # of each kind, the strongest
LETTERS = 80  # of a text
SENTENCE = (
    "Choose an anchor from the last batch of the training: on the left the positives that act on it most, on the right "
    "the negatives. The number after the cosine is the length of the reference's part of the gradient, as above; bars "
    "show it relative to the longest bar of this anchor. A hatched bar is a positive that repels, since it is closer "
    "than the loss asks for."
)


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show the forces on single anchors of a single run, where the samples are at hand."""
    if len(subjects) != 1 or not form_of(subjects[0]) or not subjects[0].run.batches.is_file():
        return None
    subject = subjects[0]
    batch = max(subject.batches.values(), key=lambda of: of.step, default=None)
    samples = None if batch is None else _samples(subject, batch)
    if batch is None or samples is None:
        return None
    labels = batch.labels if short_name(subject.facts["parts"]["loss"]) == "SupConLoss" else None
    chosen = _chosen(samples)
    found = anchor_gradients(
        batch.embeddings, labels, temperature=batch.temperature, form=form_of(subject) or "out", anchors=chosen
    )
    tiles = subject.album.tiles("train", samples.numbers).tolist()
    said = _said(subject, samples, batch, tiles)
    anchors = [_anchor(found, place, said, len(samples)) for place in range(len(chosen)) if found.active[place]]
    if not anchors:
        return None
    captions = {"pull": "Positives", "push": "Negatives"}
    data = plots.as_data({"anchors": anchors, "captions": captions}, "anchors-data")
    return Section("One anchor", SENTENCE, f'<div class="anchors" id="anchors" data-of="anchors-data"></div>{data}')


def _samples(subject: Subject, batch: Snapshot) -> Features | None:
    """Return the samples of a batch; None where the training part isn't at hand."""
    if subject.parts is None or subject.features is None:
        return None
    train = subject.parts.train.numbered()
    if not len(batch.sample_index) or int(batch.sample_index.max()) >= len(train):
        return None
    rows = torch.as_tensor(train.rows)[batch.sample_index]
    of_snapshot = batch.labels if batch.labels is None or batch.labels.ndim == 1 else batch.labels.bool()
    return Features(torch.zeros(len(rows), 0), of_snapshot, train.names, rows, "train")


def _chosen(samples: Features) -> Int[Tensor, " a"]:
    """Return rows of the first view to choose from, a few of each class."""
    if samples.label_kind != "classes":
        return torch.arange(len(samples))[:ANCHORS]
    classes = samples.classes
    before = torch.stack([(classes[:place] == label).sum() for place, label in enumerate(classes)])
    few = torch.stack([before, classes, torch.arange(len(classes))]).unique(dim=1)[:, :ANCHORS]
    return few[2][few[1].argsort(stable=True)]


def _said(subject: Subject, samples: Features, batch: Snapshot, tiles: list[int]) -> list[dict[str, Any]]:
    """Return what is shown of each row of the batch, view by view."""
    texts = inputs_as_words(subject, samples, LETTERS) or [""] * len(samples)
    views = batch.embeddings.shape[1] if batch.embeddings.ndim == 3 else 1
    return [
        {"tile": tile, "name": name, "place": f"row {row}, view {view}" if views > 1 else f"row {row}", "text": text}
        for view in range(1, views + 1)
        for tile, name, row, text in zip(tiles, label_words(samples), samples.numbers.tolist(), texts, strict=True)
    ]


def _anchor(found: AnchorGradients, place: int, said: list[dict[str, Any]], samples: int) -> dict[str, Any]:
    row = int(found.anchors[place])
    signed = found.strengths[place] * found.coefficients[place].sign() * (1 - 2 * found.positives[place].double())

    def strongest(among: Tensor) -> list[dict[str, Any]]:
        order = found.strengths[place].where(among, -1).argsort(descending=True)[: min(REFERENCES, int(among.sum()))]
        return [
            said[at]
            | {
                "cosine": float(found.similarities[place, at]),
                "strength": float(signed[at]),
                "note": "another view of it" if at % samples == row % samples else "",
            }
            for at in order.tolist()
        ]

    counts = f"{int(found.positives[place].sum()):,} positives, {int(found.negatives[place].sum()):,} negatives"
    forces = float(found.pull[place].norm()), float(found.push[place].norm())
    return said[row] | {
        "pull": strongest(found.positives[place]),
        "push": strongest(found.negatives[place]),
        "total": (
            f"{said[row]['place']}: {counts}. Together they pull with {forces[0]:.3g} and push with {forces[1]:.3g}, "
            "of which only what is orthogonal to the anchor moves it."
        ),
    }
