"""Scores of one run: all of them, by class and label, its calibration, its robustness, and choices by validation."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from likewise.diagnostics import plots
from likewise.evaluation import Calibration, Difference, Group, Robustness, Score, paired_difference
from likewise.evaluation.predictions import ACCURACY, F1, THIRDS
from likewise.evaluation.probe_quality import CLEAN_ACCURACY, CONFIDENCE
from likewise.report.elements import (
    difference_words,
    dot_of,
    element,
    folded,
    heading,
    leading,
    limit_words,
    sentence,
    slug,
    table,
)
from likewise.report.run_view import KINDS, Content, RunView, Section
from likewise.runs.scores import ALL, ENCODER, format_count, format_score, format_settings, marked, remarks

BASELINES = tuple(feature_kind for feature_kind in KINDS if feature_kind != ENCODER)
MAX_CLASSES = 40  # shown classes or labels
MAX_PAIRS = 12  # pairs of confused classes in a table
ByGroup = Mapping[tuple[str, str, str], Mapping[Group, Score]]
"""The score of each group, by evaluation, metric and features."""


class ScoresSection(Section):
    """All scores over the test samples, next to those of the encoder as it began and of raw inputs."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        every = {name: views[0].by_features(*name) for name in views[0].headlines}
        if not every:
            return None
        metrics = {name: scores[ENCODER].metric for name, scores in every.items()}
        dots = {
            ", ".join(name): {feature_kind: dot_of(score) for feature_kind, score in scores.items()}
            for name, scores in every.items()
            if metrics[name].is_share and metrics[name].better != "lower"
        }
        figure = plots.as_html(plots.dots(dots, "score on the test part, %"), "scores") if dots else Markup()
        baselines = [name for name in BASELINES if any(name in scores for scores in every.values())]
        errors = any(metric.better == "lower" for metric in metrics.values())
        introduction = sentence("scores", errors=errors, baselines=baselines)
        return Content("Scores", introduction, figure + _tabulate_scores(views[0], every))


def lead(view: RunView) -> str:
    """Return a card for the first score of each evaluation, for pairs in each direction."""
    cards = [_card(view, *first) for first in leading(view.headlines)]
    return element("cards", cards) if cards else ""


def difference_from_baseline(view: RunView, feature_kind: str, evaluation: str, metric: str) -> Difference | None:
    """Compare the encoder with other features, paired; None where either was not evaluated, or on fewer samples."""
    kinds, scores = (ENCODER, feature_kind), view.by_features(evaluation, metric)
    ours, theirs = (view.outcomes.get((evaluation, metric, name, "test")) for name in kinds)
    if ours is None or theirs is None or not scores.keys() >= set(kinds):
        return None
    same = scores[ENCODER].protocol == scores[feature_kind].protocol
    return paired_difference(ours, theirs, view.unseen_classes(ours)) if same else None


def _card(view: RunView, evaluation: str, metric: str) -> tuple[str, str, list[str]]:
    theirs = view.by_features(evaluation, metric)
    ours = theirs.pop(ENCODER)
    value, _, interval = format_score(ours).partition(" [")
    lines = [f"95 % interval [{interval}"]
    for feature_kind, score in theirs.items():
        protocol = format_settings(score.protocol) if score.protocol != ours.protocol else ""
        lines.append(f"{feature_kind} {format_score(score)}" + (f", {protocol}" if protocol else ""))
        difference = difference_from_baseline(view, feature_kind, evaluation, metric)
        if difference is not None:
            lines.append(f"difference {difference_words(difference)}" + (" points" if ours.metric.is_share else ""))
    return marked(f"{evaluation}, {metric}", ours.metric), value, [*lines, *ours.notes]


def _tabulate_scores(view: RunView, every: Mapping[tuple[str, str], Mapping[str, Score]]) -> Markup:
    lines: list[list[str]] = []
    chosen: list[list[str]] = []
    for (evaluation, metric), scores in every.items():
        ours, name = scores[ENCODER], f"{evaluation}, {metric}"
        line = [marked(name, ours.metric), format_score(ours)]
        for feature_kind in BASELINES:
            difference = difference_from_baseline(view, feature_kind, evaluation, metric)
            line.append("" if feature_kind not in scores else format_score(scores[feature_kind]))
            line.append("" if difference is None else difference_words(difference, share=ours.metric.is_share))
        lines.append([*line, format_count(ours.count, ours.counted)])
        chosen += [[name, feature_kind, remark] for feature_kind, score in scores.items() if (remark := remarks(score))]
    titles = (title for feature_kind in BASELINES for title in (feature_kind, f"encoder less {feature_kind}"))
    head = ["", "encoder", *titles, "mean of"]
    filled = [column for column in range(len(head)) if any(line[column] for line in lines)]
    body = table([head[column] for column in filled], [[line[column] for column in filled] for line in lines])
    return body + (folded("Choices", table(["", "features", "choices"], chosen)) if chosen else "")


