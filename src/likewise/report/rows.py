"""A row of a comparison, and how rows are written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from likewise.diagnostics.plots import Dot
from likewise.evaluation import Difference
from likewise.report.formatting import as_csv, difference_words
from likewise.runs.score_format import format_count, format_number
from likewise.runs.scores import ALL, Group, Metric

ROUNDING = 1e-6  # of a mean: a smaller spread is that of floating-point numbers

COLUMNS = (
    *("setting", "evaluation", "metric", "group", "unit", "better", "runs", "value", "low", "high", "interval"),
    *("difference", "difference_low", "difference_high", "paired", "pairs", "seconds"),
)


@final
@dataclass(frozen=True)
class Over:
    """A count with its unit: of what an interval is over, or of what was paired."""

    count: int
    what: str

    def __str__(self) -> str:
        """In words."""
        return format_count(self.count, self.what)


@final
@dataclass(frozen=True)
class Row:
    """A score of a setting, and its difference to the first setting.

    Args:
        setting: The setting.
        evaluation: See `Score`.
        metric: See `Score`.
        runs: How many runs it is the mean of.
        value: The mean.
        low: Lower end of its 95 % interval.
        high: Upper end.
        interval: What the interval is over: seeds, or samples, queries, episodes or classes of a single run.
        difference: The mean difference to the first setting; None for the first itself, or where nothing can be paired.
        difference_low: Lower end of its 95 % interval.
        difference_high: Upper end.
        paired: What was paired; None where nothing was.
        unpaired: Why nothing was.
        group: See `Score`.
        seconds: Mean training time of a run; None where a run does not say.
    """

    setting: str
    evaluation: str
    metric: Metric
    runs: int
    value: float
    low: float
    high: float
    interval: Over
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    paired: Over | None = None
    unpaired: str = ""
    group: Group = ALL
    seconds: float | None = None

    @property
    def name(self) -> str:
        """Evaluation and metric, and the group if it is not all."""
        return ", ".join([self.evaluation, self.metric.name, *([] if self.group == ALL else [str(self.group)])])

    def compared(self, difference: Difference, paired: Over) -> "Row":
        """Return the row with its difference to the first setting."""
        bounds = {"difference_low": difference.low, "difference_high": difference.high}
        return replace(self, difference=difference.value, **bounds, paired=paired)

    @property
    def pairs(self) -> int:
        """The number of pairs that the difference is the mean of."""
        return 0 if self.paired is None else self.paired.count

    @property
    def paired_words(self) -> str:
        """The count and unit of what was paired, or why nothing was."""
        return f"not paired: {self.unpaired}" if self.unpaired else "" if self.paired is None else str(self.paired)

    @property
    def dot(self) -> Dot:
        """A share as a dot with its interval, in percent."""
        return Dot(100 * self.value, 100 * self.low, 100 * self.high, f"{self.score_words}, over {self.interval}")

    @property
    def cells(self) -> list[str]:
        """The cells of a table after the setting's: runs, score, interval over, difference, paired over."""
        return [str(self.runs), self.score_words, str(self.interval), self.difference_words, self.paired_words]

    @property
    def p_value(self) -> float:
        """The two-sided p-value of no difference that corresponds to the interval under Student's distribution.

        1 where nothing is paired, and where all differences are equal, which says nothing of their spread.
        """
        if self.difference is None or self.difference_low is None or self.difference_high is None or self.pairs < 2:
            return 1.0
        from scipy.special import stdtr, stdtrit  # noqa: PLC0415 - not for pages without differences

        freedom = self.pairs - 1
        error = (self.difference_high - self.difference_low) / 2 / float(stdtrit(freedom, 0.975))
        centre = (self.difference_high + self.difference_low) / 2
        return 1.0 if error <= ROUNDING * abs(centre) else 2 * float(stdtr(freedom, -abs(centre) / error))

    @property
    def score_words(self) -> str:
        """The mean with its interval; equal runs have none."""
        if self.runs > 1 and self.high - self.low <= ROUNDING * abs(self.value):
            mean = f"{100 * self.value:.2f} %" if self.metric.is_share else f"{self.value:.4g}"
            return f"{mean}, all {self.runs} equal"
        if self.metric.is_share:
            return f"{100 * self.value:.2f} % [{100 * self.low:.2f}, {100 * self.high:.2f}]"
        return format_number(self.value, self.low, self.high)

    @property
    def difference_words(self) -> str:
        """The difference with its interval, of shares in points; equal seeds have none; empty where there is none."""
        if self.difference is None or self.difference_low is None or self.difference_high is None:
            return ""
        difference = Difference(self.difference, self.difference_low, self.difference_high, 0, 0, 0)
        text = difference_words(difference, share=self.metric.is_share)
        equal = self.difference_high - self.difference_low <= ROUNDING * abs(self.difference)
        seeds = self.paired is not None and self.paired.what == "seed"
        return f"{text.partition(' [')[0]}, all {self.pairs} equal" if equal and seeds else text


def head_of_cells(first: str, score: str = "score") -> list[str]:
    """Return the column heads for `Row.cells`."""
    return ["runs", score, "interval over", f"difference to {first}", "paired over"]


def rows_as_csv(rows: Sequence[Row]) -> str:
    """Write rows as CSV, with a header.

    Example:
        >>> row = Row("a", "kNN", Metric("accuracy"), 1, 0.9, 0.8, 0.95, Over(100, "sample"))
        >>> rows_as_csv([row]).splitlines()[1]
        'a,kNN,accuracy,all,share,higher,1,0.9,0.8,0.95,100 samples,,,,,0,'
    """
    lines: list[list[Any]] = []
    for row in rows:
        named = [row.setting, row.evaluation, row.metric, row.group, row.metric.unit, row.metric.better]
        numbers = [row.runs, row.value, row.low, row.high, row.interval]
        paired = [row.difference, row.difference_low, row.difference_high, row.paired_words, row.pairs]
        lines.append([*named, *numbers, *paired, row.seconds])
    return as_csv(COLUMNS, lines)


def rows_as_markdown(rows: Sequence[Row], first: str) -> str:
    """Write rows as a Markdown table for each score, the best first; `first` is what others are compared with.

    Example:
        >>> print(rows_as_markdown([Row("a", "kNN", Metric("accuracy"), 1, 0.9, 0.8, 0.95, Over(100, "sample"))], "a"))
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
        score_rows = [row for row in rows if row.name == name]
        for row in sorted(score_rows, key=lambda row: -row.metric.rank(row.value)):
            took = "" if row.seconds is None else f"{row.seconds:,.0f} s"
            lines.append(_line([row.setting, *row.cells, took]))
        lines.append("")
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
