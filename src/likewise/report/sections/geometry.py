"""The geometry of the test samples' features on the unit sphere."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from likewise.diagnostics import alignment, collapsed, plots, similarity_histogram, uniformity
from likewise.report.inputs import how_many, raw_vectors
from likewise.report.section import Section, table
from likewise.report.subject import Subject
from likewise.scores import ENCODER, RAW

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
        sentence += "Alignment is the mean squared distance between samples of one class on the unit sphere. "
    sentence += "Uniformity is the logarithm of the mean Gaussian potential of all pairs. Lower is better. "
    if classes is not None:
        sentence += "Below them, the cosine similarities of pairs. "
    return Section("Geometry", f"{sentence}{how_many(len(some), len(test))}.", _body(vectors, classes))


def _body(vectors: Mapping[str, Tensor], classes: Tensor | None) -> str:
    rows = [["uniformity", *(f"{uniformity(of):.3f}" for of in vectors.values())]]
    if classes is None:
        return table(["", *vectors], rows)
    rows.insert(0, ["alignment", *(f"{alignment(of, classes):.3f}" for of in vectors.values())])
    histograms = {kind: similarity_histogram(of, classes) for kind, of in vectors.items()}
    return table(["", *vectors], rows) + plots.as_html(plots.similarities(histograms), "similarities")
