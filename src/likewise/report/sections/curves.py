"""Curves: what the training logged over its steps, and validation scores over epochs; several runs overlaid."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from likewise.diagnostics import plots
from likewise.report.section import Section
from likewise.report.subject import Subject
from likewise.scores import ALL, ENCODER, Score

MOST_POINTS = 2000  # of a curve; a page has no more pixels across
Panels = Mapping[str, Sequence[tuple[str, Sequence[tuple[int, float]]]]]


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show the curves of one run or of several."""
    training: defaultdict[str, list[tuple[str, Sequence[tuple[int, float]]]]] = defaultdict(list)
    validation: defaultdict[str, list[tuple[str, Sequence[tuple[int, float]]]]] = defaultdict(list)
    for subject in subjects:
        for name, points in subject.metrics.items():
            training[name].append((subject.setting, thinned(points)))
        for name, points in _over_epochs(subject).items():
            validation[name].append((subject.setting, points))
    if not training and not validation:
        return None
    figures = [(training, "step", "curves"), (validation, "epoch", "validation")]
    body = "".join(plots.as_html(plots.curves(of, across), name) for of, across, name in figures if of)
    sentence = "What the training logged, step by step"
    sentence += ", and validation scores, shares in percent, by epoch." if validation else "."
    if any(name.endswith("effective rank") for name in validation):
        sentence += " The effective rank is the number of directions that the validation features use."
    if any(len(points) > MOST_POINTS for subject in subjects for points in subject.metrics.values()):
        sentence += f" Of long curves, about {MOST_POINTS:,} steps at equal distances."
    return Section("Training", sentence, body)


def _over_epochs(subject: Subject) -> dict[str, list[tuple[int, float]]]:
    """Return the encoder's scores over all samples that were taken during training, shares in percent, by epoch."""
    curves: defaultdict[str, dict[int, Score]] = defaultdict(dict)
    for score in subject.scores:
        if score.epoch is not None and score.group == ALL and score.features == ENCODER:
            curves[f"{score.evaluation}, {score.metric}"][score.epoch] = score
    factors = {name: 100 if next(iter(of.values())).metric.is_share else 1 for name, of in curves.items()}
    return {name: [(epoch, factors[name] * of[epoch].value) for epoch in sorted(of)] for name, of in curves.items()}


def thinned(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Return evenly spaced points of a long curve, and its last."""
    stride = -(-len(points) // MOST_POINTS)
    return points if stride <= 1 else [*points[:-1:stride], points[-1]]
