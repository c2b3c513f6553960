"""Formatting: scores, differences, settings and parts of a run in words."""

import math
import re
from collections.abc import Mapping
from typing import Any

from likewise.diagnostics.plots import Dot
from likewise.evaluation import Difference
from likewise.scores import Metric, Score

DIGITS = 4  # of numbers that are no shares


def marked(name: str, metric: Metric) -> str:
    """Return the name of a row of scores, which says so if lower is better."""
    return f"{name} (lower is better)" if metric.better == "lower" else name


def remarks(score: Score) -> str:
    """Write what is to know about a number: settings, what the interval is over, protocol and notes."""
    over = "" if score.classes is None else f"interval over {counted(score.classes, 'class', 'classes')}"
    return "; ".join(filter(None, [settings_words(score.settings), over, settings_words(score.protocol), *score.notes]))


def settings_words(settings: Mapping[str, Any]) -> str:
    """Write settings, such as "k=5, weights=uniform".

    Example:
        >>> settings_words({"penalty": 0.001, "severities": [1, 3]})
        'penalty=0.001, severities=1, 3'
    """
    return ", ".join(f"{name}={_value_words(value)}" for name, value in settings.items())


def _value_words(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value_words, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def number_words(value: float, low: float, high: float, sign: str = "") -> str:
    """Write a number with its interval, all with as many decimals: four digits for the largest; "+" is a sign too.

    Example:
        >>> number_words(1.83, 1.66412, 2.0), number_words(0.0, 0.0, 0.0, "+")
        ('1.830 [1.664, 2.000]', '+0.000 [+0.000, +0.000]')
        >>> number_words(12345.6, 2.0, float("inf")), number_words(-1e-7, -2e-7, 0.0)
        ('12346 [2, inf]', '-1.000e-07 [-2.000e-07, 0.000e+00]')
    """
    largest = max((abs(of) for of in (value, low, high) if math.isfinite(of)), default=0.0)
    exponent = math.floor(math.log10(largest)) if largest else 0
    form = f"{sign}.{max(0, DIGITS - 1 - exponent)}f" if exponent > -DIGITS else f"{sign}.{DIGITS - 1}e"
    value, low, high = (of + 0.0 for of in (value, low, high))  # adding 0 makes -0 a 0
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def score_words(score: Score) -> str:
    """Write a score with its interval."""
    if score.metric.is_share:
        return f"{100 * score.value:.2f} % [{100 * score.low:.1f}, {100 * score.high:.1f}]"
    return number_words(score.value, score.low, score.high)


def difference_words(difference: Difference, *, share: bool = True) -> str:
    """Write a difference with its interval, of shares in percentage points."""
    if share:  # adding 0 makes -0 a 0
        value, low, high = (round(100 * of, 2) + 0.0 for of in (difference.value, difference.low, difference.high))
        return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"
    return number_words(difference.value, difference.low, difference.high, "+")


def counted(number: int, one: str, several: str = "") -> str:
    """Say how many there are, by what one is called, and several if not with an s.

    Example:
        >>> counted(1, "sample"), counted(1200, "class", "classes")
        ('1 sample', '1,200 classes')
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def dot_of(score: Score, *, missed: bool = False) -> Dot:
    """Return a share as a dot in percent, or what it lacks to 1, such as errors instead of accuracy."""
    words = "; ".join(
        filter(None, [f"{score_words(score)}, 95 % interval, {counted(score.count, score.counted)}", remarks(score)])
    )
    bounds = (1 - score.value, 1 - score.high, 1 - score.low) if missed else (score.value, score.low, score.high)
    value, low, high = (100 * bound for bound in bounds)
    return Dot(value, low, high, words)


def how_many(some: int, count: int) -> str:
    """Say how many of the test samples are shown.

    Example:
        >>> how_many(30, 30), how_many(1000, 2000)
        ('All 30 test samples', '1,000 of 2,000 test samples')
    """
    return f"{some:,} of {count:,} test samples" if some < count else f"All {count:,} test samples"


def part_words(spec: Any) -> str:
    """Write a part with its arguments, those that are None left out.

    Example:
        >>> part_words({"class_path": "likewise.SupConLoss", "init_args": {"temperature": 0.1, "queue": None}})
        'SupConLoss(temperature=0.1)'
    """
    if isinstance(spec, list):
        return ", ".join(part_words(one) for one in spec) or "none"
    if not isinstance(spec, Mapping) or "class_path" not in spec:
        return str(spec)
    given = {name: value for name, value in (spec.get("init_args") or {}).items() if value is not None}
    return f"{short_name(spec)}({', '.join(f'{name}={part_words(value)}' for name, value in given.items())})"


def short_name(spec: Mapping[str, Any]) -> str:
    """Return the name of a part's class."""
    return str(spec["class_path"]).rpartition(".")[2]


def slug(*words: str) -> str:
    """Return words as an element's id."""
    return re.sub(r"\W+", "-", " ".join(words)).strip("-")
