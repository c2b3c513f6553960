"""The scores of several settings next to each other, with paired differences to the first."""

from collections.abc import Sequence

from likewise.diagnostics import plots
from likewise.report.comparison import OTHER_SAMPLES, compared
from likewise.report.row import Row
from likewise.report.section import Section, paragraphs, table
from likewise.report.settings import settings_of
from likewise.report.subject import Subject
from likewise.report.verdict import verdict
from likewise.report.words import marked

MOST = 400  # rows of the table


def section(subjects: Sequence[Subject]) -> Section | None:
    """Compare several runs by their scores."""
    if len(subjects) < 2:
        return None
    settings = settings_of(subjects)
    rows = compared(settings)
    if not rows:
        return None
    dots: dict[str, dict[str, plots.Dot]] = {}
    for row in rows:
        if row.metric.is_share and row.metric.better != "lower":
            dot = plots.Dot(100 * row.value, 100 * row.low, 100 * row.high, f"{row.score_words}, over {row.interval}")
            dots.setdefault(row.name, {})[row.setting] = dot
    figure = plots.as_html(plots.dots(dots, "score on the test part, %"), "compared") if dots else ""
    judged = paragraphs(verdict(rows), "lead")
    return Section("Scores", _sentence(rows), judged + figure + _table(rows, settings[0].name))


def _sentence(rows: Sequence[Row]) -> str:
    sentence = (
        "Scores of the frozen encoders on the test part, with 95 % intervals. Over seeds: the mean of several runs, "
        "with Student's interval, which shows how much training varies. Over samples or classes: a single run with its "
        "own interval, which says nothing about other seeds. "
    )
    if any(row.difference is not None for row in rows):
        sentence += (
            "Differences are to the first setting: paired by seed, with Student's interval, or for single runs paired "
            "by test sample. Differences of percentages are in points. Where there is none, one interval in 20 leaves "
            "out 0 by chance. "
        )
    if any(row.unpaired == OTHER_SAMPLES for row in rows):
        sentence += (
            "Where the test samples, their labels or their names differ, no difference is given: it would be one "
            "between samples as much as between settings. "
        )
    return sentence + "The axis does not begin at 0."


def _table(rows: Sequence[Row], first: str) -> str:
    head = ["", "setting", "runs", "score", "interval over", f"difference to {first}", "paired over"]
    lines = [[marked(row.name, row.metric), row.setting, *row.cells] for row in rows]
    return table(head, lines, most=MOST, file="compare.csv")
