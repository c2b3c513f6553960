"""The scores of several settings: means over seeds, paired differences to the first with intervals, and a verdict."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from likewise.diagnostics.plots import Dot
from likewise.evaluation import Difference, Features, Group, Metric, Outcomes, Score, paired_difference
from likewise.evaluation.intervals import student
from likewise.report.elements import as_csv, difference_words, leading
from likewise.report.run_view import RunView
from likewise.report.setting import Setting
from likewise.runs.scores import ALL, ENCODER, FREQUENCIES, format_count, format_number, marked

ROUNDING = 1e-6  # of a mean: a smaller spread is a rounding error
COLUMNS = (
    *("setting", "evaluation", "metric", "group", "unit", "better", "runs", "value", "low", "high", "interval"),
    *("difference", "difference_low", "difference_high", "paired", "pairs", "seconds"),
)
OTHER_SAMPLES = "other test samples"
FEW_SEEDS = "fewer than 2 seeds in common"
NOT_IN_FIRST = "the first setting lacks it"
OTHER_DATA = "evaluated on other data"
MIN_SEEDS = 2  # fewest seeds for pairing
BOUNDS = {"share": (0.0, 1.0), "rank": (1.0, math.inf)}  # of a mean, by the metric's unit
SIGNIFICANCE = 0.05  # the highest probability that an evaluation has any significant difference by chance alone


@final
@dataclass(frozen=True)
class Over:
    """A count with its unit, such as seeds or samples, of the values of an interval, or of pairs."""

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
        runs: The number of runs in the mean.
        value: The mean.
        low: Lower end of its 95 % interval.
        high: Upper end.
        interval: The units that the interval is over: seeds, or samples, queries, episodes or classes of a single run.
        difference: The mean difference to the first setting; None for the first itself, or where nothing can be paired.
        difference_low: Lower end of its 95 % interval.
        difference_high: Upper end.
        paired: The number and unit of the pairs; None where nothing was paired.
        unpaired: Why nothing was paired.
        group: See `Score`.
        seconds: Mean training time of a run; None where a run lacks it.
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
        """The number of pairs in the mean difference."""
        return 0 if self.paired is None else self.paired.count

    @property
    def paired_words(self) -> str:
        """The count and unit of the pairs, or why there are none."""
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
    """Write rows as a Markdown table for each score, the best first; `first` is the setting of reference.

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
            lines.append(_line([row.setting, *row.cells, "" if row.seconds is None else f"{row.seconds:,.0f} s"]))
        lines.append("")
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def compared(settings: Sequence[Setting]) -> list[Row]:
    """Compare settings by every score of the encoder over all test samples, and over classes with many or few samples.

    The mean over the seeds of a setting has Student's interval; the score of a single run has its own. Differences to
    the first setting are paired: by seed where two or more seeds are in both, with Student's interval of the
    differences; by test sample where both have a single run. Both need the same test samples.
    """
    views = [view for setting in settings for view in setting.views]
    keys = dict.fromkeys(key for view in views for key in view.headlines)
    return [
        row
        for evaluation, metric in keys
        for group in (ALL, *FREQUENCIES)
        for row in _compare_score(settings, evaluation, metric, group)
    ]


def difference(
    first: Setting, other: Setting, evaluation: str, metric: str, group: Group = ALL
) -> tuple[Difference, Over] | str:
    """Return the difference of a setting's score to the first one's, and the pairs; or why there are none."""
    key = (evaluation, metric, ENCODER, group)
    if len(first.views) == len(other.views) == 1:
        return "single runs" if group in FREQUENCIES else _by_sample(other.views[0], first.views[0], key)
    ours, theirs = other.by_seed, first.by_seed
    seeds = [seed for seed in ours if seed in theirs]
    seeds = [seed for seed in seeds if key in ours[seed].test_scores and key in theirs[seed].test_scores]
    if len(seeds) < MIN_SEEDS:
        return FEW_SEEDS
    if not all(same_test(ours[seed], theirs[seed]) for seed in seeds):
        return OTHER_SAMPLES
    if not all(_same_protocol(ours[seed], theirs[seed], key) for seed in seeds):
        return OTHER_DATA
    return over_seeds([ours[seed].test_scores[key].value - theirs[seed].test_scores[key].value for seed in seeds])


