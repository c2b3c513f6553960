"""What is told of scores as they come: a line for each, and a table of classes."""

from collections.abc import Collection, Iterator

from likewise.evaluation import Features, Result, Score, paired_difference
from likewise.evaluation.predictions import MACRO, MEAN_PRECISION
from likewise.report.formatting import difference_words
from likewise.score_words import aligned, one_line, remarks, score_words
from likewise.scores import ALL, ENCODER, RAW, Outcomes

LISTED_CLASSES = 20  # with more classes, only the report shows them all


def headline(result: Result, raw: Result | None, unseen: Features | None) -> Iterator[str]:
    """Yield a line for each score that is shown; unseen are test features of classes that are not trained on."""
    for score in result.headline:
        if score.metric.shown:
            yield _line(score, result, raw, unseen)


def _line(score: Score, result: Result, raw_found: Result | None, unseen: Features | None) -> str:
    """Write a score; next to it that of raw inputs, and where both are of the same samples the paired difference."""
    line = f"{score.evaluation}, {score.metric}: {score_words(score)}"
    raw = next((other for other in raw_found.headline if other.metric == score.metric), None) if raw_found else None
    if raw is not None and raw_found is not None:
        line += f"; raw inputs {score_words(raw)}"
        ours, theirs = (_outcomes(measured, score.metric.name) for measured in (result, raw_found))
        if ours is not None and theirs is not None and raw.protocol == score.protocol:
            classes = None if unseen is None or ours.classes is not None else unseen.groups_of(ours.rows)
            apart = paired_difference(ours, theirs, classes)
            line += f", difference {difference_words(apart, share=score.metric.is_share)}"
    said = remarks(score)
    return f"{line}; {said}" if said else line


def _outcomes(result: Result, metric: str) -> Outcomes | None:
    return next((outcomes for outcomes in result.outcomes if outcomes.metric == metric), None)


def class_table(scores: Collection[Score], test: Features, evaluations: Collection[str]) -> list[str]:
    """Write a table of classes with many, medium and few training samples, and of each class where few exist."""
    final = [score for score in scores if score.epoch is None and score.part == "test" and score.group != ALL]
    final = [score for score in final if score.evaluation in evaluations]
    final = [score for score in final if score.group.kind in {"frequency", "class"}]
    final = [score for score in final if score.metric != MACRO]  # of labels by frequency, mAP says enough
    if len(test.names) > LISTED_CLASSES:
        final = [score for score in final if score.group.kind != "class"]
    columns = list(dict.fromkeys((score.evaluation, score.features) for score in final))
    rows = list(dict.fromkeys(str(score.group) for score in final))
    if not rows:
        return []
    cells = {(str(score.group), score.evaluation, score.features): score_words(score) for score in final}
    corner = MEAN_PRECISION.name if {score.metric for score in final} == {MEAN_PRECISION} else ""
    table = [[corner, *(f"{evaluation}{'' if what == ENCODER else f', {RAW}'}" for evaluation, what in columns)]]
    table += [[one_line(row), *(cells.get((row, *column), "") for column in columns)] for row in rows]
    return aligned(table, right=True)
