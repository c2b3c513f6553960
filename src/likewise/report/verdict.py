"""The verdict of a comparison: which settings score higher or lower than the first by more than chance."""

from collections.abc import Sequence

from likewise.report.formatting import marked
from likewise.report.rows import Over, Row
from likewise.scores import ALL, Metric

FEWEST = 2  # seeds that can be paired at all
LEVEL = 0.05  # the probability, at most, that any of the differences of an evaluation is called one by chance


def verdict(rows: Sequence[Row]) -> list[str]:
    """Say for the first metric of each evaluation which settings score higher than the first one, lower, or neither.

    The paired differences of an evaluation are tested together, by Holm's procedure on the p-values that belong to
    their intervals, so that with probability 0.95 none is called a difference by chance. This asks for more than an
    interval that leaves out 0. Differences that are all equal, as two seeds' may be by chance, have no spread to judge
    by, and are never called one.

    Args:
        rows: The rows of a comparison, as `compared` returns them.

    Returns:
        A sentence for each evaluation; none for those without a paired difference; if none has one, the reason.

    Source:
        S. Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.

    Example:
        >>> seeds, accuracy = Over(5, "seed"), Metric("accuracy")
        >>> first = Row("A", "kNN", accuracy, 5, 0.9, 0.88, 0.92, seeds)
        >>> bounds = {"difference": 0.05, "difference_low": 0.02, "difference_high": 0.08, "paired": seeds}
        >>> higher = Row("B", "kNN", accuracy, 5, 0.95, 0.94, 0.96, seeds, **bounds)
        >>> verdict([first, higher])
        ['kNN, accuracy. Higher than A: B (+5.00 [+2.00, +8.00], 5 seeds).']
    """
    metrics: dict[str, Metric] = {}
    for row in rows:
        metrics.setdefault(row.evaluation, row.metric)
    first = rows[0].setting if rows else ""
    others = [row for row in rows if row.setting != first]
    if others and all(row.difference is None for row in others):
        reasons = ", ".join(dict.fromkeys(row.unpaired for row in others))
        return [f"No verdict, as nothing is paired with {first}: {reasons}."]
    sentences: list[str] = []
    for evaluation, metric in metrics.items():
        own = [row for row in rows if (row.evaluation, row.metric, row.group) == (evaluation, metric, ALL)]
        if any(row.difference is not None for row in own):
            sentences.append(f"{marked(own[0].name, own[0].metric)}. {_judged(own[0].setting, own)}")
    return sentences


def _judged(first: str, rows: Sequence[Row]) -> str:
    tested = [row for row in rows if row.difference is not None]
    found = different(tested)
    equal = [row for row in tested if row.difference and row.difference_low == row.difference_high]
    groups = {
        f"Higher than {first}": [row for row in found if (row.difference or 0) > 0],
        f"Lower than {first}": [row for row in found if (row.difference or 0) < 0],
        f"No difference from {first} larger than chance": [row for row in tested if row not in (*found, *equal)],
        "Not judged, as all differences are equal": equal,
        "Not paired": [row for row in rows if row.difference is None and row.setting != first],
    }
    said = ". ".join(f"{words}: {'; '.join(map(_words, of))}" for words, of in groups.items() if of)
    said += f". Tested together, {len(tested)} differences." if len(tested) > 1 else "."
    few = any(row.paired == Over(FEWEST, "seed") for row in tested)
    return f"{said} {FEWEST} seeds seldom suffice to tell." if few else said


def different(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, to be tested together, whose differences Holm's procedure calls differences, in their order."""
    found: list[Row] = []
    for place, row in enumerate(sorted(rows, key=lambda row: row.p_value)):
        if row.p_value > LEVEL / (len(rows) - place):
            break
        found.append(row)
    return [row for row in rows if row in found]


def _words(row: Row) -> str:
    return f"{row.setting} ({row.difference_words}, {row.paired})" if row.difference is not None else row.setting
