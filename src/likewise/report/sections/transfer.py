"""The scores of an encoder on other data, by the number of labels."""

from collections.abc import Sequence
from typing import final

from likewise.diagnostics import plots
from likewise.report.elements import paragraphs, sentence, table
from likewise.report.rows import head_of_cells
from likewise.report.run_view import RunView
from likewise.report.sections.section import Content, Section
from likewise.report.transfer import SCRATCH, TransferScore, verdict_on


@final
class TransferSection(Section):
    """The scores of a transfer by the number of labels, as curves and as a table."""

    runs = "any"

    def __init__(self, scores: Sequence[TransferScore]) -> None:
        self._scores = scores

    def content(self, views: Sequence[RunView]) -> Content | None:  # noqa: ARG002 - it has been given what it shows
        lines: dict[str, list[tuple[float, plots.Dot]]] = {}
        rows: list[list[str]] = []
        for score in self._scores:
            row, labelled = score.row, "" if score.labelled is None else f"{score.labelled:,.0f}"
            rows.append([row.setting, row.evaluation, labelled, *row.cells])
            if score.labelled is not None:
                dot = row.dot._replace(words=f"{row.evaluation}: {row.dot.words}")
                lines.setdefault(row.setting, []).append((score.labelled, dot))
        figure = plots.with_intervals(lines, "samples with a label", "accuracy on the test part, %", logarithmic=True)
        head = ["method", "labels", "samples with a label", *head_of_cells(SCRATCH, "accuracy")]
        body = paragraphs(verdict_on(self._scores), "lead") + plots.as_html(figure, "labels")
        return Content("Scores by number of labels", sentence("transfer"), body + table(head, rows, most=len(rows)))
