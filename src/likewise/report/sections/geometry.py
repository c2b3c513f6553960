"""The geometry of the test samples' features on the unit sphere."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from likewise.diagnostics import (
    alignment,
    class_distances,
    collapsed,
    hubness,
    plots,
    similarity_histogram,
    singular_values,
    uniformity,
)
from likewise.diagnostics.spectrum import rank_of
from likewise.report.inputs import how_many, raw_vectors
from likewise.report.section import Section, folded, table
from likewise.report.subject import Subject
from likewise.scores import ENCODER, RAW

NEIGHBOURS = 10
PAIRS = 10  # of classes
MEASURED = 2000  # samples; all their pairs are looked at
COLLAPSED = "Collapsed: all features point in the same direction, up to rounding, so every similarity is 1. "


def section(subjects: Sequence[Subject]) -> Section | None:
    """Measure the features of a single run."""
    if len(subjects) != 1 or subjects[0].features is None or len(subjects[0].features.test) < 2:
        return None
    test = subjects[0].features.test
    some = test.fewer(MEASURED)
    raw = raw_vectors(subjects[0], some)
    vectors = {ENCODER: some.vectors} | ({} if raw is None else {RAW: raw})
    classes = some.labels if some.label_kind == "classes" else None
    sentence = COLLAPSED if collapsed(some.vectors) else ""
    if classes is not None:
        sentence += (
            "Alignment is the mean squared distance between samples of one class on the unit sphere; the distance of "
            "two classes is that between a sample of one and one of the other, averaged over all pairs of classes. "
        )
    sentence += (
        "Uniformity is the logarithm of the mean Gaussian potential of all pairs. The effective rank "
        "is the number of directions that the features use: the exponential of the entropy of their singular values. "
        f"Hubs are samples that are among the {NEIGHBOURS} nearest neighbours of very many others: with a skewness "
        "above 1 they dominate retrieval, and many samples are nobody's neighbours. "
    )
    if classes is not None:
        sentence += "Below them, the cosine similarities of pairs. "
    return Section("Geometry", f"{sentence}{how_many(len(some), len(test))}.", _body(vectors, classes, some.names))


def _body(vectors: Mapping[str, Tensor], classes: Tensor | None, names: Sequence[str]) -> str:
    spectrum = {kind: singular_values(of) for kind, of in vectors.items()}
    hubs = {kind: hubness(of, NEIGHBOURS) for kind, of in vectors.items()}
    rows = [
        ["uniformity (lower is better)", *(f"{uniformity(of):.3f}" for of in vectors.values())],
        ["effective rank", *(f"{rank_of(of):.1f} of {len(of):,}" for of in spectrum.values())],
        ["skewness of hubs (lower is better)", *(f"{of.skewness:.2f}" for of in hubs.values())],
        ["nobody's neighbours (lower is better)", *(f"{100 * of.never:.1f} %" for of in hubs.values())],
    ]
    body = ""
    if classes is not None:
        distances = {kind: class_distances(of, classes, len(names)) for kind, of in vectors.items()}
        rows.insert(0, ["alignment (lower is better)", *(f"{alignment(of, classes):.3f}" for of in vectors.values())])
        rows.insert(1, ["distance of two classes", *(f"{_between(of):.3f}" for of in distances.values())])
        histograms = {kind: similarity_histogram(of, classes) for kind, of in vectors.items()}
        body = plots.as_html(plots.similarities(histograms), "similarities")
        body += _nearest_classes(distances[ENCODER], names)
    body += plots.as_html(plots.spectra(spectrum), "spectrum") if any(of.any() for of in spectrum.values()) else ""
    return table(["", *vectors], rows) + body


def _between(distances: Tensor) -> float:
    """Return the mean distance between two classes."""
    return float(distances[~torch.eye(len(distances), dtype=torch.bool)].nanmean())


def _nearest_classes(distances: Tensor, names: Sequence[str]) -> str:
    """List the pairs of classes that are nearest to each other."""
    first, second = torch.triu_indices(len(names), len(names), offset=1)
    between = distances[first, second].nan_to_num(nan=torch.inf)
    rows: list[list[str]] = []
    for at in between.argsort(stable=True)[:PAIRS].tolist():
        if torch.isfinite(between[at]):
            one, other = int(first[at]), int(second[at])
            within = [distances[of, of] for of in (one, other)]
            rows.append([names[one], names[other], f"{between[at]:.3f}", *(f"{of:.3f}" for of in within)])
    head = ["class", "and", "squared distance", "within the first", "within the second"]
    return folded("The classes nearest to each other", table(head, rows)) if rows else ""
