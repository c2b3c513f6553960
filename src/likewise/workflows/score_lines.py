"""The lines that report scores as they come: one for each, and a table of classes."""

from collections.abc import Collection, Iterator, Mapping

from likewise.evaluation import Features, Result, Score, paired_difference
from likewise.evaluation.predictions import MACRO, MEAN_PRECISION
from likewise.report.elements import difference_words
from likewise.runs.score_format import aligned, format_score, one_line, remarks
from likewise.runs.scores import ENCODER, Outcomes

MAX_LISTED_CLASSES = 20  # with more classes, only the report shows them all


def headline(result: Result, baselines: Mapping[str, Result], unseen: Features | None) -> Iterator[str]:
    """Yield a line for each score that is shown, beside those of other features; `unseen` are of untrained classes."""
    for score in result.headline:
        if score.metric.shown:
            comparisons = [_format_comparison(score, result, name, other, unseen) for name, other in baselines.items()]
            parts = [f"{score.evaluation}, {score.metric}: {format_score(score)}", *comparisons, remarks(score)]
            yield "; ".join(filter(None, parts))


def _format_comparison(score: Score, result: Result, name: str, other: Result, unseen: Features | None) -> str:
    theirs = next((candidate for candidate in other.headline if candidate.metric == score.metric), None)
    if theirs is None:
        return ""
    line = f"{name} {format_score(theirs)}"
    outcomes, beside = (_outcomes(measured, score.metric.name) for measured in (result, other))
    if outcomes is None or beside is None or theirs.protocol != score.protocol:
        return line
    classes = None if unseen is None or outcomes.classes is not None else unseen.groups_of(outcomes.rows)
    apart = paired_difference(outcomes, beside, classes)
    return f"{line}, difference {difference_words(apart, share=score.metric.is_share)}"


def _outcomes(result: Result, metric: str) -> Outcomes | None:
    return next((outcomes for outcomes in result.outcomes if outcomes.metric == metric), None)


def class_table(scores: Collection[Score], test: Features, evaluations: Collection[str]) -> list[str]:
    """Write a table of classes with many, medium and few training samples, and of each class where few exist."""
    groups = {"frequency"} if len(test.names) > MAX_LISTED_CLASSES else {"frequency", "class"}
    final = [score for score in scores if score.epoch is None and score.part == "test" and score.group.kind in groups]
    final = [score for score in final if score.evaluation in evaluations]
    final = [score for score in final if score.metric != MACRO]  # of labels by frequency, mAP says enough
    columns = list(dict.fromkeys((score.evaluation, score.features) for score in final))
    rows = list(dict.fromkeys(str(score.group) for score in final))
    if not rows:
        return []
    cells = {(str(score.group), score.evaluation, score.features): format_score(score) for score in final}
    corner = MEAN_PRECISION.name if {score.metric for score in final} == {MEAN_PRECISION} else ""
    table = [[corner, *(f"{evaluation}{'' if what == ENCODER else f', {what}'}" for evaluation, what in columns)]]
    table += [[one_line(row), *(cells.get((row, *column), "") for column in columns)] for row in rows]
    return aligned(table, right=True)
