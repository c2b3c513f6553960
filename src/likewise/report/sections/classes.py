"""Classes and labels of one run: the errors of each, confusions, and the scores of labels."""

from collections.abc import Mapping, Sequence

import torch
from markupsafe import Markup
from torch import Tensor

from likewise.diagnostics import plots
from likewise.evaluation.predictions import F1, THIRDS
from likewise.report.elements import heading, sentence, table
from likewise.report.formatting import dot_of, limit_words, slug
from likewise.report.run_view import KINDS, RunView
from likewise.report.sections.section import Content, Section
from likewise.runs.score_format import format_count, format_score
from likewise.runs.scores import ALL, ENCODER, Group, Score

MAX_CLASSES = 40  # classes or labels that are shown
MAX_PAIRS = 12  # pairs of confused classes in a table
ByGroup = Mapping[tuple[str, str, str], Mapping[Group, Score]]
"""The score of each group, by evaluation, metric and features."""


class ClassesSection(Section):
    """Errors by class, and by how many training samples a class has."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        by_group = _by_group(views[0])
        groups = list(dict.fromkeys(group for scores in by_group.values() for group in scores))
        classes = [group for group in groups if group.kind == "class"]
        tail = [group for group in groups if group.kind != "class"]
        if not classes:
            return None
        shown = _worst(classes, [scores for (*_, feature_kind), scores in by_group.items() if feature_kind == ENCODER])
        introduction = sentence("classes", tail=tail)
        introduction += limit_words(len(shown), len(classes), "classes, with the lowest scores")
        figures = Markup().join(_errors(by_group, *name, shown) for name in dict.fromkeys(key[:2] for key in by_group))
        columns = {", ".join(key): scores for key, scores in by_group.items()}
        counts: dict[Group, int] = {}
        for group in (*tail, *shown):
            counts[group] = max(scores[group].count for scores in by_group.values() if group in scores)
        return Content("Classes", introduction, figures + _tabulate_groups(columns, counts, "samples", MAX_CLASSES + 3))


def _by_group(view: RunView) -> ByGroup:
    by_group: dict[tuple[str, str, str], dict[Group, Score]] = {}
    for (evaluation, metric, feature_kind, group), score in view.test_scores.items():
        if group != ALL and score.metric.is_share and feature_kind in KINDS:
            by_group.setdefault((evaluation, metric, feature_kind), {})[group] = score
    return {key: groups for key, groups in by_group.items() if any(group.kind == "class" for group in groups)}


def _worst(classes: Sequence[Group], scores: Sequence[Mapping[Group, Score]]) -> list[Group]:
    totals = {name: sum(groups[name].value for groups in scores if name in groups) for name in classes}
    lowest = sorted(classes, key=totals.__getitem__)[:MAX_CLASSES]
    return [name for name in classes if name in lowest]


def _errors(by_group: ByGroup, evaluation: str, metric: str, shown: Sequence[Group]) -> Markup:
    drawn = {
        feature_kind: {group.name: dot_of(scores[group], missed=True) for group in shown if group in scores}
        for feature_kind in KINDS
        if (scores := by_group.get((evaluation, metric, feature_kind)))
    }
    up = "wrong, %" if metric == "accuracy" else f"100 % less {metric}, %"
    figure = plots.as_html(plots.bars(drawn, "class", up), slug("errors", evaluation, metric))
    return heading(f"{evaluation}, {metric}") + figure


def _tabulate_groups(
    columns: Mapping[str, Mapping[Group, Score]], counts: Mapping[Group, int], unit: str, most: int
) -> Markup:
    rows: list[list[str]] = []
    for group, count in counts.items():
        name = group.name if group.kind == "label" else str(group)
        rows.append([name, *_cells(columns, group), f"{count:,}"])
    return table(["", *columns, unit], rows, most=most)


def _cells(columns: Mapping[str, Mapping[Group, Score]], group: Group) -> list[str]:
    return [format_score(scores[group]) if group in scores else "" for scores in columns.values()]


class ConfusionSection(Section):
    """The classes that kNN confuses."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        test = views[0].test_part
        predicted = None if test is None else views[0].predicted(test)
        if test is None or test.label_kind != "classes" or predicted is None:
            return None
        many, known = len(test.names), predicted >= 0
        cells = test.classes[known] * many + predicted[known]
        counts = torch.bincount(cells, minlength=many * many).view(many, many)  # by class, and what was predicted
        wrong = counts.clone().fill_diagonal_(0)
        if not wrong.any():
            return None
        mistakes = wrong.sum(dim=0) + wrong.sum(dim=1)  # made, or attracted
        shown = mistakes.argsort(descending=True, stable=True)[:MAX_CLASSES].sort().values
        names = [test.names[label] for label in shown.tolist()]
        shares = counts.double() / counts.sum(dim=1, keepdim=True).clamp(min=1)
        classes = int((counts.sum(dim=1) > 0).sum())
        introduction = sentence("confusion") + limit_words(len(shown), classes, "classes, those most often confused")
        figure = plots.as_html(plots.matrix(shares[shown][:, shown], names, "share"), "confusion")
        return Content("Confusion", introduction, figure + _tabulate_confusions(wrong, counts, test.names))


