"""What the loss recorded of its anchors, such as RASCAL's rank drift: by class, by class size, and over epochs."""

from collections.abc import Mapping, Sequence
from html import escape

import torch

from likewise.diagnostics import plots
from likewise.evaluation.accuracy import frequency
from likewise.records import ClassMean
from likewise.report.section import Section
from likewise.report.subject import Subject
from likewise.report.words import counted, slug

MOST_SETTINGS = 6
SENTENCE = (
    "What the loss recorded of its anchors, averaged over the anchors of each class in an epoch. First, by epoch: "
    "over all anchors, and over those of classes with many, medium and few training samples if there are any. Then, "
    "in the last epoch: each class by the number of its training samples."
)
Curves = dict[str, list[tuple[str, list[tuple[int, float]]]]]


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show the means of one run, or of the first run of each setting."""
    firsts = {subject.setting: subject for subject in reversed(subjects)}
    shown = {name: of for name, of in reversed(firsts.items()) if of.class_means}
    shown = dict(list(shown.items())[:MOST_SETTINGS])
    if not shown:
        return None
    statistics = dict.fromkeys(mean.statistic for of in shown.values() for mean in of.class_means)
    body = "".join(_of_statistic(statistic, shown) for statistic in statistics)
    return Section("Recorded by the loss, by class", SENTENCE, body)


def _of_statistic(statistic: str, subjects: Mapping[str, Subject]) -> str:
    name = statistic.replace("_", " ")
    curves: Curves = {}
    points: dict[str, list[plots.Point]] = {}
    for setting, subject in subjects.items():
        means = [mean for mean in subject.class_means if mean.statistic == statistic]
        sizes = subject.class_sizes
        for group, of in _groups(means, sizes).items():
            curves.setdefault(f"{name}, {group}", []).append((setting, _by_epoch(of)))
        last = max((mean.epoch for mean in means), default=0)
        points[setting] = [
            plots.Point(
                sizes[mean.label], mean.mean, f"{mean.label}: {mean.mean:.3g}, {counted(sizes[mean.label], 'sample')}"
            )
            for mean in means
            if mean.epoch == last and mean.label in sizes
        ]
    drawn = plots.as_html(plots.curves(curves, "epoch"), slug("means", statistic))
    if any(points.values()):
        figure = plots.scatter(points, "training samples of the class", name, logarithmic=_tail(points))
        drawn += plots.as_html(figure, slug("sizes", statistic))
    return f"<h3>{escape(name)}</h3>\n{drawn}"


def _groups(means: Sequence[ClassMean], sizes: Mapping[str, int]) -> dict[str, list[ClassMean]]:
    """Return the means of all classes, and of those with many, medium and few samples if there are such."""
    labels = list(sizes)
    groups: dict[str, list[ClassMean]] = {}
    for name, chosen in frequency(torch.tensor([sizes[label] for label in labels])).items():
        members = {label for label, inside in zip(labels, chosen.tolist(), strict=True) if inside}
        own = [mean for mean in means if mean.label in members]
        groups |= {str(name): own} if own else {}
    return {"all": list(means)} | (groups if len(groups) > 1 else {})


def _by_epoch(means: Sequence[ClassMean]) -> list[tuple[int, float]]:
    """Return the mean over all anchors of each epoch."""
    epochs = sorted({mean.epoch for mean in means})
    curve: list[tuple[int, float]] = []
    for epoch in epochs:
        own = [mean for mean in means if mean.epoch == epoch]
        curve.append((epoch, sum(mean.mean * mean.count for mean in own) / sum(mean.count for mean in own)))
    return curve


def _tail(points: Mapping[str, Sequence[plots.Point]]) -> bool:
    sizes = [point.x for of in points.values() for point in of]
    return min(sizes) > 0 and max(sizes) >= 5 * min(sizes)
