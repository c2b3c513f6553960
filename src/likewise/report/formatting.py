"""Differences, scores and parts of a run as text."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from likewise.diagnostics.plots import Dot
from likewise.evaluation import Difference
from likewise.evaluation.cross_modal import DIRECTIONS
from likewise.instantiate import is_spec
from likewise.runs.score_format import format_count, format_number, format_score, remarks
from likewise.runs.scores import Score

DERIVED_ARGUMENTS = {"input_shape", "feature_dim", "num_samples", "num_classes"}  # they follow from other parts
OMITTED_ARGUMENTS = {  # a brief line leaves them out
    *DERIVED_ARGUMENTS,
    *("gather_distributed", "guide_margin"),
    *("pretrained", "digest", "config", "special", "modules", "checkpoint"),  # of published networks
}


def difference_words(difference: Difference, *, share: bool = True) -> str:
    """Write a difference with its interval, of shares in percentage points."""
    if share:  # adding 0 makes -0 a 0
        value, low, high = (
            round(100 * bound, 2) + 0.0 for bound in (difference.value, difference.low, difference.high)
        )
        return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"
    return format_number(difference.value, difference.low, difference.high, "+")


def dot_of(score: Score, *, missed: bool = False) -> Dot:
    """Return a share as a dot in percent, or what it lacks to 1, such as errors instead of accuracy."""
    text = f"{format_score(score)}, 95 % interval, {format_count(score.count, score.counted)}"
    bounds = (1 - score.value, 1 - score.high, 1 - score.low) if missed else (score.value, score.low, score.high)
    value, low, high = (100 * bound for bound in bounds)
    return Dot(value, low, high, "; ".join(filter(None, [text, remarks(score)])))


def leading(scores: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the first metric of each evaluation, and for pairs the first of each direction."""
    first_metrics: dict[tuple[str, str], tuple[str, str]] = {}
    for evaluation, metric in scores:
        direction = next((name for name in DIRECTIONS if metric.endswith(f", {name}")), "")
        first_metrics.setdefault((evaluation, direction), (evaluation, metric))
    return list(first_metrics.values())


def how_many(some: int, count: int) -> str:
    """Say how many of the test samples are shown."""
    return f"{some:,} of {count:,} test samples" if some < count else f"All {count:,} test samples"


def limit_words(shown: int, count: int, what: str) -> str:
    """Say how many are shown, unless all are."""
    return f" Shown are {shown:,} of {count:,} {what}." if shown < count else ""


def part_words(spec: Any, *, brief: bool = False) -> str:
    """Write a part, several, or a plain value, with arguments but None and configurations of third-party networks.

    `brief` also leaves out what is off, follows from other parts, or belongs to a published network.
    """
    if isinstance(spec, list):
        return ", ".join(part_words(part, brief=brief) for part in spec) or "none"
    if not is_spec(spec):
        return str(spec)
    arguments = {
        name: part_words(value, brief=brief)
        for name, value in (spec.get("init_args") or {}).items()
        if value is not None and (is_spec(value) or not isinstance(value, Mapping))
        if not brief or not (value is False or name in OMITTED_ARGUMENTS)
    }
    shown = f"({', '.join(f'{name}={text}' for name, text in arguments.items())})" if arguments or not brief else ""
    return f"{short_name(spec)}{shown}"


def amounts(counts: Mapping[str, int]) -> str:
    """Write how many there are of each."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def short_name(spec: Mapping[str, Any]) -> str:
    """Return the name of a part's class."""
    return str(spec["class_path"]).rpartition(".")[2]


def as_csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write a table as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def slug(*parts: str) -> str:
    """Join the parts of a name into an element's id."""
    return re.sub(r"\W+", "-", " ".join(parts)).strip("-")
