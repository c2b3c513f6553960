"""A row of a comparison, and how rows are written."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import final

from scipy.stats import t

from likewise.evaluation import Difference
from likewise.report.words import difference_words, is_error, number_words
from likewise.scores import ALL

ROUNDING = 1e-6  # of a mean: a smaller spread is that of floating-point numbers


@final
@dataclass(frozen=True)
class Row:
    """A score of a setting, and its difference to the first setting.

    Args:
        setting: The setting.
        evaluation: See `Score`.
        metric: See `Score`.
        runs: Runs that it is the mean of.
        value: The mean.
        low: Lower end of its 95 % interval.
        high: Upper end.
        interval: What the interval is over: seeds, or samples or classes of a single run.
        share: Whether it is a share, to be written in percent.
        difference: The mean difference to the first setting; None of the first itself, and where nothing can be paired.
        difference_low: Lower end of its 95 % interval.
        difference_high: Upper end.
        paired: What was paired, or why nothing was.
        subset: See `Score`.
        seconds: Mean seconds that a run trained; None where a run does not say.
        pairs: How many pairs the difference is the mean of.
    """

    setting: str
    evaluation: str
    metric: str
    runs: int
    value: float
    low: float
    high: float
    interval: str
    share: bool
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    paired: str = ""
    subset: str = ALL
    seconds: float | None = None
    pairs: int = 0

    @property
    def name(self) -> str:
        """Evaluation and metric, and the subset if there is one."""
        return ", ".join([self.evaluation, self.metric, *([] if self.subset == ALL else [self.subset])])

    @property
    def p_value(self) -> float:
        """The p-value of no difference, two-sided, that belongs to the interval by Student's distribution.

        1 where nothing is paired, and where all differences are equal, which says nothing of their spread.
        """
        if self.difference is None or self.difference_low is None or self.difference_high is None or self.pairs < 2:
            return 1.0
        freedom = self.pairs - 1
        error = (self.difference_high - self.difference_low) / 2 / float(t.ppf(0.975, freedom))
        centre = (self.difference_high + self.difference_low) / 2
        return 1.0 if error <= ROUNDING * abs(centre) else 2 * float(t.sf(abs(centre) / error, freedom))

    @property
    def score_words(self) -> str:
        """The mean with its interval; equal runs have none."""
        if self.runs > 1 and self.high - self.low <= ROUNDING * abs(self.value):
            mean = f"{100 * self.value:.2f} %" if self.share else f"{self.value:.4g}"
            return f"{mean}, all {self.runs} equal"
        if self.share:
            return f"{100 * self.value:.2f} % [{100 * self.low:.2f}, {100 * self.high:.2f}]"
        return number_words(self.value, self.low, self.high)

    @property
    def difference_words(self) -> str:
        """The difference with its interval, of shares in points; equal seeds have none; empty where there is none."""
        if self.difference is None or self.difference_low is None or self.difference_high is None:
            return ""
        found = Difference(self.difference, self.difference_low, self.difference_high, 0, 0, 0)
        words = difference_words(found, share=self.share)
        equal = self.difference_high - self.difference_low <= ROUNDING * abs(self.difference)
        return (
            f"{words.partition(' [')[0]}, all {self.pairs} equal" if equal and self.paired.endswith("seeds") else words
        )


def rows_as_csv(rows: Sequence[Row]) -> str:
    """Write rows as CSV, with a header.

    Example:
        >>> rows_as_csv([Row("a", "kNN", "accuracy", 1, 0.9, 0.8, 0.95, "100 samples", True)]).splitlines()[1]
        'a,kNN,accuracy,1,0.9,0.8,0.95,100 samples,True,,,,,all,,0'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def rows_as_markdown(rows: Sequence[Row], first: str) -> str:
    """Write rows as a Markdown table for each score, the best first.

    Args:
        rows: The rows.
        first: The setting that others are compared with.

    Example:
        >>> print(rows_as_markdown([Row("a", "kNN", "accuracy", 1, 0.9, 0.8, 0.95, "100 samples", True)], "a"))
        **kNN, accuracy**
        <BLANKLINE>
        | setting | runs | score, 95 % interval | over | difference to a | paired over | training |
        |---|---|---|---|---|---|---|
        | a | 1 | 90.00 % [80.00, 95.00] | 100 samples |  |  |  |
        <BLANKLINE>
    """
    lines: list[str] = []
    for name in dict.fromkeys(row.name for row in rows):
        head = ["setting", "runs", "score, 95 % interval", "over", f"difference to {first}", "paired over", "training"]
        lines += [f"**{name}**", "", _line(head), "|" + "---|" * len(head)]
        own = [row for row in rows if row.name == name]
        for row in sorted(own, key=lambda row: row.value if is_error(row.metric) else -row.value):
            took = "" if row.seconds is None else f"{row.seconds:,.0f} s"
            cells = [row.setting, str(row.runs), row.score_words, row.interval, row.difference_words, row.paired, took]
            lines.append(_line(cells))
        lines.append("")
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
