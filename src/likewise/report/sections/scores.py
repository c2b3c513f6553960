"""Scores of one run: all of them, its calibration, its robustness, and what validation chose."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from likewise.diagnostics import plots
from likewise.evaluation import Calibration, Difference, Robustness, paired_difference
from likewise.evaluation.predictions import ACCURACY
from likewise.evaluation.probe_quality import CLEAN_ACCURACY, CONFIDENCE
from likewise.report.elements import element, folded, sentence, table
from likewise.report.formatting import difference_words, dot_of, leading
from likewise.report.run_view import KINDS, RunView
from likewise.report.sections.section import Content, Section
from likewise.runs.score_format import format_count, format_score, format_settings, marked, remarks
from likewise.runs.scores import ALL, ENCODER, Score

BASELINES = tuple(feature_kind for feature_kind in KINDS if feature_kind != ENCODER)


class ScoresSection(Section):
    """All scores over the test samples, next to the encoder as it began and raw inputs."""

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
        introduction = sentence("scores", errors=errors, others=baselines)
        return Content("Scores", introduction, figure + _tabulate_scores(views[0], every))


def lead(view: RunView) -> str:
    """Return a card for the first score of each evaluation, of pairs in each direction."""
    cards = [_card(view, *first) for first in leading(view.headlines)]
    return element("cards", cards) if cards else ""


def encoder_less(view: RunView, feature_kind: str, evaluation: str, metric: str) -> Difference | None:
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
        difference = encoder_less(view, feature_kind, evaluation, metric)
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
            difference = encoder_less(view, feature_kind, evaluation, metric)
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
    """The validation score of every setting that an evaluation tried, and which it chose."""

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
        rows.sort(key=lambda row: not row[-1])  # what was chosen comes first
        head = ["", "features", "setting", "validation score", ""]
        return Content("Choices", sentence("choices"), figure + table(head, rows))


def _kind_of(score: Score) -> tuple[str, str]:
    return f"{score.evaluation}, {score.metric}", score.features


def axis(settings: Mapping[str, Any]) -> tuple[str, float | None, list[str]]:
    """Return the first setting that is a positive number, its value, and the other settings in words."""
    first = next((name for name, value in settings.items() if isinstance(value, (int, float)) and value > 0), None)
    remaining = [format_settings({name: value}) for name, value in settings.items() if name != first]
    return first or "", None if first is None else settings[first], remaining
