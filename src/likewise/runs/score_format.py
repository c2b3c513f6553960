"""Scores in words, as terminals, notebooks and pages show them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from likewise.runs.scores import Metric, Score

DIGITS = 4  # of numbers that are no shares
MAX_NAME_LETTERS = 40  # letters of a name
PLURALS = {"class": "classes", "query": "queries"}


def marked(name: str, metric: Metric) -> str:
    """Return the name of a row of scores, which says so if lower is better."""
    return f"{name} (lower is better)" if metric.better == "lower" else name


def format_score(score: Score) -> str:
    """Write a score with its interval."""
    if score.metric.is_share:
        return f"{100 * score.value:.2f} % [{100 * score.low:.1f}, {100 * score.high:.1f}]"
    return format_number(score.value, score.low, score.high)


def remarks(score: Score) -> str:
    """Write what to know about a number: settings, what the interval is over, protocol and notes."""
    over = "" if score.classes is None else f"interval over {format_count(*score.over)}"
    sentences = [format_settings(score.settings), over, format_settings(score.protocol), *score.notes]
    return "; ".join(filter(None, sentences))


def format_settings(settings: Mapping[str, Any]) -> str:
    """Write settings, such as "k=5, weights=uniform"."""
    return ", ".join(f"{name}={_value_words(value)}" for name, value in settings.items())


def _value_words(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value_words, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_number(value: float, low: float, high: float, sign: str = "") -> str:
    """Write a number with its interval, all with as many decimals: four digits for the largest; "+" is a sign too.

    Example:
        >>> format_number(1.83, 1.66412, 2.0), format_number(0.0, 0.0, 0.0, "+")
        ('1.830 [1.664, 2.000]', '+0.000 [+0.000, +0.000]')
        >>> format_number(12345.6, 2.0, float("inf")), format_number(-1e-7, -2e-7, 0.0)
        ('12346 [2, inf]', '-1.000e-07 [-2.000e-07, 0.000e+00]')
    """
    largest = max((abs(number) for number in (value, low, high) if math.isfinite(number)), default=0.0)
    exponent = math.floor(math.log10(largest)) if largest else 0
    form = f"{sign}.{max(0, DIGITS - 1 - exponent)}f" if exponent > -DIGITS else f"{sign}.{DIGITS - 1}e"
    value, low, high = (number + 0.0 for number in (value, low, high))  # adding 0 makes -0 a 0
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def one_line(text: str, most: int = MAX_NAME_LETTERS) -> str:
    """Return a text, such as the name of a class, in one line of at most `most` letters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def format_count(number: int, noun: str, several: str = "") -> str:
    """Format a count with its noun, pluralised, as "1,200 classes"."""
    return f"{number:,} {noun if number == 1 else several or PLURALS.get(noun, noun + 's')}"


def aligned(table: Sequence[Sequence[str]], *, right: bool = False) -> list[str]:
    """Write rows of cells as lines of aligned columns: left, or all but the first right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    pads = [(str.rjust if right and column else str.ljust) for column in range(len(widths))]
    padded = ([pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)] for row in table)
    return ["  ".join(cells).rstrip() for cells in padded]
