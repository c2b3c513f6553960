"""The geometry of one run: of its features on the unit sphere, and of its labels."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from likewise.diagnostics import (
    alignment,
    class_distances,
    collapsed,
    grouped,
    hubness,
    plots,
    push_weights,
    similarity_histogram,
    singular_values,
    uniformity,
)
from likewise.diagnostics.unit_rows import rank_of
from likewise.report.elements import folded, sentence, table
from likewise.report.formatting import how_many, limit_words
from likewise.report.run_view import RunView
from likewise.report.sections.section import Content, Section
from likewise.runs.scores import ENCODER, RAW

NEIGHBOURS = 10
MAX_PAIRS = 10  # pairs of classes that are listed
MAX_SAMPLES = 2000  # samples, all pairs of which are measured
MAX_LABELS = 120  # labels that are drawn, the most frequent
MAX_PUSH_SAMPLES = 1000  # samples whose pairs are counted for the push
BINS = 40


class GeometrySection(Section):
    """The geometry of the test samples' features on the unit sphere."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        features = views[0].features
        if features is None or len(features.test) < 2:
            return None
        test = features.test.unique()
        some = test.fewer(MAX_SAMPLES)
        raw = views[0].raw_vectors(some)
        vectors = {ENCODER: some.vectors} | ({} if raw is None else {RAW: raw})
        classes = some.labels if some.label_kind == "classes" else None
        introduction = sentence(
            "geometry",
            collapsed=collapsed(some.vectors),
            classes=classes is not None,
            neighbours=NEIGHBOURS,
            shown=how_many(len(some), len(test)),
        )
        return Content("Geometry", introduction, _measure(vectors, classes, some.names))


def _measure(vectors: Mapping[str, Tensor], classes: Tensor | None, names: Sequence[str]) -> Markup:
    spectrum = {name: singular_values(features) for name, features in vectors.items()}
    hubs = {name: hubness(features, NEIGHBOURS) for name, features in vectors.items()}
    rows = [
        ["uniformity (lower is better)", *(f"{uniformity(features):.3f}" for features in vectors.values())],
        ["effective rank", *(f"{rank_of(values):.1f} of {len(values):,}" for values in spectrum.values())],
        ["skewness of hubs (lower is better)", *(f"{measure.skewness:.2f}" for measure in hubs.values())],
        ["nobody's neighbours (lower is better)", *(f"{100 * measure.never:.1f} %" for measure in hubs.values())],
    ]
    body = Markup()
    if classes is not None:
        distances = {name: class_distances(features, classes, len(names)) for name, features in vectors.items()}
        aligned = [f"{alignment(features, classes):.3f}" for features in vectors.values()]
        between = [f"{_between(matrix):.3f}" for matrix in distances.values()]
        rows[:0] = [["alignment (lower is better)", *aligned], ["distance of two classes", *between]]
        panels: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
        for name, features in vectors.items():
            edges, same, different = similarity_histogram(features, classes)
            panels[name] = {"same class": (edges, same), "different classes": (edges, different)}
        body = plots.as_html(plots.histograms(panels, "cosine similarity", "pairs, %"), "similarities")
        body += _nearest_classes(distances[ENCODER], names)
    if any(values.any() for values in spectrum.values()):
        body += plots.as_html(plots.spectra(spectrum), "spectrum")
    return table(["", *vectors], rows) + body


def _between(distances: Tensor) -> float:
    return float(distances[~torch.eye(len(distances), dtype=torch.bool)].nanmean())


def _nearest_classes(distances: Tensor, names: Sequence[str]) -> str:
    first, second = torch.triu_indices(len(names), len(names), offset=1)
    between = distances[first, second].nan_to_num(nan=torch.inf)
    rows: list[list[str]] = []
    for at in between.argsort(stable=True)[:MAX_PAIRS].tolist():
        if torch.isfinite(between[at]):
            label, other = int(first[at]), int(second[at])
            within = [distances[index, index] for index in (label, other)]
            rows.append([names[label], names[other], f"{between[at]:.3f}", *(f"{distance:.3f}" for distance in within)])
    head = ["class", "and", "squared distance", "within the first", "within the second"]
    return folded("The classes nearest to each other", table(head, rows)) if rows else ""


class LabelSimilaritySection(Section):
    """Label similarity in the training part, and how much less similar samples push each other because of it."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        features, similarity = views[0].features, views[0].run.label_similarity
        if features is None or similarity is None:
            return None
        train = features.train
        if train.label_kind != "label sets" or len(similarity) != len(train.names):
            return None
        frequent = train.counts.argsort(descending=True, stable=True)[:MAX_LABELS]
        some = similarity[frequent][:, frequent]
        order = grouped(some)
        names = [train.names[label] for label in frequent[order].tolist()]
        body = plots.as_html(plots.matrix(some[order][:, order], names, "similarity"), "label-similarity")
        introduction = sentence("label_similarity")
        introduction += limit_words(len(frequent), len(train.names), "labels, the most frequent")
        arguments: dict[str, Any] = (views[0].metadata.get("parts", {}).get("loss") or {}).get("init_args") or {}
        aggregation = arguments.get("aggregation", "mean")
        weights = push_weights(train.fewer(MAX_PUSH_SAMPLES).sets, similarity, aggregation)
        if len(weights):
            counts = torch.histc(weights.float(), BINS, 0, 1)
            shares = {"push": (torch.linspace(0, 1, BINS + 1), counts / counts.sum())}
            body += plots.as_html(plots.histograms({"": shares}, "weight", "pairs, %"), "push-weights")
        return Content("Similarity of labels", introduction, body)
