"""Several settings next to each other: their scores, and their differences class by class and sample by sample."""

from collections.abc import Mapping, Sequence

import torch
from markupsafe import Markup

from likewise.diagnostics import plots
from likewise.evaluation import Difference
from likewise.evaluation.features import id_words
from likewise.report.comparison import OTHER_SAMPLES, compared, difference, head_of_cells, same_test, verdict
from likewise.report.elements import (
    difference_words,
    heading,
    limit_words,
    list_file,
    paragraphs,
    sentence,
    slug,
    table,
)
from likewise.report.run_view import Content, RunView, Section
from likewise.report.setting import Setting, settings_of
from likewise.runs.scores import ENCODER, Group, marked

MAX_ROWS = 400  # of the table of scores
MAX_CLASSES = 40  # shown classes
MAX_SETTINGS = 6  # compared with the first, class by class
MAX_SAMPLES = 12  # shown samples of each pair of settings


class ComparisonSection(Section):
    """The scores of several settings, with paired differences to the first, and a verdict."""

    runs = "several"

    def content(self, views: Sequence[RunView]) -> Content | None:
        settings = settings_of(views)
        rows = compared(settings)
        if not rows:
            return None
        dots: dict[str, dict[str, plots.Dot]] = {}
        for row in rows:
            if row.metric.is_share and row.metric.better != "lower":
                dots.setdefault(row.name, {})[row.setting] = row.dot
        figure = plots.as_html(plots.dots(dots, "score on the test part, %"), "compared") if dots else ""
        head = ["", "setting", *head_of_cells(settings[0].name)]
        lines = [[marked(row.name, row.metric), row.setting, *row.cells] for row in rows]
        written = table(head, lines, most=MAX_ROWS, file="compare.csv")
        introduction = sentence("comparison", unpaired=any(row.unpaired == OTHER_SAMPLES for row in rows))
        return Content("Scores", introduction, paragraphs(verdict(rows), "lead") + figure + written)


class ClassDifferencesSection(Section):
    """The gain of each class over the first setting."""

    runs = "several"

    def content(self, views: Sequence[RunView]) -> Content | None:
        first, *other_settings = settings_of(views)
        keys = dict.fromkeys(key for view in first.views for key in view.test_scores)
        classes: dict[tuple[str, str], list[Group]] = {}
        for evaluation, metric, feature_kind, group in keys:
            if feature_kind == ENCODER and group.kind == "class":
                classes.setdefault((evaluation, metric), []).append(group)
        body, most = Markup(), 0
        for (evaluation, metric), groups in classes.items():
            differences: dict[Group, dict[str, Difference]] = {}
            for group in groups:
                for other in other_settings[:MAX_SETTINGS]:
                    outcome = difference(first, other, evaluation, metric, group)
                    if not isinstance(outcome, str):
                        differences.setdefault(group, {})[other.name] = outcome[0]
            if differences:
                most = max(most, len(differences))
                body += _of_evaluation(evaluation, metric, differences)
        if not body:
            return None
        introduction = sentence("class_differences")
        introduction += limit_words(MAX_CLASSES, most, "classes, with the largest differences")
        introduction += limit_words(MAX_SETTINGS, len(other_settings), "settings")
        return Content(f"Classes, compared with {first.name}", introduction, body)


class SampleDifferencesSection(Section):
    """The test samples that kNN gets right with only one of two settings."""

    runs = "several"

    def content(self, views: Sequence[RunView]) -> Content | None:
        first, *other_settings = settings_of(views)
        body = Markup()
        for number, other in enumerate(other_settings[:MAX_SETTINGS], start=2):
            body += _list_disagreements(first, other, f"settings-1-and-{number}.csv")
        return Content("Samples that settings differ in", sentence("apart", shown=MAX_SAMPLES), body) if body else None


def _list_disagreements(first: Setting, other: Setting, file: str) -> Markup:
    """Return the samples that only one of two settings gets right; empty where they can't be paired or never differ."""
    test = first.first.test_part
    if test is None or test.label_kind != "classes" or not same_test(first.first, other.first):
        return Markup()
    predictions = [view.predicted(test) for view in (first.first, other.first)]
    if predictions[0] is None or predictions[1] is None:
        return Markup()
    both = torch.stack([predictions[0], predictions[1]])
    right = both == test.classes
    apart = ((right[0] != right[1]) & (both >= 0).all(dim=0)).nonzero().flatten()
    if not len(apart):
        return Markup()
    classes = torch.stack([test.classes, *both])[:, apart].T.tolist()
    rows = [[name, *(test.names[label] for label in row)] for name, row in zip(test[apart].ids, classes, strict=True)]
    called = id_words(test[apart[:MAX_SAMPLES]])
    few = [[name, *cells] for name, (_, *cells) in zip(called, rows, strict=False)]
    head = ["id", "class", first.name, other.name]
    return heading(f"{first.name} and {other.name}") + table(head, few) + list_file(file, head, rows)


def _of_evaluation(evaluation: str, metric: str, by_group: Mapping[Group, Mapping[str, Difference]]) -> Markup:
    sizes = {group: max(abs(gain.value) for gain in differences.values()) for group, differences in by_group.items()}
    largest = sorted(by_group, key=lambda group: -sizes[group])[:MAX_CLASSES]
    settings = list(dict.fromkeys(name for differences in by_group.values() for name in differences))
    dots: dict[str, dict[str, plots.Dot]] = {}
    rows: list[list[str]] = []
    for group, differences in by_group.items():
        if group in largest:
            texts = {name: difference_words(gain) for name, gain in differences.items()}
            rows.append([str(group), *(texts.get(name, "") for name in settings)])
            percents = {name: (100 * gain.value, 100 * gain.low, 100 * gain.high) for name, gain in differences.items()}
            dots[group.name] = {name: plots.Dot(*bounds, texts[name]) for name, bounds in percents.items()}
    figure = plots.as_html(plots.dots(dots, "difference, points", zero=True), slug("differences", evaluation, metric))
    return heading(f"{evaluation}, {metric}") + figure + table(["", *settings], rows)
