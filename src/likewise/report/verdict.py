"""The verdict of a comparison: which settings score higher or lower than the first by more than chance."""

from collections.abc import Sequence

from likewise.report.row import Row
from likewise.scores import ALL


def verdict(rows: Sequence[Row]) -> list[str]:
    """Say for the first metric of each evaluation which settings score higher than the first one, lower, or neither.

    A setting scores higher or lower where the 95 % interval of its paired difference leaves out 0.

    Args:
        rows: The rows of a comparison, as `compared` returns them.

    Returns:
        A sentence for each evaluation; none for those without a paired difference.

    Example:
        >>> first = Row("A", "kNN", "accuracy", 5, 0.9, 0.88, 0.92, "5 seeds", True)
        >>> higher = Row("B", "kNN", "accuracy", 5, 0.95, 0.94, 0.96, "5 seeds", True, 0.05, 0.02, 0.08, "5 seeds")
        >>> verdict([first, higher])
        ['kNN, accuracy: higher than A: B (+5.00 [+2.00, +8.00], 5 seeds).']
    """
    metrics: dict[str, str] = {}
    for row in rows:
        metrics.setdefault(row.evaluation, row.metric)
    sentences: list[str] = []
    for evaluation, metric in metrics.items():
        own = [row for row in rows if (row.evaluation, row.metric, row.subset) == (evaluation, metric, ALL)]
        if any(row.difference is not None for row in own):
            sentences.append(f"{own[0].name}: {_judged(own[0].setting, own)}")
    return sentences


def _judged(first: str, rows: Sequence[Row]) -> str:
    groups = {
        f"higher than {first}": [row for row in rows if row.decided > 0],
        f"lower than {first}": [row for row in rows if row.decided < 0],
        f"no difference from {first} larger than chance": [
            row for row in rows if row.difference is not None and not row.decided
        ],
        "not paired": [row for row in rows if row.difference is None and row.setting != first],
    }
    return "; ".join(f"{words}: {', '.join(map(_words, of))}" for words, of in groups.items() if of) + "."


def _words(row: Row) -> str:
    return f"{row.setting} ({row.difference_words}, {row.paired})" if row.difference is not None else row.setting
