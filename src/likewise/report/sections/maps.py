"""A map of the test samples."""

from collections.abc import Sequence

from likewise.diagnostics import collapsed, plots, two_dimensional_map
from likewise.evaluation import Features
from likewise.report.inputs import how_many, raw_vectors
from likewise.report.section import Section
from likewise.report.subject import Subject
from likewise.scores import ENCODER, RAW

MAPPED = 1000  # samples laid out on a map; more hide each other, and t-SNE slows
MOST_NAMED = 5  # labels of a sample that hovering names
COLLAPSED = (
    "Collapsed: the encoder gives all these samples the same features, up to rounding, so it can't tell them apart and "
    "they all lie on one point. "
)


def section(subjects: Sequence[Subject]) -> Section | None:
    """Lay out the test samples of a single run."""
    if len(subjects) != 1 or subjects[0].features is None or len(subjects[0].features.test) == 0:
        return None
    test = subjects[0].features.test
    some = test.fewer(MAPPED)
    raw = raw_vectors(subjects[0], some)
    vectors = {ENCODER: some.vectors} | ({} if raw is None else {RAW: raw})
    places = {kind: two_dimensional_map(of) for kind, of in vectors.items()}
    classes = some.labels if some.label_kind == "classes" else None
    sentence = (
        f"{how_many(len(some), len(test))} laid out by t-SNE of their cosine neighbours. Which samples are near each "
        "other means something; the distances between groups and the axes do not. Hovering over a point gives its row "
        "in the data."
    )
    return Section(
        "Map",
        (COLLAPSED if collapsed(some.vectors) else "") + sentence,
        plots.as_html(plots.maps(places, classes, some.names, _words(some)), "map"),
    )


def _words(some: Features) -> list[str]:
    """Say of each sample its classes and its row."""
    if some.labels is None:
        return [f"row {row}" for row in some.numbers.tolist()]
    if some.labels.ndim == 1:
        pairs = zip(some.labels.tolist(), some.numbers.tolist(), strict=True)
        return [f"{some.names[label]}, row {row}" for label, row in pairs]
    return [
        f"{_set_words(labels.nonzero().flatten().tolist(), some.names)}, row {row}"
        for labels, row in zip(some.labels, some.numbers.tolist(), strict=True)
    ]


def _set_words(labels: Sequence[int], names: Sequence[str]) -> str:
    some = " + ".join(names[label] for label in labels[:MOST_NAMED]) or "no label"
    return some if len(labels) <= MOST_NAMED else f"{some} and {len(labels) - MOST_NAMED} more"
