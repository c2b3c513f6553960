"""Differences between settings class by class."""

from collections.abc import Sequence
from html import escape

from likewise.diagnostics import plots
from likewise.evaluation import Difference
from likewise.report.comparison import difference
from likewise.report.section import Section, table
from likewise.report.settings import Setting, settings_of
from likewise.report.subject import Subject
from likewise.report.words import difference_words, slug
from likewise.scores import ENCODER, Group

MOST = 40  # classes that are shown
MOST_SETTINGS = 6  # that are compared with the first
SENTENCE = (
    "What each class gains over the first setting, in points, with 95 % intervals, paired like the differences above. "
    "Of 20 classes without a difference, about one interval leaves out 0 by chance."
)


def section(subjects: Sequence[Subject]) -> Section | None:
    """Compare several settings by the scores of classes."""
    settings = settings_of(subjects)
    if len(settings) < 2:
        return None
    first, *others = settings
    keys = dict.fromkeys(key for subject in first.subjects for key in subject.test_scores)
    classes: dict[tuple[str, str], list[Group]] = {}
    for evaluation, metric, kind, group in keys:
        if kind == ENCODER and group.kind == "class":
            classes.setdefault((evaluation, metric), []).append(group)
    body, sentence = "", SENTENCE
    for (evaluation, metric), names in classes.items():
        found = {other.name: _of_classes(first, other, evaluation, metric, names) for other in others[:MOST_SETTINGS]}
        found = {name: of for name, of in found.items() if of}
        if found:
            shown = _largest(names, list(found.values()))
            if len(shown) < len(names) and sentence == SENTENCE:
                sentence += f" Shown are the {MOST} of {len(names):,} classes with the largest differences."
            body += _of_evaluation(evaluation, metric, found, shown)
    if not body:
        return None
    if len(others) > MOST_SETTINGS:
        sentence += f" Shown are the first {MOST_SETTINGS} settings."
    return Section(f"Classes, compared with {first.name}", sentence, body)


def _of_classes(
    first: Setting, other: Setting, evaluation: str, metric: str, names: Sequence[Group]
) -> dict[Group, Difference]:
    found = {name: difference(first, other, evaluation, metric, name) for name in names}
    return {name: of[0] for name, of in found.items() if not isinstance(of, str)}


def _largest(names: Sequence[Group], found: Sequence[dict[Group, Difference]]) -> list[Group]:
    """Return the classes with the largest differences, in their order."""
    sizes = {name: max((abs(of[name].value) for of in found if name in of), default=0.0) for name in names}
    largest = set(sorted(names, key=lambda name: -sizes[name])[:MOST])
    return [name for name in names if name in largest]


def _of_evaluation(
    evaluation: str, metric: str, found: dict[str, dict[Group, Difference]], shown: Sequence[Group]
) -> str:
    rows: dict[str, dict[str, plots.Dot]] = {group.name: {} for group in shown}
    for setting, of in found.items():
        for name in shown:
            if name in of:
                value, low, high = (100 * bound for bound in (of[name].value, of[name].low, of[name].high))
                rows[name.name][setting] = plots.Dot(value, low, high, difference_words(of[name]))
    figure = plots.dots(rows, "difference, points", zero=True)
    lines = [
        [str(name), *(difference_words(of[name]) if name in of else "" for of in found.values())] for name in shown
    ]
    return (
        f"<h3>{escape(f'{evaluation}, {metric}')}</h3>\n"
        + plots.as_html(figure, slug("differences", evaluation, metric))
        + table(["", *found], lines)
    )