def over_seeds(each: Sequence[float]) -> tuple[Difference, Over]:
    """Return the mean of the seeds' differences, and how many there are."""
    low, high = student(each)
    gained, lost = sum(gain > 0 for gain in each), sum(gain < 0 for gain in each)
    return Difference(sum(each) / len(each), low, high, len(each), gained, lost), Over(len(each), "seed")


def same_test(first: RunView, second: RunView) -> bool:
    """Tell whether two runs were tested on the same samples, for pairs on both sides."""
    return first.test_part is not None and same_samples(first.test_part, second.test_part)


def same_samples(ours: Features | None, theirs: Features | None) -> bool:
    """Tell whether features are of the same samples with the same labels, for pairs on both sides."""
    if ours is None or theirs is None:
        return ours is theirs
    if ours.labels is None or theirs.labels is None:
        labelled = ours.labels is theirs.labels
    else:
        labelled = torch.equal(ours.labels, theirs.labels)
    alike = labelled and ours.names == theirs.names and torch.equal(ours.numbers, theirs.numbers)
    return alike and ours.ids.agree(theirs.ids) and same_samples(ours.counterparts, theirs.counterparts)


def _compare_score(settings: Sequence[Setting], evaluation: str, metric: str, group: Group) -> Iterator[Row]:
    key = (evaluation, metric, ENCODER, group)
    first = settings[0]
    lacking = all(key not in view.test_scores for view in first.views)
    for setting in settings:
        scores = [view.test_scores[key] for view in setting.views if key in view.test_scores]
        if not scores:
            continue
        seconds = [view.metadata.get("seconds", {}).get("training") for view in setting.views]
        mean_seconds = None if None in seconds else sum(map(float, seconds)) / len(seconds)
        row = replace(mean_of(setting.name, scores), seconds=mean_seconds)
        if setting is first:
            yield row
            continue
        outcome = NOT_IN_FIRST if lacking else difference(first, setting, evaluation, metric, group)
        yield replace(row, unpaired=outcome) if isinstance(outcome, str) else row.compared(*outcome)


def mean_of(setting: str, scores: Sequence[Score]) -> Row:
    """Return the mean of the scores of a setting's runs."""
    first = scores[0]
    mean, low, high = first.value, first.low, first.high
    over = Over(*first.over)
    if len(scores) > 1:
        values = [score.value for score in scores]
        mean, over, (low, high) = sum(values) / len(values), Over(len(values), "seed"), student(values)
        least, most = BOUNDS.get(first.metric.unit, (-math.inf, math.inf))
        low, high = max(least, low), min(most, high)
    return Row(setting, first.evaluation, first.metric, len(scores), mean, low, high, over, group=first.group)


def _same_protocol(first: RunView, second: RunView, key: tuple[str, str, str, Group]) -> bool:
    """Tell whether a score of two runs was measured in the same way, such as on the same corruptions."""
    ours, theirs = first.test_scores.get(key), second.test_scores.get(key)
    return ours is None or theirs is None or ours.protocol == theirs.protocol


def _by_sample(ours: RunView, theirs: RunView, key: tuple[str, str, str, Group]) -> tuple[Difference, Over] | str:
    if not same_test(ours, theirs):
        return OTHER_SAMPLES
    if not _same_protocol(ours, theirs, key):
        return OTHER_DATA
    outcomes = [_of_subset(view, view.outcomes.get((*key[:3], "test")), key[3]) for view in (ours, theirs)]
    if outcomes[0] is None or outcomes[1] is None:
        return "no outcomes by sample"
    paired = paired_difference(outcomes[0], outcomes[1], ours.unseen_classes(outcomes[0]))
    score = ours.test_scores[key]
    return paired, Over(*replace(score, count=paired.count, classes=paired.classes).over)


def _of_subset(view: RunView, outcomes: Outcomes | None, group: Group) -> Outcomes | None:
    test = view.test_part
    if outcomes is None or group == ALL:
        return outcomes
    if test is None or test.labels is None:
        return None
    label = test.names.index(group.name)
    chosen = torch.isin(outcomes.rows, test.numbers[test.labels == label])
    return replace(outcomes, rows=outcomes.rows[chosen], values=outcomes.values[chosen]) if bool(chosen.any()) else None


