"""Scores of one run: all of them, its calibration, its robustness, and what validation chose."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from likewise.diagnostics import plots
from likewise.evaluation import Calibration, Difference, Robustness, paired_difference
from likewise.evaluation.calibration import CONFIDENCE
from likewise.evaluation.predictions import ACCURACY
from likewise.evaluation.robustness import CLEAN_ACCURACY
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
        view = views[0]
        both = dict(_scores(view))
        if not both:
            return None
        shares = {
            name: {
                feature_kind: dot_of(score)
                for feature_kind, score in kinds.items()
                if score.metric.is_share and score.metric.better != "lower"
            }
            for name, kinds in both.items()
        }
        shares = {name: kinds for name, kinds in shares.items() if kinds}
        figure = plots.as_html(plots.dots(shares, "score on the test part, %"), "scores") if shares else Markup()
        baselines = [
            feature_kind for feature_kind in BASELINES if any(feature_kind in kinds for kinds in both.values())
        ]
        errors = any(score.metric.better == "lower" for kinds in both.values() for score in kinds.values())
        return Content(
            "Scores", sentence("scores", errors=errors, others=baselines), figure + _tabulate_scores(view, both)
        )


def lead(views: Sequence[RunView]) -> str:
    """Return a card for the first score of each evaluation, of pairs in each direction; empty for several runs."""
    if len(views) != 1:
        return ""
    cards = [_card(views[0], *first) for first in leading(views[0].headlines)]
    return element("cards", cards) if cards else ""


def encoder_less(view: RunView, feature_kind: str, evaluation: str, metric: str) -> Difference | None:
    """Compare the encoder with other features, paired; None where either was not evaluated, or on fewer samples."""
    kinds = ENCODER, feature_kind
    ours, theirs = (view.outcomes.get((evaluation, metric, name, "test")) for name in kinds)
    scores = [view.test_scores.get((evaluation, metric, name, ALL)) for name in kinds]
    protocols = [None if score is None else score.protocol for score in scores]
    if ours is None or theirs is None or protocols[1] is None or protocols[0] != protocols[1]:
        return None
    return paired_difference(ours, theirs, view.unseen_classes(ours))


def _card(view: RunView, evaluation: str, metric: str) -> tuple[str, str, list[str]]:
    ours = view.test_scores[evaluation, metric, ENCODER, ALL]
    value, _, interval = format_score(ours).partition(" [")
    lines = [f"95 % interval [{interval}"]
    for feature_kind in BASELINES:
        theirs = view.test_scores.get((evaluation, metric, feature_kind, ALL))
        if theirs is not None:
            difference = encoder_less(view, feature_kind, evaluation, metric)
            protocol = format_settings(theirs.protocol) if theirs.protocol != ours.protocol else ""
            lines.append(f"{feature_kind} {format_score(theirs)}" + (f", {protocol}" if protocol else ""))
            if difference is not None:
                lines.append(f"difference {difference_words(difference)}" + (" points" if ours.metric.is_share else ""))
    return marked(f"{evaluation}, {metric}", ours.metric), value, [*lines, *ours.notes]


def _scores(view: RunView) -> Iterator[tuple[str, dict[str, Score]]]:
    for evaluation, metric in view.headlines:
        scores = {feature_kind: view.test_scores.get((evaluation, metric, feature_kind, ALL)) for feature_kind in KINDS}
        yield (
            f"{evaluation}, {metric}",
            {feature_kind: score for feature_kind, score in scores.items() if score is not None},
        )


def _tabulate_scores(view: RunView, every: Mapping[str, Mapping[str, Score]]) -> Markup:
    lines: list[list[str]] = []
    chosen: list[list[str]] = []
    for (evaluation, metric), (name, kinds) in zip(view.headlines, every.items(), strict=True):
        ours = kinds[ENCODER]
        line = [marked(name, ours.metric), format_score(ours)]
        for feature_kind in BASELINES:
            difference = encoder_less(view, feature_kind, evaluation, metric)
            line.append("" if feature_kind not in kinds else format_score(kinds[feature_kind]))
            line.append("" if difference is None else difference_words(difference, share=ours.metric.is_share))
        lines.append([*line, format_count(ours.count, ours.counted)])
        chosen += [[name, feature_kind, remark] for feature_kind, score in kinds.items() if (remark := remarks(score))]
    titles = (title for feature_kind in BASELINES for title in (feature_kind, f"encoder less {feature_kind}"))
    head = ["", "encoder", *titles, "mean of"]
    filled = [column for column in range(len(head)) if any(line[column] for line in lines)]
    scores = table([head[column] for column in filled], [[line[column] for column in filled] for line in lines])
    return scores + (folded("Choices", table(["", "features", "choices"], chosen)) if chosen else "")


class CalibrationSection(Section):
    """Reliability diagram of the linear probe."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        lines = {feature_kind: _bins(views[0], feature_kind) for feature_kind in KINDS}
        lines = {feature_kind: bins for feature_kind, bins in lines.items() if bins}
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
        dots |= {
            name: {severity: dot_of(score) for severity, score in scores.items()}
            for name, scores in by_corruption.items()
        }
        severities = sorted({severity for scores in by_corruption.values() for severity in scores})
        rows = [
            [name, *(format_score(scores[severity]) if severity in scores else "" for severity in severities)]
            for name, scores in by_corruption.items()
        ]
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
            rows.append(
                [name, feature_kind, format_settings(score.settings), format_score(score), "chosen" if best else ""]
            )
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
    numbers = (name for name, value in settings.items() if isinstance(value, (int, float)) and value > 0)
    first = next(numbers, None)
    remaining = [format_settings({name: value}) for name, value in settings.items() if name != first]
    return first or "", None if first is None else settings[first], remaining