class CalibrationSection(Section):
    """Reliability diagram of the linear probe."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        lines = {feature_kind: bins for feature_kind in KINDS if (bins := _bins(views[0], feature_kind))}
        if not lines:
            return None
        figure = plots.with_intervals(lines, "mean confidence, %", "accuracy, %", diagonal=True)
        return Content("Calibration", sentence("calibration"), plots.as_html(figure, "reliability"))


def _bins(view: RunView, feature_kind: str) -> list[tuple[float, plots.Dot]]:
    scores = {
        (metric, group): score
        for (evaluation, metric, features, group), score in view.test_scores.items()
        if (evaluation, features, group.kind) == (Calibration.name, feature_kind, CONFIDENCE.name)
    }
    bins = sorted({group for _, group in scores}, key=lambda group: scores[CONFIDENCE.name, group].value)
    return [(100 * scores[CONFIDENCE.name, group].value, dot_of(scores[ACCURACY.name, group])) for group in bins]


class RobustnessSection(Section):
    """Accuracy under each corruption and severity."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        by_corruption: dict[str, dict[str, Score]] = {}
        for (evaluation, _, feature_kind, group), score in views[0].test_scores.items():
            if (evaluation, feature_kind, group.kind) == (Robustness.name, ENCODER, "corruption"):
                severity = f"severity {score.protocol['severity']}"
                by_corruption.setdefault(score.protocol["corruption"], {})[severity] = score
        clean = views[0].test_scores.get((Robustness.name, CLEAN_ACCURACY.name, ENCODER, ALL))
        if not by_corruption or clean is None:
            return None
        dots = {"clean": {"clean": dot_of(clean)}}
        severities = sorted({severity for scores in by_corruption.values() for severity in scores})
        rows: list[list[str]] = []
        for name, scores in by_corruption.items():
            dots[name] = {severity: dot_of(score) for severity, score in scores.items()}
            rows.append([name, *(format_score(scores[level]) if level in scores else "" for level in severities)])
        figure = plots.as_html(plots.dots(dots, "accuracy on the test part, %"), "robustness")
        introduction = sentence("robustness", clean=format_score(clean))
        return Content("Robustness", introduction, figure + table(["", *severities], rows))


class ChoicesSection(Section):
    """The validation score of every setting tried by an evaluation, and its choice."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        chosen = {_kind_of(score): score.settings for score in views[0].test_scores.values()}
        groups: defaultdict[tuple[str, str], list[Score]] = defaultdict(list)
        for score in views[0].scores:
            if score.part == "validation" and score.epoch is None and score.group == ALL and _kind_of(score) in chosen:
                groups[_kind_of(score)].append(score)
        tried = [score for scores in groups.values() if len(scores) > 1 for score in scores]
        if not tried:
            return None
        panels: dict[str, tuple[str, dict[str, list[plots.Tried]]]] = {}
        rows: list[list[str]] = []
        for score in tried:
            name, feature_kind = _kind_of(score)
            best = score.settings == chosen[name, feature_kind]
            cells = [format_settings(score.settings), format_score(score), "chosen" if best else ""]
            rows.append([name, feature_kind, *cells])
            setting, number, rest = axis(score.settings)
            if score.metric.is_share and number is not None:
                value, low, high = (100 * bound for bound in (score.value, score.low, score.high))
                point = plots.Tried(number, value, low, high, best)
                panels.setdefault(name, (setting, {}))[1].setdefault(", ".join([feature_kind, *rest]), []).append(point)
        for _, lines in panels.values():
            for line in lines.values():
                line.sort()
        figure = plots.as_html(plots.choices(panels), "choices") if panels else ""
        rows.sort(key=lambda row: not row[-1])  # the chosen setting comes first
        head = ["", "features", "setting", "validation score", ""]
        return Content("Choices", sentence("choices"), figure + table(head, rows))


def _kind_of(score: Score) -> tuple[str, str]:
    return f"{score.evaluation}, {score.metric}", score.features


def axis(settings: Mapping[str, Any]) -> tuple[str, float | None, list[str]]:
    """Return the first setting that is a positive number, its value, and the other settings in words."""
    first = next((name for name, value in settings.items() if isinstance(value, (int, float)) and value > 0), None)
    remaining = [format_settings({name: value}) for name, value in settings.items() if name != first]
    return first or "", None if first is None else settings[first], remaining


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
        counts = torch.bincount(cells, minlength=many * many).view(many, many)  # by class, and by prediction
        wrong = counts.clone().fill_diagonal_(0)
        if not wrong.any():
            return None
        mistakes = wrong.sum(dim=0) + wrong.sum(dim=1)  # into the class, and out of it
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