def verdict(rows: Sequence[Row]) -> list[str]:
    """Say for the first metric of each evaluation which settings score higher or lower than the first, then where none.

    For pairs, the first metric of each direction is used. The paired differences of an evaluation are tested together,
    by Holm's procedure on the p-values of their intervals: with probability 0.95, no difference is reported by chance.
    This is stricter than an interval without 0. Equal differences, as from two seeds by chance, have no spread to judge
    by, and are never reported. Without any paired difference, the reason is given.

    Source:
        S. Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.

    Example:
        >>> from likewise.runs.scores import Metric
        >>> seeds, accuracy = Over(5, "seed"), Metric("accuracy")
        >>> first = Row("A", "kNN", accuracy, 5, 0.9, 0.88, 0.92, seeds)
        >>> bounds = {"difference": 0.05, "difference_low": 0.02, "difference_high": 0.08, "paired": seeds}
        >>> higher = Row("B", "kNN", accuracy, 5, 0.95, 0.94, 0.96, seeds, **bounds)
        >>> verdict([first, higher])
        ['kNN, accuracy. Higher than A: B (+5.00 [+2.00, +8.00], 5 seeds).']
    """
    first_metrics = leading((row.evaluation, row.metric.name) for row in rows)
    first = rows[0].setting if rows else ""
    other_rows = [row for row in rows if row.setting != first]
    if other_rows and all(row.difference is None for row in other_rows):
        reasons = ", ".join(dict.fromkeys(row.unpaired for row in other_rows))
        return [f"No verdict, as nothing is paired with {first}: {reasons}."]
    judged = [row for row in rows if (row.evaluation, row.metric.name) in first_metrics and row.group == ALL]
    sentences, without = list[str](), list[Row]()
    for key in first_metrics:
        together = [row for row in judged if row.evaluation == key[0] and row.difference is not None]
        metric_rows = [row for row in judged if (row.evaluation, row.metric.name) == key]
        tested = [row for row in metric_rows if row.difference is not None]
        equal = [row for row in tested if row.difference and row.difference_low == row.difference_high]
        differing = [row for row in different(together) if row in metric_rows]
        if differing or equal:
            judgement = _judge(metric_rows, tested, differing, equal, len(together))
            sentences.append(f"{marked(metric_rows[0].name, metric_rows[0].metric)}. {judgement}")
        else:
            without += tested
    if without:
        names = "; ".join(dict.fromkeys(row.name for row in without))
        sentences.append(f"No difference from {first} larger than chance in {names}.{_few(without)}")
    return sentences


def _judge(
    rows: Sequence[Row], tested: Sequence[Row], differing: Sequence[Row], equal: Sequence[Row], together: int
) -> str:
    first = rows[0].setting
    groups = {
        f"Higher than {first}": [row for row in differing if (row.difference or 0) > 0],
        f"Lower than {first}": [row for row in differing if (row.difference or 0) < 0],
        f"No difference from {first} larger than chance": [row for row in tested if row not in (*differing, *equal)],
        "Not judged, as all differences are equal": equal,
        "Not paired": [row for row in rows if row.difference is None and row.setting != first],
    }
    said = [f"{title}: {'; '.join(map(_describe_row, members))}." for title, members in groups.items() if members]
    said += [f"Tested together, {together} differences."] if together > 1 else []
    return " ".join(said) + _few(tested)


def _few(tested: Sequence[Row]) -> str:
    return f" {MIN_SEEDS} seeds seldom suffice to tell." * any(row.paired == Over(MIN_SEEDS, "seed") for row in tested)


def different(rows: Sequence[Row]) -> list[Row]:
    """Test rows together, and return those whose differences are significant by Holm's procedure, in their order."""
    significant: list[Row] = []
    for rank, row in enumerate(sorted(rows, key=lambda row: row.p_value)):
        if row.p_value > SIGNIFICANCE / (len(rows) - rank):
            break
        significant.append(row)
    return [row for row in rows if row in significant]


def _describe_row(row: Row) -> str:
    return f"{row.setting} ({row.difference_words}, {row.paired})" if row.difference is not None else row.setting
