"""The scores of a transfer: each way to use an encoder, by the number of labels, next to the network from scratch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple, final

from likewise.diagnostics import plots
from likewise.report.comparison import FEW_SEEDS, MIN_SEEDS, Row, head_of_cells, mean_of, over_seeds, verdict
from likewise.report.elements import as_csv, paragraphs, sentence, table
from likewise.report.run_view import Content, RunView, Section
from likewise.report.setting import Setting
from likewise.runs.scores import ALL, ENCODER, RAW, Score

FROZEN, TUNED, SCRATCH = "frozen", "fine-tuned", "scratch"
EPISODES = "few-shot"
COLUMNS = (
    *("method", "labels", "labelled", "metric", "runs", "value", "low", "high", "interval"),
    *("difference", "difference_low", "difference_high", "paired"),
)


class Column(NamedTuple):
    """A setting of a transfer: its use of the encoder, such as `FROZEN`, and the number of labels in words."""

    kind: str
    labels: str


class TransferScore(NamedTuple):
    """A score of a method by the number of labels.

    Args:
        row: Its `setting` is the method, its `evaluation` has the number of labels, its difference is to `SCRATCH`.
        labelled: Labelled samples, training and validation; None for few-shot episodes, which have their own.
    """

    row: Row
    labelled: float | None


def transfer_scores(settings: Sequence[Setting], columns: Mapping[str, Column]) -> list[TransferScore]:
    """Return the scores of a transfer, for each number of labels `SCRATCH` first, then the others.

    A score over seeds has Student's interval, and its difference is paired by seed. Where the seed has no effect on
    a score, so all seeds give the same one, it has the interval of a single run. Few-shot scores differ where the
    encoder's mean and standard deviation come from the samples with kept labels. `columns` describes each setting, by
    its name.
    """
    scores: list[TransferScore] = []
    for labels in dict.fromkeys(column.labels for column in columns.values()):
        alike = [setting for setting in settings if columns[setting.name].labels == labels]
        by_usage = {columns[setting.name].kind: setting for setting in alike}
        scratch = {score.key: by_seed for score, by_seed in _scores(by_usage.get(SCRATCH))}
        base = next(iter(scratch.values()), {})
        for usage in (SCRATCH, TUNED, FROZEN):
            for score, by_seed in _scores(by_usage.get(usage)):
                few_shot = score.evaluation == EPISODES
                undrawn = few_shot or (usage == FROZEN and _of_same_samples(by_usage[usage]))
                same = undrawn and len({seed_score.value for seed_score in by_seed.values()}) == 1
                counted = list(by_seed.values())[: 1 if same else None]
                evaluated = score.evaluation + ("" if score.features == ENCODER else f", {RAW}")
                method = evaluated if usage == FROZEN else usage
                row = replace(mean_of(method, counted), evaluation=labels, runs=len(by_seed))
                if few_shot:
                    amount = score.metric.name.removesuffix(" accuracy")
                    scores.append(TransferScore(replace(row, evaluation=amount), None))
                else:
                    paired = _pair_by_seed(row, by_seed, {} if usage == SCRATCH else base)
                    scores.append(TransferScore(paired, _count_labelled(by_usage[usage])))
    return sorted(scores, key=lambda score: score.labelled is None)


def _scores(setting: Setting | None) -> Iterator[tuple[Score, dict[int, Score]]]:
    """Yield each score over all test samples, and its scores with each seed."""
    by_seed = {} if setting is None else setting.by_seed
    keys = dict.fromkeys(
        key
        for view in by_seed.values()
        for key, score in view.test_scores.items()
        if key[2:] in {(ENCODER, ALL), (RAW, ALL)} and score.metric.is_share and score.metric.better == "higher"
    )
    for key in sorted(keys, key=lambda key: key[2] == RAW):
        scores = {seed: view.test_scores[key] for seed, view in by_seed.items() if key in view.test_scores}
        yield next(iter(scores.values())), scores


def _of_same_samples(setting: Setting) -> bool:
    return len({view.metadata["samples"]["fingerprint"] for view in setting.views}) == 1


def _pair_by_seed(row: Row, by_seed: Mapping[int, Score], base: Mapping[int, Score]) -> Row:
    each = [by_seed[seed].value - base[seed].value for seed in by_seed if seed in base]
    if len(each) < MIN_SEEDS:
        return replace(row, unpaired=FEW_SEEDS) if base else row
    return row.compared(*over_seeds(each))


def _count_labelled(setting: Setting) -> float:
    """Count the labelled samples for training and validation in a run of a setting, as a mean over its runs."""
    counts: list[int] = []
    for view in setting.views:
        sizes, split = view.metadata["samples"], view.metadata["parts"]["split"]
        refit = (split.get("init_args") or {}).get("refit")
        counts.append(sizes["train"] + (0 if refit else sizes["validation"]))
    return fmean(counts)


def verdict_on(scores: Sequence[TransferScore]) -> list[str]:
    """Say for each number of labels which methods score higher or lower than from scratch; see `verdict`."""
    rows = [score.row for score in scores if score.labelled is not None]
    return verdict(rows) if any(row.setting == SCRATCH for row in rows) else []


def by_labels(scores: Sequence[TransferScore]) -> list[list[str]]:
    """Return a table in words: a row for each method, a column for each number of labels, or of shots."""
    amounts = list(dict.fromkeys(score.row.evaluation for score in scores))
    cells = {(score.row.setting, score.row.evaluation): score.row for score in scores}
    methods = dict.fromkeys(score.row.setting for score in scores)
    return [["", *amounts], *([method, *(_cell(cells.get((method, each))) for each in amounts)] for method in methods)]


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return row.score_words + ("" if row.runs == 1 or row.interval.what == "seed" else " *")


def scores_as_csv(scores: Sequence[TransferScore]) -> str:
    """Write the scores as CSV, with a header."""
    lines: list[list[Any]] = []
    for score in scores:
        row = score.row
        labelled = "" if score.labelled is None else f"{score.labelled:g}"
        numbers = [row.runs, row.value, row.low, row.high, row.interval]
        apart = [row.difference, row.difference_low, row.difference_high, row.paired_words]
        lines.append([row.setting, row.evaluation, labelled, row.metric, *numbers, *apart])
    return as_csv(COLUMNS, lines)


@final
class TransferSection(Section):
    """The scores of a transfer by the number of labels, as curves and as a table."""

    runs = "any"

    def __init__(self, scores: Sequence[TransferScore]) -> None:
        self._scores = scores

    def content(self, views: Sequence[RunView]) -> Content | None:  # noqa: ARG002 - it has its scores already
        """Return the verdict, the curves and the table, whatever the runs of the page."""
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
