"""Errors by class, and by how many training samples a class has."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from likewise.diagnostics import plots
from likewise.report.section import Section, table
from likewise.report.subject import KINDS, Subject
from likewise.report.words import dot_of, score_words, slug
from likewise.scores import ALL, ENCODER, Group, Score

MOST = 40  # classes that are shown
Found = Mapping[tuple[str, str, str], Mapping[Group, Score]]
"""For evaluation, metric and features the score of each group."""


def section(subjects: Sequence[Subject]) -> Section | None:
    """Show the errors of a single run."""
    if len(subjects) != 1:
        return None
    found = _by_group(subjects[0])
    groups = list(dict.fromkeys(group for of in found.values() for group in of))
    classes = [group for group in groups if group.kind == "class"]
    tail = [group for group in groups if group.kind != "class"]
    if not classes:
        return None
    shown = _worst(classes, [of for (*_, kind), of in found.items() if kind == ENCODER])
    sentence = (
        "What each class lacks to 100 %, with 95 % intervals: shorter is better. The table has the scores themselves."
    )
    if tail:
        sentence += " Many stands for classes with over 100 training samples, few for those with under 20."
    if len(shown) < len(classes):
        sentence += f" Shown are the {MOST} of {len(classes):,} classes with the lowest scores."
    body = "".join(_figure(found, evaluation, metric, shown) for evaluation, metric in _names(found))
    return Section("Classes", sentence, body + _table(found, [*tail, *shown]))


def _by_group(subject: Subject) -> Found:
    """Return the shares of groups, of evaluations with scores by class."""
    found: dict[tuple[str, str, str], dict[Group, Score]] = {}
    for (evaluation, metric, kind, group), score in subject.test_scores.items():
        if group != ALL and score.metric.is_share and kind in KINDS:
            found.setdefault((evaluation, metric, kind), {})[group] = score
    return {of: groups for of, groups in found.items() if any(group.kind == "class" for group in groups)}


def _names(found: Found) -> Iterable[tuple[str, str]]:
    return dict.fromkeys((evaluation, metric) for evaluation, metric, _ in found)


def _worst(classes: Sequence[Group], scores: Sequence[Mapping[Group, Score]]) -> list[Group]:
    """Return the classes with the lowest sums of scores, in their order."""
    if len(classes) <= MOST:
        return list(classes)
    sums = {name: sum(of[name].value for of in scores if name in of) for name in classes}
    lowest = set(sorted(classes, key=lambda name: sums[name])[:MOST])
    return [name for name in classes if name in lowest]


def _figure(found: Found, evaluation: str, metric: str, shown: Sequence[Group]) -> str:
    drawn = {
        kind: {one.name: dot_of(of[one], missed=True) for one in shown if one in of}
        for kind in KINDS
        if (of := found.get((evaluation, metric, kind)))
    }
    up = "wrong, %" if metric == "accuracy" else f"100 % less {metric}, %"
    figure = plots.as_html(plots.bars(drawn, "class", up), slug("errors", evaluation, metric))
    return f"<h3>{escape(f'{evaluation}, {metric}')}</h3>\n{figure}"


def _table(found: Found, groups: Sequence[Group]) -> str:
    head = ["", *(f"{evaluation}, {metric}, {kind}" for evaluation, metric, kind in found), "samples"]
    rows = [
        [
            str(group),
            *(score_words(of[group]) if group in of else "" for of in found.values()),
            f"{max(of[group].count for of in found.values() if group in of):,}",
        ]
        for group in groups
    ]
    return table(head, rows, most=MOST + 3)
