"""How alike labels are in the training part, and how little similar samples push each other because of it."""

from collections.abc import Sequence
from typing import Any

import torch

from likewise.diagnostics import grouped, plots, push_weights
from likewise.report.section import Section
from likewise.report.subject import Subject

MOST = 120  # labels that are drawn: the most frequent
SAMPLES = 1000  # whose pairs are counted
BINS = 40
SENTENCE = (
    "How often labels occur together in the training part, from 0, never, to 1, always; similar labels stand next to "
    "each other. Below: with which weight, relative to β, pairs of training samples without a common label push each "
    "other. Without weights by similarity all would push with 1."
)


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show the similarity of labels that a single run was trained with."""
    if len(subjects) != 1 or subjects[0].label_similarity is None or subjects[0].features is None:
        return None
    train, similarity = subjects[0].features.train, subjects[0].label_similarity
    if train.label_kind != "label sets" or len(similarity) != len(train.names):
        return None
    frequent = train.counts.argsort(descending=True, stable=True)[:MOST]
    some = similarity[frequent][:, frequent]
    order = grouped(some)
    names = [train.names[label] for label in frequent[order].tolist()]
    drawn = plots.as_html(plots.matrix(some[order][:, order], names, "similarity"), "label-similarity")
    sentence = (
        SENTENCE if len(frequent) == len(train.names) else f"{SENTENCE} Drawn are the {MOST} most frequent labels."
    )
    arguments: dict[str, Any] = (subjects[0].facts.get("parts", {}).get("loss") or {}).get("init_args") or {}
    aggregation: Any = arguments.get("aggregation", "mean")
    weights = push_weights(train.fewer(SAMPLES).sets, similarity, aggregation)
    if len(weights) == 0:
        return Section("Similarity of labels", sentence, drawn)
    counts = torch.histc(weights.float(), BINS, 0, 1)
    shares = {"push": (torch.linspace(0, 1, BINS + 1), counts / counts.sum())}
    figure = plots.histogram(shares, "weight", "pairs, %")
    return Section("Similarity of labels", sentence, drawn + plots.as_html(figure, "push-weights"))