def _tabulate_confusions(wrong: Tensor, counts: Tensor, names: tuple[str, ...]) -> Markup:
    order = wrong.flatten().argsort(descending=True, stable=True)[:MAX_PAIRS].tolist()
    rows = [
        [names[true], names[predicted], f"{int(wrong[true, predicted]):,}", f"{int(counts[true].sum()):,}"]
        for true, predicted in (divmod(index, len(names)) for index in order)
        if wrong[true, predicted]
    ]
    return table(["class", "taken for", "samples", "of"], rows)


class LabelsSection(Section):
    """F1 and average precision of each label, by how many training samples have it."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        scores, sizes = views[0].test_scores, views[0].class_sizes
        by_metric: dict[str, dict[Group, Score]] = {}
        for (evaluation, metric, feature_kind, group), score in scores.items():
            if feature_kind == ENCODER and group.kind == "label":
                by_metric.setdefault(f"{evaluation}, {metric}", {})[group] = score
        if not by_metric:
            return None
        drawn = [_label_scores(groups, sizes) for name, groups in by_metric.items() if name.endswith(f", {F1.name}")]
        first, thirds = next(iter(by_metric.values())), _thirds(scores)
        counts = {group: sizes.get(group.name, 0) for group in sorted(first, key=lambda group: first[group].value)}
        body = thirds + Markup().join(drawn) + _tabulate_groups(by_metric, counts, "training samples", MAX_CLASSES)
        return Content("Labels", sentence("labels", thirds=thirds), body)


def _thirds(scores: Mapping[tuple[str, str, str, Group], Score]) -> Markup:
    columns: dict[str, dict[Group, Score]] = {}
    for (*name, feature_kind, group), score in scores.items():
        if group in THIRDS:
            title = ", ".join(name if feature_kind == ENCODER else [*name, feature_kind])
            columns.setdefault(title, {})[group] = score
    groups = dict.fromkeys(group for column in columns.values() for group in column)
    return table(["", *columns], [[str(group), *_cells(columns, group)] for group in groups]) if groups else Markup()


def _label_scores(scores: Mapping[Group, Score], sizes: Mapping[str, int]) -> Markup:
    first = next(iter(scores.values()))
    points: list[plots.Point] = []
    for group, score in scores.items():
        size = sizes.get(group.name, 0)
        text = f"{group.name}: {format_score(score)}, {format_count(size, 'sample')}"
        points.append(plots.Point(max(1, size), 100 * score.value, text))
    up = f"{first.metric}, %"
    figure = plots.scatter({first.evaluation: points}, "training samples with the label", up, logarithmic=True)
    named = slug("labels", first.evaluation, str(first.metric))
    return heading(f"{first.evaluation}, {first.metric}") + plots.as_html(figure, named)
